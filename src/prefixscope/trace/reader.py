"""Trace files, line by line, into one :class:`Trace`: what can't be read becomes a warning, never a range."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from prefixscope.errors import TraceError
from prefixscope.trace import events
from prefixscope.trace.events import our_id
from prefixscope.trace.files import LONGEST_LINE, File, files_of, lines_of
from prefixscope.trace.records import Evicted, Header, Incident, Lookup, Step, Stored
from prefixscope.trace.whole import Trace

SCHEMA = 1
LATEST_S = 253_402_300_800.0
"""The year 10,000."""


@dataclass(slots=True)
class _Building:
    """One engine's events while they are read."""

    header: Header
    lookups: list[Lookup] = field(default_factory=list)
    last: dict[str, int] = field(default_factory=dict)
    taken: int = 0
    thinned: int = 0


def read_trace(source: Path | str | Iterable[Path | str]) -> Trace:
    """The trace in a file, a folder of ``*.jsonl`` files or a run directory, or in several of them.

    Raises
    ------
    TraceError
        where there is no file, or no line that this version can read.
    """
    sources = [Path(source)] if isinstance(source, (str, Path)) else [Path(one) for one in source]
    paths = files_of(sources)
    if not paths:
        raise TraceError(
            f"No trace in {', '.join(map(str, sources))}",
            cause="the server ran without the tracer, or served nothing since it started",
            remedy="start it with the kit on PYTHONPATH and PREFIXSCOPE_TRACE_DIR set (prefixscope trace kit DIR)",
        )
    reader = Reader()
    for path in paths:
        reader.read(path)
    return reader.finish(paths)


class Reader:
    """Lines of trace files, in order, and the trace that they make so far."""

    def __init__(self) -> None:
        self.engines: dict[str, _Building] = {}
        self.files: dict[Path, File] = {}
        self.said: list[tuple[str, str]] = []
        self.evictions: list[Evicted] = []
        self.incidents: list[Incident] = []
        self.stores: dict[str, tuple[Stored, ...]] = {}
        self.events = 0
        # A long trace repeats itself: equal content is built once and shared.
        self._views: dict[tuple[str, str, str], events.Views] = {}
        self._steps: dict[str, tuple[Step, ...]] = {}
        self._rows: dict[tuple[str, str], tuple[Stored, ...]] = {}

    def read(self, path: Path) -> None:
        """Take in a whole file.

        Raises
        ------
        TraceError
            where it can't be opened.
        """
        self.files.setdefault(path, File())
        try:
            with path.open("rb") as file:
                for line in lines_of(file):
                    self.take(path, line)
        except OSError as error:
            raise TraceError(
                f"{path} can't be read: {error.strerror}", remedy="make it readable for this user"
            ) from error

    def take(self, path: Path, line: bytes) -> None:
        """Take in one line of a file."""
        state = self.files.setdefault(path, File())
        if not line.strip():
            return
        try:
            event = json.loads(line)
            schema, name = event["schema"], event["event"]
        except (ValueError, KeyError, TypeError, RecursionError):
            if line.endswith(b"\n") or len(line) >= LONGEST_LINE:
                state.unreadable += 1
            else:
                state.cut_off = True
            return
        if not isinstance(schema, int) or schema > SCHEMA:
            state.newer += 1
            return
        try:
            t = _time(event)
            known = self._take(name, event)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError):
            state.unreadable += 1
            return
        self.events += 1
        state.orphans += not known
        engine = str(event.get("engine", ""))
        state.backwards_s = max(state.backwards_s, state.clock.get(engine, t) - t)
        state.clock[engine] = max(t, state.clock.get(engine, t))

    def forget(self, keep: int) -> None:
        """Drop all but about the newest ``keep`` lookups of each engine, and what belongs to the dropped ones."""
        for building in self.engines.values():
            cut = len(building.lookups) - keep
            if cut < keep:
                continue
            for one in building.lookups[:cut]:
                if building.last.get(one.engine_request_id, cut) < cut:
                    del building.last[one.engine_request_id]
                    for name in (one.engine_request_id, one.request_id):
                        self.stores.pop(name, None)
            building.lookups = building.lookups[cut:]
            building.last = {name: index - cut for name, index in building.last.items()}
        room = 4 * keep * max(len(self.engines), 1)
        if len(self.evictions) > room:
            del self.evictions[: -room // 2]
        if len(self.incidents) > room:
            del self.incidents[: -room // 2]
        while len(self.stores) > room:
            del self.stores[next(iter(self.stores))]
        for cache in (self._views, self._steps, self._rows):
            if len(cache) > room:
                cache.clear()

    def finish(self, paths: Sequence[Path]) -> Trace:
        """The trace so far.

        Raises
        ------
        TraceError
            where no line held an event that this version can read.
        """
        if not self.events:
            names = ", ".join(path.name for path in paths[:5]) + (" …" if len(paths) > 5 else "")
            if any(state.newer for state in self.files.values()):
                raise TraceError(
                    f"Every line of {names} has a newer schema than {SCHEMA}",
                    cause="the trace was written by a newer prefixscope kit",
                    remedy="update prefixscope, then read it again",
                )
            foreign = any(state.unreadable or state.cut_off for state in self.files.values())
            raise TraceError(
                f"No event in {names}",
                cause="it holds lines, but none is an event of the tracer" if foreign else "the file is empty",
                remedy="name a trace-PID.jsonl that the tracer wrote, or its folder"
                if foreign
                else "send the server a request, then read it again",
            )
        return self.trace()

    def trace(self) -> Trace:
        """The trace so far, an empty one too."""
        # File order within an engine is the truth, whatever its clock did; across engines the clock decides.
        merged = [lookup for building in self.engines.values() for lookup in _monotonic(building.lookups)]
        lookups = sorted(merged, key=lambda one: one.t)
        return Trace(
            headers=(building.header for building in self.engines.values()),
            lookups=lookups,
            evictions=self.evictions,
            incidents=self.incidents,
            warnings=dict.fromkeys((*self._warnings(), *_repeated(lookups))),
            stores=self.stores,
        )

    def _warnings(self) -> Iterator[tuple[str, str]]:
        yield from self.said
        for path, state in self.files.items():
            yield from state.warnings(path.name)
        for building in self.engines.values():
            if building.thinned:
                detail = f"{building.thinned} of {building.taken} lookups were scanned in part (pid "
                yield "thinned", f"{detail}{building.header.pid}); their blocks are unknown outside"

    def _take(self, name: str, event: Mapping[str, Any]) -> bool:
        """Take one event in; False where its engine has no header."""
        if name == "off":
            self._say("off", f"the tracer turned itself off in process {event['pid']}: {event['reason']}")
            return True
        if name == "gap":
            self._say("gap", f"process {event['pid']} stopped writing: {event['reason']}")
            return True
        engine = str(event["engine"])
        if name == "header":
            self.engines[engine] = _Building(events.read_header(event))
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
                    building.lookups[index],
                    admitted_tokens=int(event["hit_tokens"]),
                    external_tokens=int(event.get("external_tokens", 0)),
                    retries=int(event["retries"]),
                )
        elif name == "store":
            self._store(building, event)
        elif name == "evict":
            self.evictions.extend(events.read_evicted(building.header, event))
        elif name in ("retry", "preempt", "reset", "end"):
            request = event.get("request")
            self.incidents.append(Incident(t, engine, name, None if request is None else our_id(str(request))))
        return True

    def _say(self, code: str, detail: str) -> None:
        if (code, detail) not in self.said and len(self.said) < 100:
            self.said.append((code, detail))

    def _store(self, building: _Building, event: Mapping[str, Any]) -> None:
        key = (building.header.engine, str(event["groups"]))
        found = self._rows.get(key)
        if found is None:
            found = self._rows[key] = events.read_stored(building.header, event)
        # Events are cumulative per request: the last one holds it all.
        engine_id = str(event["request"])
        self.stores[engine_id] = self.stores[our_id(engine_id)] = found

    def _lookup(self, building: _Building, event: Mapping[str, Any]) -> None:
        header = building.header
        key = (header.engine, str(event["limiting"]), str(event["groups"]))
        found = self._views.get(key)
        if found is None:
            found = self._views[key] = events.read_views(header, event)
        steps = self._steps.get(str(event["steps"]))
        if steps is None:
            steps = self._steps[str(event["steps"])] = events.read_steps(event)
        lookup = events.read_lookup(header, event, found, steps)
        building.taken += 1
        building.thinned += lookup.scan != "full"
        building.last[lookup.engine_request_id] = len(building.lookups)
        building.lookups.append(lookup)


def _repeated(lookups: Iterable[Lookup]) -> Iterator[tuple[str, str]]:
    owners: dict[str, str] = {}
    for lookup in lookups:
        if owners.setdefault(lookup.request_id, lookup.engine_request_id) != lookup.engine_request_id:
            yield "repeated_id", f"several requests carry the id {lookup.request_id}"


def _time(event: Mapping[str, Any]) -> float:
    """When the event was written, in seconds since 1970."""
    t = float(event["t"])
    if not 0 <= t < LATEST_S:
        raise ValueError(f"not a time: {t}")
    return t


def _monotonic(lookups: Iterable[Lookup]) -> Iterator[Lookup]:
    latest = 0.0
    for lookup in lookups:
        if lookup.t < latest:
            yield replace(lookup, t=latest)
            continue
        latest = lookup.t
        yield lookup
