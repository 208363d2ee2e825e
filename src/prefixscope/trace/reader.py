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
from prefixscope.trace.records import Evicted, Header, Incident, Lookup, Step, Stored, Trace

SCHEMA = 1


@dataclass(slots=True)
class _Building:
    """One engine's events while they are read."""

    header: Header
    lookups: list[Lookup] = field(default_factory=list)
    last: dict[str, int] = field(default_factory=dict)
    thinned: int = 0


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
        self._views: dict[tuple[str, str, str], events.Views] = {}
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
        # File order within an engine is the truth, whatever its clock did; across engines the clock decides.
        merged = [lookup for building in self.engines.values() for lookup in _monotonic(building.lookups)]
        lookups = sorted(merged, key=lambda one: one.t)
        owners: dict[str, str] = {}
        for lookup in lookups:
            if owners.setdefault(lookup.request_id, lookup.engine_request_id) != lookup.engine_request_id:
                self.warnings.append(("repeated_id", f"several requests carry the id {lookup.request_id}"))
        return Trace(
            headers=(building.header for building in self.engines.values()),
            lookups=lookups,
            evictions=self.evictions,
            incidents=self.incidents,
            warnings=dict.fromkeys(self.warnings),
            stores=self.stores,
        )

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
        building.thinned += lookup.scan != "full"
        building.last[lookup.engine_request_id] = len(building.lookups)
        building.lookups.append(lookup)


def _monotonic(lookups: Iterable[Lookup]) -> Iterator[Lookup]:
    latest = 0.0
    for lookup in lookups:
        if lookup.t < latest:
            yield replace(lookup, t=latest)
            continue
        latest = lookup.t
        yield lookup
