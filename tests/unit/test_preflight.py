"""What a server says of itself, and what is known to be wrong with it."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from stub import Reply, StubServer

from prefixscope import command, preflight
from prefixscope.client import Client, ServedModel
from prefixscope.preflight import Finding, Seen, Situation, matching, table
from prefixscope.preflight import fact as f

DRAFTING = """\
vllm:spec_decode_num_drafts_total{engine="0"} 1000.0
vllm:spec_decode_num_draft_tokens_total{engine="0"} 3000.0
vllm:spec_decode_num_accepted_tokens_total{engine="0"} 1100.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 800.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="1"} 290.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="2"} 10.0
"""
QUERIES = "# x\nvllm:prefix_cache_queries_total 9\nvllm:prefix_cache_hits_total 0\n"


def seen(**known: Any) -> Seen:
    options = {"url": "http://h", "version": "0.29.0", "engine": "vLLM", "page": QUERIES, **known}
    return Seen(models=(ServedModel(options.pop("model", "m")),), **options)


def facts(**known: Any) -> dict[str, tuple[Any, str]]:
    return {fact.name: (fact.value, fact.source) for fact in preflight.facts(seen(**known))}


def found(**known: Any) -> dict[str, Finding]:
    return {finding.code: finding for finding in preflight.findings(seen(**known))}


# --- facts ---------------------------------------------------------------------------------------------------------


def test_unknown_stays_unknown() -> None:
    """What no endpoint tells is null, with no source, and never a default."""
    told = facts(page=None)
    for name in ("retention interval reported", "speculative decoding", "pool, tokens", "draft tokens a step"):
        assert told[name] == (None, "not reported")


@pytest.mark.parametrize(
    ("known", "value", "source"),
    [
        ({"config": {"prefix_cache_retention_interval": "0"}}, "0", "/metrics vllm:cache_config_info"),
        ({"config": {"prefix_cache_retention_interval": "None"}}, "dense", "/metrics vllm:cache_config_info"),
        ({"info": {"cache_config": {"prefix_cache_retention_interval": None}}}, "dense", "/server_info"),
        ({"info": {"cache_config": {"prefix_cache_retention_interval": 512}}}, "512", "/server_info"),
        ({"header": {"interval": "dense"}}, "dense", "trace header"),
        ({"flags": {"--prefix-cache-retention-interval": "1024"}}, "1024", "the serve command"),
        ({}, None, "not reported"),
    ],
)
def test_the_interval_is_read_where_it_is_resolved(known: dict[str, Any], value: str | None, source: str) -> None:
    """The engine's own label wins, then what development servers, traces and the command say."""
    assert facts(**known)["retention interval reported"] == (value, source)


def test_the_drafter_is_known_by_its_counters() -> None:
    """Counters of speculative decoding exist only with a drafter; their positions are as many as it drafts."""
    assert facts(page=QUERIES + DRAFTING)["draft tokens a step"] == (3, "/metrics vllm:spec_decode_*")
    assert facts(page=QUERIES + DRAFTING)["speculative decoding"][0] == "on"
    assert facts(page=QUERIES)["speculative decoding"][0] == "off"
    assert facts(page="# no counters at all\n")["speculative decoding"][0] is None
    info = {"speculative_config": {"method": "mtp", "num_speculative_tokens": 7}}
    assert facts(info=info)["speculative decoding"] == ("mtp", "/server_info")


def test_acceptance_is_a_length_first_and_a_share_second() -> None:
    """1,100 accepted in 1,000 drafts is a mean length of 2.10, and 37 % of what was drafted; k stands beside it."""
    told = facts(page=QUERIES + DRAFTING)
    assert told["mean acceptance length"][0] == "2.10 (37% of the tokens drafted since the server's start)"
    assert "mean acceptance length" not in facts(page=QUERIES + "vllm:spec_decode_num_drafts_total 0\n")


@pytest.mark.parametrize("name", ["vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"])
def test_the_counters_name_is_a_fact(name: str) -> None:
    """Releases renamed the counters; which name was read is said."""
    assert facts(page=f"# x\n{name} 5\n")["counters of the prefix cache"] == (name, "/metrics")


@pytest.mark.parametrize(
    ("owner", "engine"), [("vllm", "vLLM"), ("sglang", "SGLang"), ("tensorrt_llm", "TensorRT-LLM"), ("acme", None)]
)
def test_the_engine_is_named_by_the_list_of_models(stub: StubServer, owner: str, engine: str | None) -> None:
    """TensorRT-LLM has a /version too: whose release it is follows from who owns the model."""
    stub.owned_by, stub.has_metrics = owner, False
    told = {fact.name: fact.value for fact in preflight.facts(preflight.look(Client(stub.url)))}
    assert told["engine"] == engine
    assert told["vllm version" if engine in ("vLLM", None) else "server version"] == "0.29.0"


def test_a_development_server_tells_more(stub: StubServer) -> None:
    """Where /server_info is open its configuration is read: method, k, batch."""
    config = {
        "speculative_config": {"method": "mtp", "num_speculative_tokens": 7},
        "scheduler_config": {"max_num_batched_tokens": 2048},
    }
    stub.always("/server_info?config_format=json", Reply(body={"vllm_config": config}))
    told = {fact.name: (fact.value, fact.source) for fact in preflight.facts(preflight.look(Client(stub.url)))}
    assert told["speculative decoding"] == ("mtp", "/server_info")
    assert told["batched tokens a step, at most"] == (2048, "/server_info")


def test_a_commands_variables_and_flags_are_read() -> None:
    """Variables in front of the command and of docker's -e, and the value that wins of each flag."""
    run = "A=1 docker run -e B=2 --env C=3 --name x image serve M"
    variables, flags = command.given(f"{run} --max-num-batched-tokens 512 --max-num-batched-tokens=4096")
    assert variables == {"A": "1", "B": "2", "C": "3"}
    assert flags["--max-num-batched-tokens"] == "4096"


@pytest.mark.parametrize(
    ("flags", "value"),
    [({}, None), ({"--port": "1"}, False), ({"--enable-prompt-tokens-details": ""}, True)],
)
def test_the_details_flag_is_read_off_the_command(flags: dict[str, str], value: bool | None) -> None:
    """Whether usage will show cached tokens is known from the command; without one it is unknown, not off."""
    assert facts(flags=flags)["cached tokens in usage"][0] is value


def test_the_details_flag_is_read_off_the_answers_too() -> None:
    """What the answers of a check report tells the flag of a server whose command nobody shows."""
    known = preflight.facts(seen())
    for cached, value in (([], None), ([None, None], False), ([None, 0], True)):
        told = {fact.name: (fact.value, fact.source) for fact in f.with_answers(known, cached)}
        assert told["cached tokens in usage"] == (value, "the answers" if cached else "not reported")


# --- findings ------------------------------------------------------------------------------------------------------


def test_an_interval_off_the_block_is_found() -> None:
    """The legal intervals on both sides are named."""
    finding = found(config={"prefix_cache_retention_interval": "1000", "block_size": "64"})["interval-not-a-multiple"]
    assert finding.remedy == "use 960 or 1,024"
    assert "interval-not-a-multiple" not in found(
        config={"prefix_cache_retention_interval": "1024", "block_size": "64"}
    )


def test_the_traced_block_decides_where_it_is_known() -> None:
    """A multiple of the reported block may be none of the scheduler block, which only a trace shows."""
    config = {"prefix_cache_retention_interval": "1040", "block_size": "16"}
    assert "interval-not-a-multiple" not in found(config=config)
    assert "interval-not-a-multiple" in found(config=config, header={"scheduler_block": 64})


def test_an_interval_that_does_nothing_is_found() -> None:
    """Full attention keeps every block: the flag has nothing to thin out."""
    config = {"prefix_cache_retention_interval": "1024", "block_size": "64"}
    full, mixed = [{"kind": "full"}], [{"kind": "full"}, {"kind": "sliding"}]
    assert "interval-does-nothing" in found(config=config, header={"groups": full})
    assert "interval-does-nothing" not in found(config=config, header={"groups": mixed})
    assert "interval-does-nothing" not in found(config=config)


@pytest.mark.parametrize(("version", "code"), [("0.29.0", None), ("0.30.0", "known-fault-variable-not-read")])
def test_a_variable_that_is_not_read_is_found(version: str, code: str | None) -> None:
    """From 0.30.0 the variable is gone; the flag is named."""
    codes = found(version=version, environment={preflight.VARIABLE: "1024"})
    assert [name for name in codes if name.startswith("known-fault")] == ([code] if code else [])


@pytest.mark.parametrize(
    ("known", "code"),
    [
        ({"model": "google/gemma-4-31b-it", "flags": {"--max-num-batched-tokens": "2048"}}, "gemma-4-batch"),
        ({"config": {"mamba_block_size": "2096"}, "flags": {"--max-num-batched-tokens": "2048"}}, "block-above-batch"),
    ],
)
def test_known_faults_of_the_launch_are_found(known: dict[str, Any], code: str) -> None:
    """A batch too small for one image, or for one Mamba block, is found; a larger one is not."""
    assert f"known-fault-{code}" in found(**known)
    assert f"known-fault-{code}" not in found(**{**known, "flags": {"--max-num-batched-tokens": "4096"}})
    assert f"known-fault-{code}" not in found(**{**known, "flags": {}})


def test_a_batch_below_one_draft_is_found() -> None:
    """A step that holds no whole draft of one sequence can't verify it."""
    info = {
        "speculative_config": {"method": "mtp", "num_speculative_tokens": 7},
        "scheduler_config": {"max_num_batched_tokens": 8},
    }
    assert "batch-below-draft" in found(info=info)


def test_a_block_larger_than_the_prompts_is_found() -> None:
    """The mean prompt that the server has seen is shorter than one block."""
    page = QUERIES + "vllm:request_prompt_tokens_sum 5000\nvllm:request_prompt_tokens_count 10\n"
    assert "500 tokens" in found(page=page, config={"block_size": "1600"})["block-above-prompts"].detail
    assert "block-above-prompts" not in found(page=page, config={"block_size": "16"})


def test_drafts_that_nobody_accepts_are_found() -> None:
    """Of three positions the last is accepted in 1 % of the steps: draft two."""
    finding = found(page=QUERIES + DRAFTING)["drafts-too-far"]
    assert "num_speculative_tokens 2" in finding.remedy
    assert "1%" in finding.detail
    few = DRAFTING.replace("1000.0", "10.0")
    assert "drafts-too-far" not in found(page=QUERIES + few)


def test_a_page_without_counters_names_the_flag() -> None:
    """A /metrics page without the prefix cache's families is told with the flag that hides them."""
    assert "--disable-log-stats" in found(page="# x\nvllm:num_requests_running 0\n")["no-counters"].remedy
    assert "no-counters" not in found(page=QUERIES)


# --- the table of known faults -------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", table(), ids=lambda fault: fault.id)
def test_each_row_cites_and_is_dated(fault: Any) -> None:
    """Every row has a reference, a day, a remedy, and conditions that the code knows."""
    assert fault.refs
    assert all(re.fullmatch(r"[\w.-]+#\d+", ref) for ref in fault.refs)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", fault.checked)
    assert fault.remedy
    for name in fault.condition:
        preflight.matching(Situation(engine=fault.engine, version=fault.since or "1.0"), fault.explains)
        assert name in ("model", "batch_below", "block_above_batch") or hasattr(Situation(), name)


@pytest.mark.parametrize(
    ("known", "ids"),
    [
        ({"version": "0.29.0"}, ["second-send-misses"]),
        ({"version": "0.29.0.post1"}, ["second-send-misses"]),
        ({"version": "0.30.0"}, []),
        ({"version": "0.29.0", "interval": "1024"}, []),
        ({"version": "0.29.0", "speculation": False}, []),
        ({"version": "0.28.0", "variable": True}, ["second-send-misses-by-variable"]),
        ({"version": "0.28.0", "variable": False}, []),
        ({"version": None}, []),
        ({"version": "0.29.0", "engine": "SGLang"}, []),
    ],
)
def test_a_fault_matches_release_and_conditions(known: dict[str, Any], ids: list[str]) -> None:
    """A row holds for its releases, where every condition that is known holds."""
    at = Situation(**{"engine": "vLLM", "speculation": True, "interval": "0", "sparse_groups": True, **known})
    assert [fault.id for fault in matching(at, "second send misses")] == ids


@pytest.mark.parametrize("known", [{"sparse_groups": None}, {"interval": None}, {"version": "0.29.0rc7.dev1"}])
def test_an_unknown_condition_makes_it_a_maybe(known: dict[str, Any]) -> None:
    """What is not known, or a build between releases, leaves the fault possible, and the sentence says so."""
    base = {"engine": "vLLM", "version": "0.29.0", "speculation": True, "interval": "0", "sparse_groups": True}
    (fault,) = matching(Situation(**{**base, **known}), "second send misses")
    assert not fault.certain
    assert fault.sentence.startswith("may apply: ")


def test_facts_are_json(stub: StubServer) -> None:
    """Facts survive a trip through JSON with their sources."""
    told = preflight.to_json(preflight.facts(preflight.look(Client(stub.url))))
    assert json.loads(json.dumps(told)) == told
