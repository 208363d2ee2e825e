"""The shipped notebooks on the recorded sample: no server, nothing sent, seconds."""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import papermill
import pytest

from prefixscope import frames, notebooks, open_run, resources, verdict
from prefixscope.runs import Run
from prefixscope.trace import read_trace


@pytest.fixture
def kernel_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels import the package that the tests import."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))


def outputs(notebook: Any) -> list[dict[str, Any]]:
    return [output["data"] for cell in notebook.cells for output in cell.get("outputs", []) if "data" in output]


@pytest.mark.parametrize("stage", notebooks.FILES)
def test_each_notebook_runs_alone_with_plain_papermill(stage: str, executed: Callable[[str], Any]) -> None:
    """With its defaults a notebook runs top to bottom on the recorded sample, sends nothing and draws its figures."""
    done = executed(stage)
    assert done.cpu_s < 20
    shown = outputs(notebook := nbformat.read(done.path, as_version=4))
    figures = [data for data in shown if "image/png" in data]
    assert figures, "each notebook draws something"
    assert all("image/svg+xml" in data for data in figures), (
        "a saved, untrusted notebook shows the PNG, a trusted one the SVG"
    )
    assert not [cell for cell in notebook.cells for out in cell.get("outputs", []) if out["output_type"] == "stream"]


@pytest.mark.parametrize("stage", notebooks.FILES)
def test_each_notebook_ends_with_what_it_found_and_where_to_go(stage: str, executed: Callable[[str], Any]) -> None:
    """The last cell is a verdict with numbers of the run; it names a notebook beside it, or the last step."""
    verdict = nbformat.read(executed(stage).path, as_version=4).cells[-1].outputs[-1]["data"]["text/markdown"]
    found, _, where = verdict.partition("\n\nNext: ")
    assert found.startswith("**")
    assert re.search(r"\d,\d{3}|\d of \d", found)
    linked = re.findall(r"\[([\w-]+)\]\(\1\.ipynb\)", where)
    assert set(linked) <= set(notebooks.FILES.values()) - {notebooks.FILES[stage]}
    assert linked or stage == "report"
    assert stage != "report" or "prefixscope export-test prefixscope-sample.html" in where


@pytest.mark.parametrize("stage", notebooks.FILES)
def test_what_a_notebook_shows_is_explained(stage: str) -> None:
    """Before each figure a text says what to look for, and after it one says how to decide."""
    cells = nbformat.read(notebooks.path(stage), as_version=4).cells
    for place, cell in enumerate(cells):
        if cell.cell_type == "code" and "show(" in cell.source:
            before = next(c.source for c in cells[place::-1] if c.cell_type == "markdown")
            assert re.search(r"[Ll]ook |Follow|Compare", before), cell.source
            after = next(c.source for c in cells[place:] if c.cell_type == "markdown")
            assert not after.startswith("#"), f"how to decide is missing after {cell.source}"


def _prose(stage: str) -> str:
    cells = nbformat.read(notebooks.path(stage), as_version=4).cells
    return " ".join(" ".join(cell.source.split()) for cell in cells if cell.cell_type == "markdown")


def test_prose_claims_no_more_than_the_sample_bears_out() -> None:
    """Bars apart are not certain, as most of the sample's; a full hit's bound is the judge's; crosses have causes."""
    run = resources.data_path("sample", "run")
    shapes = frames.by_shape(frames.generations(run)).pivot(index="shape", columns="arm")
    apart = shapes["tokens_per_s_p10"]["A"] > shapes["tokens_per_s_p90"]["B"]
    record = frames.record(frames.generations(run), frames.headrooms(run)).set_index("metric")
    sure = [shape for shape in shapes.index if record.loc[f"tokens/s, {shape}", "low"] > 1]
    assert apart.all()
    assert sure == ["repetition"]
    assert "for certain" not in _prose("speculation")
    assert "few prompts of a shape leave a wide one" in _prose("speculation")
    assert frames.FULL_HIT_BLOCKS == 3
    assert "one scheduler block below the line is as good as it gets without a drafter, with one up to three" in _prose(
        "baseline"
    )
    assert frames.latency(frames.sends(run))["count"].eq(1).all()
    assert "A point without a bar is a single send" in _prose("baseline")
    trace = read_trace(run / "trace")
    assert frames.causes(trace)["cause"].iloc[0] != "stored and needed windows don't meet"
    assert "The first line is the one" not in _prose("trace")
    assert "are windows that don't meet" not in _prose("trace")


@pytest.mark.usefixtures("kernel_path")
def test_a_server_that_never_answered_ends_papermill(tmp_path: Path) -> None:
    """A script around papermill sees the failure, and the run keeps the rows that tell of it."""
    given = {"target": "http://127.0.0.1:1", "lengths": [100], "run_dir": str(tmp_path / "run")}
    with pytest.raises(papermill.PapermillExecutionError, match="connection refused"):
        papermill.execute_notebook(
            str(notebooks.path("baseline")), str(tmp_path / "out.ipynb"), given, progress_bar=False, cwd=str(tmp_path)
        )
    assert {row["status"] for row in Run(tmp_path / "run").rows("baseline")} == {"failed"}


@pytest.mark.usefixtures("kernel_path")
def test_the_block_trace_opens_on_a_trace_alone(tmp_path: Path) -> None:
    """A trace from any server, without a run: the worst miss is drawn and explained, and nothing is written."""
    out, trace = tmp_path / "out.ipynb", Path(__file__).parents[1] / "data" / "trace-incident.jsonl"
    here = tmp_path / "here"
    here.mkdir()
    papermill.execute_notebook(
        str(notebooks.path("trace")), str(out), {"trace": str(trace)}, progress_bar=False, cwd=str(here)
    )
    shown = outputs(nbformat.read(out, as_version=4))
    titles = [data["text/plain"] for data in shown if "image/png" in data]
    assert [title.split(":")[0] for title in titles] == [
        "1 of 8 lookups missed what an earlier request had brought",
        "send 2, cpu-2",
        "send 1, cpu-1 kept blocks 168–200 of the 5 sliding-window groups; the next send needed 166–198",
    ]
    assert "end the hit" in shown[-1]["text/markdown"]
    assert list(here.iterdir()) == []


def test_the_sample_is_a_real_run_of_the_incident() -> None:
    """The recorded run states the incident, all its stages are done, and it says where it is from."""
    sample = resources.data_path("sample", "run")
    found = verdict.of_run(sample)
    assert found.code == "none"
    assert "0.29.0" in found.text
    manifest = Run(sample).manifest
    assert {
        name: manifest["stages"][name]["status"] for name in ("baseline", "trace", "sweep", "equality")
    } == dict.fromkeys(("baseline", "trace", "sweep", "equality"), "done")
    assert len(frames.sends(sample)) > 60
    text = resources.data_path("sample", "README.md").read_text()
    for word in ("vLLM 0.29.0", "recorded", "cores"):
        assert word in text


def test_the_sample_names_no_machine() -> None:
    """Neither the host name nor an absolute path of the recording machine is in the sample."""
    host = socket.gethostname()
    for file in resources.data_path("sample").rglob("*"):
        if file.is_file():
            text = file.read_text()
            assert not re.search(rf"\b{re.escape(host)}\b", text)
            assert not re.search(r"""[\s="']/(?:[\w.-]+/){2,}""", text), f"an absolute path in {file.name}"


def test_changing_a_parameter_beyond_the_sample_says_what_to_do(tmp_path: Path) -> None:
    """A length that was not recorded is an error that names the target cell, not a made-up number."""
    from prefixscope import baseline
    from prefixscope.errors import PrefixscopeError

    investigation = open_run("", "sample")
    with pytest.raises(PrefixscopeError, match="embedded"):
        baseline.run(investigation, lengths=[777])


def test_the_sample_itself_is_never_written(tmp_path: Path) -> None:
    """Opening the sample works on a copy."""
    before = {f: f.stat().st_mtime_ns for f in resources.data_path("sample").rglob("*")}
    time.sleep(0.01)
    run = open_run("", "sample")
    run.run.warn("test", "a note")
    assert {f: f.stat().st_mtime_ns for f in resources.data_path("sample").rglob("*")} == before


def test_a_notebook_with_an_error_is_kept_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failing cell ends with the notebook's name, the error and the path of the executed copy."""
    folder = tmp_path / "notebooks"
    folder.mkdir()
    broken = json.loads(notebooks.path("report").read_text())
    broken["cells"].append(
        {
            "cell_type": "code",
            "id": "broken00",
            "metadata": {},
            "source": ["1 / 0"],
            "outputs": [],
            "execution_count": None,
        }
    )
    (folder / "90-report.ipynb").write_text(json.dumps(broken))
    monkeypatch.setattr(resources, "notebooks_path", lambda *parts: folder.joinpath(*parts))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    run = open_run("", "sample").run
    with pytest.raises(
        notebooks.NotebookError, match=r"(?s)90-report.ipynb.*ZeroDivisionError.*notebooks/90-report.ipynb"
    ):
        notebooks.execute(run, "report", {})
    assert (run.path / "notebooks" / "90-report.ipynb").exists()
