"""From what was seen to a verdict: a code, its cause, one sentence with the numbers, a remedy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from prefixscope import preflight
from prefixscope.check.causes import why_nothing, why_short
from prefixscope.check.doubt import COLD_SHARE
from prefixscope.check.evidence import FIRST, LENGTH, TURN, Evidence, Sent, allowance, gained
from prefixscope.check.notes import by_counters, notes, totals
from prefixscope.check.outcome import Outcome, ratio, subject
from prefixscope.preflight import fact as f

BUSY_TOKENS = 100_000
"""Tokens of other requests between two sends that may have pushed ours out, where the pool's size is not known."""
DETAILS = {
    "vLLM": "start it with --enable-prompt-tokens-details",
    "SGLang": "start it with --enable-cache-report",
}


def judge(e: Evidence) -> Outcome:
    """The verdict on the evidence. The first rule that applies decides."""
    rules: tuple[Callable[[Evidence], Outcome | None], ...] = (
        _failed, _not_believed, _not_counted, _zeroed, _not_reported, _gone, _nothing, _no_turn, _measured,
    )  # fmt: skip
    found = next(outcome for rule in rules if (outcome := rule(e)) is not None)
    # "Trust usage" is no advice beside a verdict that says why not to.
    doubts = [one for one in notes(e) if one.code != "metrics-disagree" or found.cause != "usage-not-believed"]
    return replace(found, notes=tuple(doubts))


# --- rules, in order -----------------------------------------------------------------------------------------------


def _failed(e: Evidence) -> Outcome | None:
    """A request that was refused or not answered ends a check, whichever it was; what came before it is told."""
    failure, second = e.failure, e.send(FIRST, 2)
    if failure is None:
        return None
    why = {"unreachable": "was not answered", "malformed": "got no answer that can be read"}
    what = f"{subject(e)}: request {failure.asked} of the check {why.get(failure.kind, 'was refused')}"
    before = f"the second send had {ratio(second)} cached" if second else "so reuse can't be judged"
    return Outcome(
        code="refused",
        cause=failure.kind,
        sentence=f"{what}, {before}." if second is None else f"{what}; before that, {before}.",
        because="; ".join(part for part in (failure.what, failure.detail, failure.cause, failure.health) if part),
        remedy=failure.remedy or "read the server's log, and check again",
        evidence=e,
    )


def _not_believed(e: Evidence) -> Outcome | None:
    doubtful = next((sent for sent in e.sends if sent.doubt), None)
    if doubtful is None:
        return None
    fault = next(iter(preflight.matching(preflight.situation(e.facts), "a first send hits")), None)
    whole = doubtful.index == 1 and doubtful.cached_tokens == (doubtful.prompt_tokens or 0) - 1
    if fault and whole:
        return _unbelieved(e, doubtful.doubt, fault.effect, fault.remedy)
    return _unbelieved(e, doubtful.doubt, "a gateway fills the field in, or shows another request's numbers")


def _not_counted(e: Evidence) -> Outcome | None:
    """Cached tokens of prompts whose own tokens are not counted: no share can be told."""
    sends = [sent for index in (1, 2) if (sent := e.send(FIRST, index))]
    if not any(s.cached_tokens is not None and s.prompt_tokens is None for s in sends):
        return None
    return Outcome(
        code="not reported",
        cause="no-prompt-tokens",
        sentence=f"{subject(e)} reports cached tokens, but not how many tokens its prompts have, so no share of them "
        "can be told.",
        because="usage has no prompt_tokens, which a gateway may have dropped",
        remedy="ask the engine at its own address",
        evidence=e,
    )


def _zeroed(e: Evidence) -> Outcome | None:
    """A usage of zeros beside counters, moved by nobody else, that show hits."""
    found, second = totals(e), e.send(FIRST, 2)
    if found is None or second is None or found[0] or found[1] < (second.prompt_tokens or 0) * COLD_SHARE:
        return None
    doubt = f"reports no cached tokens, but its own counters, which nothing else moved, show {found[1]:,}"
    return _unbelieved(e, doubt, "a gateway in front of the engine fills the field in with zeros")


def _unbelieved(e: Evidence, doubt: str, why: str, remedy: str = "ask the engine at its own address") -> Outcome:
    return Outcome(
        code="inconclusive",
        cause="usage-not-believed",
        sentence=f"{subject(e)} {doubt}, so its usage can't be believed.",
        because=why,
        remedy=remedy,
        evidence=e,
    )


def _not_reported(e: Evidence) -> Outcome | None:
    cold, second, third = (e.send(FIRST, index) for index in (1, 2, 3))
    assert second is not None  # else another rule has answered
    if second.cached_tokens is not None:
        return None
    if second.cached_tokens is None and third is not None and third.cached_tokens:
        # The field is there for a hit, so the second send's missing one was a zero.
        zero = replace(e, sends=tuple(replace(s, cached_tokens=s.cached_tokens or 0) for s in e.sends))
        found = _nothing(zero)
        return None if found is None else replace(found, evidence=e)
    if cold is not None and cold.cached_tokens is not None and second.cached_tokens is None:
        return Outcome(
            code="inconclusive",
            cause="mixed-reporting",
            sentence=f"{subject(e)} reports cached tokens for one send and none for the next.",
            because="several servers that are set up differently answer behind this address",
            remedy="ask each server at its own address",
            evidence=e,
        )
    if second.prompt_tokens is None:
        return Outcome(
            code="not reported",
            cause="no-usage",
            sentence=f"{subject(e)} reports neither prompt tokens nor cached tokens, so reuse can't be read from its "
            "answers." + by_counters(e),
            because="its answers have no usage, or one without counts: a gateway may have dropped it",
            remedy="ask the engine at its own address",
            evidence=e,
        )
    faults = preflight.matching(preflight.situation(e.facts), "cached tokens are null")
    engine = f.value(e.facts, f.ENGINE) or ("vLLM" if f.value(e.facts, f.VERSION) else "")
    remedy = DETAILS.get(engine, "ask the engine at its own address; vLLM needs --enable-prompt-tokens-details")
    return Outcome(
        code="not reported",
        cause="usage-has-no-cached-tokens",
        sentence=f"{subject(e)} does not report cached tokens, so reuse can't be read from its answers."
        + by_counters(e),
        because="; ".join(fault.sentence for fault in faults),
        remedy=remedy,
        evidence=e,
    )


def _gone(e: Evidence) -> Outcome | None:
    """The blocks may have been pushed out between the two sends."""
    cold, second, third = (e.send(FIRST, index) for index in (1, 2, 3))
    if gained(cold, second) or gained(cold, third) or not e.others_tokens:
        return None
    pool = f.number(e.facts, f.POOL)
    if e.others_tokens < (pool or BUSY_TOKENS):
        return None
    return Outcome(
        code="inconclusive",
        cause="evicted",
        sentence=f"{subject(e)} reused nothing, but {e.others_tokens:,} tokens of other requests came between.",
        because=f"the pool holds {pool:,} tokens" if pool else "they may have pushed our blocks out of the cache",
        remedy="check again when the server is less busy",
        evidence=e,
    )


def _nothing(e: Evidence) -> Outcome | None:
    cold, second = e.send(FIRST, 1), e.send(FIRST, 2)
    assert second is not None  # else another rule has answered
    if gained(cold, second):
        return None
    longest = [pair for pair in e.pairs(LENGTH) if gained(*pair)]
    if longest:
        return _cannot_hit(e, second, longest)
    cause, because, remedy = why_nothing(e)
    third = e.send(FIRST, 3)
    after = ""
    if third is not None and third.cached_tokens is not None:
        took = gained(cold, third)
        after = f"; the third send reuses {third.cached_tokens:,}" if took else "; a third send reuses nothing either"
    return Outcome(
        code="none",
        cause=cause,
        sentence=f"{subject(e)} reuses nothing of what is sent twice: {ratio(second)} on the second send{after}.",
        because=because,
        remedy=remedy,
        evidence=e,
    )


def _cannot_hit(e: Evidence, second: Sent, hits: list[tuple[Sent, Sent]]) -> Outcome:
    shortest = min((b for _, b in hits), key=lambda sent: sent.prompt_tokens or 0)
    misses = [b.prompt_tokens or 0 for a, b in e.pairs(LENGTH) if not gained(a, b)]
    longest_miss = max([second.prompt_tokens or 0, *misses])
    return Outcome(
        code="cannot hit",
        cause="prompt-below-minimum",
        sentence=f"{subject(e)} can't reuse a prompt of {second.prompt_tokens:,} tokens: reuse begins between "
        f"{longest_miss:,} and {shortest.prompt_tokens:,} tokens.",
        because=f"a hit is whole blocks; the shortest prompt that hit took {shortest.cached_tokens:,} tokens",
        remedy=f"check with --tokens {shortest.prompt_tokens} or more; shorter prompts are computed anew each time",
        evidence=e,
    )


def _no_turn(e: Evidence) -> Outcome | None:
    """A wanted share is one of both, the second send and the next turn: without the turn it can't be told."""
    turn, second = e.send(TURN, 1), e.send(FIRST, 2)
    assert second is not None  # else another rule has answered
    if e.min_reuse is None or (turn and turn.share is not None) or (second.share or 0.0) < e.min_reuse:
        return None
    return Outcome(
        code="inconclusive",
        cause="no-second-turn",
        sentence=f"{subject(e)} reuses {ratio(second)} on the second send; what a second turn reuses is not known.",
        because="its answer reports no cached tokens" if turn else "it does not fit the context",
        remedy="ask the engine at its own address" if turn else "use a shorter prompt (--tokens)",
        evidence=e,
    )


def _measured(e: Evidence) -> Outcome:
    cold, second, turn = e.send(FIRST, 1), e.send(FIRST, 2), e.send(TURN, 1)
    assert second is not None  # else another rule has answered
    block = f.number(e.facts, f.MAMBA_BLOCK) or f.number(e.facts, f.BLOCK)
    parts = [f"{ratio(second)} on the second send"]
    if turn is not None and turn.cached_tokens is not None and turn.prompt_tokens:
        parts.append(f"{ratio(turn)} on a second turn")
    numbers = ", ".join(parts)
    low = _below(e, second, second.prompt_tokens or 0, block)
    if low is None and turn is not None and turn.share is not None:
        low = _below(e, turn, second.prompt_tokens or 0, block)
        low = low and "second-turn"
    if low is None:
        return Outcome(code="reuses", sentence=f"{subject(e)} reuses what is sent twice: {numbers}.", evidence=e)
    because, remedy = why_short(e, low, cold, second)
    return Outcome(
        code="short",
        cause=low,
        sentence=f"{subject(e)} reuses only part of what is sent twice: {numbers}.",
        because=because,
        remedy=remedy,
        evidence=e,
    )


def _below(e: Evidence, sent: Sent, reach: int, block: int | None) -> str | None:
    """Why a send falls short; None where it does not."""
    if e.min_reuse is not None:
        return "below-wanted-share" if (sent.share or 0.0) < e.min_reuse else None
    missing = reach - (sent.cached_tokens or 0)
    return "partial" if missing > allowance(reach, block) else None
