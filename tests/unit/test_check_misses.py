"""``check``: misses and short hits, told apart."""

from __future__ import annotations

import re
from typing import Any

import pytest
from checked import asked, usage_of
from stub import CHAT, Reply, StubServer, error

from prefixscope.check import MAX_SENDS

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


def test_a_short_turn_is_not_blamed_on_the_template(stub: StubServer) -> None:
    """A share that a new turn's own tokens make impossible is told as such."""
    found = asked(stub, tokens=400, min_reuse=0.95)
    assert (found.code, found.cause) == ("short", "second-turn")
    assert "a next turn's own tokens are new" in found.because
    assert "--tokens" in found.remedy
