"""The shipped notebooks: their parameters, their house rules, and running one that fails."""

from __future__ import annotations

import ast
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest

from prefixscope import notebooks, planned
from prefixscope.errors import NotebookError
from prefixscope.run_files import TOKEN_ENV
from prefixscope.runs import OWNER_ENV, Run

STAGE_NAMES = tuple(notebooks.FILES)
MAX_CODE_LINES = 10


def cells(stage: str, kind: str = "code") -> list[Any]:
    notebook = nbformat.read(notebooks.path(stage), as_version=4)
    return [cell for cell in notebook.cells if cell.cell_type == kind]


def code_lines(source: str) -> list[str]:
    return [line for line in source.splitlines() if line.strip() and not line.strip().startswith("#")]


# --- house rules ---------------------------------------------------------------------------------------------------


def test_every_stage_has_its_notebook() -> None:
    """The stages of a run and the shipped notebooks are the same ones, and each has its place in the order."""
    assert set(STAGE_NAMES) == set(notebooks.ORDER)
    shipped = {path.stem for path in notebooks.path("report").parent.glob("*.ipynb")}
    assert shipped == set(notebooks.FILES.values())


@pytest.mark.parametrize("stage", STAGE_NAMES)
def test_a_notebook_holds_no_results(stage: str) -> None:
    """No output and no execution count is kept, and the file is valid."""
    nbformat.validate(nbformat.read(notebooks.path(stage), as_version=4))
    for cell in cells(stage):
        assert cell.outputs == []
        assert cell.execution_count is None


@pytest.mark.parametrize("stage", STAGE_NAMES)
def test_a_notebook_has_one_parameters_cell_of_literals(stage: str) -> None:
    """One cell is tagged 'parameters'; every line is ``name: type = literal  # help``, run_dir and target first."""
    tagged = [cell for cell in cells(stage) if "parameters" in cell.metadata.get("tags", [])]
    assert len(tagged) == 1
    for node in ast.parse(tagged[0].source).body:
        assert isinstance(node, ast.AnnAssign), ast.unparse(node)
        ast.literal_eval(node.value or ast.Constant(None))
    found = notebooks.parameters(stage)
    assert list(found)[:2] == list(notebooks.OWN)
    for parameter in found.values():
        assert parameter.help, parameter.name
        assert parameter.type in notebooks._TYPES, f"{parameter.name}: {parameter.type} would not be checked"
        notebooks_type = notebooks._TYPES[parameter.type]
        assert isinstance(parameter.default, notebooks_type)
    assert (found["run_dir"].default, found["target"].default) == ("", "sample")


@pytest.mark.parametrize("stage", STAGE_NAMES)
def test_a_notebook_is_thin(stage: str) -> None:
    """A code cell is at most ten lines and defines, requests, starts and draws nothing by itself."""
    for cell in cells(stage):
        assert len(code_lines(cell.source)) <= MAX_CODE_LINES, cell.source
        for node in ast.walk(ast.parse(cell.source)):
            assert not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)), cell.source
            names = [alias.name for alias in node.names] if isinstance(node, (ast.Import, ast.ImportFrom)) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not {"requests", "subprocess", "altair"} & {name.split(".")[0] for name in names}, cell.source


@pytest.mark.parametrize("stage", STAGE_NAMES)
def test_a_notebook_begins_with_its_question(stage: str) -> None:
    """The first cell is a text: a title, what it answers, needs, takes and writes."""
    first = nbformat.read(notebooks.path(stage), as_version=4).cells[0]
    assert first.cell_type == "markdown"
    assert first.source.lstrip().startswith("# ")
    for word in ("Answers", "Needs", "Time", "Files"):
        assert f"**{word}**" in first.source


@pytest.mark.parametrize("stage", STAGE_NAMES)
def test_parameters_reach_the_call(stage: str) -> None:
    """Every parameter is used by some cell after the parameters cell."""
    sources = [cell.source for cell in cells(stage) if "parameters" not in cell.metadata.get("tags", [])]
    used = {node.id for source in sources for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)}
    assert set(notebooks.parameters(stage)) <= used


@pytest.mark.parametrize("stage", list(planned.QUICK))
def test_quick_parameters_fit_their_notebooks(stage: str) -> None:
    """What ``--quick`` sets are parameters of the notebooks, of the declared types."""
    notebooks.check(stage, planned.QUICK[stage])


# --- parameters ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("sweep.lengths=[1600, 6446]", ("sweep", "lengths", [1600, 6446])),
        ("equality.documents=3", ("equality", "documents", 3)),
        (" equality.documents = 3 ", ("equality", "documents", 3)),
        ("report.include_text=True", ("report", "include_text", True)),
        ("baseline.configurations=['mtp']", ("baseline", "configurations", ["mtp"])),
    ],
)
def test_an_assignment_is_read(text: str, expected: tuple[str, str, Any]) -> None:
    """``stage.name=value`` with a Python literal gives the three parts."""
    assert notebooks.parse_assignment(text) == expected


def test_a_typo_names_the_near_one() -> None:
    """An unknown parameter is refused with the one that was probably meant, and with all that exist."""
    with pytest.raises(NotebookError, match="no parameter 'lenghts'") as caught:
        notebooks.parse_assignment("sweep.lenghts=[1]")
    assert "'lengths'" in caught.value.cause
    assert "intervals: list" in caught.value.remedy


@pytest.mark.parametrize("name", notebooks.OWN)
def test_the_runners_own_parameters_are_not_ours_to_set(name: str) -> None:
    """Run directory and target come from their options, not from -p."""
    with pytest.raises(NotebookError, match="no parameter"):
        notebooks.parse_assignment(f"sweep.{name}='x'")


@pytest.mark.parametrize(
    "text",
    [
        "sweep.lengths=1600", "sweep.lengths=many", "equality.documents=3.5", "equality.documents='3'",
        "equality.documents=True", "report.include_text=1", "equality.documents=None", "sweep.lengths={1: 2}",
    ],
)  # fmt: skip
def test_a_value_of_another_type_is_refused_with_an_example(text: str) -> None:
    """The message names the value, its type, the declared one, and a value that fits."""
    name = text.partition("=")[0]
    with pytest.raises(NotebookError, match="the notebook declares") as caught:
        notebooks.parse_assignment(text)
    assert name in caught.value.what
    assert f"-p {name}=" in caught.value.remedy


@pytest.mark.parametrize("text", ["lengths=[1]", "sweep.lengths", "sweep", "", "=", "sweep lengths 1"])
def test_another_form_is_refused_with_the_right_one(text: str) -> None:
    """What is no ``stage.name=value`` is told what that looks like."""
    with pytest.raises(NotebookError, match=r"stage\.name=value"):
        notebooks.parse_assignment(text)


def test_an_unknown_stage_names_the_known_ones() -> None:
    """A stage that does not exist is refused with those that do."""
    with pytest.raises(NotebookError, match="'sweeep'") as caught:
        notebooks.parse_assignment("sweeep.lengths=[1]")
    assert all(stage in caught.value.remedy for stage in STAGE_NAMES)


# --- running and copying -------------------------------------------------------------------------------------------


def own_notebook(monkeypatch: pytest.MonkeyPatch, folder: Path, *sources: str) -> Path:
    """A notebook of these code cells in place of every stage's; the first one is the parameters cell."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
    notebook.cells[0].metadata["tags"] = ["parameters"]
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    file = folder / "own.ipynb"
    nbformat.write(notebook, file)
    monkeypatch.setattr(notebooks, "path", lambda stage: file)
    return file


def test_a_failing_notebook_is_kept_and_named(
    run_factory: Callable[..., Run], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The error names notebook, cell and what was raised, keys masked; the executed copy holds what came before."""
    monkeypatch.setenv("MY_API_KEY", "quite-secret-value")
    own_notebook(
        monkeypatch, tmp_path, 'run_dir: str = ""  # run\nn: int = 1  # number',
        "print(f'n is {n}')", "raise ValueError('quite-secret-value broke')",
    )  # fmt: skip
    run = run_factory()
    (run.path / "notebooks").rmdir()  # a copied run may come without; its folder is made again
    with pytest.raises(NotebookError, match=r"own\.ipynb failed in cell \d+: ValueError: \*\*\* broke") as caught:
        notebooks.execute(run, "baseline", {"n": 7})
    copy = run.path / "notebooks" / "00-baseline.ipynb"
    assert str(copy) in str(caught.value)
    assert "n is 7" in copy.read_text()
    assert "--resume" in caught.value.remedy


def test_unknown_values_are_refused_before_a_kernel_starts(run_factory: Callable[..., Run]) -> None:
    """papermill only warns of an unknown parameter; we refuse it, and no copy is made."""
    run = run_factory()
    with pytest.raises(NotebookError, match="no parameter 'lenght'"):
        notebooks.execute(run, "sweep", {"lenght": [1]})
    assert not list((run.path / "notebooks").iterdir())


def test_kernels_inherit_the_lock_and_only_in_the_scope() -> None:
    """In the scope of a lock its token and owner are in the environment; after it they are as before."""
    with notebooks.owned_by("token"):
        assert os.environ[TOKEN_ENV] == "token"
        assert os.environ[OWNER_ENV] == str(os.getpid())
    assert TOKEN_ENV not in os.environ
    assert OWNER_ENV not in os.environ


def test_copies_never_overwrite(tmp_path: Path) -> None:
    """All notebooks are copied; where one is in the way nothing of it is overwritten."""
    copied = notebooks.copy_to(tmp_path / "mine")
    assert sorted(path.stem for path in copied) == sorted(notebooks.FILES.values())
    copied[-1].write_text("edited")
    with pytest.raises(NotebookError, match="exists already"):
        notebooks.copy_to(tmp_path / "mine")
    assert copied[-1].read_text() == "edited"
