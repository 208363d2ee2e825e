"""Rules about what the engine keeps and what a hit needs: the drop, the windows, the interval, the shared part.

Each rule gives a diagnosis, or None where it is not this cause.
"""

from __future__ import annotations

from prefixscope.diagnosis.case import Case, Diagnosis
from prefixscope.diagnosis.evidence import tokens_text
from prefixscope.diagnosis.price import price
from prefixscope.trace import GroupView, Header, Range, Ranges, count, ranges_text

FIXED_IN = (0, 30)
"""The first release whose store side aims at where a lookup lands after the drop."""

_FIX = "vLLM 0.30.0 (vllm#53945, merged 8 September 2026)"


def as_far_as_possible(case: Case) -> Diagnosis | None:
    lookup = case.lookup
    reachable = lookup.reachable_tokens
    if reachable is None:
        # Scanned in part: the ceiling was not asked for. A hit as long as the prompt allows needs no ceiling.
        reachable = lookup.full_tokens
    if lookup.hit_tokens < reachable:
        return None
    rest = lookup.tokens - lookup.hit_tokens
    if lookup.hit_tokens >= lookup.full_tokens:
        return case.say(
            "full_hit",
            f"All that a hit can cover is cached: {lookup.hit_tokens:,} of {lookup.tokens:,} tokens; the last {rest:,} "
            f"are computed because hits end on multiples of {case.unit:,} and the last token is always computed.",
            "Nothing to do.",
            "Nothing to pay.",
        )
    lost = lookup.full_tokens - lookup.hit_tokens
    names = case.groups(case.header.drop_groups)
    method = case.header.spec_method or "speculative decoding"
    return case.say(
        "spec_drop",
        f"Every block that the lookup asked for is cached; {method} gives up the last block in {names}, and rounding "
        f"to {case.unit:,} tokens makes that {lost:,} tokens less than {lookup.full_tokens:,}: hit "
        f"{lookup.hit_tokens:,}.",
        "Nothing on this release: it is the price of speculative decoding. vLLM 0.33.0 looks one token ahead in the "
        "block hashes and gives up nothing."
        if _release(case.header) < (0, 33)
        else "Without --disable-lookahead-block-hashes this release gives up nothing.",
        f"{lost:,} tokens computed again on every hit.",
    )


def windows_dont_meet(case: Case) -> Diagnosis | None:
    """The incident: what was kept and what is needed overlap or touch, and the rest was never kept."""
    if not case.short or case.header.interval not in (0, None):
        return None
    view = case.short[0]
    stored = case.stored.get(view.group.gid)
    if view.needed is None or stored is None or view.group.kind not in ("sliding", "mamba"):
        return None
    if case.repeats and not case.header.drop_groups:
        return None
    # Kept side by side with what is needed: it starts inside the needed range and reaches past it. A prompt that leaves
    # the earlier one before its end must overlap: blocks that only touch are another place's checkpoint.
    last = view.needed[1] if case.repeats else view.needed[1] - 1
    beside = [one for one in stored.kept if view.needed[0] < one[0] <= last and view.needed[1] <= one[1]]
    aims = sorted({one // case.unit * case.unit for one in stored.boundaries})
    candidate = case.lookup.candidate_tokens
    if view.group.kind == "mamba" and (not case.repeats or (case.never_made(view) and candidate not in aims)):
        return None
    if not beside and not (view.group.kind == "mamba" and aims):
        return None
    outcome = (
        "so the hit is 0" if not case.lookup.hit_tokens else f"so the hit falls back to {case.lookup.hit_tokens:,}"
    )
    there = (
        f"{_blocks(beside)} {'is' if count(beside) == 1 else 'are'} stored" if beside else "no block beside is stored"
    )
    if not case.repeats:
        lands = f"this prompt leaves {case.lookup.closest_id} at token {case.common_tokens:,}, shortly before that"
    elif candidate in aims:
        # The scheduler ends its chunks elsewhere, at states that the rule then drops.
        lands = "prefill ended no chunk there to make a state"
    elif aims and candidate is not None and (aims[-1] - candidate) % case.unit == 0 and aims[-1] > candidate:
        lands = (
            f"the lookup lands {_units((aims[-1] - candidate) // case.unit, case.unit)} earlier, at {candidate:,}, "
            "because speculative decoding gives up the last block"
        )
    else:
        lands = "the lookup lands earlier, because speculative decoding gives up the last block"
    return case.say(
        "windows_dont_meet",
        f"{case.ending} the hit: a hit at {tokens_text(candidate)} needs "
        f"{_blocks([view.needed])}, {there}, {_never(view)} kept, {outcome}. In vLLM {case.header.version} the store "
        f"side keeps {_aimed(beside, aims, view.group.block_size)}; {lands}.",
        _make_them_meet(case),
        price(case),
    )


def _aimed(kept: list[Range], aims: list[int], size: int) -> str:
    """Which blocks the store side keeps at the last boundary it aims at: before it, or the one that starts there too.

    Where a lookup gives up its last block, vLLM keeps one block more, past the boundary, for it to give up.
    """
    if not aims:
        return "the blocks before the end of the prompt"
    aim = f"the replay boundary {aims[-1]:,}, where it expects the next identical prompt to resume"
    if any(stop - 1 == aims[-1] // size for _, stop in kept):
        return f"the blocks up to and including {aims[-1] // size:,}, the one at {aim}"
    return f"the blocks before {aim}"


def _make_them_meet(case: Case) -> str:
    """The remedy where windows don't meet, as far as the engine's release has one."""
    release, tokens = _release(case.header), _suggested(case)
    if not case.header.drop_groups:
        return (
            f"Set --prefix-cache-retention-interval to a multiple of {case.header.scheduler_block} ({tokens} here); "
            "vllm#57610 reports it, vllm#57613 proposes to keep one unit more."
        )
    if release < (0, 29):
        return f"Unset VLLM_PREFIX_CACHE_RETENTION_INTERVAL, or set it to {tokens}, or move to {_FIX} or later."
    if release >= FIXED_IN:
        return f"Set --prefix-cache-retention-interval to {tokens}, and report it: {_FIX} was to end this."
    return (
        f"Set --prefix-cache-retention-interval to a multiple of {case.header.scheduler_block} ({tokens} here), "
        f"or move to {_FIX} or later."
    )


def chunk_ends(case: Case) -> Diagnosis | None:
    """A recurrent state can be stored only where a prefill chunk ends, and none ended at the candidate."""
    made = [view for view in case.short if case.never_made(view)]
    if not made or not case.repeats or case.closest is None:
        return None
    view = made[0]
    return case.say(
        "chunk_ends",
        f"{case.ending} the hit at {case.lookup.hit_tokens:,}: a hit at "
        f"{tokens_text(case.lookup.candidate_tokens)} needs the state after that token, and when "
        f"{case.closest.request_id} was computed no prefill chunk ended there. {_states(view)}",
        _chunk_remedy(case),
        "More and shorter prefill steps.",
    )


def _chunk_remedy(case: Case) -> str:
    block = max(view.group.block_size for view in case.lookup.groups if view.group.kind == "mamba")
    keep = "; the retention interval can't keep a state that was never made"
    if case.header.interval != "dense":
        keep = f" and set --prefix-cache-retention-interval to {block} to keep those states: neither helps alone"
    again = "Send it once more" if case.repeats else "Send another prompt with the same part"
    return (
        f"{again} (vLLM then ends a chunk there and keeps the state), or lower --max-num-batched-tokens to {block}, so "
        f"that a chunk ends at every block's end{keep}."
    )


def _states(view: GroupView) -> str:
    ends = [number * view.group.block_size for start, stop in view.cached for number in range(start + 1, stop + 1)]
    ends = sorted({*ends, *view.partial_tokens})
    if not ends:
        return "No state of this prompt is cached."
    more = f"{len(ends) - 4:,} earlier ones and " if len(ends) > 4 else ""
    return f"States are cached after tokens {more}{', '.join(f'{one:,}' for one in ends[-4:])}."


def interval_too_long(case: Case) -> Diagnosis | None:
    interval = _interval_tokens(case.header)
    if not interval or not case.repeats or not case.short:
        return None
    view = case.short[0]
    if view.group.kind not in ("sliding", "mamba") or view.group.gid not in case.stored:
        return None
    return case.say(
        "interval_too_long",
        f"{case.ending} the hit at {case.lookup.hit_tokens:,}: a hit at "
        f"{tokens_text(case.lookup.candidate_tokens)} needs {_needed(view)}, "
        f"and with one checkpoint every {interval:,} tokens {_never(view)} kept.",
        f"Set --prefix-cache-retention-interval to a smaller multiple of {case.header.scheduler_block} "
        f"({_suggested(case)} here).",
        price(case),
    )


def shared_part(case: Case) -> Diagnosis | None:
    lookup = case.lookup
    if lookup.closest_id is None or case.repeats:
        return None
    common = case.common_tokens
    first = f"token {common:,}" + (
        "" if lookup.exact_tokens is not None else f" to {common + case.header.hash_block:,}"
    )
    kept_back = [view for view in case.short if view.group.kind in ("sliding", "mamba")]
    if kept_back:
        view = kept_back[0]
        never_made = case.never_made(view)
        return case.say(
            "shared_part",
            f"Request {lookup.closest_id} shares the first {case.common_tokens:,} tokens, and the "
            f"{case.groups(lookup.limiting)} {case.verb('keep')} no checkpoint there: a hit at "
            f"{tokens_text(lookup.candidate_tokens)} needs {_needed(view)}, {_never(view)} "
            f"{'made, because no prefill chunk ended there' if never_made else 'kept'}.",
            _chunk_remedy(case)
            if never_made
            else "Send another prompt with the same part (vLLM then stores its end), or set "
            f"--prefix-cache-retention-interval to {_suggested(case)}.",
            price(case),
        )
    return case.say(
        "prompts_differ",
        f"The prompt is new from {first} on: the closest earlier request, {lookup.closest_id}, shares {common:,} "
        f"tokens, of which {lookup.hit_tokens:,} hit.",
        "Compare the two prompts there: a date, a template, a changed document.",
        "Nothing to pay.",
    )


def _needed(view: GroupView) -> str:
    return _blocks([view.needed] if view.needed else [])


def _blocks(ranges: Ranges | list[Range]) -> str:
    return f"block{'' if count(ranges) == 1 else 's'} {ranges_text(ranges)}"


def _units(number: int, unit: int) -> str:
    return f"one scheduler block ({unit:,} tokens)" if number == 1 else f"{number} scheduler blocks of {unit:,} tokens"


def _never(view: GroupView) -> str:
    return f"{ranges_text(view.missing)} {'was' if count(view.missing) == 1 else 'were'} never"


def _interval_tokens(header: Header) -> int | None:
    return header.interval if isinstance(header.interval, int) else None


def _suggested(case: Case) -> int:
    """A window's worth of tokens, in scheduler blocks: the checkpoints then lie where windows end."""
    windows = [view.group.window for view in case.lookup.groups if view.group.window]
    block = case.header.scheduler_block
    return max(block, (max(windows) // block * block) if windows else block)


def _release(header: Header) -> tuple[int, int]:
    numbers = header.version.split("+")[0].split(".")
    try:
        return int(numbers[0]), int(numbers[1])
    except (IndexError, ValueError):
        return 0, 0
