"""The shipped notebooks: what parameters they take, whether values fit, and running one headless with papermill."""

from __future__ import annotations

import ast
import difflib
import errno
import os
import shlex
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefixscope import resources
from prefixscope.errors import NotebookError, mask
from prefixscope.run_files import TOKEN_ENV, read_json
from prefixscope.runs import OWNER_ENV, Run

FILES: Mapping[str, str] = {
    "baseline": "00-baseline",
    "trace": "10-block-trace",
    "sweep": "20-retention-sweep",
    "equality": "30-output-equality",
    "speculation": "40-speculation",
    "report": "90-report",
}
ORDER = ("baseline", "trace", "speculation", "equality", "sweep", "report")
"""Speculation comes while the baseline's servers with and without the drafter still run. Equality runs before the
sweep: it uses the server that the baseline left running last, and the sweep's first one starts behind it, since no
latency of equality is reported."""

OWN = ("run_dir", "target")
"""Parameters that the runner sets."""

_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "int": int, "float": (int, float), "str": str, "bool": bool, "list": (list, tuple),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Parameter:
    """One line of a parameters cell: ``name: type = default  # help``."""

    name: str
    type: str
    default: Any
    help: str


def path(stage: str) -> Path:
    """The shipped notebook of a stage.

    Raises
    ------
    NotebookError
        for an unknown stage, naming the known ones.
    """
    if stage not in FILES:
        raise NotebookError(f"there is no stage {stage!r}", remedy=f"stages: {', '.join(FILES)}")
    return resources.notebooks_path() / f"{FILES[stage]}.ipynb"


def parameters(stage: str) -> dict[str, Parameter]:
    """The parameters of a stage's notebook, read from its parameters cell."""
    import nbformat

    notebook = nbformat.read(path(stage), as_version=4)
    cell = next((c for c in notebook.cells if "parameters" in c.metadata.get("tags", [])), None)
    if cell is None:
        raise NotebookError(
            f"{path(stage).name} has no cell tagged 'parameters'", remedy="tag it in JupyterLab's property panel"
        )
    lines = cell.source.splitlines()
    found: dict[str, Parameter] = {}
    for node in ast.parse(cell.source).body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            comment = lines[(node.end_lineno or node.lineno) - 1].partition("#")[2].strip()
            name = node.target.id
            found[name] = Parameter(name, ast.unparse(node.annotation), ast.literal_eval(node.value), comment)
    return found


def parse_assignment(text: str) -> tuple[str, str, Any]:
    """``"sweep.lengths=[1600, 6446]"`` → ("sweep", "lengths", [1600, 6446]).

    Raises
    ------
    NotebookError
        for another form, an unknown stage or parameter, or a value of the wrong type; the message names what fits.
    """
    name, equals, value_text = text.partition("=")
    stage, dot, parameter = name.strip().partition(".")
    if not equals or not dot:
        raise NotebookError(
            f"-p {text!r} is not of the form stage.name=value", remedy="for example -p sweep.lengths=[1600,6446]"
        )
    try:
        value = ast.literal_eval(value_text.strip())
    except (ValueError, SyntaxError):
        value = value_text.strip()
    check(stage, {parameter: value})
    return stage, parameter, value


def check(stage: str, values: Mapping[str, Any]) -> None:
    """Refuse parameters that the notebook does not have, or of another type than it declares."""
    known = {name: p for name, p in parameters(stage).items() if name not in OWN}
    for name, value in values.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            raise NotebookError(
                f"stage {stage!r} has no parameter {name!r}",
                cause=f"a typo for {near[0]!r}?" if near else "",
                remedy=f"its parameters: {', '.join(f'{p.name}: {p.type}' for p in known.values())}",
            )
        wanted = _TYPES.get(known[name].type, object)
        if not isinstance(value, wanted) or (isinstance(value, bool) and known[name].type != "bool"):
            raise NotebookError(
                f"-p {stage}.{name}={value!r}: {type(value).__name__}, the notebook declares {known[name].type}",
                remedy=f"for example -p {stage}.{name}={known[name].default!r}",
            )


@contextmanager
def owned_by(token: str) -> Iterator[None]:
    """Kernels started in this scope write to the run under our lock, and their servers end when we do."""
    before = {name: os.environ.get(name) for name in (TOKEN_ENV, OWNER_ENV)}
    os.environ.update({TOKEN_ENV: token, OWNER_ENV: str(os.getpid())})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def execute(
    run: Run, stage: str, values: Mapping[str, Any], *, watch: Callable[[dict[str, Any]], None] | None = None
) -> Path:
    """Run one notebook headless into the run directory; its executed copy is kept whether it succeeds or not.

    Parameters
    ----------
    values : parameters, checked.
    watch : called about twice a second with the stage's progress.

    Raises
    ------
    NotebookError
        where a cell failed: which one, the error, and the copy's path.
    """
    import papermill
    from papermill.exceptions import PapermillExecutionError

    check(stage, values)
    out = run.path / "notebooks" / f"{FILES[stage]}.ipynb"
    out.parent.mkdir(exist_ok=True)  # a copied run may come without
    (run.path / "progress.json").unlink(missing_ok=True)
    with _watching(run.path / "progress.json", watch):
        try:
            papermill.execute_notebook(
                str(path(stage)),
                str(out),
                parameters={"run_dir": str(run.path), **values},
                kernel_name="python3",
                progress_bar=False,
                log_output=False,
                request_save_on_cell_execute=True,
                # ipykernel warns that loopback TCP is not encrypted, and of the interrupt that ends it: no news.
                extra_arguments=["--IPKernelApp.log_level=50"],
            )
        except OSError as error:
            full = error.errno == errno.ENOSPC
            first = "make room" if full else "mend that"
            raise NotebookError(
                f"{out} could not be written: {error.strerror or error}",
                cause="the disk is full; all measured rows are safe" if full else "",
                remedy=f"{first}, then prefixscope run -o {shlex.quote(str(run.path))} --resume",
            ) from error
        except PapermillExecutionError as error:
            reason = f"{error.ename}: {(str(error.evalue).splitlines() or [''])[0]}"
            raise NotebookError(
                f"notebook {path(stage).name} failed in cell {error.exec_count}: {reason}",
                remedy=f"prefixscope run -o {shlex.quote(str(run.path))} --resume",
                detail=f"{mask(str(error.evalue))}\nThe executed copy, up to the error: {out}",
            ) from None
    return out


@contextmanager
def _watching(file: Path, watch: Callable[[dict[str, Any]], None] | None) -> Iterator[None]:
    if watch is None:
        yield
        return
    done = threading.Event()

    def loop() -> None:
        while not done.wait(0.5):
            snapshot = read_json(file)
            if snapshot:
                watch(snapshot)

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(timeout=2)


def copy_to(folder: Path) -> list[Path]:
    """Copies of all shipped notebooks, to edit; existing files are never overwritten."""
    folder.mkdir(parents=True, exist_ok=True)
    copied = []
    for source in sorted(resources.notebooks_path().glob("*.ipynb")):
        to = folder / source.name
        if to.exists():
            raise NotebookError(f"{to} exists already", remedy="name another folder, or move your copy away")
        shutil.copyfile(source, to)
        copied.append(to)
    return copied
