"""Rules about what came before: nothing, something else, another engine, a reset, an eviction.

Each rule gives a diagnosis, or None where it is not this cause.
"""

from __future__ import annotations

from prefixscope.diagnosis.case import Case, Diagnosis
from prefixscope.diagnosis.evidence import seconds_text
from prefixscope.diagnosis.price import NO_PRICE
from prefixscope.trace import Lookup, ranges_text, subtract


def never_seen(case: Case) -> Diagnosis | None:
    """Nothing earlier in this engine starts like this prompt."""
    lookup = case.lookup
    if lookup.closest_id is not None or lookup.hit_tokens or lookup.seen_tokens:
        return None
    if case.repeat_of is not None:
        return _not_the_same(case, case.repeat_of)
    if any(view.cached for view in lookup.groups):
        return None
    if lookup.near_id is not None and lookup.near_scope and 4 * lookup.near_tokens >= lookup.tokens:
        return case.say(
            "prompts_differ",
            f"The prompt shares its first {lookup.near_tokens:,} tokens with {lookup.near_id} and no more, and here a "
            f"hit covers whole multiples of {case.unit:,} tokens: a shared part needs at least that many.",
            "Make the shared part longer, or the blocks smaller (--block-size, --prefix-match-unit).",
            NO_PRICE,
        )
    # A first send and a repeat that went wrong look alike unless the caller says which one it should be.
    alike = next((one for one in case.trace.of_length_before(lookup.prompt_tokens, lookup.t) if _peer(case, one)), None)
    doubt = ""
    if alike is not None:
        doubt = (
            f" If it was meant to repeat {alike.request_id}, which had as many tokens, then {_difference(case, alike)}"
        )
    return case.say(
        "cold",
        f"A first send: nothing that this engine has cached starts like this prompt of {lookup.tokens:,} tokens."
        f"{doubt}",
        "Send it again.",
        "Nothing to pay.",
        *_same_tokens(lookup),
    )


def _not_the_same(case: Case, other: Lookup) -> Diagnosis:
    if other.header.engine != case.header.engine:
        return case.say(
            "other_engine",
            f"This engine (pid {case.header.pid}, rank {case.header.dp_rank}) never saw the prompt: "
            f"{_difference(case, other)}",
            "Route repeats to the rank that holds them, or test with one rank.",
            "Nothing to pay but balance between the ranks.",
        )
    return case.say(
        "prompts_differ",
        f"Not one block is shared with {other.request_id}, which it should repeat: {_difference(case, other)}",
        "Compare the two requests: a date in the chat template, the adapter, cache_salt.",
        "Nothing to pay.",
        *_same_tokens(case.lookup),
    )


def _same_tokens(lookup: Lookup) -> tuple[str, ...]:
    if lookup.near_id is None or not lookup.near_tokens:
        return ()
    if lookup.near_scope:
        return (f"The first {lookup.near_tokens:,} tokens are those of {lookup.near_id}; the next one differs.",)
    return (f"{lookup.near_id} starts with the same tokens, under another cache salt or LoRA adapter.",)


def _difference(case: Case, other: Lookup) -> str:
    if other.header.engine != case.header.engine:
        return (
            f"{other.request_id} went to another engine (pid {other.header.pid}, rank {other.header.dp_rank}), and "
            "each data-parallel rank has a prefix cache of its own."
        )
    return f"the prompts differ in their first {case.header.hash_block} tokens, the LoRA adapter or the cache salt."


def _peer(case: Case, other: Lookup) -> bool:
    """Whether the other lookup was in this engine, or in another rank of the same server."""
    mine, theirs = case.header, other.header
    if theirs.engine == mine.engine:
        return other.engine_request_id != case.lookup.engine_request_id
    return theirs.dp_rank != mine.dp_rank and (theirs.version, theirs.groups, theirs.interval) == (
        mine.version,
        mine.groups,
        mine.interval,
    )


def cache_reset(case: Case) -> Diagnosis | None:
    before = case.closest
    if before is None or not case.short:
        return None
    reset = case.trace.last_reset(case.header.engine, case.lookup.t)
    if reset is None or reset <= before.t:
        return None
    return case.say(
        "cache_reset",
        f"The prefix cache was reset {seconds_text(case.lookup.t - reset)} before this lookup, after request "
        f"{before.request_id} had filled it.",
        "Find what calls /reset_prefix_cache (weight updates, benchmarks).",
        "Nothing to pay.",
    )


def evicted(case: Case) -> Diagnosis | None:
    before = case.closest
    gone = [(view, held) for view in case.short if (held := case.once_held(view))]
    # A full-attention group that lost blocks lowers the candidate for all the others.
    gone = gone or [(v, held) for v in case.lookup.groups if v.group.kind == "full" and (held := case.gone(v))]
    if not gone:
        return None
    view, held = gone[0]
    names = case.groups([one.group.gid for one, _ in gone])
    ago = case.lookup.evicted_s
    when = "are gone" if ago is None else f"were evicted {_ago(ago)} before this lookup"
    if before is None:
        sentence = f"Blocks {ranges_text(held)} of this prompt in the {names} were cached once and {when}."
    else:
        sentence = (
            f"Blocks {ranges_text(held)} of the {names} were cached when request {before.request_id} ended, "
            f"{seconds_text(case.lookup.t - before.t)} earlier, and {when}{': evicted' if ago is None else ''}."
        )
    never = subtract(view.missing, held)
    remedy = (
        "Give the engine more KV cache (--gpu-memory-utilization, --kv-cache-dtype fp8), or keep fewer checkpoints."
    )
    if never and view.group.kind != "full" and before is not None:
        sentence += (
            f" Blocks {ranges_text(never)}, needed too, were not stored by that request: eviction is one cause of two."
        )
        remedy += " Repeat it on an idle server to see what is left of the miss without evictions."
    return case.say("evicted", sentence, remedy, NO_PRICE, _pressure(case))


def _pressure(case: Case) -> str:
    """How much was evicted since the closest request, and how full the pool was."""
    since = 0.0 if case.closest is None else case.closest.t
    evicted = case.trace.evicted_blocks(case.header.engine, since, case.lookup.t + 0.001)
    free, pool = case.lookup.free_blocks, case.header.pool_blocks
    fullness = "" if free is None else f" {pool - free:,} of {pool:,} blocks were in use at the lookup."
    return f"{evicted:,} blocks were evicted {'in between' if case.closest else 'before it'}.{fullness}"


def _ago(seconds: tuple[float, float]) -> str:
    newest, oldest = map(seconds_text, seconds)
    return newest if newest == oldest else f"{newest} to {oldest}"
