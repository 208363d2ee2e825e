"""Rules about the engine and the request itself: it looks nothing up, can't hit, or did not use what it found.

Each rule gives a diagnosis, or None where it is not this cause.
"""

from __future__ import annotations

from prefixscope.diagnosis.case import Case, Diagnosis
from prefixscope.diagnosis.price import NO_PRICE


def caching_off(case: Case) -> Diagnosis | None:
    if not case.header.caching:
        return case.say(
            "caching_off",
            "The engine runs without prefix caching, so it looks nothing up.",
            "Start it with --enable-prefix-caching.",
            "Cached blocks are evictable; they take no memory from running requests.",
        )
    if case.lookup.skipped:
        return case.say(
            "caching_off",
            "The engine skipped the lookup for this request, as it does for prompt log-probabilities and some pooling.",
            "Send the request without what needs every prompt token computed.",
            "Nothing to pay.",
        )
    return None


def hit_not_used(case: Case) -> Diagnosis | None:
    used, hit = case.lookup.admitted_tokens, case.lookup.hit_tokens
    if used is None or used >= hit:
        return None
    if external := case.lookup.external_tokens:
        total = used + external
        return case.say(
            "hit_not_used",
            f"The lookup found {hit:,} tokens and the admission used {used:,} of them, because a KV connector supplied "
            f"the {external:,} that follow: {total:,} tokens were not computed.",
            "Nothing to do: the connector's copy reaches further than the local one."
            if total >= hit
            else "Look at the connector: what it supplies ends before the local hit.",
            "Nothing to pay but the transfer." if total >= hit else NO_PRICE,
        )
    return case.say(
        "hit_not_used",
        f"The lookup found {hit:,} tokens and the admission used {used:,}.",
        "Look at what sits between the two; no KV connector supplied anything.",
        NO_PRICE,
    )


def cannot_hit(case: Case) -> Diagnosis | None:
    shortest = case.header.min_prompt_tokens
    if shortest is None or case.lookup.tokens >= shortest or case.lookup.hit_tokens:
        return None
    drop = " after the block that speculative decoding gives up" if case.header.drop_groups else ""
    return case.say(
        "cannot_hit",
        f"A prompt of {case.lookup.tokens:,} tokens cannot hit: {shortest:,} tokens is the shortest that can "
        f"here{drop}, in hit units of {case.unit:,} tokens.",
        f"Use prompts of at least {shortest:,} tokens, or accept that shorter ones are computed.",
        "Nothing to pay: prompts this short are cheap to compute.",
    )


def retried(case: Case) -> Diagnosis | None:
    best = max((one.hit_tokens for one in case.own_lookups[0]), default=0)
    if best <= case.lookup.hit_tokens:
        return None
    return case.say(
        "retried",
        f"The request was first told {best:,} cached tokens; it waited for room, {case.lookup.retries} times looked up "
        f"in vain, and was admitted with {case.lookup.hit_tokens:,}.",
        "Give the engine more KV cache or fewer concurrent requests.",
        NO_PRICE,
    )
