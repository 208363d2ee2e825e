"""Figures of a trace alone: each is drawn, from the recorded incident and from traces too big to draw as they are."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from prefixscope import charts, conclusions, display, frames, lookups, material, resources
from prefixscope.errors import RunError
from prefixscope.sections import blocks
from prefixscope.trace import Evicted, Group, GroupView, Incident, Lookup, Stored, Trace, read_trace, subtract

RECORDED = Path(__file__).parents[1] / "data" / "trace-incident.jsonl"
BLOCKS = 10_000


def texts(chart: Any) -> list[str]:
    svg = display.to_svg(chart)
    assert "NaN" not in svg
    assert "undefined" not in svg
    return [re.sub(r"<[^>]+>", "", found) for found in re.findall(r"<text[^>]*>(.*?)</text>", svg)]


def marks(chart: Any, role: str) -> int:
    return len(re.findall(rf'aria-roledescription="{role}[^"]*"', display.to_svg(chart)))


def rows_in(spec: Any) -> list[dict[str, Any]]:
    """Every row of data inside a specification that has a state."""
    if isinstance(spec, list):
        return [row for one in spec for row in rows_in(one)]
    if not isinstance(spec, dict):
        return []
    return [spec] if "state" in spec else [row for one in spec.values() for row in rows_in(one)]


@pytest.fixture(scope="module")
def recorded() -> Trace:
    return read_trace(RECORDED)


@pytest.fixture(scope="module")
def miss(recorded: Trace) -> Lookup:
    found = recorded.worst()
    assert found is not None
    return found


@pytest.fixture(scope="module")
def big(miss: Lookup) -> Trace:
    """One lookup of 40 groups that differ, with 10,000 blocks each and a checkpoint every so many."""
    views, rows = [], []
    for gid in range(40):
        group = Group(gid, "sliding", 16, 512 * (1 + gid % 7), 2, False, 65_536)
        need = 32 * (1 + gid % 7)
        step = need + 64 * (1 + gid % 3)
        kept = tuple((start, start + need) for start in range(step, BLOCKS - need, step))
        needed = (BLOCKS - need - 8, BLOCKS - 8)
        missing = subtract([needed], kept)
        views.append(GroupView(group, kept, needed, missing, 0, gid == 9))
        rows.append(Stored(group, kept, subtract([(0, BLOCKS)], kept), tuple(range(1024, 16 * BLOCKS, 4096))))
    lookup = replace(
        miss, request_id="big", engine_request_id="big", groups=tuple(views), tokens=16 * BLOCKS,
        prompt_tokens=16 * BLOCKS, header=replace(miss.header, groups=tuple(view.group for view in views)),
    )  # fmt: skip
    return Trace(headers=[lookup.header], lookups=[lookup], stores={"big": tuple(rows)})


# --- lookups over time -------------------------------------------------------------------------------------------


def test_lookups_over_time_has_a_point_per_lookup(recorded: Trace) -> None:
    """Hits, misses and lookups with nothing to hit are told apart by shape, and the title counts the misses."""
    table = frames.lookups_over_time(recorded)
    assert table["kind"].tolist() == [
        "nothing to hit", "miss", "hit", "nothing to hit", "nothing to hit", "hit", "nothing to hit", "hit",
    ]  # fmt: skip
    chart = charts.lookups_over_time(table)
    assert display.title_of(chart) == "1 of 8 lookups missed what an earlier request had brought"
    shown = texts(chart)
    assert "seconds since the first lookup" in shown
    assert "100%" in shown
    assert marks(chart, "point") == 8
    assert marks(chart, "tick") == 1


def test_many_lookups_are_drawn_as_stretches(miss: Lookup) -> None:
    """Above the limit a row is a stretch of time; every lookup and every miss is still counted."""
    many = [replace(miss, t=miss.t + number, hit_tokens=6336 * (number % 3 > 0)) for number in range(6_000)]
    table = frames.lookups_over_time(Trace(headers=[miss.header], lookups=many))
    assert len(table) == 120
    assert (table["lookups"].sum(), table["misses"].sum()) == (6_000, 2_000)
    assert table["share"].between(0.9, 1).all()
    chart = charts.lookups_over_time(table)
    shown = texts(chart)
    assert "2,000 of 6,000 lookups missed what an earlier request had brought" in shown
    assert "minutes since the first lookup" in shown
    assert "misses" in shown


def test_a_stretch_without_anything_to_hit_has_no_share(miss: Lookup) -> None:
    """First sends are counted and leave a gap, not a share of zero."""
    many = [replace(miss, t=miss.t + number, common_tokens=0, closest_id=None) for number in range(30)]
    table = frames.lookups_over_time(Trace(headers=[miss.header], lookups=many), most=10)
    assert table["share"].isna().all()
    assert charts.lookups_over_time(table) is not None


def test_nothing_to_draw_is_no_chart() -> None:
    """An empty trace gives empty frames and no charts."""
    assert charts.lookups_over_time(frames.lookups_over_time(Trace())) is None
    assert charts.store_ruler(frames.stores(Trace(), {"x": "x"})) is None


# --- the store side ----------------------------------------------------------------------------------------------


def test_store_side_of_the_incident(recorded: Trace) -> None:
    """Kept and dropped ranges and the boundary that the rule aimed at are drawn and named."""
    table = frames.stores(recorded, {"cpu-1": "send 1", "cpu-2": "send 2"})
    assert set(table["state"]) == {"kept", "dropped", "boundary"}
    chart = charts.store_ruler(table)
    assert display.title_of(chart) == "send 1 keeps 265 of 1,105 blocks; replay boundary 6,400"
    shown = texts(chart)
    for words in ("kept 168–200", "dropped 0–167", "kept 0–99", "boundary 6,400"):
        assert words in shown, words
    assert "send 2: keeps 275 of 1,105 blocks; replay boundaries 6,336 and 6,400" in shown


def test_dropped_is_told_from_kept_without_colour(recorded: Trace) -> None:
    """A dropped range is a dashed outline, a kept one is filled."""
    spec = str(charts.store_ruler(frames.stores(recorded, {"cpu-1": "send 1"})).to_dict(validate=True))
    assert "'strokeDash': [3, 2]" in spec


def test_store_side_of_40_groups_of_10_000_blocks(big: Trace) -> None:
    """Few rows, few labels, and what is not drawn is counted."""
    chart = charts.store_ruler(frames.stores(big, {"big": "send 1"}))
    shown = texts(chart)
    assert "groupsnotdrawn" in "".join(shown).replace(" ", "")
    assert len([text for text in shown if text.startswith(("kept", "dropped"))]) <= 24
    assert len([text for text in shown if text.startswith("boundary")]) <= 6


def test_store_side_shows_what_the_next_send_needed(recorded: Trace) -> None:
    """Beside the lookups the store side says what was kept and what the next send needed of the same group."""
    labels = {"cpu-1": "send 1", "cpu-2": "send 2"}
    found = [lookup for lookup in map(recorded.lookup, labels) if lookup is not None]
    beside = frames.blocks(found, labels=labels)
    chart = charts.store_ruler(frames.stores(recorded, labels), beside=beside)
    assert display.title_of(chart) == (
        "send 1 kept blocks 168–200 of the 5 sliding-window groups; the next send needed 166–198"
    )
    assert texts(chart).count("needed next 166–198") == 1, "nothing follows the second send here"


def test_a_first_send_is_a_line_without_missing_blocks(recorded: Trace, miss: Lookup) -> None:
    """Nothing was stored for a first send, so it lacks nothing; the finding is about the send that missed."""
    first = recorded.lookup("cpu-1")
    assert first is not None
    labels = {"cpu-1": "send 1", "cpu-2": "send 2"}
    chart = charts.block_ruler(frames.blocks([first, miss], labels=labels))
    assert display.title_of(chart).startswith("send 2: blocks 166–167 of the 5 sliding-window groups are needed")
    shown = texts(chart)
    assert "nothing stored" in shown
    assert "missing 0–99" not in shown
    alone = charts.block_ruler(frames.blocks([first], labels=labels))
    assert display.title_of(alone) == "Only first sends: nothing of these prompts was stored yet"


def test_a_missing_block_is_told_without_colour(miss: Lookup) -> None:
    """Missing blocks are light inside an edge, and crossed where there is room; stored ones are filled."""
    spec = str(charts.block_ruler(frames.blocks([miss])).to_dict())
    assert "'fillOpacity': 0.25" in spec
    assert any(row.get("cross") for row in rows_in(charts.block_ruler(frames.blocks([miss])).to_dict()))


def test_causes_are_counted_with_an_example(recorded: Trace) -> None:
    """Every lookup of a trace has a cause in words; the one that missed most comes first."""
    table = frames.causes(recorded)
    assert table["lookups"].sum() == len(recorded.lookups)
    assert table.iloc[0][["cause", "request_id"]].tolist() == ["stored and needed windows don't meet", "cpu-2"]
    assert (table["meaning"].str.len() > 0).all()
    assert "explained" not in table.attrs
    assert frames.causes(recorded, most=4).attrs["explained"] == 4


def test_the_notebooks_words_are_those_of_its_sentences(recorded: Trace) -> None:
    """The words explained are those that occur, from the one glossary."""
    words = set(lookups.words(lookups.alone(recorded))["word"])
    assert {"scheduler block", "replay boundary", "junction", "KV cache group"} <= words
    assert "Mamba" not in words


# --- the ruler, at size ------------------------------------------------------------------------------------------


def test_ruler_of_40_groups_of_10_000_blocks(big: Trace) -> None:
    """The group that ends the hit is drawn first, and the figure goes close enough to see what is needed."""
    chart = charts.block_ruler(frames.blocks(big.lookups, labels={"big": "send 2"}))
    shown = texts(chart)
    needed = big.lookups[0].groups[9].needed
    assert needed is not None
    assert f"needed {needed[0]:,}–{needed[1] - 1:,}" in shown
    assert "groupsnotdrawn" in "".join(shown).replace(" ", "")
    assert "20,000" not in shown, "the axis begins near the end of the prompt"
    labels = [text for text in shown if re.match(r"(stored|missing) \d", text)]
    assert len(labels) <= 8 * 3


def test_evicted_blocks_are_told_from_missing_ones(miss: Lookup) -> None:
    """Blocks that were stored and evicted have a name and a look of their own, beside those that were never stored."""
    view = replace(miss.groups[0], cached=((168, 190),), missing=((166, 168), (190, 199)), evicted=((190, 199),))
    both = replace(miss, groups=(view, *miss.groups[5:]))
    chart = charts.block_ruler(frames.blocks([both], labels={both.request_id: "send 2"}))
    assert {"missing 166–167", "evicted 190–198"} <= set(texts(chart))
    alone = replace(both, groups=(replace(view, missing=view.evicted), *miss.groups[5:]))
    title = display.title_of(charts.block_ruler(frames.blocks([alone], labels={both.request_id: "send 2"})))
    assert title == "send 2: blocks 190–198 of the sliding-window group are needed, once stored and evicted since"


def test_one_missing_block_of_thousands_is_drawn(miss: Lookup) -> None:
    """A single missing block is wide enough to see, and ranges that a pixel can't part become one that says so."""
    group = Group(0, "full", 16, None, 1, False, None)
    odd = tuple((start, start + 1) for start in range(0, 9_000, 2))
    missing = ((5_000, 5_001), (9_500, 9_501))
    views = (GroupView(group, odd, (0, BLOCKS), missing, 0, True),)
    lookup = replace(miss, groups=views, tokens=16 * BLOCKS, prompt_tokens=16 * BLOCKS)
    chart = charts.block_ruler(frames.blocks([lookup]))
    assert {"missing 5,000", "missing 9,500"} <= set(texts(chart))
    spec = chart.to_dict()
    low, high = spec["vconcat"][0]["layer"][0]["encoding"]["x"]["scale"]["domain"]
    drawn = rows_in(spec)
    bars = [(row["to"] - row["from"]) / (high - low) * 620 for row in drawn if row["state"] == "missing"]
    assert len(bars) == 2
    assert min(bars) >= 2.4
    stored = [row for row in drawn if row["state"] == "stored"]
    assert len(stored) < 20
    assert any(row["mixed"] for row in stored)


# --- what the notebook draws -------------------------------------------------------------------------------------


def test_a_trace_alone_shows_its_worst_miss(recorded: Trace) -> None:
    """The sends before and after the miss are shown with it."""
    seen = lookups.view(trace=str(RECORDED))
    assert seen.with_drafter == {
        "chatcmpl-cpu-1-0123abcd": "send 1, cpu-1",
        "chatcmpl-cpu-2-0123abcd": "send 2, cpu-2",
        "chatcmpl-cpu-3-0123abcd": "send 3, cpu-3",
    }
    labels = ["send 1, cpu-1", "send 2, cpu-2", "send 3, cpu-3"]
    assert lookups.blocks(seen, drafter=True)["send_label"].drop_duplicates().tolist() == labels
    assert lookups.stored(seen, drafter=True)["send_label"].iloc[0] == "send 1, cpu-1"
    assert not len(lookups.blocks(seen, drafter=False))
    causes = lookups.summary(seen).set_index("send")["cause"]
    assert causes["send 2, cpu-2"].iloc[0] == "stored and needed windows don't meet"
    assert len(lookups.over_time(seen)) == len(recorded.lookups)
    assert conclusions.block_trace(seen).text.startswith("The 5 sliding-window groups")


def test_a_trace_without_a_miss_says_so(tmp_path: Path) -> None:
    """Where nothing missed the longest prompt is explained, and a trace without lookups names no cause."""
    rows = RECORDED.read_bytes().splitlines(keepends=True)
    (tmp_path / "a.jsonl").write_bytes(b"".join(rows[:4]))
    assert conclusions.block_trace(lookups.view(trace=str(tmp_path))).text.startswith("Nothing missed in this trace.")
    (tmp_path / "a.jsonl").write_bytes(rows[0])
    seen = lookups.view(trace=str(tmp_path))
    assert "no lookup" in conclusions.block_trace(seen).text
    for table in (lookups.over_time(seen), lookups.blocks(seen, drafter=True), lookups.summary(seen)):
        assert not len(table)


def test_a_trace_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    """A mistyped path is refused before anything is made."""
    with pytest.raises(RunError, match="no file"):
        lookups.view(str(tmp_path / "run"), trace=str(tmp_path / "absent"))
    assert list(tmp_path.iterdir()) == []


def test_a_run_notes_that_a_trace_from_elsewhere_was_drawn(tmp_path: Path) -> None:
    """With a run directory named too, its stage is done, says so, and nothing is measured."""
    from prefixscope.runs import Run

    Run.create(tmp_path / "run", target={"kind": "sample"}, parameters={})
    lookups.view(str(tmp_path / "run"), trace=str(RECORDED))
    stage = Run(tmp_path / "run").manifest["stages"]["trace"]
    assert stage["status"] == "done"
    assert "nothing was sent" in stage["note"]


# --- evictions over time -----------------------------------------------------------------------------------------


@pytest.fixture
def pressed(recorded: Trace) -> Trace:
    """The recorded lookups, evictions half a minute later, and a reset after a minute."""
    engine, start = recorded.headers[0].engine, recorded.lookups[0].t
    return Trace(
        headers=recorded.headers,
        lookups=recorded.lookups,
        evictions=[Evicted(start + 30, engine, 0, 40, ((0, 40),)), Evicted(start + 59, engine, 5, 10)],
        incidents=[Incident(start + 60, engine, "reset", None)],
    )


def test_evictions_and_resets_over_time(recorded: Trace, pressed: Trace) -> None:
    """Evicted blocks are counted per window, a reset crosses the figure, and the title says both."""
    frame = frames.evictions_over_time(pressed)
    assert len(frame) == 60
    assert frame["evicted_blocks"].sum() == 50
    assert frame["evicted_blocks"][30] == 40
    assert frame["resets"].tolist() == [0] * 59 + [1]
    assert frame["lookups"].sum() == len(recorded.lookups)
    assert frame["share"].notna().sum() < 60
    chart = charts.evictions_over_time(frame)
    assert display.title_of(chart) == "50 blocks were evicted; the prefix cache was reset 1 time"
    assert "blocks evicted" in texts(chart)
    assert marks(chart, "rule") > marks(charts.evictions_over_time(frame.assign(resets=0)), "rule")


def test_a_cache_without_pressure_has_no_such_figure(recorded: Trace) -> None:
    """Where nothing was evicted and nothing reset there is nothing to draw."""
    assert charts.evictions_over_time(frames.evictions_over_time(recorded)) is None


def test_the_report_draws_evictions_only_where_there_were_some(pressed: Trace, recorded: Trace) -> None:
    """The trace section has the figure of evictions for a trace that holds some, and not for one without."""
    sample = material.gather(resources.data_path("sample", "run"))

    def titles(trace: Trace) -> list[str]:
        told = replace(sample.telling, evictions=frames.evictions_over_time(trace))
        section = blocks.block_trace(replace(sample, telling=told))
        return [display.title_of(one.chart) for one in section.figures if one.id == "blocks-evictions"]

    assert titles(pressed) == ["50 blocks were evicted; the prefix cache was reset 1 time"]
    assert titles(recorded) == []
