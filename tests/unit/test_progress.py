"""How far a stage is: the estimate, and the one line that a notebook cell shows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import IPython
import IPython.display
import pytest

from prefixscope import progress
from prefixscope.errors import RunError
from prefixscope.progress import Progress, duration
from prefixscope.runs import Run
from prefixscope.target import Target


class Cell:
    """The output of a notebook cell: what is displayed, and how often it was renewed."""

    def __init__(self) -> None:
        self.outputs: list[dict[str, str]] = []
        self.renewed = 0

    def display(self, bundle: dict[str, str], **_: Any) -> Cell:
        self.outputs.append(bundle)
        return self

    def update(self, bundle: dict[str, str], **_: Any) -> None:
        self.outputs[-1] = bundle
        self.renewed += 1


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> Cell:
    """A notebook cell that runs right now."""
    found = Cell()
    monkeypatch.setattr(IPython, "get_ipython", lambda: SimpleNamespace(kernel=object()))
    monkeypatch.setattr(IPython.display, "display", found.display)
    return found


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """A clock that goes on when it is told to."""
    at = [1000.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: at[0])

    def later(seconds: float) -> None:
        at[0] += seconds

    return later


def test_a_stage_is_one_line_that_says_at_the_end_what_was_done(
    cell: Cell, clock: Callable[[float], None], tmp_path: Path
) -> None:
    """However many steps there are, a saved notebook holds one output, and it is the last word."""
    shown = Progress(tmp_path / "progress.json", "baseline")
    shown.plan(1000.0, 500)
    for _ in range(500):
        shown.say("send 2")
        clock(0.1)
        shown.advance(2.0)
    shown.close()
    assert [one["text/plain"] for one in cell.outputs] == ["baseline: 500 of 500 done in 50 s"]
    assert cell.renewed <= 50 / progress.RENEW_S + 1


def test_a_running_line_has_a_bar_what_happens_and_what_is_left(
    cell: Cell, clock: Callable[[float], None], tmp_path: Path
) -> None:
    """In the middle: an element that draws itself without scripts, the step in words, escaped, and the time left."""
    shown = Progress(tmp_path / "progress.json", "sweep")
    shown.plan(100.0, 4)
    clock(60)
    shown.advance(50.0, steps=2)
    clock(1)
    shown.say("<img src=x> send 2")
    html = cell.outputs[-1]["text/html"]
    assert '<progress max="100.0" value="50.0"></progress>' in html
    assert "&lt;img src=x&gt; send 2" in html
    assert "2 of 4" in html
    assert "61 s, about 61 s left" in html


def test_before_a_step_is_done_only_the_embedded_engine_has_an_estimate(
    clock: Callable[[float], None], tmp_path: Path
) -> None:
    """The expected seconds are this package's own engine's: of another server nothing is claimed until it is timed."""
    ours, theirs = (Progress(tmp_path / "progress.json", "sweep", paced=paced) for paced in (True, False))
    for one in (ours, theirs):
        one.plan(100.0, 4)
    clock(5)
    assert (ours.left_s, theirs.left_s) == (100.0, None)
    for one in (ours, theirs):
        one.advance(25.0)
    assert theirs.left_s == pytest.approx(15.0)


@pytest.mark.parametrize(
    ("kind", "left"), [("embedded", 10.0), ("attached", None), ("managed", None), ("sample", None)]
)
def test_a_stage_knows_whose_pace_its_plan_is(kind: str, left: float | None, run_factory: Callable[..., Run]) -> None:
    """The run's target decides whether the plan's own seconds are shown."""
    target = Target(kind=kind, url="http://127.0.0.1:9", serve_cmd="vllm serve m")
    with run_factory(target=target).stage("sweep") as stage:
        stage.progress.plan(10.0, 1)
        assert stage.progress.left_s == left


@pytest.mark.parametrize(
    ("outcome", "note", "said"),
    [
        ("done", "", "nothing was left to do"),
        ("skipped", "an attached server is not restarted", "an attached server is not restarted"),
        ("partial", "no adapter is served", "no adapter is served"),
    ],
)
def test_a_stage_that_did_less_says_why(
    outcome: str, note: str, said: str, cell: Cell, run_factory: Callable[..., Run]
) -> None:
    """Nothing to do, nothing that can be done, and part of it: each ends with its reason."""
    with run_factory().stage("sweep") as stage:
        stage.progress.plan(1.0, int(outcome == "partial"))
        stage.outcome, stage.note = outcome, note
    assert said in cell.outputs[-1]["text/plain"]


def test_a_stage_that_failed_says_what_is_kept(cell: Cell, run_factory: Callable[..., Run]) -> None:
    """After an error the line says how far it came, and that the cell goes on when it is run again."""

    def fail() -> None:
        with run_factory().stage("sweep") as stage:
            stage.progress.plan(2.0, 2)
            stage.progress.advance(1.0)
            raise RunError("no more")

    with pytest.raises(RunError):
        fail()
    assert "failed at 1 of 2" in cell.outputs[-1]["text/plain"]
    assert "run the cell again" in cell.outputs[-1]["text/plain"]


def test_outside_a_notebook_nothing_is_shown(
    capfd: pytest.CaptureFixture[str], run_factory: Callable[..., Run]
) -> None:
    """In a script or a test a stage writes its small file and prints nothing."""
    with run_factory().stage("sweep") as stage:
        stage.progress.plan(1.0, 1)
        stage.progress.advance(1.0)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(("seconds", "said"), [(0.2, "0 s"), (89, "89 s"), (90, "2 min"), (600, "10 min")])
def test_a_duration_is_said_as_people_do(seconds: float, said: str) -> None:
    """Seconds up to a minute and a half, then minutes."""
    assert duration(seconds) == said
