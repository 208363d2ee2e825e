"""How a stranger reads the pages: one screen that answers, tables without scripts, a keyboard, a printer."""

from __future__ import annotations

import base64
import itertools
import re
from pathlib import Path

import pytest
from cdp import Chromium, Page
from pages import SHOWN, STRUCK, fits, is_quiet, opened

pytestmark = pytest.mark.browser

PAGES = ("sample", "report", "predicted", "under_pressure")
FIRST_SCREEN = ("h1", "#verdict .chart", "#verdict .remedy", "#verdict .remedy:last-of-type", "#verdict .basis")
BOTTOMS = """(FIRST).map((name) => document.querySelector(name).getBoundingClientRect().bottom)"""
LEVELS = "[...document.querySelectorAll('h1, h2, h3, h4')].map((heading) => Number(heading.tagName[1]))"
TABLES = """[...document.querySelectorAll("table")].filter((table) =>
  !table.caption || ![...table.querySelectorAll("thead th")].every((head) => head.scope === "col")
).map((table) => table.textContent.slice(0, 60))"""
FIGURES = """[...document.querySelectorAll(".chart")].map((chart) =>
  [chart.getAttribute("role"), chart.getAttribute("aria-label").length > 20])"""
ALONE = """[...document.querySelectorAll("figure")].filter((figure) =>
  !figure.closest("section, #verdict").querySelector("table tbody tr")
).map((figure) => figure.textContent.slice(0, 60))"""
PAINTED = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
FIRST_DRAWN = "performance.getEntriesByName('first figure drawn')[0]?.startTime"
LIVE = "[...document.querySelectorAll('.live')].filter((live) => live.offsetHeight).length"
CUT = """[...document.querySelectorAll(".drawn svg")].filter((svg) => getComputedStyle(svg).overflow !== "visible"
  || [...svg.querySelectorAll("text")].some((text) => text.getBoundingClientRect().right > innerWidth)
).map((svg) => svg.closest(".chart").dataset.chart)"""
"""Figures on paper that may lose the end of a word, in a font wider than the one they were measured in."""
PAPER = {"A4": (8.27, 11.69), "Letter": (8.5, 11.0)}
MARGINS_IN = 2 * 14 / 25.4


@pytest.fixture(params=PAGES)
def file(request: pytest.FixtureRequest) -> Path:
    found: Path = request.getfixturevalue(request.param)
    return found


def test_the_first_screen_answers(chromium: Chromium, sample: Path) -> None:
    """Verdict, figure, remedies with their price and how sure we are stand in the first 900 px of a desktop."""
    page = opened(chromium.page(width=1440, height=900), sample)
    assert max(page.value(BOTTOMS.replace("FIRST", str(list(FIRST_SCREEN))))) <= 900
    shown = page.value("document.querySelector('#verdict').textContent")
    for words in (
        "0.30.0",
        "next to nothing",
        "1024",
        "4.2 times",
        "evictable",
        "prompt lengths",
        "retention interval",
    ):
        assert words in shown, words


def test_headings_tables_and_figures_have_names(chromium: Chromium, file: Path) -> None:
    """Headings skip no level, each table has a caption and column heads, each figure a description."""
    page = opened(chromium.page(), file)
    levels = page.value(LEVELS)
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels)), levels
    assert page.value(TABLES) == []
    assert all(row == ["img", True] for row in page.value(FIGURES))
    for landmark in ("main", "header", "footer"):
        assert page.value(f"document.querySelectorAll('{landmark}').length") == 1, landmark


@pytest.mark.parametrize("width", [1440, 380])
@pytest.mark.parametrize("name", [*PAGES, "compared"])
def test_no_line_goes_through_words(chromium: Chromium, request: pytest.FixtureRequest, name: str, width: int) -> None:
    """A boundary, the line of a whole prompt or a curve strikes through no label of its figure."""
    page = opened(chromium.page(width=width), request.getfixturevalue(name))
    assert page.value("document.querySelectorAll('.live svg .mark-text.role-mark text').length") > 5
    assert page.value(STRUCK) == []


def test_the_keyboard_reaches_the_answer(chromium: Chromium, sample: Path) -> None:
    """The first stop is a link that skips to the verdict, and it is visible while it has the focus."""
    page = opened(chromium.page(), sample)
    for kind in ("keyDown", "keyUp"):
        page.call("Input.dispatchKeyEvent", type=kind, key="Tab", code="Tab", windowsVirtualKeyCode=9)
    where = "document.activeElement"
    assert page.value(f"{where}.getAttribute('href')") == "#verdict"
    assert page.value(f"{where}.getBoundingClientRect().left") >= 0
    assert page.value(f"getComputedStyle({where}).outlineStyle") == "solid"


@pytest.mark.parametrize("width", [1440, 380])
def test_without_scripts_every_fact_is_there(chromium: Chromium, file: Path, width: int) -> None:
    """With scripts switched off each figure is on the page, beside a table of its numbers, and nothing is cut off."""
    page = chromium.page(scripts=False, width=width)
    page.open(file.as_uri())
    assert page.value(SHOWN) == page.value("document.querySelectorAll('.chart').length") > 0
    assert page.value(ALONE) == []
    page.value("document.querySelectorAll('details').forEach((details) => { details.open = true; })")
    fits(page, width)
    is_quiet(page, file)


def test_figures_are_painted_before_scripts_draw_them(chromium: Chromium, sample: Path) -> None:
    """The reader sees the page with its figures first; Vega's drawings take their place afterwards."""
    page = opened(chromium.page(), sample)
    assert page.value(PAINTED) < page.value(FIRST_DRAWN)
    assert page.value("performance.getEntriesByType('navigation')[0].domInteractive") < page.value(FIRST_DRAWN)


def printed(page: Page, paper: str) -> int:
    """How many sheets the page takes."""
    wide, high = PAPER[paper]
    made = page.call("Page.printToPDF", paperWidth=wide, paperHeight=high, preferCSSPageSize=False)
    return len(re.findall(rb"/Type\s*/Page\b", base64.b64decode(made["data"])))


@pytest.mark.parametrize("paper", PAPER)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_prints(chromium: Chromium, sample: Path, paper: str, scheme: str) -> None:
    """On A4 and Letter the report is a few sheets on which nothing is wider than the paper, black on white."""
    page = opened(chromium.page(scheme=scheme), sample)
    assert 5 <= printed(page, paper) <= 23
    width = round((PAPER[paper][0] - MARGINS_IN) * 96)
    page.call("Emulation.setDeviceMetricsOverride", width=width, height=1000, deviceScaleFactor=1, mobile=False)
    page.call("Emulation.setEmulatedMedia", media="print")
    assert page.value("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.value(SHOWN) == page.value("document.querySelectorAll('.chart').length")
    assert page.value(LIVE) == 0
    assert page.value(CUT) == []
    fits(page, width, scrolling="svg *, .skip")
