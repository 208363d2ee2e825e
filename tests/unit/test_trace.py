"""The trace reader: exact ranges from a recorded trace, and a clear word for everything that can be wrong with one.

`tests/data/trace-incident.jsonl` was recorded by `tests/engine/scheduler_driver.py` on vLLM 0.29.0: the incident's
geometry with 32-token blocks, 6,446 tokens, at intervals 0, 1,024 and dense.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from prefixscope.errors import TraceError
from prefixscope.trace import (
    GroupView,
    Lookup,
    Trace,
    count,
    intersect,
    our_id,
    ranges_text,
    read_trace,
    subtract,
    union,
)

RECORDED = Path(__file__).parents[1] / "data" / "trace-incident.jsonl"
Event = dict[str, Any]


def events() -> list[Event]:
    return [json.loads(line) for line in RECORDED.read_text(encoding="utf-8").splitlines()]


def write(path: Path, rows: list[Event]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def read(path: Path, change: Callable[[Event], Event | None]) -> Trace:
    """The recorded trace with every event passed through ``change``; None leaves it out."""
    rows = [changed for changed in (change(event) for event in events()) if changed is not None]
    return read_trace(write(path / "trace-1.jsonl", rows))


def look(trace: Trace, request_id: str) -> Lookup:
    lookup = trace.lookup(request_id)
    assert lookup is not None
    return lookup


def sliding(lookup: Lookup) -> GroupView:
    return lookup.groups[0]


def test_incident_ranges_are_exact() -> None:
    """The incident's needed, stored and missing blocks come out as they are, in every sliding group."""
    lookup = look(read_trace(RECORDED), "cpu-2")
    for view in lookup.groups[:5]:
        assert (view.needed, view.cached, view.missing) == ((166, 199), ((168, 201),), ((166, 168),))
        assert view.limiting
    assert lookup.limiting == (0, 1, 2, 3, 4)
    assert (lookup.hit_tokens, lookup.admitted_tokens, lookup.candidate_tokens) == (0, 0, 6336)


def test_lookup_by_either_id() -> None:
    """A request is found by our id and by the engine's."""
    trace = read_trace(RECORDED)
    assert trace.lookup("cpu-2") is trace.lookup("chatcmpl-cpu-2-0123abcd")
    assert trace.lookup("nobody") is None


@pytest.mark.parametrize(
    ("engine_id", "ours"),
    [
        ("chatcmpl-run-7-cold-0123abcd", "run-7-cold"),
        ("cmpl-a-0123abcd", "a"),
        ("chatcmpl-short", "chatcmpl-short"),
        ("7", "7"),
    ],
)
def test_our_id(engine_id: str, ours: str) -> None:
    """The engine's prefix and its eight random digits are stripped, and nothing else is."""
    assert our_id(engine_id) == ours


def test_kept_blocks_and_bytes() -> None:
    """What a cold prompt leaves behind is counted per group, in blocks and bytes."""
    trace = read_trace(RECORDED)
    assert [one.blocks for one in trace.kept("cpu-1")] == [33] * 5 + [100]
    assert [one.blocks for one in trace.kept("dense-1")] == [201] * 5 + [100]
    header = look(trace, "cpu-1").header
    for one in trace.kept("cpu-1"):
        assert one.bytes == one.blocks * (header.groups[one.gid].bytes_per_block or 0)
    assert trace.kept("nobody") == ()


def test_headers_tell_engines_apart() -> None:
    """Three engines in one file keep their own settings and their own lookups."""
    trace = read_trace(RECORDED)
    assert [header.interval for header in trace.headers] == [0, 1024, "dense"]
    assert {look(trace, name).header.interval for name in ("cpu-1", "spaced-1", "dense-1")} == {0, 1024, "dense"}


def test_steps_are_kept() -> None:
    """Each step of the fixed point says who was asked for what, and what it backed."""
    steps = look(read_trace(RECORDED), "cpu-2").steps
    assert [(step.gids, step.candidate_tokens, step.backs_tokens) for step in steps[:2]] == [
        ((5,), 6445, 6336),
        ((0, 1, 2, 3, 4), 6336, 0),
    ]


def test_truncated_last_line(tmp_path: Path) -> None:
    """A cut-off last line is left out with a warning, and all before it stays."""
    path = tmp_path / "trace-1.jsonl"
    path.write_bytes(RECORDED.read_bytes()[:-40])
    trace = read_trace(tmp_path)
    assert [code for code, _ in trace.warnings] == ["truncated"]
    assert sliding(look(trace, "cpu-2")).missing == ((166, 168),)


@pytest.mark.parametrize(
    ("lines", "words"),
    [("not json\n[]\n", "2 lines are not events and were left out"), ("[]\n", "1 line is no event and was left out")],
)
def test_garbage_line(lines: str, words: str, tmp_path: Path) -> None:
    """A line that is no event is counted and named, never guessed at."""
    text = RECORDED.read_text(encoding="utf-8")
    (tmp_path / "trace-1.jsonl").write_text(lines + text, encoding="utf-8")
    trace = read_trace(tmp_path)
    assert trace.warnings == (("unreadable", f"trace-1.jsonl: {words}"),)
    assert len(trace.lookups) == len(read_trace(RECORDED).lookups)


def test_impossible_ranges_are_refused(tmp_path: Path) -> None:
    """Ranges that run backwards make their event unreadable instead of a wrong range."""

    def backwards(event: Event) -> Event:
        if event["event"] == "lookup" and "cpu-2" in event["request"]:
            event["groups"][0]["cached"] = [[201, 168]]
        return event

    trace = read(tmp_path, backwards)
    assert trace.lookup("cpu-2") is None
    assert [code for code, _ in trace.warnings] == ["unreadable"]


@pytest.mark.parametrize(
    "wrong",
    [{"gids": [-1]}, {"gids": [6]}, {"needed": [199, 166]}, {"needed": [-2, 3]}, {"evicted": [[5, 5]]}],
)
def test_a_lookup_with_a_wrong_group_or_range_is_left_out(tmp_path: Path, wrong: Event) -> None:
    """A group that the engine does not have, or a range that is none, drops its line and never becomes a range."""

    def change(event: Event) -> Event:
        if event["event"] == "lookup" and "cpu-2" in event["request"]:
            event["groups"][1] |= wrong
        return event

    trace = read(tmp_path, change)
    assert trace.lookup("cpu-2") is None
    assert [code for code, _ in trace.warnings] == ["unreadable"]


def test_evictions_with_and_without_positions(tmp_path: Path) -> None:
    """Evictions are counted per group with their positions; a trace that holds only counts is read too."""
    first = events()[0]
    rows = [{"gid": 0, "blocks": 3, "ranges": [[4, 6], [9, 10]]}, {"gid": 5, "blocks": 7}]
    evict = {**{name: first[name] for name in ("schema", "pid", "engine", "t")}, "event": "evict", "groups": rows}
    trace = read_trace(write(tmp_path / "trace-1.jsonl", [first, evict]))
    assert [(one.gid, one.blocks, one.ranges) for one in trace.evictions] == [(0, 3, ((4, 6), (9, 10))), (5, 7, ())]
    engine, t = first["engine"], first["t"]
    assert trace.evicted_blocks(engine, t - 1, t) == 10
    assert trace.evicted_blocks(engine, t + 0.1, t + 1) == trace.evicted_blocks("other", t - 1, t + 1) == 0


def test_newer_schema_in_part(tmp_path: Path) -> None:
    """Lines of a newer schema are left out with a warning."""
    trace = read(tmp_path, lambda event: {**event, "schema": 2} if "dense" in str(event.get("request")) else event)
    assert [code for code, _ in trace.warnings] == ["newer_schema"]
    assert trace.lookup("dense-1") is None
    assert trace.lookup("cpu-1") is not None


def test_newer_schema_throughout(tmp_path: Path) -> None:
    """A trace that is newer throughout is an error that says to update."""
    with pytest.raises(TraceError, match="newer schema"):
        read(tmp_path, lambda event: {**event, "schema": 2})


def test_empty_file(tmp_path: Path) -> None:
    """An empty file is an error that says what to do."""
    (tmp_path / "trace-1.jsonl").touch()
    with pytest.raises(TraceError, match="No event"):
        read_trace(tmp_path)


def test_no_file(tmp_path: Path) -> None:
    """A folder without a trace, and a path that does not exist, are errors that say how to get one."""
    with pytest.raises(TraceError, match="PREFIXSCOPE_TRACE_DIR"):
        read_trace(tmp_path)
    with pytest.raises(TraceError, match="No file"):
        read_trace(tmp_path / "absent.jsonl")


def test_several_processes(tmp_path: Path) -> None:
    """Files of several processes are read as one trace, in time order."""
    halves: dict[str, list[Event]] = {"1": [], "2": []}
    engines = list(dict.fromkeys(event["engine"] for event in events()))
    for event in events():
        halves["1" if event["engine"] == engines[0] else "2"].append(event)
    for pid, rows in halves.items():
        write(tmp_path / f"trace-{pid}.jsonl", rows)
    trace = read_trace([tmp_path / "trace-2.jsonl", tmp_path / "trace-1.jsonl"])
    assert [one.request_id for one in trace.lookups] == [one.request_id for one in read_trace(RECORDED).lookups]
    assert trace.warnings == ()


def test_events_without_a_header(tmp_path: Path) -> None:
    """Without an engine's header its ranges mean nothing: its events are left out and counted."""
    first = events()[0]["engine"]
    trace = read(tmp_path, lambda event: None if event["event"] == "header" and event["engine"] == first else event)
    assert trace.lookup("cpu-2") is None
    assert [code for code, _ in trace.warnings] == ["no_header"]


def test_clock_that_jumps_back(tmp_path: Path) -> None:
    """Where the clock goes back within an engine, file order is kept and the jump is named."""

    def jump(event: Event) -> Event:
        return {**event, "t": event["t"] - 3600} if "cpu-3" in str(event.get("request")) else event

    trace = read(tmp_path, jump)
    own = [one.request_id for one in trace.lookups if one.request_id.startswith("cpu")]
    assert own == ["cpu-1", "cpu-2", "cpu-3"]
    assert [code for code, _ in trace.warnings] == ["clock"]


def test_partial_scan_claims_nothing(tmp_path: Path) -> None:
    """Where only a part was scanned, blocks outside it are neither cached nor missing."""

    def narrow(event: Event) -> Event:
        if event["event"] == "lookup" and "cpu-2" in event["request"]:
            event["scan"] = "narrow"
            event["groups"][0] |= {"scanned": [167, 180], "cached": [[168, 180]]}
            event["groups"][1] |= {"cached": None}
        return event

    trace = read(tmp_path, narrow)
    lookup = look(trace, "cpu-2")
    assert sliding(lookup).missing == ((167, 168),)
    assert (lookup.groups[5].known, lookup.groups[5].missing) == (False, ())
    assert [code for code, _ in trace.warnings] == ["thinned"]


def test_gap_and_off_are_warnings(tmp_path: Path) -> None:
    """What the tracer says about itself is passed on."""
    rows = events()
    base = {"schema": 1, "t": rows[-1]["t"], "pid": 7, "reason": "because"}
    trace = read_trace(write(tmp_path / "a.jsonl", [*rows, {**base, "event": "gap"}, {**base, "event": "off"}]))
    assert [code for code, _ in trace.warnings] == ["gap", "off"]


def test_id_sent_twice(tmp_path: Path) -> None:
    """One id of ours on two requests is named, and each is still found by the engine's id."""

    def rename(event: Event) -> Event:
        if "cpu-3" in str(event.get("request")):
            event["request"] = "chatcmpl-cpu-2-ffffffff"
        return event

    trace = read(tmp_path, rename)
    assert [code for code, _ in trace.warnings] == ["repeated_id"]
    assert look(trace, "chatcmpl-cpu-2-ffffffff").hit_tokens == 6336
    assert look(trace, "chatcmpl-cpu-2-0123abcd").hit_tokens == 0


def test_unknown_event_is_ignored(tmp_path: Path) -> None:
    """An event that a later tracer of this schema adds does not disturb the rest."""
    rows = events()
    trace = read_trace(write(tmp_path / "a.jsonl", [*rows, {**rows[-1], "event": "novelty"}]))
    assert trace.warnings == ()


def test_ranges_text() -> None:
    """Ranges read inclusive in prose and half-open on request; no block is a word."""
    assert ranges_text([(328, 392), (5, 6)]) == "328–391, 5"
    assert ranges_text([(328, 392)], inclusive=False) == "[328, 392)"
    assert ranges_text([]) == "none"


def test_range_arithmetic() -> None:
    """Subtracting, intersecting and counting ranges agree with sets of blocks."""
    one, other = [(0, 10), (20, 30)], [(5, 22), (28, 40)]

    def blocks(ranges: Any) -> set[int]:
        return {block for start, stop in ranges for block in range(start, stop)}

    assert blocks(subtract(one, other)) == blocks(one) - blocks(other)
    assert blocks(intersect(one, other)) == blocks(one) & blocks(other)
    assert count(one) == 20
    assert union([(5, 7), (1, 3)], [(3, 4), (6, 9)]) == ((1, 4), (5, 9))
