"""``check``: what it reads in usage, wherever a server puts it, and what it does not believe."""

from __future__ import annotations

import json
from typing import Any

import pytest
from checked import asked, run, usage_of
from stub import BLOCK, StubServer

from prefixscope import cli

# --- null is not zero ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "usage",
    [None, "none", [], {}, {"prompt_tokens": 9}, {"prompt_tokens_details": None}, {"prompt_tokens_details": "x"},
     {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": None}}, {"cached_tokens": "many"}],
)  # fmt: skip
def test_missing_null_and_malformed_are_not_reported(stub: StubServer, usage: Any) -> None:
    """A missing usage, a missing key, null and words are alike: not reported, never 0."""
    usage_of(stub, lambda own, number: usage)
    found = asked(stub)
    assert found.code == "not reported"
    counted = isinstance(usage, dict) and "prompt_tokens" in usage
    assert ("--enable-prompt-tokens-details" in found.remedy) == counted
    assert ("own address" in found.remedy) == (not counted)


@pytest.mark.parametrize("owner", ["vllm", "sglang"])
def test_a_usage_that_is_missing_whole_is_no_flags_doing(
    stub: StubServer, capsys: pytest.CaptureFixture[str], owner: str
) -> None:
    """No engine's flag leaves out a whole usage: none is advised, no further send is tried, and what is estimated or
    can't be told is marked so."""
    stub.owned_by = owner
    usage_of(stub, lambda own, number: None)
    assert run(stub) == 3
    shown = capsys.readouterr().out
    assert "reports neither prompt tokens nor cached tokens" in shown
    assert "--enable" not in shown
    assert "sent: 2 requests, about 2,400 prompt tokens" in shown
    assert "whether all of them were ours can't be told" in shown
    assert "other requests ran too" not in shown
    run(stub, "--json")
    answer = json.loads(capsys.readouterr().out)
    assert answer["tokens_estimated"] is True
    assert answer["counters"]["alone"] is None


def test_a_length_that_is_counted_is_not_marked(stub: StubServer, capsys: pytest.CaptureFixture[str]) -> None:
    """Where usage counts the prompts, the sum is no estimate."""
    stub.reports_cached = False
    run(stub)
    assert "about" not in capsys.readouterr().out
    run(stub, "--json")
    assert json.loads(capsys.readouterr().out)["tokens_estimated"] is False


def test_counters_stand_in_with_words_of_their_own(stub: StubServer) -> None:
    """Where usage says nothing and nothing else moved the counters, they are told as evidence; the verdict stays."""
    stub.reports_cached = False
    found = asked(stub)
    second = found.evidence.sends[1]
    assert found.code == "not reported"
    hits = (second.prompt_tokens or 0) // BLOCK * BLOCK
    assert f"By its counters, which nothing else moved meanwhile, the second send took {hits:,}" in found.sentence
    assert found.to_json()["counters"] == {"queries": second.prompt_tokens, "hits": hits, "alone": True}


def test_counters_that_others_moved_are_no_evidence(stub: StubServer) -> None:
    """With other traffic the counters say nothing about our send, and that is said."""
    stub.reports_cached, stub.others_tokens = False, 500
    found = asked(stub)
    assert "other requests ran too" in found.sentence
    assert found.to_json()["counters"]["alone"] is False


def test_a_release_that_drops_zero_is_known(stub: StubServer) -> None:
    """vLLM before 0.24.0 leaves the field out for 0: null, null, and a number on the third send mean a miss."""
    stub.version, stub.sends = "0.22.1", 2
    usage_of(
        stub,
        lambda own, n: own if own["prompt_tokens_details"]["cached_tokens"] else {**own, "prompt_tokens_details": None},
    )
    found = asked(stub)
    assert found.code == "none"
    assert "the third send reuses" in found.sentence


def test_a_null_first_send_and_a_hit_are_a_hit(stub: StubServer) -> None:
    """Such a release reports a hit all the same: null, then a number, is reuse."""
    stub.version = "0.22.1"
    usage_of(
        stub,
        lambda own, n: own if own["prompt_tokens_details"]["cached_tokens"] else {**own, "prompt_tokens_details": None},
    )
    assert asked(stub).code == "reuses"


def test_some_answers_with_and_some_without_are_inconclusive(stub: StubServer) -> None:
    """A server behind the address that reports and one that does not can't be judged together."""
    usage_of(stub, lambda own, number: own if number == 1 else {"prompt_tokens": own["prompt_tokens"]})
    found = asked(stub)
    assert (found.code, found.cause) == ("inconclusive", "mixed-reporting")


# --- other servers' shapes -----------------------------------------------------------------------------------------


def shaped(own: dict[str, Any], shape: str) -> dict[str, Any]:
    """The stub's usage as another server writes it."""
    total, cached = own["prompt_tokens"], own["prompt_tokens_details"]["cached_tokens"]
    return {
        "extra fields": {
            **own,
            "prompt_tokens_details": {"cached_tokens": cached, "created_cache_tokens": 0, "x": None},
        },
        "strings": {"prompt_tokens": str(total), "prompt_tokens_details": {"cached_tokens": str(cached)}},
        "messages": {
            "input_tokens": total - cached,
            "cache_read_input_tokens": cached,
            "cache_creation_input_tokens": 0,
        },
        "responses": {"input_tokens": total, "input_tokens_details": {"cached_tokens": cached}},
        "hit and miss": {"prompt_tokens": total, "prompt_cache_hit_tokens": cached},
        "top level": {"prompt_tokens": total, "cached_tokens": cached},
    }[shape]


@pytest.mark.parametrize(
    ("shape", "owner"),
    [("extra fields", "vllm"), ("strings", None), ("messages", "vllm"), ("responses", None), ("hit and miss", None),
     ("top level", None), ("extra fields", "sglang"), ("extra fields", "tensorrt_llm")],
)  # fmt: skip
def test_cached_tokens_are_found_wherever_a_server_counts_them(stub: StubServer, shape: str, owner: str | None) -> None:
    """Extra fields, numbers as strings, and the Messages and Responses names all give the same verdict and numbers."""
    stub.owned_by = owner
    usage_of(stub, lambda own, number: shaped(own, shape))
    found = asked(stub)
    second = found.evidence.sends[1]
    assert found.code == "reuses"
    assert second.cached_tokens == (second.prompt_tokens or 0) // BLOCK * BLOCK


def test_the_engine_is_named_by_its_own_words(stub: StubServer) -> None:
    """SGLang that reports nothing is told SGLang's flag, not vLLM's."""
    stub.owned_by, stub.reports_cached = "sglang", False
    found = asked(stub)
    assert "SGLang" in found.sentence
    assert "--enable-cache-report" in found.remedy


def test_an_engine_without_support_is_no_fault(stub: StubServer) -> None:
    """TensorRT-LLM turns reuse off for mixed windows: the reason is the engine, not a setting."""
    stub.owned_by, stub.prefix_caching = "tensorrt_llm", False
    stub.has_metrics = False
    found = asked(stub)
    assert found.code == "none"
    assert "the engine does not support it" in found.because


def test_a_gateway_that_fills_in_what_it_likes_is_not_believed(stub: StubServer) -> None:
    """Cached tokens on a prompt that nobody has sent before are no hit; a direct address is advised."""
    usage_of(stub, lambda own, number: {**own, "prompt_tokens_details": {"cached_tokens": own["prompt_tokens"] // 2}})
    found = asked(stub)
    assert (found.code, found.cause) == ("inconclusive", "usage-not-believed")
    assert "own address" in found.remedy


def test_more_cached_than_sent_is_not_believed(stub: StubServer) -> None:
    """A hit longer than its prompt is no number to judge by."""
    usage_of(stub, lambda own, number: {**own, "prompt_tokens_details": {"cached_tokens": 10**6 if number > 1 else 0}})
    assert asked(stub).cause == "usage-not-believed"


def test_prefill_elsewhere_is_recognised(stub: StubServer) -> None:
    """All but one token cached on a first send is what a decode server reports whose prefill ran elsewhere."""
    usage_of(stub, lambda own, number: {**own, "prompt_tokens_details": {"cached_tokens": own["prompt_tokens"] - 1}})
    assert "ask the prefill server" in asked(stub).remedy


def test_a_proxy_without_metrics_is_named(stub: StubServer) -> None:
    """A gateway's header and no /metrics page are a finding that advises a direct address."""
    stub.has_metrics, stub.headers = False, {"x-litellm-version": "1.80"}
    found = {one.code: one for one in asked(stub).evidence.findings}
    assert "LiteLLM" in found["gateway"].detail
    assert "own address" in found["gateway"].remedy


def test_a_small_hit_on_the_template_is_no_reuse(stub: StubServer) -> None:
    """A server without salts hits the template's own beginning every time; that is not the prompt."""
    usage_of(stub, lambda own, number: {**own, "prompt_tokens_details": {"cached_tokens": 12}})
    assert asked(stub).code == "none"


def test_a_template_that_fills_a_short_prompt_is_believed(stub: StubServer) -> None:
    """Of 120 tokens 40 may be a chat template's own, which a server without salts has seen before."""
    stub.block = 8
    usage_of(stub, lambda own, n: {**own, "prompt_tokens_details": {"cached_tokens": 40 if n == 1 else 112}})
    found = asked(stub, tokens=120)
    assert (found.code, found.cause) == ("reuses", "")


def test_a_prompt_that_is_not_counted_is_told(stub: StubServer, capsys: pytest.CaptureFixture[str]) -> None:
    """Cached tokens of an unknown number of prompt tokens end in a verdict that can't tell."""

    def edit(answer: dict[str, Any], request: Any) -> dict[str, Any]:
        answer["usage"] = {"prompt_tokens": None, "prompt_tokens_details": {"cached_tokens": 64}}
        return answer

    stub.edit = edit
    assert cli.main(["check", stub.url, "--model", "tiny"]) == 3
    assert "verdict: " in capsys.readouterr().out


def test_a_gateway_that_writes_zeros_is_not_believed(stub: StubServer) -> None:
    """Zeros in usage beside counters that show hits, and that nobody else moved, are no verdict on reuse."""

    def edit(answer: dict[str, Any], request: Any) -> dict[str, Any]:
        if "usage" in answer:
            answer["usage"]["prompt_tokens_details"] = {"cached_tokens": 0}
        return answer

    stub.edit = edit
    found = asked(stub)
    assert (found.code, found.cause) == ("inconclusive", "usage-not-believed")
    assert "reports no cached tokens" in found.sentence
    assert "metrics-disagree" not in [note.code for note in found.notes]
