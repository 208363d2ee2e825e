"""From one lookup to a cause, in words: what ended the hit, what shows it, what brings it back, and at what price.

Nothing here repeats vLLM's rules. What a hit needed, what was cached, what a full cache would have given and what the
store side kept were all recorded inside the engine (`prefixscope.trace`); this module only compares them.

| cause | the hit is short because |
|---|---|
| full_hit | it is not: only the last tokens are computed, as for every prompt |
| spec_drop | speculative decoding gives up a block at lookup, and the rest is rounded down |
| cannot_hit | the prompt is shorter than the shortest that can hit |
| cold | nothing like this prompt came before |
| windows_dont_meet | what was stored and what the lookup needs lie side by side (the incident) |
| third_send | it is not, any more: an earlier send missed and left the blocks behind |
| interval_too_long | the checkpoints that the interval keeps are far apart |
| shared_part | only a part of the prompt was seen before, and no checkpoint lies at its end |
| prompts_differ | only a part of the prompt was seen before |
| evicted | the blocks were stored and have since been evicted |
| cache_reset | the prefix cache was reset in between |
| other_engine | another engine process (data-parallel rank) saw this prompt |
| retried | the hit shrank while the request waited, or it was preempted |
| hit_not_used | the lookup found more than the admission used |
| caching_off | the engine looks nothing up |
| cant_tell | the trace does not decide; the sentence names the causes left and the measurement that would |
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from prefixscope.trace import GroupView, Header, Kept, Lookup, Stored, Trace, intersect, ranges_text

FIXED_IN = (0, 30)
"""The first release whose store side aims at where a lookup lands after the drop."""
_FIX = "vLLM 0.30.0 (vllm#53945, merged 8 September 2026)"
_NO_PRICE = "The price was not measured."


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One named cause.

    ``cause`` is one of the codes in the module's table; ``sentence`` says it with this lookup's numbers; ``evidence``
    is what was recorded; ``remedy`` the flag or release that changes it; ``price`` what the remedy costs, measured
    where the trace holds the alternatives, else saying that it was not.
    """

    cause: str
    sentence: str
    evidence: tuple[str, ...]
    remedy: str
    price: str


def explain(trace: Trace, request_id: str, *, repeat_of: str | None = None, others: Sequence[Trace] = ()) -> Diagnosis:
    """Why this request's hit is as long as it is.

    ``repeat_of`` is the earlier request that this one was meant to repeat: only with it can a prompt that turned out
    different, or went to another rank, be told from a first send.
    ``others`` are traces of the same prompts under other settings: with them the price compares what each setting
    keeps. A request that the trace never saw is ``cant_tell``.
    """
    lookup = trace.lookup(request_id)
    if lookup is None:
        engines = ", ".join(f"pid {header.pid}" for header in trace.headers) or "none"
        return Diagnosis(
            "cant_tell",
            f"Request {request_id} is not in the trace: no traced engine looked it up.",
            (f"Engines in the trace: {engines}.", *(f"{code}: {detail}" for code, detail in trace.warnings)),
            "Send it with X-Request-Id to a server started with the tracing kit, and read the trace of every process.",
            "Nothing to pay.",
        )
    case = _Case(trace, lookup, tuple(others), trace.lookup(repeat_of) if repeat_of else None)
    for rule in (
        _caching_off,
        _hit_not_used,
        _cannot_hit,
        _retried,
        _third_send,
        _as_far_as_possible,
        _never_seen,
        _reset,
        _evicted,
        _windows_dont_meet,
        _interval_too_long,
        _shared_part,
    ):
        found = rule(case)
        if found is not None:
            return found
    return _cant_tell(case)


class _Case:
    """One lookup with what surrounds it: the closest earlier request, and what that one left behind."""

    def __init__(self, trace: Trace, lookup: Lookup, others: tuple[Trace, ...], repeat_of: Lookup | None) -> None:
        self.trace, self.lookup, self.others, self.repeat_of = trace, lookup, others, repeat_of
        self.header: Header = lookup.header
        # By the engine's own id: ours may have been sent twice.
        self.closest = trace.lookup(lookup.closest_engine_id) if lookup.closest_engine_id else None
        self.stored: dict[int, Stored] = {}
        if lookup.closest_engine_id:
            self.stored = {one.group.gid: one for one in trace.stored(lookup.closest_engine_id)}
        self.short = [view for view in lookup.groups if view.limiting and view.missing]

    @property
    def unit(self) -> int:
        return self.header.alignment or self.header.scheduler_block

    @property
    def repeats(self) -> bool:
        """Whether an earlier request had this prompt in full, as far as whole hash blocks tell."""
        return self.lookup.common_tokens + self.header.hash_block > self.lookup.tokens - 1

    def once_held(self, view: GroupView) -> tuple[tuple[int, int], ...]:
        """Missing blocks of a group that the closest earlier request had found cached or had stored."""
        held: list[tuple[int, int]] = []
        if self.closest is not None:
            for one in self.closest.groups:
                if one.group.gid == view.group.gid:
                    held += one.cached
        stored = self.stored.get(view.group.gid)
        if stored is not None:
            held += stored.kept
        common = self.lookup.common_tokens // view.group.block_size
        return intersect(intersect(view.missing, [(0, common)]), held)

    def say(self, cause: str, sentence: str, remedy: str, price: str, *more: str) -> Diagnosis:
        return Diagnosis(cause, sentence, (*_evidence(self), *more), remedy, price)


def _evidence(case: _Case) -> tuple[str, ...]:
    lookup, header = case.lookup, case.header
    lines = [
        f"vLLM {header.version}, process {header.pid}: {lookup.tokens:,} tokens, hit {lookup.hit_tokens:,}; "
        f"a cache that holds everything would give {_tokens(lookup.reachable_tokens)}.",
    ]
    for view in lookup.groups:
        if not view.known or (view.needed is None and not view.cached):
            continue
        same = [one.group.gid for one in lookup.groups if _like(one, view)]
        if view.group.gid != same[0]:
            continue
        needed = "not asked" if view.needed is None else f"needed {ranges_text([view.needed])}"
        end = f", missing {ranges_text(view.missing)}" if view.missing else ""
        lines.append(f"{_groups(case, same)}: cached {ranges_text(view.cached)}, {needed}{end}.")
    if lookup.closest_id:
        lines.append(
            f"The closest earlier request, {lookup.closest_id}, shares the first {lookup.common_tokens:,} tokens."
        )
    return tuple(lines)


def _like(one: GroupView, other: GroupView) -> bool:
    return (one.group.kind, one.group.block_size, one.cached, one.needed, one.limiting) == (
        other.group.kind,
        other.group.block_size,
        other.cached,
        other.needed,
        other.limiting,
    )


def _tokens(value: int | None) -> str:
    return "an unknown length" if value is None else f"{value:,}"


def _groups(case: _Case, gids: Iterable[int]) -> str:
    """``five sliding-window groups (16-token blocks)``, the way a sentence names them."""
    views = [view for view in case.lookup.groups if view.group.gid in set(gids)]
    kinds = {(view.group.kind, view.group.block_size) for view in views}
    parts = []
    for kind, size in sorted(kinds):
        number = sum((view.group.kind, view.group.block_size) == (kind, size) for view in views)
        word = {"sliding": "sliding-window", "full": "full-attention", "mamba": "Mamba", "chunked": "chunked"}.get(
            kind, kind
        )
        parts.append(f"{number} {word} group{'s' if number != 1 else ''} ({size}-token blocks)")
    return " and ".join(parts)


def _release(header: Header) -> tuple[int, int]:
    numbers = header.version.split("+")[0].split(".")
    try:
        return int(numbers[0]), int(numbers[1])
    except (IndexError, ValueError):
        return 0, 0


# ---- one rule per cause: a diagnosis, or None where it is not this one


def _caching_off(case: _Case) -> Diagnosis | None:
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


def _hit_not_used(case: _Case) -> Diagnosis | None:
    used, hit = case.lookup.admitted_tokens, case.lookup.hit_tokens
    if used is None or used >= hit:
        return None
    return case.say(
        "hit_not_used",
        f"The lookup found {hit:,} tokens and the admission used {used:,}.",
        "Look at what sits between the two: a KV connector, or a scheduler that recomputes.",
        _NO_PRICE,
    )


def _cannot_hit(case: _Case) -> Diagnosis | None:
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


def _retried(case: _Case) -> Diagnosis | None:
    own = case.trace.all_lookups(case.lookup.engine_request_id)
    best = max((one.hit_tokens for one in own), default=0)
    preempted = any(one.kind == "preempt" and one.request_id == case.lookup.request_id for one in case.trace.incidents)
    if best <= case.lookup.hit_tokens:
        return None
    why = "it was preempted" if preempted else f"it waited for room, {case.lookup.retries} times looked up in vain"
    return case.say(
        "retried",
        f"The request was first told {best:,} cached tokens; {why}, and was admitted with {case.lookup.hit_tokens:,}.",
        "Give the engine more KV cache or fewer concurrent requests.",
        _NO_PRICE,
    )


def _third_send(case: _Case) -> Diagnosis | None:
    lookup, before = case.lookup, case.closest
    if before is None or before.junction_tokens is None or not case.repeats:
        return None
    if lookup.hit_tokens <= before.hit_tokens or before.junction_tokens < lookup.hit_tokens:
        return None
    first = _cause_of_miss(case, before)
    return case.say(
        "third_send",
        f"This send hits {lookup.hit_tokens:,} tokens only because the one before it missed: request "
        f"{before.request_id} hit {before.hit_tokens:,}, vLLM noticed an uncached common prefix of "
        f"{before.junction_tokens:,} tokens, and that request stored the blocks that end there.",
        first.remedy,
        first.price,
        f"Two sends are not enough to judge this server; the send before: {first.sentence}",
    )


def _cause_of_miss(case: _Case, before: Lookup) -> Diagnosis:
    return explain(case.trace, before.engine_request_id, others=case.others)


def _as_far_as_possible(case: _Case) -> Diagnosis | None:
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
    names = _groups(case, case.header.drop_groups)
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


def _never_seen(case: _Case) -> Diagnosis | None:
    """Nothing earlier in this engine starts like this prompt."""
    lookup = case.lookup
    if lookup.closest_id is not None or lookup.hit_tokens:
        return None
    if case.repeat_of is not None:
        return _not_the_same(case, case.repeat_of)
    if any(view.cached for view in lookup.groups):
        return None
    # A first send and a repeat that went wrong look alike unless the caller says which one it should be.
    alike = [one for one in case.trace.of_length(lookup.prompt_tokens) if one.t < lookup.t and _peer(case, one)]
    doubt = ""
    if alike:
        doubt = (
            f" If it was meant to repeat {alike[-1].request_id}, which had as many tokens, then "
            f"{_difference(case, alike[-1])}"
        )
    return case.say(
        "cold",
        f"A first send: nothing that this engine has cached starts like this prompt of {lookup.tokens:,} tokens."
        f"{doubt}",
        "Send it again.",
        "Nothing to pay.",
    )


def _not_the_same(case: _Case, other: Lookup) -> Diagnosis:
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
    )


def _difference(case: _Case, other: Lookup) -> str:
    if other.header.engine != case.header.engine:
        return (
            f"{other.request_id} went to another engine (pid {other.header.pid}, rank {other.header.dp_rank}), and "
            "each data-parallel rank has a prefix cache of its own."
        )
    return f"the prompts differ in their first {case.header.hash_block} tokens, the LoRA adapter or the cache salt."


def _peer(case: _Case, other: Lookup) -> bool:
    """Whether the other lookup was in this engine, or in another rank of the same server."""
    mine, theirs = case.header, other.header
    if theirs.engine == mine.engine:
        return other.engine_request_id != case.lookup.engine_request_id
    return theirs.dp_rank != mine.dp_rank and (theirs.version, theirs.groups, theirs.interval) == (
        mine.version,
        mine.groups,
        mine.interval,
    )


def _reset(case: _Case) -> Diagnosis | None:
    before = case.closest
    if before is None or not case.short:
        return None
    resets = [
        one
        for one in case.trace.incidents
        if one.kind == "reset" and one.engine == case.header.engine and before.t < one.t < case.lookup.t
    ]
    if not resets:
        return None
    return case.say(
        "cache_reset",
        f"The prefix cache was reset {case.lookup.t - resets[-1].t:.1f} s before this lookup, after request "
        f"{before.request_id} had filled it.",
        "Find what calls /reset_prefix_cache (weight updates, benchmarks).",
        "Nothing to pay.",
    )


def _evicted(case: _Case) -> Diagnosis | None:
    before = case.closest
    gone = [(view, case.once_held(view)) for view in case.short]
    gone = [(view, held) for view, held in gone if held]
    if before is None or not gone:
        return None
    held = gone[0][1]
    evicted = sum(
        one.blocks
        for one in case.trace.evictions
        if one.engine == case.header.engine and before.t <= one.t <= case.lookup.t + 0.001
    )
    free, pool = case.lookup.free_blocks, case.header.pool_blocks
    fullness = "" if free is None else f" {pool - free:,} of {pool:,} blocks were in use at the lookup."
    return case.say(
        "evicted",
        f"Blocks {ranges_text(held)} of {_groups(case, [one.group.gid for one, _ in gone])} were cached when request "
        f"{before.request_id} ended and are gone {case.lookup.t - before.t:.1f} s later: evicted.",
        "Give the engine more KV cache (--gpu-memory-utilization, --kv-cache-dtype fp8), or keep fewer checkpoints.",
        _NO_PRICE,
        f"{evicted:,} blocks were evicted in between.{fullness}",
    )


def _windows_dont_meet(case: _Case) -> Diagnosis | None:
    """The incident: what was kept and what is needed overlap or touch, and the rest was never kept."""
    if not case.repeats or not case.short or not case.header.drop_groups:
        return None
    view = case.short[0]
    stored = case.stored.get(view.group.gid)
    if view.needed is None or stored is None or view.group.kind not in ("sliding", "mamba"):
        return None
    # Kept side by side with what is needed: it starts inside the needed range and reaches past it.
    beside = [one for one in stored.kept if view.needed[0] < one[0] <= view.needed[1] <= one[1]]
    if not beside or _interval_tokens(case.header) not in (0, None):
        return None
    aims = sorted({one // case.unit * case.unit for one in stored.boundaries})
    aim = f" (it aims at {aims[-1]:,})" if aims else ""
    candidate = case.lookup.candidate_tokens
    outcome = (
        "so the hit is 0" if not case.lookup.hit_tokens else f"so the hit falls back to {case.lookup.hit_tokens:,}"
    )
    release = _release(case.header)
    remedy = f"Set --prefix-cache-retention-interval to a multiple of {case.header.scheduler_block} "
    remedy += f"({_suggested(case)} here), or move to {_FIX} or later."
    if release < (0, 29):
        remedy = "Unset VLLM_PREFIX_CACHE_RETENTION_INTERVAL, or set it to "
        remedy += f"{_suggested(case)}, or move to {_FIX} or later."
    elif release >= FIXED_IN:
        remedy = f"Set --prefix-cache-retention-interval to {_suggested(case)}, and report it: {_FIX} was to end this."
    return case.say(
        "windows_dont_meet",
        f"The {_groups(case, case.lookup.limiting)} end the hit: a hit at {_tokens(candidate)} needs blocks "
        f"{ranges_text([view.needed])}, blocks {ranges_text(beside)} are stored, {ranges_text(view.missing)} were "
        f"never kept, {outcome}. In vLLM {case.header.version} the store side keeps the blocks around the prompt's "
        f"end{aim}, and the lookup lands one drop earlier.",
        remedy,
        _price(case),
    )


def _interval_too_long(case: _Case) -> Diagnosis | None:
    interval = _interval_tokens(case.header)
    if not interval or not case.repeats or not case.short:
        return None
    view = case.short[0]
    if view.group.kind not in ("sliding", "mamba") or view.group.gid not in case.stored:
        return None
    return case.say(
        "interval_too_long",
        f"The {_groups(case, case.lookup.limiting)} end the hit at {case.lookup.hit_tokens:,}: a hit at "
        f"{_tokens(case.lookup.candidate_tokens)} needs blocks {ranges_text([view.needed] if view.needed else [])}, "
        f"and with one checkpoint every {interval:,} tokens {ranges_text(view.missing)} were never kept.",
        f"Set --prefix-cache-retention-interval to a smaller multiple of {case.header.scheduler_block} "
        f"({_suggested(case)} here).",
        _price(case),
    )


def _shared_part(case: _Case) -> Diagnosis | None:
    lookup = case.lookup
    if lookup.closest_id is None or case.repeats:
        return None
    common = lookup.common_tokens
    first = f"token {common:,} to {common + case.header.hash_block:,}"
    kept_back = [view for view in case.short if view.group.kind in ("sliding", "mamba")]
    if kept_back:
        view = kept_back[0]
        return case.say(
            "shared_part",
            f"Request {lookup.closest_id} shares the first {common:,} tokens, and the {_groups(case, lookup.limiting)} "
            f"keep no checkpoint there: a hit at {_tokens(lookup.candidate_tokens)} needs blocks "
            f"{ranges_text([view.needed] if view.needed else [])}, {ranges_text(view.missing)} were never kept.",
            f"Send another prompt with the same part (vLLM then stores its end), or set "
            f"--prefix-cache-retention-interval to {_suggested(case)}.",
            _price(case),
        )
    return case.say(
        "prompts_differ",
        f"The prompt is new from {first} on: the closest earlier request, {lookup.closest_id}, shares {common:,} "
        f"tokens, of which {lookup.hit_tokens:,} hit.",
        "Compare the two prompts there: a date, a template, a changed document.",
        "Nothing to pay.",
    )


def _cant_tell(case: _Case) -> Diagnosis:
    lookup = case.lookup
    if lookup.scan != "full":
        why = "the tracer scanned only a part of this lookup's blocks to stay cheap; send it again on an idle server"
    elif lookup.closest_id is None:
        why = (
            "the earlier request that stored these blocks is not in the trace, so never stored and since evicted look "
            "alike; trace the server from its start and send the prompt twice"
        )
    else:
        why = (
            f"the missing blocks were neither stored by {lookup.closest_id} nor dropped by a rule seen here; "
            "restart with --prefix-cache-retention-interval set densely and send it twice: if it still misses, it is "
            "eviction"
        )
    missing = "; ".join(
        f"{_groups(case, [view.group.gid])} lack {ranges_text(view.missing)}" for view in case.short[:1]
    )
    return case.say(
        "cant_tell",
        f"The hit of {lookup.hit_tokens:,} is short of {_tokens(lookup.reachable_tokens)}"
        f"{': ' + missing if missing else ''}, and the trace does not decide why: {why}.",
        "Make that measurement.",
        _NO_PRICE,
    )


# ---- the price


def _interval_tokens(header: Header) -> int | None:
    return header.interval if isinstance(header.interval, int) else None


def _suggested(case: _Case) -> int:
    """A window's worth of tokens, in scheduler blocks: the checkpoints then lie where windows end."""
    windows = [view.group.window for view in case.lookup.groups if view.group.window]
    block = case.header.scheduler_block
    return max(block, (max(windows) // block * block) if windows else block)


def _price(case: _Case) -> str:
    """Blocks and bytes that one cold prompt of this length keeps, under each setting that was traced."""
    mine = _cold_kept(case.trace, case.lookup, case.header)
    rows = [(header, kept) for header, kept in _alternatives(case) if header.interval != case.header.interval]
    if mine is None:
        return _NO_PRICE
    text = f"A cold prompt of {case.lookup.prompt_tokens:,} tokens keeps {_amount(mine)} at {_label(case.header)}"
    if not rows:
        return f"{text}; what the remedy keeps was not measured."
    base = sum(one.blocks for one in mine)
    parts = []
    for header, kept in rows:
        blocks = sum(one.blocks for one in kept)
        factor = f", {blocks / base:.1f} times" if base else ""
        parts.append(f"{_amount(kept)} at {_label(header)}{factor}")
    return f"{text}; {'; '.join(parts)}. Extra blocks are evictable, and crowd out others when the cache is full."


def _label(header: Header) -> str:
    interval = f"{header.interval:,}" if isinstance(header.interval, int) else str(header.interval)
    return f"interval {interval} (vLLM {header.version})"


def _amount(kept: Iterable[Kept]) -> str:
    rows = list(kept)
    blocks = sum(one.blocks for one in rows)
    if any(one.bytes is None for one in rows):
        return f"{blocks:,} blocks"
    return f"{blocks:,} blocks ({sum(one.bytes or 0 for one in rows) / 2**20:,.1f} MiB)"


def _alternatives(case: _Case) -> list[tuple[Header, tuple[Kept, ...]]]:
    found: dict[tuple[object, str], tuple[Header, tuple[Kept, ...]]] = {}
    for trace in (case.trace, *case.others):
        for header in trace.headers:
            if header.groups != case.header.groups or header.drop_groups != case.header.drop_groups:
                continue
            kept = _cold_kept(trace, case.lookup, header)
            if kept is not None:
                found.setdefault((header.interval, header.version), (header, kept))
    return sorted(found.values(), key=lambda row: (str(row[0].version), sum(one.blocks for one in row[1])))


def _cold_kept(trace: Trace, lookup: Lookup, header: Header) -> tuple[Kept, ...] | None:
    for one in trace.of_length(lookup.prompt_tokens):
        if one.header.engine == header.engine and not one.hit_tokens and not one.common_tokens:
            kept = trace.kept(one.engine_request_id)
            if kept:
                return kept
    return None
