"""A series that was cut short and sent again counts once; what it left behind is kept, and said."""

from __future__ import annotations

import html
from collections.abc import Callable
from typing import Any

import pytest
from stub import StubServer, error

from prefixscope import baseline, equality, frames, speculation, sweep, verdict
from prefixscope.investigation import Investigation
from prefixscope.report import render_html
from prefixscope.runs import Stage
from prefixscope.setting import Setting
from prefixscope.speculation import asking
from prefixscope.speculation.arms import Arm
from prefixscope.target import Target

Attach = Callable[..., Investigation]
LENGTHS = (100, 400, 700)


@pytest.fixture
def alone(stub: StubServer) -> StubServer:
    """A stub without an adapter."""
    stub.lora = None
    return stub


def cut_after(monkeypatch: pytest.MonkeyPatch, sends: int, measure: Callable[[], Any], *, kind: str = "send") -> None:
    """Measure until so many sends have their row, then Ctrl-C."""
    plain, seen = Stage.append, []

    def append(self: Stage, row: Any) -> dict[str, Any]:
        found = plain(self, row)
        seen.extend([found] if row["kind"] == kind else [])
        if len(seen) == sends:
            raise KeyboardInterrupt
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Stage, "append", append)
        with pytest.raises(KeyboardInterrupt):
            measure()


def test_a_cut_series_counts_once(attach: Attach, alone: StubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight sends, Ctrl-C, and the whole baseline: one second send a length, in frames, sentence and warning."""
    investigation = attach()
    cut_after(monkeypatch, 8, lambda: baseline.run(investigation, lengths=LENGTHS))
    assert len(frames.sends(investigation.path)) == 8, "nothing stands for them yet"
    assert not frames.cut_short(investigation.path)
    table = baseline.run(investigation, lengths=LENGTHS)
    assert len([row for row in investigation.run.rows("baseline") if row["kind"] == "send"]) == 8 + 18
    assert len(table) == 18
    assert set(frames.hits(table)["count"]) == {1}
    assert set(frames.latency(table)["count"]) == {1}
    assert "rests on one second send at each of 3 prompt lengths" in verdict.of_run(investigation.path).basis
    said = "8 sends of 3 series that were cut short and sent again: kept in rows.jsonl and not counted"
    assert frames.cut_short(investigation.path) == said
    warnings = html.unescape(render_html(investigation.path)).partition('<section id="warnings"')[2]
    assert said in warnings
    asked = len(alone.sent())
    assert baseline.run(investigation, lengths=LENGTHS).equals(table)
    assert len(alone.sent()) == asked


def test_cut_twice_it_counts_once_too(attach: Attach, alone: StubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two cut attempts the longer one counts until a whole one is there, of equal ones the later."""
    investigation = attach()
    for sends, counts in ((2, 2), (1, 2), (2, 2)):
        cut_after(monkeypatch, sends, lambda: baseline.run(investigation, lengths=(700,)))
        assert len(frames.sends(investigation.path)) == counts
    rows = [row for row in investigation.run.rows("baseline") if row["kind"] == "send"]
    assert set(frames.sends(investigation.path)["attempt"]) == {rows[-1]["attempt"]}
    assert len(baseline.run(investigation, lengths=(700,))) == 6
    assert frames.cut_short(investigation.path).startswith("5 sends of a series that was cut short")


def test_a_stage_that_sends_less_was_not_cut(attach: Attach, stub: StubServer, started: list[Setting]) -> None:
    """A sweep's three sends and the baseline's six of the same prompt are two measurements: both count."""
    investigation = attach()
    investigation.target = Target(kind="embedded", engine="0.29.0")
    sweep.run(investigation, intervals=(0,), lengths=(700,))
    baseline.run(investigation, lengths=(700,), configurations=("mtp",))
    table = frames.sends(investigation.path)
    shared = table[table["interval"] == "default"]
    assert shared.groupby("stage").size().to_dict() == {"baseline": 6, "sweep": 3}
    assert shared["series"].nunique() == 1
    assert not frames.cut_short(investigation.path)


def test_a_refusal_that_comes_again_adds_nothing(attach: Attach, alone: StubServer) -> None:
    """A series that a refusal ends is sent again by ``--resume``; its sends before the refusal count once."""
    alone.edit = lambda answer, request: error(500, "boom") if request["max_tokens"] == 16 else answer
    investigation = attach()
    for _ in range(2):
        table = baseline.run(investigation, lengths=(700,))
    assert set(frames.hits(table)["count"]) <= {0, 1}
    assert list(frames.hits(table).query("send == 'repeat'")["count"]) == [1, 1]


def test_answers_of_a_cut_document_count_once(attach: Attach, alone: StubServer) -> None:
    """The equality stage asks a document again whole; what was answered before is kept and not counted."""
    alone.edit = lambda answer, request: error(500, "boom") if len(alone.sent()) == 8 else answer
    investigation = attach()
    for _ in range(2):
        equality.run(investigation, documents=2, tokens=200, answer_tokens=8)
    answers = frames.answers(investigation.path).query("status == 'ok'")
    assert answers.groupby(["document", "arm"]).size().tolist() == [1] * 8
    assert "answers of a series that was cut short" in frames.cut_short(investigation.path)


def test_what_a_hit_saves_is_taken_from_whole_series(
    attach: Attach, alone: StubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The speculation stage takes over times of sends that count, and no others."""
    investigation = attach()
    cut_after(monkeypatch, 2, lambda: baseline.run(investigation, lengths=(700,)))
    baseline.run(investigation, lengths=(700,))
    arm = Arm(name="A", label="as served", setting=Setting(as_served=True), url="")
    taken = asking.measured_elsewhere(investigation, arm)
    assert [row["index"] for row in taken] == [1, 2, 3]


def test_a_probe_that_was_cut_is_sent_again_whole(
    attach: Attach, alone: StubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The speculation stage's long prompt, cut after its second send: three sends count, two are kept."""
    few = {
        "shapes": ("prose",),
        "documents": 1,
        "repeats": 1,
        "tokens": 200,
        "answer_tokens": 4,
        "load": (900, 20, 0.5),
    }
    investigation = attach()
    with StubServer() as other:
        cut_after(monkeypatch, 2, lambda: speculation.run(investigation, other=other.url, **few), kind="resend")
        for _ in range(2):
            speculation.run(investigation, other=other.url, **few)
    table = frames.resends(investigation.path)
    assert table.groupby("arm")["index"].apply(list).to_dict() == {"A": [1, 2, 3], "B": [1, 2, 3]}
    assert frames.cut_short(investigation.path).startswith("2 resends of a series that was cut short")
