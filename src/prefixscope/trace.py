"""Engine-side events, read from outside: block ranges per group and lookup, joined with our rows by request id.

A trace is what the tracer (`prefixscope.inside.tracer`) wrote: JSON lines, one file per process. Ranges are half-open,
in a group's own blocks. What can't be read becomes a warning, never a range.

| warning code | when |
|---|---|
| truncated | the last line of a file is cut off |
| unreadable | a line in the middle is not an event |
| newer_schema | lines of a schema that this version does not know |
| gap | the tracer stopped writing (size limit) |
| thinned | lookups whose blocks were scanned only in part, to bound the tracer's cost |
| off | the tracer turned itself off, and why |
| no_header | events of an engine whose header is missing |
| clock | a process's clock went backwards |
| repeated_id | one id of ours on several requests: ask by the engine's id |
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from prefixscope.errors import TraceError

SCHEMA = 1

Range = tuple[int, int]
Ranges = tuple[Range, ...]

_ENGINE_ID = re.compile(r"^(?:chatcmpl|cmpl)-(?P<ours>.+)-[0-9a-f]{8}$")


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
    whole hash blocks.
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


@dataclass(frozen=True, slots=True)
class Kept:
    """What one request stored in one group and left in the prefix cache."""

    gid: int
    blocks: int
    bytes: int | None
    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Stored:
    """The store side of one request in one group: kept and dropped blocks, and the boundaries the rule aimed at."""

    group: Group
    kept: Ranges
    dropped: Ranges
    boundaries: tuple[int, ...]


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


@dataclass(slots=True)
class _Building:
    """One engine's events while they are read."""

    header: Header
    lookups: list[Lookup] = field(default_factory=list)
    last: dict[str, int] = field(default_factory=dict)
    thinned: int = 0


class Trace:
    """Everything that the files say, in time order.

    ``headers`` one per engine, ``lookups`` one per question asked (a request that was preempted, or whose answer
    changed while it queued, has several), ``evictions``, ``incidents``, ``warnings`` as (code, detail).
    """

    def __init__(self) -> None:
        self.headers: tuple[Header, ...] = ()
        self.lookups: tuple[Lookup, ...] = ()
        self.evictions: tuple[Evicted, ...] = ()
        self.incidents: tuple[Incident, ...] = ()
        self.warnings: tuple[tuple[str, str], ...] = ()
        self._by_id: dict[str, list[int]] = {}
        self._by_length: dict[int, list[int]] = {}
        self._stores: dict[str, tuple[Stored, ...]] = {}

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

    def stored(self, request_id: str) -> tuple[Stored, ...]:
        """What one request stored and dropped, one per group; empty where it stored nothing or was never seen."""
        return self._stores.get(request_id, ())

    def kept(self, request_id: str) -> tuple[Kept, ...]:
        """Blocks and bytes that one request left in the prefix cache, one per group that stored anything."""
        return tuple(_kept(one) for one in self.stored(request_id))


def _kept(stored: Stored) -> Kept:
    blocks = count(stored.kept)
    size = stored.group.bytes_per_block
    return Kept(stored.group.gid, blocks, None if size is None else blocks * size, stored.kept)


def our_id(engine_request_id: str) -> str:
    """Our X-Request-Id inside the engine's own id (``chatcmpl-OURS-8hex``); other ids stay as they are."""
    match = _ENGINE_ID.match(engine_request_id)
    return match["ours"] if match else engine_request_id


def count(ranges: Iterable[Sequence[int]]) -> int:
    """Blocks in the ranges."""
    return sum(stop - start for start, stop in ranges)


def subtract(whole: Iterable[Sequence[int]], parts: Iterable[Sequence[int]]) -> Ranges:
    """What of ``whole`` is in none of ``parts``."""
    left = [(start, stop) for start, stop in whole if start < stop]
    for cut_start, cut_stop in parts:
        rest: list[Range] = []
        for start, stop in left:
            if cut_stop <= start or stop <= cut_start:
                rest.append((start, stop))
                continue
            if start < cut_start:
                rest.append((start, cut_start))
            if cut_stop < stop:
                rest.append((cut_stop, stop))
        left = rest
    return tuple(left)


def intersect(one: Iterable[Sequence[int]], other: Iterable[Sequence[int]]) -> Ranges:
    """What is in both."""
    others = tuple(other)
    found = [(max(a, c), min(b, d)) for a, b in one for c, d in others if max(a, c) < min(b, d)]
    return tuple(sorted(found))


def ranges_text(ranges: Iterable[Sequence[int]], *, inclusive: bool = True) -> str:
    """``328–391`` in prose, or ``[328, 392)``; ``none`` where there is no block."""
    parts = []
    for start, stop in ranges:
        if not inclusive:
            parts.append(f"[{start}, {stop})")
        elif stop - start == 1:
            parts.append(f"{start}")
        else:
            parts.append(f"{start}–{stop - 1}")
    return ", ".join(parts) or "none"


def read_trace(source: Path | str | Iterable[Path | str]) -> Trace:
    """The trace in a file, a folder of ``*.jsonl`` files, or several of either.

    Raises
    ------
    TraceError
        where there is no file, or no line that this version can read.
    """
    paths = list(_files([source] if isinstance(source, (str, Path)) else source))
    if not paths:
        raise TraceError(
            f"No trace in {source}",
            cause="the server ran without the tracer, or served nothing since it started",
            remedy="start it with the kit on PYTHONPATH and PREFIXSCOPE_TRACE_DIR set (prefixscope trace kit DIR)",
        )
    reader = _Reader()
    for path in paths:
        reader.read(path)
    return reader.finish(paths)


def _files(sources: Iterable[Path | str]) -> Iterator[Path]:
    for source in sources:
        path = Path(source)
        if path.is_dir():
            yield from sorted(path.glob("*.jsonl"))
        elif path.exists():
            yield path
        else:
            raise TraceError(f"No file {path}", remedy="check the path; a run keeps its traces in RUN/trace/")


class _Reader:
    def __init__(self) -> None:
        self.engines: dict[str, _Building] = {}
        self.warnings: list[tuple[str, str]] = []
        self.evictions: list[Evicted] = []
        self.incidents: list[Incident] = []
        self.stores: dict[str, tuple[Stored, ...]] = {}
        self.events = self.newer = 0
        # A long trace repeats itself: equal content is built once and shared.
        self._views: dict[tuple[str, str, str], tuple[tuple[GroupView, ...], tuple[int, ...]]] = {}
        self._steps: dict[str, tuple[Step, ...]] = {}
        self._rows: dict[tuple[str, str], tuple[Stored, ...]] = {}

    def read(self, path: Path) -> None:
        newer = unreadable = orphans = 0
        clock: dict[str, float] = {}
        backwards = 0.0
        with path.open("rb") as file:
            for line in file:
                if not line.strip():
                    continue
                try:
                    event = json.loads(line)
                    schema, name = event["schema"], event["event"]
                except (ValueError, KeyError, TypeError):
                    if line.endswith(b"\n"):
                        unreadable += 1
                    else:
                        self.warnings.append(("truncated", f"{path.name}: the last line is cut off and left out"))
                    continue
                if not isinstance(schema, int) or schema > SCHEMA:
                    newer += 1
                    continue
                try:
                    known = self._take(name, event)
                except (KeyError, TypeError, ValueError, IndexError):
                    unreadable += 1
                    continue
                self.events += 1
                orphans += not known
                engine, t = str(event.get("engine", "")), float(event.get("t", 0.0))
                backwards = max(backwards, clock.get(engine, t) - t)
                clock[engine] = max(t, clock.get(engine, t))
        self.newer += newer
        if newer:
            self.warnings.append(
                ("newer_schema", f"{path.name}: {newer} lines of a newer schema left out; update prefixscope")
            )
        if unreadable:
            self.warnings.append(("unreadable", f"{path.name}: {unreadable} lines are not events and were left out"))
        if orphans:
            self.warnings.append(("no_header", f"{path.name}: {orphans} events of an engine without a header left out"))
        if backwards > 0.001:
            self.warnings.append(
                ("clock", f"{path.name}: the clock went back by up to {backwards:.3f} s; file order was kept")
            )

    def finish(self, paths: Sequence[Path]) -> Trace:
        if not self.events:
            names = ", ".join(path.name for path in paths)
            if self.newer:
                raise TraceError(
                    f"Every line of {names} has a newer schema than {SCHEMA}",
                    cause="the trace was written by a newer prefixscope kit",
                    remedy="update prefixscope, then read it again",
                )
            raise TraceError(
                f"No event in {names}",
                cause="the file is empty or not a trace",
                remedy="send the server a request, then read it again",
            )
        for building in self.engines.values():
            if building.thinned:
                detail = f"{building.thinned} of {len(building.lookups)} lookups were scanned in part (pid "
                self.warnings.append(("thinned", f"{detail}{building.header.pid}); their blocks are unknown outside"))
        trace = Trace()
        trace.headers = tuple(building.header for building in self.engines.values())
        # File order within an engine is the truth, whatever its clock did; across engines the clock decides.
        merged = [lookup for building in self.engines.values() for lookup in _monotonic(building.lookups)]
        trace.lookups = tuple(sorted(merged, key=lambda one: one.t))
        trace.evictions = tuple(self.evictions)
        trace.incidents = tuple(self.incidents)
        owners: dict[str, str] = {}
        for index, lookup in enumerate(trace.lookups):
            trace._by_length.setdefault(lookup.prompt_tokens, []).append(index)
            for name in {lookup.request_id, lookup.engine_request_id}:
                trace._by_id.setdefault(name, []).append(index)
            if owners.setdefault(lookup.request_id, lookup.engine_request_id) != lookup.engine_request_id:
                self.warnings.append(("repeated_id", f"several requests carry the id {lookup.request_id}"))
        trace.warnings = tuple(dict.fromkeys(self.warnings))
        trace._stores = self.stores
        return trace

    def _take(self, name: str, event: Mapping[str, Any]) -> bool:
        """Take one event in; False where its engine has no header."""
        if name == "off":
            self.warnings.append(("off", f"the tracer turned itself off in process {event['pid']}: {event['reason']}"))
            return True
        if name == "gap":
            self.warnings.append(("gap", f"process {event['pid']} stopped writing: {event['reason']}"))
            return True
        engine = str(event["engine"])
        if name == "header":
            self.engines[engine] = _Building(_header(event))
            return True
        building = self.engines.get(engine)
        if building is None:
            return False
        t = float(event["t"])
        if name == "lookup":
            self._lookup(building, event)
        elif name == "admit":
            index = building.last.get(str(event["request"]))
            if index is not None:
                building.lookups[index] = replace(
                    building.lookups[index], admitted_tokens=int(event["hit_tokens"]), retries=int(event["retries"])
                )
        elif name == "store":
            self._store(building, event)
        elif name == "evict":
            self.evictions.extend(Evicted(t, engine, int(row["gid"]), int(row["blocks"])) for row in event["groups"])
        elif name in ("retry", "preempt", "reset", "end"):
            request = event.get("request")
            self.incidents.append(Incident(t, engine, name, None if request is None else our_id(str(request))))
        return True

    def _store(self, building: _Building, event: Mapping[str, Any]) -> None:
        key = (building.header.engine, str(event["groups"]))
        found = self._rows.get(key)
        if found is None:
            rows = []
            for row in event["groups"]:
                kept, dropped = _ranges(row["kept"]), _ranges(row["dropped"])
                boundaries = tuple(int(one) for one in row.get("boundaries", ()))
                rows += [Stored(building.header.groups[gid], kept, dropped, boundaries) for gid in row["gids"]]
            found = self._rows[key] = tuple(sorted(rows, key=lambda one: one.group.gid))
        # Events are cumulative per request: the last one holds it all.
        engine_id = str(event["request"])
        self.stores[engine_id] = self.stores[our_id(engine_id)] = found

    def _lookup(self, building: _Building, event: Mapping[str, Any]) -> None:
        header = building.header
        key = (header.engine, str(event["limiting"]), str(event["groups"]))
        found = self._views.get(key)
        if found is None:
            found = self._views[key] = _views(header, event)
        views, limiting = found
        steps = self._steps.get(str(event["steps"]))
        if steps is None:
            steps = self._steps[str(event["steps"])] = tuple(
                Step(tuple(one["gids"]), one["candidate"], one["max"], one["drop"], one["backs"])
                for one in event["steps"]
            )
        closest = event.get("closest")
        engine_id = str(event["request"])
        lookup = Lookup(
            request_id=our_id(engine_id),
            t=float(event["t"]),
            prompt_tokens=int(event["prompt_tokens"]),
            hit_tokens=int(event["hit_tokens"]),
            candidate_tokens=_optional(event["candidate_tokens"]),
            junction_tokens=_optional(event["junction_tokens"]),
            groups=views,
            limiting=limiting,
            steps=steps,
            admitted_tokens=None,
            header=header,
            engine_request_id=engine_id,
            number=int(event["n"]),
            tokens=int(event["tokens"]),
            max_hit_tokens=int(event["max_hit_tokens"]),
            reachable_tokens=_optional(event.get("reachable_tokens")),
            closest_id=our_id(str(closest["request"])) if closest else None,
            closest_engine_id=str(closest["request"]) if closest else None,
            common_tokens=int(closest["common_tokens"]) if closest else 0,
            skipped=bool(event["skipped"]),
            scan=str(event["scan"]),
            free_blocks=_optional(event.get("free_blocks")),
            hook_us=_optional(event.get("hook_us")),
        )
        building.thinned += lookup.scan != "full"
        building.last[engine_id] = len(building.lookups)
        building.lookups.append(lookup)


def _views(header: Header, event: Mapping[str, Any]) -> tuple[tuple[GroupView, ...], tuple[int, ...]]:
    """Every group as one lookup found it, in group order, and the groups that limit the hit."""
    rows = {int(gid): row for row in event["groups"] for gid in row["gids"]}
    missing = {gid: _missing(row) for gid, row in rows.items()}
    asked = {int(gid) for gid in event["limiting"]}
    # Groups searched together fail together; those that lack a block are the ones to name.
    limiting = {gid for gid in asked if missing[gid]} or asked
    views = []
    for gid, row in sorted(rows.items()):
        needed, scanned = row["needed"], row.get("scanned")
        views.append(
            GroupView(
                group=header.groups[gid],
                cached=_ranges(row["cached"] or ()),
                needed=None if needed is None else (int(needed[0]), int(needed[1])),
                missing=missing[gid],
                backs_tokens=_optional(row["backs"]),
                limiting=gid in limiting,
                known=row["cached"] is not None,
                scanned=None if scanned is None else (int(scanned[0]), int(scanned[1])),
                partial_tokens=tuple(row.get("partial_tokens", ())),
            )
        )
    return tuple(views), tuple(sorted(limiting))


def _monotonic(lookups: Iterable[Lookup]) -> Iterator[Lookup]:
    latest = 0.0
    for lookup in lookups:
        if lookup.t < latest:
            yield replace(lookup, t=latest)
            continue
        latest = lookup.t
        yield lookup


def _header(event: Mapping[str, Any]) -> Header:
    groups = tuple(
        Group(
            gid=int(row["gid"]),
            kind=str(row["kind"]),
            block_size=int(row["block_size"]),
            window=_optional(row["window"]),
            layers=int(row["layers"]),
            drafter=bool(row["drafter"]),
            bytes_per_block=_optional(row["bytes_per_block"]),
        )
        for row in event["groups"]
    )
    interval = event["interval"]
    return Header(
        version=str(event["version"]),
        groups=groups,
        scheduler_block=int(event["scheduler_block"]),
        hash_block=int(event["hash_block"]),
        pool_blocks=int(event["pool_blocks"]),
        interval=interval if isinstance(interval, str) else _optional(interval),
        spec_method=event["spec_method"],
        spec_tokens=_optional(event["spec_tokens"]),
        pid=int(event["pid"]),
        dp_rank=_optional(event["dp_rank"]),
        engine=str(event["engine"]),
        t=float(event["t"]),
        caching=bool(event["caching"]),
        alignment=int(event["alignment"]),
        drop_groups=tuple(int(gid) for gid in event["drop_groups"]),
        min_prompt_tokens=_optional(event.get("min_prompt_tokens")),
    )


def _missing(row: Mapping[str, Any]) -> Ranges:
    needed, cached, scanned = row["needed"], row["cached"], row.get("scanned")
    if needed is None or cached is None:
        return ()
    inside = [needed] if scanned is None else intersect([needed], [scanned])
    return subtract(inside, cached)


def _ranges(rows: Iterable[Sequence[int]]) -> Ranges:
    found = tuple((int(start), int(stop)) for start, stop in rows)
    if any(start < 0 or stop <= start for start, stop in found):
        raise ValueError(f"not block ranges: {found}")
    return found


def _optional(value: Any) -> int | None:
    return None if value is None else int(value)
