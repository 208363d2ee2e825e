"""The notebooks' own cells, run here with other parameters: pointed at a server by one cell, run again, mistyped."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import nbformat
import pandas as pd
import pytest
from stub import StubServer

import prefixscope
from prefixscope import notebooks
from prefixscope.errors import RunError, TargetError, Unreachable
from prefixscope.frames import columns
from prefixscope.runs import Run

ORDER = tuple(notebooks.FILES)


def run_cells(stage: str, **changed: Any) -> dict[str, Any]:
    """The names that a notebook's code cells leave, its parameters cell changed in these values and nothing else."""
    names: dict[str, Any] = {}
    for cell in nbformat.read(notebooks.path(stage), as_version=4).cells:
        if cell.cell_type == "code":
            exec(compile(cell.source, notebooks.FILES[stage], "exec"), names)
            names |= changed if "parameters" in cell.metadata.get("tags", []) else {}
    return names


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the notebooks lie: a kernel's working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_one_cell_points_every_notebook_at_a_server(stub: StubServer, folder: Path) -> None:
    """With the target alone changed all six run, share one run directory, and a second round sends nothing."""
    stub.lora = None  # what is not served is not asked for again, either
    for stage in ORDER:
        run_cells(stage, target=stub.url)
    place = next(folder.glob("prefixscope-run-*"))
    first, sent = Counter(row["stage"] for row in Run(place).rows()), len(stub.sent())
    assert first.keys() == {"baseline", "equality", "speculation"}
    assert sent < 100, "the README says how many requests an attached run sends"
    for stage in ORDER:
        run_cells(stage, target=stub.url)
    assert list(folder.glob("prefixscope-run-*")) == [place]
    assert len(stub.sent()) == sent
    assert Counter(row["stage"] for row in Run(place).rows()) == first
    assert (place / "report.html").is_file()
    states = {name: stage["status"] for name, stage in Run(place).manifest["stages"].items()}
    assert states == dict.fromkeys(("baseline", "equality", "speculation"), "done") | dict.fromkeys(
        ("trace", "sweep", "crosscheck"), "skipped"
    )


def test_without_a_trace_nothing_is_cleared(stub: StubServer, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An attached server has no tracer: every figure and table of the block trace says that nothing is known."""
    said: list[str] = []

    def shown(value: Any, *columns: str, missing: str = "", **other: Any) -> None:
        said.append(missing if value is None or (isinstance(value, pd.DataFrame) and value.empty) else "words")

    monkeypatch.setattr(prefixscope, "show", shown)
    monkeypatch.setattr(prefixscope, "table", shown)
    run_cells("trace", target=stub.url)
    assert said == ["Not known: nothing was traced."] * (len(said) - 1) + ["words"]
    assert len(said) > 5


@pytest.mark.parametrize(
    ("stage", "names", "said"),
    [
        ("equality", {"pairs": columns.make_frame([], {"identical": "boolean"})}, "No answers were compared."),
        ("speculation", {"by_shape": columns.make_frame([], {"drafted": "Int64"})}, "No answer was streamed."),
    ],
)
def test_what_was_not_asked_is_not_cleared(stage: str, names: dict[str, Any], said: str) -> None:
    """A table that is empty for want of answers does not say that none differs, or that nothing was drafted."""
    cells = nbformat.read(notebooks.path(stage), as_version=4).cells
    cell = next(one for one in cells if one.cell_type == "code" and said in one.source)
    seen: list[str] = []
    names |= {"table": lambda frame, *columns, missing: seen.append(missing)}
    exec(compile(cell.source, stage, "exec"), names)
    assert seen == [said]


def test_another_target_has_a_run_of_its_own(stub: StubServer, folder: Path) -> None:
    """A run of one server is never gone on with for another; one that is damaged is passed over."""
    (folder / "prefixscope-run-99999999-000000").mkdir()
    (folder / "prefixscope-run-99999999-000000" / "run.json").write_text("{")
    (folder / "mine").mkdir()
    with StubServer() as second:
        ours = run_cells("baseline", target=stub.url, lengths=[200], run_dir="mine")
        theirs = run_cells("baseline", target=second.url, lengths=[200])
    assert ours["run"].path == folder / "mine"
    assert theirs["run"].path.parent == folder
    assert theirs["run"].path.name.startswith("prefixscope-run-2")
    assert run_cells("baseline", target=second.url, lengths=[200])["run"].path == theirs["run"].path


def test_a_server_that_went_away_loses_nothing(stub: StubServer, folder: Path) -> None:
    """Run again after the server has ended, a finished notebook shows what it measured and adds no failed row."""
    stub.lora = None
    with StubServer() as gone:
        gone.lora = None
        before = run_cells("baseline", target=gone.url, lengths=[200])
    after = run_cells("baseline", target=gone.url, lengths=[200])
    assert after["hits"].equals(before["hits"])
    assert after["run"].run.manifest["stages"]["baseline"]["status"] == "done"


@pytest.mark.parametrize("stage", ["baseline", "equality", "speculation"])
def test_a_server_that_never_answered_ends_in_its_error(stage: str, folder: Path) -> None:
    """What asks and gets no answer at all ends in the reason, after the stage is kept as partial or failed."""
    with pytest.raises(Unreachable, match="connection refused"):
        run_cells(stage, target="http://127.0.0.1:1")
    kept = Run(next(folder.glob("prefixscope-run-*")))
    assert kept.manifest["stages"][stage]["status"] in ("partial", "failed")
    assert stage != "baseline" or {row["status"] for row in kept.rows(stage)} == {"failed"}


def test_what_was_measured_before_the_server_went_away_is_shown(folder: Path) -> None:
    """Asked for more than it holds, a run of a server that has ended shows its rows, and the rest as failed."""
    with StubServer() as gone:
        gone.lora = None
        run_cells("baseline", target=gone.url, lengths=[200])
    after = run_cells("baseline", target=gone.url, lengths=[200, 300])
    assert after["sends"]["status"].value_counts().to_dict() == {"ok": 6, "failed": 1}


@pytest.mark.parametrize("stage", ORDER)
def test_a_run_that_is_not_there_is_not_the_sample(stage: str, folder: Path) -> None:
    """A mistyped directory is refused by name: neither is it made, nor does it get the sample's verdict."""
    (folder / "other").mkdir()
    for name, why in (("nowhere2", "there is no such directory"), ("other", "it has no run.json")):
        with pytest.raises(RunError, match=f"run_dir='{name}' is no run: {why}"):
            run_cells(stage, run_dir=name)
    assert [place.name for place in folder.rglob("*")] == ["other"]


@pytest.mark.parametrize(
    ("stage", "name", "value", "allowed"),
    [
        ("baseline", "lengths", "6446", "list of one or more positive whole numbers"),
        ("baseline", "lengths", [6446.5], "positive whole number"),
        ("baseline", "configurations", ["mtpp"], "mtp_lora_interval"),
        ("baseline", "workaround", "1024", "0 or a positive whole number"),
        ("trace", "tokens", "long", "positive whole number"),
        ("trace", "trace", 5, "give a path"),
        ("sweep", "intervals", [0, "often"], "'dense'"),
        ("sweep", "seed", None, "0 or a positive whole number"),
        ("equality", "documents", 2.5, "positive whole number"),
        ("equality", "dtype", "int3", "bfloat16"),
        ("speculation", "shapes", "prose", "tool arguments"),
        ("speculation", "repeats", True, "positive whole number"),
        ("speculation", "load", [6446, 200], "three numbers"),
        ("speculation", "other", "second", "URL"),
        ("report", "include_text", "no", "True or False"),
    ],
)
def test_a_mistyped_parameter_is_refused_by_name(stage: str, name: str, value: Any, allowed: str, folder: Path) -> None:
    """The error names the parameter, the value and what is allowed, and shows a line for the parameters cell."""
    with pytest.raises(RunError) as caught:
        run_cells(stage, **{name: value})
    assert f"{stage}.{name}={value!r}" in caught.value.what
    assert allowed in str(caught.value)
    assert f"in a notebook: {name} = " in caught.value.remedy


@pytest.mark.parametrize("stage", ORDER)
@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("target", 8000, "target=8000"),
        ("target", "localhost:8000", "http://host:8000"),
        ("run_dir", None, "run_dir=None"),
    ],
)
def test_a_target_that_is_none_is_refused(stage: str, name: str, value: Any, said: str, folder: Path) -> None:
    """What is no address, no command and no run is refused with the forms there are, and nothing is made."""
    with pytest.raises((RunError, TargetError), match=said):
        run_cells(stage, **{name: value})
    assert not list(folder.iterdir())


def test_an_error_of_ours_is_its_words_in_a_notebook() -> None:
    """IPython shows what failed and what to do, not the frames of a notebook's machinery."""
    from IPython.core.interactiveshell import InteractiveShell

    shown: list[list[str]] = []
    shell = InteractiveShell()
    shell._showtraceback = lambda kind, error, lines: shown.append(lines)
    try:
        raise RunError("sweep.lengths=[0]: give a positive whole number", remedy="lengths = [1600]")
    except RunError:
        shell.showtraceback()
    assert shown == [["RunError: sweep.lengths=[0]: give a positive whole number", "Next: lengths = [1600]"]]
