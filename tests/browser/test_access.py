"""What axe-core, the accessibility checker of many browsers' tools, says of the pages."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from cdp import Chromium
from pages import opened

pytestmark = pytest.mark.browser

CARRIER = "axe-playwright-python==0.1.8"
"""A small wheel that carries axe-core's own file; nothing else of it is used."""
SERIOUS = """axe.run(document, {resultTypes: ["violations"]}).then((found) => found.violations.filter((one) =>
  ["serious", "critical"].includes(one.impact)
).map((one) => [one.id, one.help, ...one.nodes.slice(0, 3).map((node) => node.html.slice(0, 120))].join(" | ")))"""


@pytest.fixture(scope="session")
def axe() -> str:
    """axe-core as text, out of the wheel; downloaded once into the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(base, "prefixscope-tests", CARRIER)
    if not list(folder.glob("*.whl")):
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", str(folder), CARRIER]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        name = next(name for name in wheel.namelist() if name.endswith("axe.min.js"))
        return wheel.read(name).decode()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 380])
@pytest.mark.parametrize("name", ["sample", "predicted", "under_pressure"])
def test_no_serious_violation(
    chromium: Chromium, axe: str, request: pytest.FixtureRequest, name: str, width: int, scheme: str
) -> None:
    """Report, prediction and pressure page have no serious or critical violation, with every fold open."""
    page = opened(chromium.page(width=width, scheme=scheme), request.getfixturevalue(name))
    page.value("document.querySelectorAll('details').forEach((details) => { details.open = true; })")
    page.settle()
    page.value(f"(() => {{ {axe}\n return 0; }})()")  # over the protocol: the page's own policy would refuse it
    assert page.value(SERIOUS) == []
