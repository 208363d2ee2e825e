"""Prometheus text → counters."""

from __future__ import annotations

import pytest
from stub import StubServer

from prefixscope import preflight
from prefixscope.client import Client
from prefixscope.errors import Rejected, TargetError
from prefixscope.metrics import Counters, cache_config, counters, engines, samples

PAGE = """\
# HELP vllm:prefix_cache_queries_total Prefix cache queries, in terms of number of queried tokens.
# TYPE vllm:prefix_cache_queries_total counter
vllm:prefix_cache_queries_total{engine="0",model_name="a b",} 6446.0
vllm:prefix_cache_queries_created{engine="0"} 1.7e+09
vllm:prefix_cache_hits_total{engine="0"} 6.336e+03
vllm:cache_config_info{block_size="16",engine="0",enable_prefix_caching="True",path="C:\\\\x\\"y}"} 1.0
"""


def test_counters_are_read_under_the_newest_name() -> None:
    """Queries and hits are whole tokens; a counter that is not there is None."""
    assert counters(PAGE) == Counters(6446, 6336, None)


@pytest.mark.parametrize("name", ["vllm:prefix_cache_{}", "vllm:gpu_prefix_cache_{}_total"])
def test_older_names_are_known(name: str) -> None:
    """Older releases' names of the same counters are read too."""
    page = "".join(f"{name.format(key)} {value}\n" for key, value in (("queries", 10), ("hits", 4)))
    assert counters(page) == Counters(10, 4, None)


def test_engines_are_summed() -> None:
    """A server of several engines counts them together."""
    page = 'vllm:prefix_cache_hits_total{engine="0"} 3\nvllm:prefix_cache_hits_total{engine="1"} 4\n'
    assert counters(page).hits == 7


def test_no_page_gives_no_counters() -> None:
    """Without a page, or on a foreign one, every counter is None and the configuration is empty."""
    for page in (None, "", "# nothing here\n", "go_goroutines 7\n"):
        assert counters(page) == Counters(None, None, None)
        assert cache_config(page) == {}
        assert engines(page) == 0


def test_a_value_that_is_no_number_does_no_harm() -> None:
    """NaN is a legal Prometheus value; a counter that shows it is unknown."""
    assert counters("vllm:prefix_cache_hits_total NaN\n").hits is None
    assert counters("vllm:prefix_cache_hits_total +Inf\n").hits is None


def test_differences_are_null_where_a_side_is_unknown_or_the_server_restarted() -> None:
    """A counter that went backwards, or is missing on one side, has no difference."""
    before, after = Counters(100, 50, None), Counters(180, 20, 3)
    assert after.since(before) == Counters(80, None, None)


def test_labels_are_parsed_with_their_escapes() -> None:
    """Quotes and braces inside a label value do not end it."""
    config = cache_config(PAGE)
    assert config["block_size"] == "16"
    assert config["path"].endswith("y}")


def test_a_name_is_matched_whole() -> None:
    """A metric whose name begins with another's is not taken for it."""
    assert [value for _, value in samples(PAGE, "vllm:prefix_cache_queries_total")] == [6446.0]


# --- preflight, which rests on them --------------------------------------------------------------------------------


def codes(stub: StubServer) -> list[str]:
    return [finding.code for finding in preflight.findings(preflight.look(Client(stub.url)))]


def test_facts_name_their_source(stub: StubServer) -> None:
    """Version, names, context and cache settings each come with where they were read."""
    found = {fact.name: fact for fact in preflight.facts(preflight.look(Client(stub.url)))}
    assert found["vllm version"].value == "0.29.0"
    assert found["served models"].value == "tiny, tiny-lora"
    assert found["LoRA names"].value == "tiny-lora"
    assert found["context, tokens"].value == 16_384
    assert found["prefix caching"].source == "/metrics vllm:cache_config_info"


def test_a_healthy_server_has_no_findings(stub: StubServer) -> None:
    """Nothing is found where nothing is wrong."""
    assert codes(stub) == []


def test_prefix_caching_off_is_found(stub: StubServer) -> None:
    """A server without prefix caching is named before anything is measured, with the flag."""
    stub.prefix_caching = False
    assert codes(stub) == ["prefix-caching-off"]
    assert "--enable-prefix-caching" in preflight.findings(preflight.look(Client(stub.url)))[0].remedy


def test_two_engines_are_found(stub: StubServer) -> None:
    """Two engines behind one address have two caches; that is said."""
    stub.engines = 2
    assert codes(stub) == ["several-engines"]


def test_no_metrics_are_found(stub: StubServer) -> None:
    """A server without /metrics is measured all the same, and it is said what can't be checked."""
    stub.has_metrics = False
    assert codes(stub) == ["no-metrics"]


def test_a_wrong_model_lists_the_served_ones(stub: StubServer) -> None:
    """A model that is not served is refused with the names that are."""
    with pytest.raises(Rejected, match="'tinny'") as caught:
        preflight.choose_model(Client(stub.url), "tinny")
    assert "tiny, tiny-lora" in caught.value.remedy


def test_the_base_model_and_its_adapter_are_chosen(stub: StubServer) -> None:
    """Without a wish the base model is asked, and the first adapter beside it."""
    client = Client(stub.url)
    assert preflight.choose_model(client) == ("tiny", "tiny-lora")
    assert preflight.choose_model(client, "tiny-lora") == ("tiny-lora", None)
    stub.lora = None
    assert preflight.choose_model(client) == ("tiny", None)


def test_no_model_at_all_is_an_error(stub: StubServer) -> None:
    """A server that serves nothing can't be investigated."""
    from stub import MODELS, Reply

    stub.always(MODELS, Reply(200, {"data": []}))
    with pytest.raises(TargetError, match="serves no model"):
        preflight.choose_model(Client(stub.url))
