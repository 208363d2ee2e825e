"""A whole trace: every record in time order, and what is asked of all of them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping

from prefixscope.trace.records import Evicted, Header, Incident, Kept, Lookup, Stored


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
        self._evicted = _Counted((one.engine, one.t, one.blocks) for one in self.evictions)
        self._resets = _Counted((one.engine, one.t, 1) for one in self.incidents if one.kind == "reset")
        self._cold_kept: dict[tuple[str, int], tuple[Kept, ...] | None] = {}
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

    def of_length_before(self, prompt_tokens: int, t: float) -> Iterator[Lookup]:
        """Lookups of a prompt of this length that came before a time, the newest first."""
        indexes = self._by_length.get(prompt_tokens, [])
        for position in range(bisect_left(indexes, t, key=lambda index: self.lookups[index].t) - 1, -1, -1):
            yield self.lookups[indexes[position]]

    def evicted_blocks(self, engine: str, since: float, until: float) -> int:
        """How many blocks an engine evicted in that time, both ends included."""
        return self._evicted.between(engine, since, until)

    def last_reset(self, engine: str, before: float) -> float | None:
        """When an engine's prefix cache was last reset before a time; None where it never was."""
        return self._resets.last(engine, before)

    def cold_kept(self, header: Header, prompt_tokens: int) -> tuple[Kept, ...] | None:
        """What the first cold prompt of this length left in an engine's cache; None where the trace has none."""
        key = (header.engine, prompt_tokens)
        if key not in self._cold_kept:
            self._cold_kept[key] = next(
                (
                    kept
                    for one in self.of_length(prompt_tokens)
                    if one.header.engine == header.engine and not one.hit_tokens and not one.common_tokens
                    if (kept := self.kept(one.engine_request_id))
                ),
                None,
            )
        return self._cold_kept[key]

    def worst(self) -> Lookup | None:
        """The lookup that missed most; where none missed the longest repeat, else the longest; None of no lookups."""
        best: Lookup | None = None
        highest = (-1, False, -1)
        for one in self.lookups:
            rank = (one.missed_tokens, one.common_tokens > 0, one.tokens)
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


class _Counted:
    """Events of several engines in time order, each with a number: their sum in any span is two searches."""

    def __init__(self, events: Iterable[tuple[str, float, int]]) -> None:
        self.times: dict[str, list[float]] = {}
        self.sums: dict[str, list[int]] = {}
        for engine, t, number in events:
            times, sums = self.times.setdefault(engine, []), self.sums.setdefault(engine, [0])
            # File order is the truth where a clock went back.
            times.append(max(t, times[-1]) if times else t)
            sums.append(sums[-1] + number)

    def between(self, engine: str, since: float, until: float) -> int:
        times, sums = self.times.get(engine, []), self.sums.get(engine, [0])
        start, stop = bisect_left(times, since), bisect_right(times, until)
        return sums[stop] - sums[start] if start < stop else 0

    def last(self, engine: str, before: float) -> float | None:
        times = self.times.get(engine, [])
        position = bisect_left(times, before)
        return times[position - 1] if position else None
