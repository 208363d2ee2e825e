"""Why a second send took nothing, or too little, and what helps."""

from __future__ import annotations

import math
from dataclasses import replace

from prefixscope import preflight
from prefixscope.check.evidence import FIRST, FRESH, PINNED, SPACED, TURN, Evidence, Sent, gained, rounding
from prefixscope.check.outcome import ratio
from prefixscope.preflight import fact as f


def why_nothing(e: Evidence) -> tuple[str, str, str]:
    """Cause, explanation and remedy of a second send that took nothing."""
    if str(f.value(e.facts, f.CACHING)) == "False":
        return "prefix-caching-off", "prefix caching is off", "start it with --enable-prefix-caching"
    shared = _shared_among(e)
    if shared:
        return shared
    if e.template_changes:
        return (
            "template-changes",
            "the chat template renders the same message differently each time: it writes a clock into the prompt",
            "take the clock out of the chat template, or move it behind the conversation",
        )
    third = gained(e.send(FIRST, 1), e.send(FIRST, 3))
    at = preflight.situation(e.facts)
    # Only layers whose checkpoints are thinned out miss once and hit afterwards.
    at = replace(at, sparse_groups=True) if third else at
    faults = preflight.matching(at, "second send misses" if third else "no send hits")
    if faults:
        doubt = f"; {_alone(e)[1]}" if third and not faults[0].certain else ""
        return f"known-fault-{faults[0].id}", faults[0].sentence + doubt, faults[0].remedy
    if third:
        return (
            "third-send",
            _first_keeps_little(e),
            "prefixscope run --serve-cmd '…' shows which blocks are missing, and which flag keeps them",
        )
    return "", MAY_CHANGE, remedy_by_engine(e)


def _shared_among(e: Evidence) -> tuple[str, str, str] | None:
    """Engines or servers that take turns; None where nothing shows any."""
    ranks = f.number(e.facts, f.RANKS)
    pin = "pin a conversation to one engine (X-data-parallel-rank), or put a prefix-aware router in front"
    if any(gained(a, b) for a, b in e.pairs(PINNED)):
        b = e.pairs(PINNED)[-1][1]
        return (
            "rank-rotation",
            f"requests take turns on {ranks} engines, each with its own cache; pinned to one, {ratio(b)} are reused",
            pin,
        )
    if e.split:
        return (
            "rank-rotation",
            f"by their own counters different ones of the {ranks} engines answered the two sends, and each has its own "
            "cache",
            pin,
        )
    route = "route a conversation to the server that holds its prefix"
    if e.several_servers or any(gained(a, b) for a, b in e.pairs(SPACED)):
        return (
            "several-servers",
            "several servers answer behind this address, in turn or at random, each with its own cache",
            route,
        )
    lucky = [pair for pair in e.pairs(FRESH) if gained(*pair)]
    later = e.later_hit()
    if lucky or later:
        shown = f"the prompt hit only on send {later.index}" if later else "another prompt hit on its second send"
        return (
            "several-servers",
            f"{shown}: most likely several servers answer behind this address, each with its own cache",
            route,
        )
    return None


def _first_keeps_little(e: Evidence) -> str:
    """Why a third send hits where a second one does not, as sure as the evidence is."""
    fault = "the first send leaves no block where the second one looks, and the second one does"
    sure, why = _alone(e)
    return f"{sure}{fault}; {why}"


def _alone(e: Evidence) -> tuple[str, str]:
    """How sure it is that one cache answered, as the beginning of a sentence, and why."""
    if e.one_cache or e.split is False:
        return "", "one cache answered, for its counters saw every send"
    tries = len(e.pairs(SPACED)) + len(e.pairs(FRESH))
    if tries < 2:
        return "can't tell: ", "several servers that take turns without an order would look the same"
    return "most likely ", (
        f"none of {tries} other prompts hit on its second send, which with two servers picked at random happens in "
        f"{0.5**tries:.0%} of checks, with more servers in more"
    )


MAY_CHANGE = (
    "not known; it may be that something in front of the prompt changes with each request: a clock or an id that the "
    "chat template or a gateway writes there"
)


def remedy_by_engine(e: Evidence) -> str:
    """Where to look further: the tracer is vLLM's alone."""
    engine = f.value(e.facts, f.ENGINE)
    if engine == "llama.cpp":
        return (
            "see that cache_prompt is on, and that a slot keeps the conversation (--parallel, --slot-prompt-similarity)"
        )
    if engine and engine != "vLLM":
        return f"see {engine}'s own settings for prefix caching, and its log"
    return "prefixscope run --serve-cmd '…' shows which blocks each lookup needed, and which were there"


def why_short(e: Evidence, low: str, cold: Sent | None, second: Sent) -> tuple[str, str]:
    wanted = f"at least {100 * e.min_reuse:.4g} % is wanted" if e.min_reuse is not None else ""
    if e.template_changes:
        return (
            "the chat template renders the same message differently each time",
            "take the clock out of the chat template, or move it behind the conversation",
        )
    most = _most(e, low, second)
    if most is not None:
        told = f"{100 * most:.1f} %"
        why = f"hits are whole blocks, and a next turn's own tokens are new: at this length {told} is the most"
        return f"{wanted}; {why}", f"use a longer prompt (--tokens), or a lower --min-reuse ({told} at most)"
    if low == "second-turn":
        why = "the next turn does not begin with the tokens of the last one: the chat template rewrites earlier turns"
        if e.send(TURN, 1) and gained(cold, e.send(TURN, 1)):
            why = "the next turn finds less than the resend did"
        elif e.several_servers or (f.number(e.facts, f.RANKS) or 1) > 1:
            why = "another engine or server may have answered it, with a cache of its own; or " + why
        return "; ".join(part for part in (wanted, why) if part), "compare /tokenize of both turns"
    third = e.send(FIRST, 3)
    if third is not None and (third.cached_tokens or 0) > (second.cached_tokens or 0):
        why = f"a third send reuses {third.cached_tokens:,}: the first one keeps fewer blocks than the second looks for"
        return "; ".join(
            part for part in (wanted, why) if part
        ), "start it with a finer --prefix-cache-retention-interval"
    return wanted, remedy_by_engine(e)


def _most(e: Evidence, low: str, second: Sent) -> float | None:
    """The highest share that whole blocks allow of the second send and the next turn, to a thousandth.

    None where no share was asked for, or one of the two took less than all but the last blocks.
    """
    turn = e.send(TURN, 1)
    block = f.number(e.facts, f.MAMBA_BLOCK) or f.number(e.facts, f.BLOCK)
    took, missing = second.cached_tokens or 0, (second.prompt_tokens or 0) - (second.cached_tokens or 0)
    less = turn is not None and (turn.cached_tokens or 0) < took
    if e.min_reuse is None or less or (low != "second-turn" and missing > rounding(block)):
        return None
    shares = [sent.share for sent in (second, turn) if sent is not None and sent.share is not None]
    return math.floor(1000 * min(shares)) / 1000
