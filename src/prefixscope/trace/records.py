"""What a trace says, as records: engines, lookups, what was stored, evicted, and what else happened."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from prefixscope.trace.ranges import Range, Ranges, count


@dataclass(frozen=True, slots=True)
class Group:
    """One KV cache group: layers that share a block table."""

    gid: int
    kind: str
    block_size: int
    window: int | None
    layers: int
    drafter: bool
    bytes_per_block: int | None
    spec: str = ""
    fields: str = ""
    """The spec's own fields as JSON, which a replay builds it from; empty in traces written without them."""


@dataclass(frozen=True, slots=True)
class Header:
    """One engine: its release, geometry and settings, as the engine itself resolved them.

    ``interval`` is 0, tokens or ``"dense"``. ``drop_groups`` give up a block at lookup. ``min_prompt_tokens`` is the
    shortest prompt that this release's own lookup can hit when everything is cached.
    """

    version: str
    groups: tuple[Group, ...]
    scheduler_block: int
    hash_block: int
    pool_blocks: int
    interval: int | str | None
    spec_method: str | None
    spec_tokens: int | None
    pid: int
    dp_rank: int | None
    engine: str = ""
    t: float = 0.0
    caching: bool = True
    alignment: int = 0
    drop_groups: tuple[int, ...] = ()
    min_prompt_tokens: int | None = None
    max_batched_tokens: int | None = None
    max_seqs: int | None = None


@dataclass(frozen=True, slots=True)
class GroupView:
    """One group at one lookup.

    ``needed`` is what a hit at the group's candidate takes (None: it was not asked); ``missing`` is needed minus
    cached, within ``scanned`` where the scan was partial. ``cached`` says nothing where ``known`` is False.
    """

    group: Group
    cached: Ranges
    needed: Range | None
    missing: Ranges
    backs_tokens: int | None
    limiting: bool
    known: bool = True
    scanned: Range | None = None
    partial_tokens: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the lookup's fixed point: the groups asked, the candidate before, what they backed."""

    gids: tuple[int, ...]
    candidate_tokens: int
    max_tokens: int
    drop: bool
    backs_tokens: int


@dataclass(frozen=True, slots=True)
class Lookup:
    """One question to the prefix cache.

    ``candidate_tokens`` is the length that the limiting groups could not back; None where nothing but the prompt's end
    limits the hit. ``reachable_tokens`` is what the same release answers when every block is cached. ``closest_id`` is
    the newest earlier request in the same engine with the longest common prefix, ``common_tokens`` of it, counted in
    whole hash blocks, ``exact_tokens`` to the token where the trace says so. ``near_id`` is an earlier request that
    starts like this one without sharing a whole hash block, ``near_tokens`` of it; ``near_scope`` says whether it had
    the same salt and adapter.
    """

    request_id: str
    t: float
    prompt_tokens: int
    hit_tokens: int
    candidate_tokens: int | None
    junction_tokens: int | None
    groups: tuple[GroupView, ...]
    limiting: tuple[int, ...]
    steps: tuple[Step, ...]
    admitted_tokens: int | None
    header: Header
    engine_request_id: str = ""
    number: int = 1
    tokens: int = 0
    max_hit_tokens: int = 0
    reachable_tokens: int | None = None
    closest_id: str | None = None
    closest_engine_id: str | None = None
    common_tokens: int = 0
    exact_tokens: int | None = None
    near_id: str | None = None
    near_tokens: int = 0
    near_scope: bool = True
    skipped: bool = False
    scan: str = "full"
    free_blocks: int | None = None
    retries: int = 0
    hook_us: int | None = None

    @property
    def full_tokens(self) -> int:
        """The longest hit that the hit unit allows a prompt of this length: the last token is always computed."""
        unit = self.header.alignment or self.header.scheduler_block
        return (self.tokens - 1) // unit * unit

    @property
    def missed_tokens(self) -> int:
        """Tokens that an earlier request shares, that this release can hit, and that did not: 0 is no miss.

        What speculative decoding gives up is not missed. Where the ceiling was not asked for (a scan in part), two
        hit units are allowed for that, so that a busy server's lookups are not called misses for it.
        """
        unit = self.header.alignment or self.header.scheduler_block
        if self.reachable_tokens is not None:
            given_up = self.full_tokens - self.reachable_tokens
        else:
            given_up = 2 * unit if self.header.drop_groups else 0
        shared = min(self.full_tokens, self.common_tokens // unit * unit)
        # A repeat shares all whole hash blocks, of which the last may end below the last hit unit.
        if self.common_tokens + self.header.hash_block > self.tokens - 1:
            shared = self.full_tokens
        return max(shared - given_up - self.hit_tokens, 0) if self.common_tokens else 0


@dataclass(frozen=True, slots=True)
class Kept:
    """What one request stored in one group and left in the prefix cache."""

    gid: int
    blocks: int
    bytes: int | None
    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Stored:
    """The store side of one request in one group: kept and dropped blocks, and the boundaries the rule aimed at.

    ``null`` are the dropped Mamba blocks that held nothing: prefill ended no chunk there, so no state was made.
    """

    group: Group
    kept: Ranges
    dropped: Ranges
    boundaries: tuple[int, ...]
    null: Ranges = ()

    @property
    def left(self) -> Kept:
        """What of it is in the prefix cache, counted."""
        blocks, size = count(self.kept), self.group.bytes_per_block
        return Kept(self.group.gid, blocks, None if size is None else blocks * size, self.kept)


@dataclass(frozen=True, slots=True)
class Evicted:
    """Blocks of one group that left the prefix cache, as a count."""

    t: float
    engine: str
    gid: int
    blocks: int


@dataclass(frozen=True, slots=True)
class Incident:
    """Something that happened to a request or a cache: ``retry``, ``preempt``, ``reset``, ``end``."""

    t: float
    engine: str
    kind: str
    request_id: str | None


class Trace:
    """Everything that the files say, in time order.

    ``headers`` one per engine, ``lookups`` one per question asked (a request that was preempted, or whose answer
    changed while it queued, has several), ``evictions``, ``incidents``, ``warnings`` as (code, detail).
    """

    def __init__(
        self,
        *,
        headers: Iterable[Header] = (),
        lookups: Iterable[Lookup] = (),
        evictions: Iterable[Evicted] = (),
        incidents: Iterable[Incident] = (),
        warnings: Iterable[tuple[str, str]] = (),
        stores: Mapping[str, tuple[Stored, ...]] | None = None,
    ) -> None:
        self.headers = tuple(headers)
        self.lookups = tuple(lookups)
        self.evictions = tuple(evictions)
        self.incidents = tuple(incidents)
        self.warnings = tuple(warnings)
        self._stores = dict(stores or {})
        self._by_id: dict[str, list[int]] = {}
        self._by_length: dict[int, list[int]] = {}
        for index, lookup in enumerate(self.lookups):
            self._by_length.setdefault(lookup.prompt_tokens, []).append(index)
            for name in {lookup.request_id, lookup.engine_request_id}:
                self._by_id.setdefault(name, []).append(index)

    def lookup(self, request_id: str) -> Lookup | None:
        """The lookup that this request was admitted with; its last one where it never was; None if never seen."""
        own = self.all_lookups(request_id)
        admitted = [one for one in own if one.admitted_tokens is not None]
        return admitted[0] if admitted else own[-1] if own else None

    def all_lookups(self, request_id: str) -> tuple[Lookup, ...]:
        """Every lookup of one request, in time order; the id may be ours or the engine's."""
        return tuple(self.lookups[index] for index in self._by_id.get(request_id, ()))

    def of_length(self, prompt_tokens: int) -> tuple[Lookup, ...]:
        """Every lookup of a prompt of this length, in time order."""
        return tuple(self.lookups[index] for index in self._by_length.get(prompt_tokens, ()))

    def worst(self) -> Lookup | None:
        """The lookup that missed most; where none missed, the one of the longest prompt; None of an empty trace."""
        best: Lookup | None = None
        highest = (-1, -1)
        for one in self.lookups:
            rank = (one.missed_tokens, one.tokens)
            if rank > highest and self._counts(one):
                best, highest = one, rank
        return best

    def sends(self, lookup: Lookup, *, limit: int = 4) -> tuple[Lookup, ...]:
        """The sends of the same prompt around a lookup, itself among them, as far as the closest ids link them.

        The first before it may share only a part of the prompt. At most ``limit``, in time order.
        """
        before: list[Lookup] = []
        seen, one = {lookup.engine_request_id}, lookup
        while one.closest_engine_id and one.closest_engine_id not in seen:
            earlier = self.lookup(one.closest_engine_id)
            if earlier is None or (before and earlier.tokens != lookup.tokens) or len(before) >= limit:
                break
            before.insert(0, earlier)
            seen.add(earlier.engine_request_id)
            one = earlier
        after: list[Lookup] = []
        for later in self.of_length(lookup.prompt_tokens):
            if len(after) >= limit:
                break
            if later.t < lookup.t or later.header.engine != lookup.header.engine or later.engine_request_id in seen:
                continue
            if later.closest_engine_id in seen and self._counts(later):
                seen.add(later.engine_request_id)
                after.append(later)
        # The send before matters most, then what came after, then what was earlier still.
        room = max(limit - 1, 0)
        ahead = min(len(after), room - min(len(before), room, 1))
        behind = min(len(before), room - ahead)
        return (*before[len(before) - behind :], lookup, *after[:ahead])

    def _counts(self, lookup: Lookup) -> bool:
        """Whether a lookup is the one that its request is told by, not one asked again in the queue."""
        return self.lookup(lookup.engine_request_id) is lookup

    def stored(self, request_id: str) -> tuple[Stored, ...]:
        """What one request stored and dropped, one per group; empty where it stored nothing or was never seen."""
        return self._stores.get(request_id, ())

    def kept(self, request_id: str) -> tuple[Kept, ...]:
        """Blocks and bytes that one request left in the prefix cache, one per group that stored anything."""
        return tuple(one.left for one in self.stored(request_id))
