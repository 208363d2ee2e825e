"""``check``: what it sends, and what it makes of the answers. A stub answers; real engines are in tests/engine."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import Any

import pytest
from stub import BLOCK, CHAT, COMPLETIONS, MESSAGES, METRICS, TOKENIZE, Reply, StubServer, error

from prefixscope import cli
from prefixscope.check import MAX_SENDS, MAX_TOKENS, Outcome, check
from prefixscope.check.budget import stated
from prefixscope.client import Client
from prefixscope.errors import TargetError, Unreachable


def asked(stub: StubServer, **options: Any) -> Outcome:
    """The outcome of a check of the stub, with prompts short enough for a test."""
    said: list[str] = options.pop("said", [])
    with Client(stub.url, retry_budget_s=0.2) as client:
        return check(client, **{"model": "tiny", "tokens": 1_200, "say": said.append, **options})


def usage_of(stub: StubServer, change: Any) -> None:
    """Answer with another usage: ``change`` gets the stub's own and the number of the request, from 1."""
    stub.edit = lambda answer, request: {**answer, "usage": change(answer["usage"], len(stub.sent()))}


# --- the healthy path ----------------------------------------------------------------------------------------------


def test_a_healthy_server_gets_three_requests(stub: StubServer) -> None:
    """A prompt, the same again and its next turn, one after the other, under one salt of their own: no more."""
    said: list[str] = []
    found = asked(stub, said=said)
    assert (found.code, found.cause, said) == ("reuses", "", [])
    first, second, turn = stub.sent()
    assert first["messages"] == second["messages"] == turn["messages"][:1]
    assert [message["role"] for message in turn["messages"]] == ["user", "assistant", "user"]
    assert len({body["cache_salt"] for body in stub.sent()}) == 1
    assert all(body["temperature"] == 0 and body["max_tokens"] == 1 for body in stub.sent())
    again, after = (f"{one.cached_tokens:,} of {one.prompt_tokens:,} prompt tokens" for one in found.evidence.sends[1:])
    assert found.sentence == (
        f"tiny (vLLM 0.29.0) reuses what is sent twice: {again} on the second send, {after} on a second turn."
    )


def test_little_is_asked_beside_the_requests(stub: StubServer) -> None:
    """On the healthy path every other endpoint is read at most twice, and the tokenizer is asked twice."""
    asked(stub)
    others = [path for path, _, _ in stub.requests if path != CHAT]
    assert max(others.count(path) for path in set(others)) <= 2
    assert others.count(TOKENIZE) == 2


def test_two_checks_share_nothing(stub: StubServer) -> None:
    """The first send is cold each time, also where the server ignores the salt, and no cache is reset for it."""
    stub.honours_salt = False
    for _ in range(2):
        assert asked(stub).evidence.sends[0].cached_tokens == 0
    assert not any("reset" in path for path, _, _ in stub.requests)


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
    assert "--enable-prompt-tokens-details" in found.remedy


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


# --- misses, told apart --------------------------------------------------------------------------------------------


def test_a_third_send_tells_a_late_hit(stub: StubServer) -> None:
    """0, 0 and a hit on the third send is the incident: none, with the third send in the sentence."""
    stub.sends = 2
    said: list[str] = []
    found = asked(stub, said=said)
    assert (found.code, found.cause) == ("none", "third-send")
    assert "the third send reuses 1," in found.sentence
    assert said == [
        f"the second send reuses nothing: sending the prompt a third time (1 request, about {1_200:,} tokens)"
    ]
    assert len(stub.sent()) == 3


def test_the_releases_fault_is_named_with_its_remedy(stub: StubServer) -> None:
    """Release, drafter and interval match a known fault: its pull request and its flag are in the answer."""
    stub.sends = 2
    stub.labels = {"prefix_cache_retention_interval": "0"}
    stub.more_metrics = ["vllm:spec_decode_num_drafts_total 7", "vllm:spec_decode_num_draft_tokens_total 21"]
    found = asked(stub)
    assert "vllm#53945" in found.because
    assert "may apply" not in found.because
    assert "--prefix-cache-retention-interval" in found.remedy
    assert "0.30.0" in found.remedy


@pytest.mark.parametrize("version", ["0.30.0", "0.28.0", "not a version"])
def test_a_fault_of_another_release_is_not_named(stub: StubServer, version: str) -> None:
    """The same misses on a release without that fault are not blamed on it."""
    stub.sends, stub.version = 2, version
    stub.labels = {"prefix_cache_retention_interval": "0"}
    stub.more_metrics = ["vllm:spec_decode_num_drafts_total 7"]
    assert "vllm#53945" not in asked(stub).because


def test_prefix_caching_off_needs_no_further_probe(stub: StubServer) -> None:
    """What the server says of itself explains the miss: two requests, and the flag."""
    stub.prefix_caching = False
    found = asked(stub)
    assert (found.code, found.cause) == ("none", "prefix-caching-off")
    assert "--enable-prefix-caching" in found.remedy
    assert len(stub.sent()) == 2


def test_a_prompt_below_the_minimum_cannot_hit(stub: StubServer) -> None:
    """With blocks longer than the prompt the check finds, by bisection, between which lengths reuse begins."""
    stub.block = 1_000
    said: list[str] = []
    found = asked(stub, tokens=300, said=said)
    assert found.code == "cannot hit"
    low, high = (int(n.replace(",", "")) for n in re.findall(r"between ([\d,]+) and ([\d,]+)", found.sentence)[0])
    assert low <= 1_000 < high
    assert high - low <= 1_000 // 8
    assert "1,000" in found.because
    assert any("looking for the shortest" in line for line in said)


def test_probing_is_capped(stub: StubServer) -> None:
    """However little is explained, no more than the cap is sent."""
    stub.block, stub.max_model_len = 10**6, 10**6
    found = asked(stub, tokens=20)
    assert found.code == "none"
    assert len(stub.sent()) <= MAX_SENDS


def test_ranks_that_take_turns_are_told_by_their_own_counters(stub: StubServer) -> None:
    """Two engines of one server that each counted one of the two sends explain the miss: two requests, no more."""
    stub.engines = stub.ranks = 2
    found = asked(stub)
    assert (found.code, found.cause) == ("none", "rank-rotation")
    assert "X-data-parallel-rank" in found.remedy
    assert len(stub.sent()) == 2


def test_ranks_that_take_turns_are_told_by_pinning(stub: StubServer) -> None:
    """Where other traffic moves the counters, the same prompt pinned to one rank hits, and that is said beforehand."""
    stub.engines = stub.ranks = 2
    stub.others_tokens = 500
    said: list[str] = []
    found = asked(stub, said=said)
    assert (found.code, found.cause) == ("none", "rank-rotation")
    assert "X-data-parallel-rank" in found.remedy
    pinned = [headers for path, _, headers in stub.requests if path == CHAT and "x-data-parallel-rank" in headers]
    assert len(pinned) == 2
    assert any("rank 0 (2 requests, about 2,400 tokens)" in line for line in said)


def test_engines_that_did_not_take_turns_are_not_blamed(stub: StubServer) -> None:
    """Two sends that one engine of two counted both missed for another reason: no rank is pinned."""
    stub.engines = stub.ranks = 2
    stub.route, stub.sends = (lambda number: 0), 2
    found = asked(stub)
    assert (found.code, found.cause) == ("none", "third-send")
    assert "one cache answered" in found.because
    assert not any("x-data-parallel-rank" in headers for _, _, headers in stub.requests)


def test_a_server_that_takes_no_rank_is_judged_without(stub: StubServer) -> None:
    """Where the pin is refused the check goes on."""
    stub.engines = stub.ranks = 2
    stub.others_tokens = 500
    refuse = error(400, "data_parallel_rank is out of range")
    inner = stub.respond
    stub.respond = lambda path, body, headers: (  # type: ignore[method-assign]
        refuse if "x-data-parallel-rank" in headers else inner(path, body, headers)
    )
    said: list[str] = []
    assert asked(stub, said=said).code == "none"
    assert any("does not let a request choose its rank" in line for line in said)


def test_servers_behind_a_balancer_are_told_by_their_pages(stub: StubServer) -> None:
    """Two processes answer /metrics in turn: that is why the second send misses."""
    stub.ranks, stub.balanced = 2, True
    found = asked(stub)
    assert (found.code, found.cause) == ("none", "several-servers")


def test_a_lucky_hit_behind_a_balancer_is_noted(stub: StubServer) -> None:
    """Where different processes answer /metrics, a second send that hits did so by luck, and that is said."""
    stub.ranks, stub.balanced = 3, True
    inner = stub.respond

    def respond(path: str, body: dict[str, Any], headers: dict[str, str]) -> Reply:
        return inner(path, body, {**headers, "x-data-parallel-rank": "0"})

    stub.respond = respond  # type: ignore[method-assign]
    found = asked(stub)
    assert found.code == "reuses"
    assert "several-servers" in [note.code for note in found.notes]


def test_misses_on_every_send_are_not_blamed_on_a_fault_whose_third_send_hits(stub: StubServer) -> None:
    """Three zeros on 0.29.0 with a drafter have another cause than the known one."""
    stub.sends, stub.labels = 10**6, {"prefix_cache_retention_interval": "0"}
    stub.more_metrics = ["vllm:spec_decode_num_drafts_total 7"]
    found = asked(stub)
    assert (found.code, found.cause) == ("none", "")
    assert found.because.startswith("not known; it may be")


def test_servers_behind_a_gateway_are_told_by_a_filler(stub: StubServer) -> None:
    """Without /metrics a short request between the two sends brings the hit back where two servers take turns."""
    stub.ranks, stub.has_metrics = 2, False
    said: list[str] = []
    found = asked(stub, said=said)
    assert (found.code, found.cause) == ("none", "several-servers")
    assert found.to_json()["requests"] == len(stub.sent())
    assert any("with a short request in between (3 requests, about 2,416 tokens)" in line for line in said)


@pytest.mark.parametrize("route", ["01010110", "0100011", "011000110"])
def test_servers_picked_at_random_are_told_by_other_prompts(stub: StubServer, route: str) -> None:
    """Of two servers picked without an order another prompt's second send finds the right one soon."""
    stub.ranks, stub.has_metrics = 2, False
    stub.route = lambda number: int((route * 3)[number])
    found = asked(stub)
    assert (found.code, found.cause) == ("none", "several-servers")
    assert "most likely several servers" in found.because or "in turn" in found.because


def test_more_servers_in_turn_are_told_by_a_later_send(stub: StubServer) -> None:
    """Where three servers take turns the fourth send of a prompt is the first that hits."""
    stub.ranks, stub.has_metrics = 3, False
    found = asked(stub)
    assert (found.code, found.cause) == ("none", "several-servers")
    assert "only on send 4" in found.because


@pytest.mark.parametrize(
    ("version", "cause", "sure"),
    [("0.30.0", "third-send", "most likely the first"), ("0.29.0", "known-fault-second-send-misses", "may apply: ")],
)
def test_a_late_hit_behind_a_gateway_is_as_sure_as_its_tries(
    stub: StubServer, version: str, cause: str, sure: str
) -> None:
    """Four other prompts that all miss make servers picked at random unlikely, with the chance; not impossible."""
    stub.sends, stub.has_metrics, stub.version = 2, False, version
    found = asked(stub)
    assert (found.code, found.cause) == ("none", cause)
    assert found.because.startswith(sure)
    assert "none of 4 other prompts hit on its second send" in found.because
    assert "happens in 6% of checks" in found.because
    others = [sent.prompt_tokens or 0 for sent in found.evidence.sends if sent.series == "other prompt"]
    assert all(1_100 < tokens < 1_300 for tokens in others), others  # the short one in between is no measure of a token


def test_a_page_that_counts_one_of_two_sends_is_one_server_of_several(stub: StubServer) -> None:
    """A balancer that sends /metrics to one server only is known by the tokens that this one did not count."""
    stub.ranks, stub.page_of = 2, 0
    found = asked(stub)
    assert (found.code, found.cause) == ("none", "several-servers")
    assert len(stub.sent()) == 2


def test_a_clock_in_the_template_is_found(stub: StubServer) -> None:
    """A template that renders a message differently each time breaks every prefix: said with the cause."""
    ticks = iter(range(10**6))
    stub.head = lambda: f"It is {next(ticks):09d} now. "
    found = asked(stub)
    assert (found.code, found.cause) == ("none", "template-changes")
    assert "clock" in found.remedy


def test_a_date_in_the_template_is_a_note(stub: StubServer) -> None:
    """Today's date in the rendered prompt does not change the verdict today; what happens at midnight is said."""
    from datetime import datetime, timezone

    stub.head = lambda: datetime.now(timezone.utc).strftime("Today is %d %b %Y. ")
    found = asked(stub)
    assert found.code == "reuses"
    assert [note.code for note in found.notes] == ["template-date"]


def test_a_minute_in_the_template_is_a_note_of_its_own(stub: StubServer) -> None:
    """A clock that stands still for the seconds of a check breaks every prefix a minute later: that is said."""
    from datetime import datetime, timezone

    now = datetime.now(timezone.utc)
    stub.head = lambda: now.strftime("It is %Y-%m-%d %H:%M now. ")
    found = asked(stub)
    assert found.code == "reuses"
    assert [note.code for note in found.notes] == ["template-clock"]


def test_blocks_that_others_pushed_out_are_inconclusive(stub: StubServer) -> None:
    """Misses while other requests looked up more than the pool holds prove nothing."""
    stub.sends, stub.others_tokens = 10**6, 300_000
    stub.labels = {"kv_cache_size_tokens": "269243"}
    found = asked(stub)
    assert (found.code, found.cause) == ("inconclusive", "evicted")
    assert "269,243" in found.because


def test_a_partial_hit_is_short(stub: StubServer) -> None:
    """Half a prompt reused is short, with the numbers; the second turn is sent all the same."""
    usage_of(stub, lambda own, n: {**own, "prompt_tokens_details": {"cached_tokens": 600 if n > 1 else 0}})
    found = asked(stub)
    assert (found.code, found.cause) == ("short", "partial")
    assert found.evidence.send("second turn", 1) is not None


def test_a_second_turn_that_finds_nothing_fails_the_gate(stub: StubServer) -> None:
    """A resend that hits and a next turn that does not is short: production sends turns."""
    usage_of(stub, lambda own, n: {**own, "prompt_tokens_details": {"cached_tokens": 0}} if n == 3 else own)
    found = asked(stub)
    assert (found.code, found.cause) == ("short", "second-turn")
    assert "0 of" in found.sentence


@pytest.mark.parametrize(("wanted", "code"), [(0.5, "reuses"), (0.999, "short")])
def test_the_wanted_share_decides(stub: StubServer, wanted: float, code: str) -> None:
    """``min_reuse`` replaces the usual allowance, for the second send and the second turn."""
    found = asked(stub, min_reuse=wanted)
    assert found.code == code
    assert (f"{100 * wanted:.4g} % is wanted" in found.because) == (code == "short")


def test_counters_beside_usage_are_compared(stub: StubServer) -> None:
    """Counters that add up to other hits than usage are a note; usage stays the truth."""
    stub.hits_skew = 64
    found = asked(stub)
    assert found.code == "reuses"
    assert [note.code for note in found.notes] == ["metrics-disagree"]


def test_without_metrics_or_tokenizer_usage_is_enough(stub: StubServer) -> None:
    """A server with neither page is judged by its answers."""
    stub.has_metrics, stub.tokenizer, stub.version = False, None, None
    assert asked(stub).code == "reuses"


# --- servers that refuse, stop or die ------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["temperature", "cache_salt", "max_tokens"])
def test_a_field_that_is_refused_is_left_out(stub: StubServer, field: str) -> None:
    """A model that refuses greedy, a gateway that knows no salt: asked again without, and said."""
    stub.refuses = (field,)
    said: list[str] = []
    found = asked(stub, said=said)
    assert found.code == "reuses"
    assert said == [f"the server refuses {field}; asking again without it"]


def test_a_prompt_beyond_the_context_is_halved(stub: StubServer) -> None:
    """The context that a server does not announce is found by asking for less."""
    stub.max_model_len = 700
    models = {"data": [{"id": "tiny"}]}
    stub.always("/v1/models", Reply(body=models))
    found = asked(stub)
    assert found.code == "reuses"
    assert (found.evidence.sends[0].prompt_tokens or 0) <= 700


def test_an_engine_that_dies_is_a_finding(stub: StubServer) -> None:
    """A 500 on the first prompt, and /health down: said with the engine's words, no crash."""
    stub.reply_once(CHAT, error(500, "EngineCore encountered an issue"))
    stub.always("/health", error(503, "dead"))
    found = asked(stub)
    assert (found.code, found.cause) == ("refused", "engine-failed")
    assert "EngineCore encountered an issue" in found.because
    assert found.because.endswith("/health answers 503")


def failing(stub: StubServer, at: int, reply: Reply) -> None:
    """From request number ``at`` on every completion is this reply."""
    inner, count = stub.respond, [0]

    def respond(path: str, body: dict[str, Any], headers: dict[str, str]) -> Reply:
        count[0] += path == CHAT
        return reply if path == CHAT and count[0] >= at else inner(path, body, headers)

    stub.respond = respond  # type: ignore[method-assign]


@pytest.mark.parametrize("at", [1, 2, 3])
@pytest.mark.parametrize(
    ("reply", "cause"),
    [(error(401, "no"), "refused"), (error(403, "no"), "refused"), (error(404, "no model `tiny`"), "refused"),
     (error(413, "no"), "refused"), (error(429, "no"), "refused"), (error(500, "boom"), "engine-failed"),
     (error(502, "no"), "refused"), (error(503, "no"), "refused"), (Reply(close=True), "unreachable"),
     (Reply(body={"choices": []}), "malformed"), (Reply(body="<html>"), "malformed"),
     (Reply(body={"x": 1}, cut=3), "unreachable")],
)  # fmt: skip
def test_a_fault_has_one_code_whenever_it_comes(
    stub: StubServer, capsys: pytest.CaptureFixture[str], reply: Reply, cause: str, at: int
) -> None:
    """A request that is refused or not answered is exit 2, the first as the last; what came before is in the answer."""
    failing(stub, at, reply)
    with Client(stub.url, retry_budget_s=0) as client:
        found = check(client, model="tiny", tokens=600)
    assert (found.code, found.cause) == ("refused", cause)
    assert found.because
    assert found.remedy
    assert [sent.cached_tokens is not None for sent in found.evidence.sends] == [True] * (at - 1)
    assert f"request {at} of the check" in found.sentence
    assert ("before that, the second send had 576 of" in found.sentence) == (at == 3)
    answer = found.to_json()
    assert (answer["requests"], len(answer["sends"])) == (at, at - 1)
    assert (answer["cached_tokens"] is not None) == (at == 3)


@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_server_that_is_gone_is_exit_2(stub: StubServer, capsys: pytest.CaptureFixture[str], at: int) -> None:
    """A connection that nobody takes any more is said so, with what was measured, on the screen too."""
    failing(stub, at, Reply(close=True))
    stub.always("/health", Reply(close=True))
    assert run(stub) == 2
    shown = capsys.readouterr().out
    assert "/health does not answer either" in shown
    assert shown.count(" s\n") == at - 1
    assert shown.rstrip().endswith("verdict: refused")


def test_a_wanted_share_needs_the_second_turn(stub: StubServer) -> None:
    """A gate that asks for a share is not passed by a server that reports nothing for the next turn."""
    usage_of(stub, lambda own, n: {**own, "prompt_tokens_details": None} if n == 3 else own)
    found = asked(stub, min_reuse=0.5)
    assert (found.code, found.cause) == ("inconclusive", "no-second-turn")
    assert asked(stub, min_reuse=0.9999).code == "short"


def test_a_busy_server_is_noted(stub: StubServer) -> None:
    """A 429 that passes is retried; the answer says that blocks may have gone meanwhile."""
    stub.reply_once(CHAT, error(429, "slow down", Retry_After="0"))
    found = asked(stub)
    assert found.code == "reuses"
    assert "retried" in [note.code for note in found.notes]


@pytest.mark.parametrize(("path", "api"), [(CHAT, "chat"), (COMPLETIONS, "completions"), (MESSAGES, "messages")])
def test_no_prompt_is_shown_in_an_error(stub: StubServer, path: str, api: str) -> None:
    """A server that repeats what it was sent in its refusal does not get the prompt onto the screen."""
    inner = stub.respond

    def respond(at: str, body: dict[str, Any], headers: dict[str, str]) -> Reply:
        said = body.get("messages") or body.get("prompt")
        return error(422, f"invalid input: {said}") if at == path else inner(at, body, headers)

    stub.respond = respond  # type: ignore[method-assign]
    found = asked(stub, api=api)
    assert "entry" not in found.because
    assert "the prompt, left out" in found.because


# --- what it costs -------------------------------------------------------------------------------------------------

UNBELIEVED = {
    "below zero": ({"prompt_tokens": -5}, "below zero, prompt_tokens -5"),
    "cached below zero": ({"prompt_tokens_details": {"cached_tokens": -1}}, "below zero"),
    "none at all": ({"prompt_tokens": 0}, "counts 0 prompt tokens"),
    "far too few": ({"prompt_tokens": 7}, "counts only 7 prompt tokens"),
    "more than there are": (
        {"prompt_tokens_details": {"cached_tokens": 10**6}},
        "1,000,000 cached tokens for a prompt",
    ),
    "cached when cold": ({"prompt_tokens_details": {"cached_tokens": 700}}, "that nobody had sent before"),
}


@pytest.mark.parametrize("tokenizer", ["bytes", None])
@pytest.mark.parametrize("name", UNBELIEVED)
def test_a_usage_that_can_not_be_believed_ends_the_check(stub: StubServer, name: str, tokenizer: str | None) -> None:
    """Numbers that can't be settle the verdict at the first send: nothing more is sent, and the number is told."""
    change, words = UNBELIEVED[name]
    stub.tokenizer = tokenizer
    usage_of(stub, lambda own, number: {**own, **change})
    found = asked(stub, tokens=1_200 if tokenizer else 4_000)
    assert (found.code, found.cause) == ("inconclusive", "usage-not-believed")
    assert words in found.sentence
    assert len(stub.sent()) == 1


def test_a_prompt_that_changes_its_length_is_not_believed(stub: StubServer) -> None:
    """The same prompt counted with other lengths is another request's number: two sends, and both numbers."""
    usage_of(stub, lambda own, number: {**own, "prompt_tokens": own["prompt_tokens"] * number})
    found = asked(stub)
    assert (found.code, found.cause) == ("inconclusive", "usage-not-believed")
    cold, second = (f"{sent.prompt_tokens:,}" for sent in found.evidence.sends)
    assert f"counts {second} prompt tokens for a prompt that had {cold} when it was sent before" in found.sentence


@pytest.mark.parametrize("usage", [{"prompt_tokens": None}, {"prompt_tokens": "many"}])
def test_prompts_that_are_not_counted_end_it_too(stub: StubServer, usage: dict[str, Any]) -> None:
    """Cached tokens of an unknown number are no share: two sends, not reported."""
    usage_of(stub, lambda own, number: {**own, **usage})
    found = asked(stub)
    assert (found.code, found.cause) == ("not reported", "no-prompt-tokens")
    assert len(stub.sent()) == 2


@pytest.mark.parametrize("block", [10**6, 9_000])
@pytest.mark.parametrize("has_metrics", [True, False])
@pytest.mark.parametrize("tokens", [20, 600, 6_400, 30_000])
def test_the_caps_hold(stub: StubServer, tokens: int, has_metrics: bool, block: int) -> None:
    """However little is explained, requests and tokens stay within the cap, and each further probe told its price."""
    stub.block, stub.max_model_len, stub.has_metrics = block, 10**6, has_metrics
    stub.sends = 10**6
    said: list[str] = []
    found = asked(stub, tokens=tokens, said=said)
    cost = found.evidence.spending
    assert cost.requests == len(stub.sent()) <= MAX_SENDS == cost.most_requests
    assert cost.tokens <= cost.most_tokens == max(MAX_TOKENS, 5 * tokens)
    priced = [int(n) for line in said for n in re.findall(r"\((\d+) requests?, about [\d,]+ tokens\)", line)]
    assert len(priced) == len(said)
    assert cost.requests == 2 + sum(priced)


def test_a_long_prompt_that_misses_is_not_asked_longer(stub: StubServer) -> None:
    """No block is as long as the default prompt where the server tells its blocks: three sends, no other length."""
    stub.sends = 10**6
    found = asked(stub, tokens=6_400)
    assert found.code == "none"
    assert len(stub.sent()) == 3


def test_one_longer_prompt_is_enough_where_blocks_are_known(stub: StubServer) -> None:
    """From 1,200 tokens one prompt four times as long holds blocks enough to hit: five sends, no third length."""
    stub.sends = 10**6
    asked(stub)
    assert len(stub.sent()) == 5


def test_the_price_is_in_the_answer(stub: StubServer, capsys: pytest.CaptureFixture[str]) -> None:
    """Requests, tokens and the cap stand below the sends, and in the JSON."""
    run(stub)
    spent = sum(len(stub.tokens(body["messages"])) for body in stub.sent())
    assert f"sent: 3 requests, {spent:,} prompt tokens (never more than 16 and 100,000)" in capsys.readouterr().out
    run(stub, "--json")
    answer = json.loads(capsys.readouterr().out)
    assert (answer["requests"], answer["most_requests"], answer["most_tokens"]) == (3, 16, 100_000)
    assert abs(answer["tokens"] - spent) < 8


def test_the_help_says_the_cap_and_the_default_share(capsys: pytest.CaptureFixture[str]) -> None:
    """What a check may cost, and what it takes to pass without --min-reuse, is known before it is run."""
    with pytest.raises(SystemExit):
        cli.main(["check", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert stated() in shown
    assert "default: 0.95 of the prompt" in shown


# --- what a prompt is made of --------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokenizer", ["bytes", "pairs"])
def test_without_a_tokenizer_a_short_request_tells_the_length(stub: StubServer, tokenizer: str) -> None:
    """A token a character, or two: the prompt has about the tokens that were asked for all the same."""
    inner = stub.respond
    stub.tokenizer = tokenizer
    stub.respond = lambda path, body, headers: (  # type: ignore[method-assign]
        error(404, "Not Found") if path == TOKENIZE else inner(path, body, headers)
    )
    said: list[str] = []
    found = asked(stub, said=said)
    calibration, cold, *_ = found.evidence.sends
    assert (found.code, calibration.series) == ("reuses", "calibration")
    assert 1_100 < (cold.prompt_tokens or 0) < 1_300
    assert said == [
        "no tokenizer answers for this model: a short request first tells how long its tokens are "
        "(1 request, about 200 tokens)"
    ]


def test_a_prompt_that_does_not_fit_is_cut_to_the_context(stub: StubServer, capsys: pytest.CaptureFixture[str]) -> None:
    """--tokens beyond max_model_len: the server's own number is told, the prompt fits, and the answer says so."""
    stub.max_model_len = 900
    assert cli.main(["check", stub.url, "--tokens", "5000"]) == 0
    shown = capsys.readouterr()
    assert "does not fit the context of 900 tokens: asking with about 836 tokens instead" in shown.err
    assert "prompt-clipped: a prompt of 5,000 tokens does not fit the served context" in shown.out


def test_the_context_is_the_asked_models_own(stub: StubServer) -> None:
    """Of several models each has its own context, and an adapter its base's."""
    models = [
        {"id": "a", "max_model_len": 200},
        {"id": "tiny", "max_model_len": 900},
        {"id": "tiny-lora", "parent": "tiny"},
    ]
    stub.always("/v1/models", Reply(body={"data": models}))
    for name in ("tiny", "tiny-lora"):
        found = asked(stub, model=name)
        assert 700 < (found.evidence.sends[0].prompt_tokens or 0) <= 900, name


# --- the API that is asked -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("api", "path"), [("completions", COMPLETIONS), ("messages", MESSAGES)])
def test_another_api_gives_the_same_verdict(stub: StubServer, api: str, path: str) -> None:
    """The other two APIs of ``--api`` are asked alone, and the same tokens are reused under their own names."""
    found = asked(stub, api=api)
    assert {at for at, _, _ in stub.requests if at in (CHAT, COMPLETIONS, MESSAGES)} == {path}
    sends = {sent.series + str(sent.index): sent for sent in found.evidence.sends}
    second, turn = sends["first2"], sends["second turn1"]
    assert (found.code, found.to_json()["api"]) == ("reuses", api)
    assert second.cached_tokens == ((second.prompt_tokens or 0) - 1) // BLOCK * BLOCK
    assert (turn.cached_tokens or 0) >= second.cached_tokens
    assert f"(vLLM 0.29.0, {path})" in found.sentence


def test_the_messages_api_gets_the_key_where_its_gateways_look(
    stub: StubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anthropic's header beside the bearer token, and the version that it asks for."""
    monkeypatch.setenv("TINY_KEY", "quite-a-secret-value-43")
    stub.api_key = "quite-a-secret-value-43"
    assert cli.main(["check", stub.url, "--tokens", "300", "--api", "messages", "--key-env", "TINY_KEY"]) == 0
    headers = next(headers for path, _, headers in stub.requests if path == MESSAGES)
    assert headers["x-api-key"] == stub.api_key
    assert headers["anthropic-version"]


def test_an_api_without_details_is_not_reported(stub: StubServer) -> None:
    """/v1/messages leaves its cache fields out where the flag is off: null, not zero."""
    stub.reports_cached = False
    assert asked(stub, api="messages").code == "not reported"


@pytest.mark.parametrize(("apis", "asks"), [((COMPLETIONS, MESSAGES), COMPLETIONS), ((MESSAGES,), MESSAGES)])
def test_the_first_api_that_is_served_is_asked(stub: StubServer, apis: tuple[str, ...], asks: str) -> None:
    """Without --api a server that has no chat is asked at what it has, and that is said."""
    stub.apis = apis
    said: list[str] = []
    found = asked(stub, said=said)
    assert found.code == "reuses"
    assert asks in found.sentence
    assert said[-1].endswith(f"asking {asks}")


def test_a_model_without_a_chat_template_is_asked_at_completions(stub: StubServer) -> None:
    """vLLM refuses a chat with a base model; its text can be continued all the same."""
    stub.tokenizer = None
    words = "As of transformers v4.44, default chat template is no longer allowed, so you must provide a chat template"
    stub.always(CHAT, error(400, words))
    assert asked(stub).evidence.api == "completions"


@pytest.mark.parametrize("api", ["", "chat", "messages"])
def test_no_api_at_all_is_refused_with_what_is_served(stub: StubServer, api: str) -> None:
    """A listed model that nothing completes for: the path that failed, the names, and the option."""
    stub.apis = ()
    found = asked(stub, api=api)
    assert (found.code, found.cause) == ("refused", "refused")
    assert "tiny, tiny-lora" in found.because
    assert "--api" in found.remedy
    tried = {path for path, _, _ in stub.requests if path in (CHAT, COMPLETIONS, MESSAGES)}
    assert len(tried) == (1 if api else 3)


# --- the command ---------------------------------------------------------------------------------------------------


def run(stub: StubServer, *more: str) -> int:
    return cli.main(["check", stub.url, "--model", "tiny", "--tokens", "1200", *more])


@pytest.mark.parametrize(
    ("change", "code"),
    [({}, 0), ({"sends": 2}, 1), ({"reports_cached": False}, 3), ({"block": 4_000}, 3), ({"prefix_caching": False}, 1)],
)
def test_the_exit_code_is_the_verdicts(stub: StubServer, change: dict[str, Any], code: int) -> None:
    """0 reuses · 1 short or none · 3 can't tell."""
    for name, value in change.items():
        setattr(stub, name, value)
    assert run(stub) == code


def test_the_answer_is_a_sentence_the_numbers_and_the_verdict(
    stub: StubServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first line says it, then come the sends, and the verdict last; progress goes to stderr."""
    stub.sends = 2
    run(stub)
    shown = capsys.readouterr()
    lines = shown.out.splitlines()
    assert lines[0].startswith("tiny (vLLM 0.29.0) reuses nothing of what is sent twice: 0 of 1,")
    assert lines[-1] == "verdict: none"
    assert sum("prompt tokens cached" in line for line in lines) == 3
    assert "sending the prompt a third time" in shown.err


def test_the_answer_is_json_for_scripts(stub: StubServer, capsys: pytest.CaptureFixture[str]) -> None:
    """``--json`` gives verdict, numbers, sends, facts with sources and findings; unknown numbers are null."""
    assert run(stub, "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["verdict_code"] == "reuses"
    assert answer["requests"] == 3
    assert 0.9 < answer["reuse"] < 1
    assert 0.9 < answer["second_turn_reuse"] < 1
    assert answer["counters"] is None
    assert all(fact["source"] for fact in answer["facts"])


@pytest.mark.parametrize("share", ["0", "1.5", "-1", "much", "120%"])
def test_a_share_outside_its_range_is_refused(stub: StubServer, share: str) -> None:
    """``--min-reuse`` takes a number above 0 and up to 1."""
    with pytest.raises(SystemExit) as caught:
        run(stub, "--min-reuse", share)
    assert caught.value.code == 2


def test_several_models_are_listed_to_choose_from(stub: StubServer, capsys: pytest.CaptureFixture[str]) -> None:
    """Two different models and no --model: exit 2, nothing sent, and the names."""
    stub.always("/v1/models", Reply(body={"data": [{"id": "a", "root": "x"}, {"id": "b", "root": "y"}]}))
    assert cli.main(["check", stub.url]) == 2
    assert "--model: a, b" in capsys.readouterr().err
    assert stub.sent() == []


def test_aliases_of_one_model_are_one(stub: StubServer) -> None:
    """Several served names with one root need no choice."""
    stub.always("/v1/models", Reply(body={"data": [{"id": "tiny", "root": "x"}, {"id": "also", "root": "x"}]}))
    assert cli.main(["check", stub.url, "--tokens", "600"]) == 0
    assert {body["model"] for body in stub.sent()} == {"tiny"}


def test_an_adapter_is_asked_by_its_name(stub: StubServer) -> None:
    """``--model`` takes a LoRA name; without one the base model is asked."""
    assert cli.main(["check", stub.url, "--tokens", "600", "--model", "tiny-lora"]) == 0
    assert {body["model"] for body in stub.sent()} == {"tiny-lora"}
    assert cli.main(["check", stub.url, "--tokens", "600"]) == 0
    assert stub.sent()[-1]["model"] == "tiny"


def test_a_wrong_name_lists_the_served_ones(stub: StubServer, capsys: pytest.CaptureFixture[str]) -> None:
    """A name that is not served is exit 2 with the names that are."""
    assert cli.main(["check", stub.url, "--model", "tinny"]) == 2
    assert "tiny, tiny-lora" in capsys.readouterr().err


def test_nobody_there_is_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    """A closed port is unreachable, in words."""
    assert cli.main(["check", "http://127.0.0.1:9"]) == 2
    assert "connection refused" in capsys.readouterr().err


def test_a_key_never_shows(
    stub: StubServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The key named by --key-env is sent, and neither the answer nor an error of the server shows it."""
    secret = "quite-a-secret-value-42"
    monkeypatch.setenv("TINY_KEY", secret)
    stub.api_key = secret
    stub.more_metrics = ["# fine"]
    assert run(stub, "--key-env", "TINY_KEY", "--json") == 0
    stub.always(CHAT, error(400, f"bad request with {secret}"))
    assert run(stub, "--key-env", "TINY_KEY") == 2
    shown = capsys.readouterr()
    assert secret not in shown.out + shown.err


def test_a_servers_names_do_nothing_to_the_terminal(stub: StubServer, capsys: pytest.CaptureFixture[str]) -> None:
    """Control characters in a release or a model's name are shown as marks."""
    stub.version, stub.model = "0.29.0\x1b[2J", "ti\x1b]0;x\x07ny"
    stub.lora = None
    assert cli.main(["check", stub.url, "--tokens", "600"]) == 0
    assert "\x1b" not in capsys.readouterr().out


def test_metrics_that_fail_in_the_middle_do_no_harm(stub: StubServer) -> None:
    """A page that is gone at the end of the check leaves the verdict as it is."""
    stub.reply_once(METRICS, Reply(body="# HELP a b\nvllm:prefix_cache_queries_total 1\n"))
    stub.has_metrics = False
    assert asked(stub).code == "reuses"


def test_the_exceptions_are_the_packages_own(stub: StubServer) -> None:
    """A caller catches TargetError, and nothing else."""
    stub.always("/v1/models", Reply(close=True))
    with pytest.raises((TargetError, Unreachable)):
        asked(stub)


# --- what it never does --------------------------------------------------------------------------------------------


def test_nothing_is_streamed(stub: StubServer) -> None:
    """Usage is read from whole answers: no request asks for a stream, whose usage some servers leave out."""
    stub.sends = 2
    asked(stub)
    assert not any("stream" in body or "stream_options" in body for body in stub.sent())


def test_requests_go_one_after_another(stub: StubServer) -> None:
    """What is sent at once shares nothing, so never two requests are under way together."""
    under_way, most = [0], [0]
    inner = stub.respond

    def respond(path: str, body: dict[str, Any], headers: dict[str, str]) -> Reply:
        under_way[0] += 1
        most[0] = max(most[0], under_way[0])
        reply = inner(path, body, headers)
        under_way[0] -= 1
        return reply

    stub.respond = respond  # type: ignore[method-assign]
    stub.sends = 2
    asked(stub)
    assert most == [1]


def test_speed_is_no_evidence(stub: StubServer) -> None:
    """A second send that is much faster and reuses nothing is none: a warm-up is not a hit."""
    stub.prefix_caching, stub.has_metrics = False, False
    inner = stub.respond
    first = [True]

    def respond(path: str, body: dict[str, Any], headers: dict[str, str]) -> Reply:
        reply = inner(path, body, headers)
        slow, first[0] = path == CHAT and first[0], first[0] and path != CHAT
        return Reply(reply.status, reply.body, reply.headers, delay_s=0.3) if slow else reply

    stub.respond = respond  # type: ignore[method-assign]
    found = asked(stub)
    cold, second = found.evidence.sends[:2]
    assert cold.seconds > 2 * second.seconds
    assert found.code == "none"


def test_only_what_our_sends_added_is_counted(stub: StubServer) -> None:
    """A long history of misses in the counters does not dilute the one send that is measured."""
    stub.reports_cached, stub._queries = False, 10**9
    found = asked(stub)
    second = found.evidence.sends[1]
    assert found.to_json()["counters"]["queries"] == second.prompt_tokens


def test_a_check_needs_no_pandas() -> None:
    """A deploy gate starts quickly: neither pandas nor Altair nor papermill is loaded for it."""
    code = "import sys\nfrom prefixscope import check, cli\n"
    code += "print(sorted({'pandas', 'altair', 'papermill', 'numpy'} & set(sys.modules)))"
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )  # fmt: skip
    assert found.stdout.strip() == "[]"


def test_a_refusal_is_json_too(stub: StubServer, capsys: pytest.CaptureFixture[str]) -> None:
    """A script that asked for JSON gets it when the server refuses, with the reason and a next step."""
    stub.always(CHAT, error(401, "no key"))
    assert cli.main(["check", stub.url, "--model", "tiny", "--json"]) == 2
    found = json.loads(capsys.readouterr().out)
    assert found["verdict_code"] == "refused"
    assert "401" in found["because"]
    assert "--key-env" in found["remedy"]
    assert {fact["name"]: fact["value"] for fact in found["facts"]}["vllm version"] == "0.29.0"


def test_a_server_that_does_not_list_its_models_is_json_too(
    stub: StubServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same keys hold what failed before anything could be asked."""
    stub.always("/v1/models", error(401, "no key"))
    assert cli.main(["check", stub.url, "--json"]) == 2
    found = json.loads(capsys.readouterr().out)
    assert (found["verdict_code"], found["cause"], found["sends"]) == ("refused", "refused", [])
    assert "401" in found["sentence"]
    assert "--key-env" in found["remedy"]


def test_an_empty_name_is_an_unset_variable(stub: StubServer, capsys: pytest.CaptureFixture[str]) -> None:
    """--model '' is refused in words before anything is sent."""
    with pytest.raises(SystemExit) as caught:
        cli.main(["check", stub.url, "--model", ""])
    assert caught.value.code == 2
    assert "variable of the shell is not set" in capsys.readouterr().err
    assert stub.requests == []


def test_adapters_alone_are_listed_to_choose_from(stub: StubServer, capsys: pytest.CaptureFixture[str]) -> None:
    """Several adapters and no base model leave open which is meant; one base with several adapters does not."""
    adapters = [{"id": name, "parent": "base"} for name in ("lora-a", "lora-b")]
    stub.always("/v1/models", Reply(body={"data": adapters}))
    assert cli.main(["check", stub.url]) == 2
    shown = capsys.readouterr().err
    assert "2 adapters and no base model" in shown
    assert "--model: lora-a, lora-b" in shown
    stub.always("/v1/models", Reply(body={"data": [{"id": "tiny"}, *adapters]}))
    assert cli.main(["check", stub.url, "--tokens", "300"]) == 0


def test_a_server_can_not_write_to_the_terminal(stub: StubServer, capsys: pytest.CaptureFixture[str]) -> None:
    """Escape codes in an error's words are shown as what they are not."""
    stub.always(CHAT, error(400, "\x1b[2J\x1b]0;pwned\x07"))
    assert cli.main(["check", stub.url, "--model", "tiny"]) == 2
    stub.always("/v1/models", error(400, "\x1b[2J\x1b]0;pwned\x07"))
    assert cli.main(["check", stub.url, "--model", "tiny"]) == 2
    shown = capsys.readouterr()
    assert "\x1b" not in shown.out + shown.err
    assert "pwned" in shown.out


def test_a_prompt_that_is_not_counted_is_told(stub: StubServer, capsys: pytest.CaptureFixture[str]) -> None:
    """Cached tokens of an unknown number of prompt tokens end in a verdict that can't tell."""

    def edit(answer: dict[str, Any], request: Any) -> dict[str, Any]:
        answer["usage"] = {"prompt_tokens": None, "prompt_tokens_details": {"cached_tokens": 64}}
        return answer

    stub.edit = edit
    assert cli.main(["check", stub.url, "--model", "tiny"]) == 3
    assert "verdict: " in capsys.readouterr().out


def test_a_share_is_told_as_it_was_asked_for(stub: StubServer, capsys: pytest.CaptureFixture[str]) -> None:
    """99.9 % is not rounded to 100 %."""
    assert cli.main(["check", stub.url, "--model", "tiny", "--tokens", "600", "--min-reuse", "0.999"]) == 1
    assert "at least 99.9 % is wanted" in capsys.readouterr().out


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


def test_a_short_turn_is_not_blamed_on_the_template(stub: StubServer) -> None:
    """A share that a new turn's own tokens make impossible is told as such."""
    found = asked(stub, tokens=400, min_reuse=0.95)
    assert (found.code, found.cause) == ("short", "second-turn")
    assert "its own new ones count against it" in found.because
    assert "--tokens" in found.remedy
