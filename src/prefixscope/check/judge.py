"""From what was seen to a verdict: a code, its cause, one sentence with the numbers, a remedy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from prefixscope import preflight
from prefixscope.check.causes import why_nothing, why_short
from prefixscope.check.evidence import FIRST, LENGTH, TURN, Evidence, Sent, allowance, gained
from prefixscope.check.notes import by_counters, notes, totals
from prefixscope.check.outcome import Outcome, ratio, subject
from prefixscope.preflight import fact as f

COLD_SHARE, COLD_TOKENS = 0.1, 256
"""A first send under words of its own may hit the chat template's beginning: not more than both of these."""
BUSY_TOKENS = 100_000
"""Tokens of other requests between two sends that may have pushed ours out, where the pool's size is not known."""
DETAILS = {
    "vLLM": "start it with --enable-prompt-tokens-details",
    "SGLang": "start it with --enable-cache-report",
}


def judge(e: Evidence) -> Outcome:
    """The verdict on the evidence. The first rule that applies decides."""
    rules: tuple[Callable[[Evidence], Outcome | None], ...] = (
        _failed, _not_believed, _zeroed, _not_reported, _gone, _nothing, _measured,
    )  # fmt: skip
    found = next(outcome for rule in rules if (outcome := rule(e)) is not None)
    # "Trust usage" is no advice beside a verdict that says why not to.
    doubts = [one for one in notes(e) if one.code != "metrics-disagree" or found.cause != "usage-not-believed"]
    return replace(found, notes=tuple(doubts))


# --- rules, in order -----------------------------------------------------------------------------------------------


def _failed(e: Evidence) -> Outcome | None:
    if not e.failure or e.send(FIRST, 2):
        return None
    done = f"{len(e.sends)} request{'' if len(e.sends) == 1 else 's'}"
    state = "the engine does not answer any more" if e.dead else "the server still answers"
    return Outcome(
        code="inconclusive",
        cause="engine-failed" if e.dead or " 500" in e.failure else "refused",
        sentence=f"{subject(e)}: a request failed after {done} had answers, so reuse can't be judged.",
        because=f"{e.failure.splitlines()[0]}; {state}",
        remedy="read the server's log, and check again",
        evidence=e,
    )


def _not_believed(e: Evidence) -> Outcome | None:
    impossible = next((s for s in e.sends if s.share is not None and s.share > 1), None)
    cold = e.send(FIRST, 1)
    if impossible is None and not (cold and _too_warm(cold)):
        return None
    told = impossible or cold
    assert told is not None  # one of the two is why we are here
    what = f"reports {ratio(told)} as cached"
    why = "more than there are" if impossible else "for a prompt that nobody had sent before"
    fault = next(iter(preflight.matching(preflight.situation(e.facts), "a first send hits")), None)
    whole = cold is not None and cold.cached_tokens == (cold.prompt_tokens or 0) - 1
    return Outcome(
        code="inconclusive",
        cause="usage-not-believed",
        sentence=f"{subject(e)} {what} {why}, so its usage can't be believed.",
        because=fault.effect if fault and whole else "a gateway fills the field in, or shows another request's numbers",
        remedy=fault.remedy if fault and whole else "ask the engine at its own address",
        evidence=e,
    )


def _zeroed(e: Evidence) -> Outcome | None:
    """A usage of zeros beside counters, moved by nobody else, that show hits."""
    found, second = totals(e), e.send(FIRST, 2)
    if found is None or second is None or found[0] or found[1] < (second.prompt_tokens or 0) * COLD_SHARE:
        return None
    return Outcome(
        code="inconclusive",
        cause="usage-not-believed",
        sentence=f"{subject(e)} reports no cached token, and its own counters, which nothing else moved, {found[1]:,}: "
        "its usage can't be believed.",
        because="a gateway in front of the engine fills the field in with zeros",
        remedy="ask the engine at its own address",
        evidence=e,
    )


def _too_warm(cold: Sent) -> bool:
    if cold.share is None or cold.cached_tokens is None or cold.prompt_tokens is None:
        return False
    template = cold.share <= COLD_SHARE or cold.cached_tokens <= COLD_TOKENS
    return not template or cold.cached_tokens >= cold.prompt_tokens - 1


def _not_reported(e: Evidence) -> Outcome | None:
    cold, second, third = (e.send(FIRST, index) for index in (1, 2, 3))
    assert second is not None  # else _failed has answered
    if second.cached_tokens is not None and second.prompt_tokens:
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
    faults = preflight.matching(preflight.situation(e.facts), "cached tokens are null")
    engine = f.value(e.facts, f.ENGINE) or ("vLLM" if f.value(e.facts, f.VERSION) else "")
    remedy = DETAILS.get(engine, "ask the engine at its own address; vLLM needs --enable-prompt-tokens-details")
    return Outcome(
        code="not reported",
        cause="usage-has-no-cached-tokens" if second.prompt_tokens else "no-usage",
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
    assert second is not None  # else _failed has answered
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


def _measured(e: Evidence) -> Outcome:
    cold, second, turn = e.send(FIRST, 1), e.send(FIRST, 2), e.send(TURN, 1)
    assert second is not None  # else _failed has answered
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
