"""What a trace says, as records: an engine, a lookup, what was stored, evicted, and what else happened."""

from __future__ import annotations

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
    layer_names: tuple[str, ...] = ()


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
    cached, within ``scanned`` where the scan was partial. ``cached`` says nothing where ``known`` is False. ``evicted``
    are blocks of this very prompt that were cached once and were evicted, as far as the engine's tracer remembers; it
    looks for them among the needed ones, in full-attention groups up to the prompt's end.
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
    evicted: Ranges = ()


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
    the same salt and adapter. ``admitted_tokens`` of the hit were used by the admission (None: not admitted), and
    ``external_tokens`` more came from a KV connector: ``usage`` counts both. ``evicted_s`` is how many seconds before
    the lookup the newest and the oldest of its evicted blocks were evicted.
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
    external_tokens: int = 0
    evicted_s: tuple[float, float] | None = None

    @property
    def cached_tokens(self) -> int | None:
        """What ``usage`` reports as cached: the local hit that was used, and what a KV connector supplied.

        Source: vLLM 0.29.0, ``PrefillStats.set``.
        """
        return None if self.admitted_tokens is None else self.admitted_tokens + self.external_tokens

    @property
    def seen_tokens(self) -> int:
        """Leading tokens that the engine had computed before, whether or not it still remembers for which request."""
        ends = [stop * view.group.block_size for view in self.groups for _, stop in view.evicted]
        return max([self.common_tokens, *ends])

    @property
    def full_tokens(self) -> int:
        """The longest hit that the hit unit allows a prompt of this length: the last token is always computed."""
        unit = self.header.alignment or self.header.scheduler_block
        return (self.tokens - 1) // unit * unit

    @property
    def missed_tokens(self) -> int:
        """Tokens that were computed before, that this release can hit, and that did not: 0 is no miss.

        What speculative decoding gives up is not missed. Where the ceiling was not asked for (a scan in part), two
        hit units are allowed for that, so that a busy server's lookups are not called misses for it.
        """
        unit = self.header.alignment or self.header.scheduler_block
        if self.reachable_tokens is not None:
            given_up = self.full_tokens - self.reachable_tokens
        else:
            given_up = 2 * unit if self.header.drop_groups else 0
        seen = self.seen_tokens
        shared = min(self.full_tokens, seen // unit * unit)
        # A repeat shares all whole hash blocks, of which the last may end below the last hit unit.
        if seen + self.header.hash_block > self.tokens - 1:
            shared = self.full_tokens
        return max(shared - given_up - self.hit_tokens, 0) if seen else 0


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
    """Blocks of one group that left the prefix cache at about the same time.

    ``ranges`` are their positions in the prompts that they belonged to, of which there may be several.
    """

    t: float
    engine: str
    gid: int
    blocks: int
    ranges: Ranges = ()


@dataclass(frozen=True, slots=True)
class Incident:
    """Something that happened to a request or a cache: ``retry``, ``preempt``, ``reset``, ``end``."""

    t: float
    engine: str
    kind: str
    request_id: str | None
