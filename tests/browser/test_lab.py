"""The notebooks in a real JupyterLab in a real Chromium with the network blocked: saved and untrusted, and live."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from cdp import Chromium, Page
from lab import Lab
from stub import StubServer

from prefixscope import notebooks

pytestmark = pytest.mark.browser

BOOK = "document.querySelector('.jp-NotebookPanel:not(.lm-mod-hidden) .jp-Notebook')"
CELLS = f"{BOOK}?.querySelectorAll('.jp-Cell:not(.jp-Notebook-footer)').length"
TRUST = "document.querySelector('.jp-StatusItem-trust')?.title"
FIGURES = f"""[...{BOOK}.querySelectorAll('.jp-OutputArea-output')].filter((output) => {{
  const drawn = output.matches('img, svg') ? output : output.querySelector('img, svg');
  const box = drawn?.getBoundingClientRect();
  return box && box.width > 200 && box.height > 60 && (drawn.tagName !== 'IMG' || drawn.naturalWidth > 200);
}}).length"""
ERRORS = f"""[...{BOOK}.querySelectorAll('.jp-OutputArea-output')].map((output) => output.textContent).filter(
  (text) => /Javascript error|Error displaying|Loading widget|not found|<svg|<progress|<table|Traceback/i.test(text)
)"""
"""What a broken output says of itself, and markup that is shown as text."""
WIDE = f"""[...{BOOK}.querySelectorAll('.jp-OutputArea-output')].filter(
  (output) => output.scrollWidth > output.clientWidth + 1 && !output.querySelector('table')
).length"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory, executed: Callable[[str], Any]) -> Iterator[Lab]:
    """One JupyterLab on a folder with every executed notebook, none of them signed."""
    folder = tmp_path_factory.mktemp("saved")
    for stage in notebooks.FILES:
        shutil.copy(executed(stage).path, folder)
    with Lab(folder, tmp_path_factory.mktemp("home")) as running:
        yield running


def opened(lab: Lab, chromium: Chromium, notebook: str) -> Page:
    """A tab with the notebook, all its cells in view: Lab builds only those that are."""
    count = len(nbformat.read(lab.folder / notebook, as_version=4).cells)
    page = chromium.page(width=1440, height=16_000)
    page.open(lab.url(notebook), until=f"({CELLS}) === {count}", timeout_s=90)
    return page


def outputs_of(file: Path, kind: str) -> int:
    cells = nbformat.read(file, as_version=4).cells
    return sum(kind in out.get("data", {}) for cell in cells for out in cell.get("outputs", []))


def is_whole(page: Page, lab: Lab, figures: int) -> None:
    """Every figure is drawn, nothing says that it is broken, and nothing but Lab was asked."""
    page.wait(f"({FIGURES}) === {figures}", timeout_s=60)
    page.settle()
    assert page.value(ERRORS) == []
    assert page.value(WIDE) == 0
    ours = (lab.origin, f"ws://127.0.0.1:{lab.port}", "data:", "blob:", "about:", "devtools:")
    assert [url for url in page.requests if not url.startswith(ours)] == []


@pytest.mark.parametrize("stage", notebooks.FILES)
def test_a_saved_untrusted_notebook_shows_everything_offline(stage: str, lab: Lab, chromium: Chromium) -> None:
    """Opened as a file that somebody sent: every figure and table is there, no output is broken, nothing is fetched."""
    notebook = f"{notebooks.FILES[stage]}.ipynb"
    page = opened(lab, chromium, notebook)
    is_whole(page, lab, outputs_of(lab.folder / notebook, "image/png"))
    assert "not trusted" in page.value(TRUST).lower()
    assert page.value(f"{BOOK}.querySelectorAll('.jp-OutputArea-output table').length") >= (stage != "report")


def test_a_trusted_notebook_shows_everything_offline(lab: Lab, chromium: Chromium) -> None:
    """Signed, the same notebook shows its figures as SVG, as sharp as the screen is."""
    shutil.copy(lab.folder / "10-block-trace.ipynb", lab.folder / "signed.ipynb")
    lab.trust("signed.ipynb")
    page = opened(lab, chromium, "signed.ipynb")
    is_whole(page, lab, outputs_of(lab.folder / "signed.ipynb", "image/png"))
    assert "not trusted" not in page.value(TRUST).lower()


def test_a_notebook_runs_live_on_a_server_after_one_change(lab: Lab, chromium: Chromium, stub: StubServer) -> None:
    """Run in Lab with the target's line changed: bars while it runs, one line when it is done, figures, a run here."""
    book = nbformat.read(notebooks.path("baseline"), as_version=4)
    for cell in book.cells:
        if "parameters" in cell.metadata.get("tags", []):
            cell.source = cell.source.replace('target: str = "sample"', f'target: str = "{stub.url}"')
    nbformat.write(book, lab.folder / "live.ipynb")
    page = opened(lab, chromium, "live.ipynb")
    page.value("void (window.progressSeen = 0)")
    page.value(
        f"void new MutationObserver(() => {{ window.progressSeen ||= {BOOK}.querySelectorAll('progress').length; }})"
        f".observe({BOOK}, {{childList: true, subtree: true}})"
    )
    page.value("window.jupyterapp.commands.execute('notebook:run-all-cells').then(() => { window.ran = true; }), 0")
    page.wait("window.ran", timeout_s=180)
    is_whole(page, lab, 3)
    assert page.value("window.progressSeen") > 0
    shown = page.value(f"{BOOK}.textContent")
    assert "baseline: 8 of 8 done in" in shown
    assert "reuses the prefix on the second send" in shown
    assert page.value(f"{BOOK}.querySelectorAll('progress').length") == 0
    assert len(list(lab.folder.glob("prefixscope-run-*/raw/baseline.jsonl"))) == 1
