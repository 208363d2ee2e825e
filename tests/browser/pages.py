"""What is asked of every page: it draws, asks for nothing, logs nothing and fits."""

from __future__ import annotations

from pathlib import Path

from cdp import Page

DRAWN = """[...document.querySelectorAll(".chart")].filter((chart) =>
  chart.querySelectorAll(".live svg .mark-rect path, .live svg .mark-symbol path").length
  && chart.querySelectorAll(".live svg text").length > 2
).length"""
"""How many figures show marks and words."""

SHOWN = """[...document.querySelectorAll(".drawn svg")].filter(
  (svg) => svg.getBoundingClientRect().height > 40
).length"""
"""How many figures that were drawn beforehand are on the page."""

STRUCK = """[...document.querySelectorAll(".chart.on .live svg")].flatMap((svg) => {
  const lines = [...svg.querySelectorAll(".mark-rule.role-mark line, .mark-line.role-mark path")].flatMap((line) => {
    const at = line.getScreenCTM(), length = line.getTotalLength();
    const point = (n) => line.getPointAtLength(Math.min(n, length)).matrixTransform(at);
    return Array.from({length: Math.ceil(length) + 1}, (_, n) => point(n));
  });
  return [...svg.querySelectorAll(".mark-text.role-mark text")].filter((text) => {
    const box = text.getBoundingClientRect(), height = box.height / 8;
    return text.textContent && lines.some((p) =>
      p.x > box.left + 2 && p.x < box.right - 2 && p.y > box.top + height && p.y < box.bottom - height);
  }).map((text) => `${svg.closest(".chart").dataset.chart}: ${text.textContent}`);
})"""
"""The words in a figure that a line of it goes through."""

_TOO_WIDE = """[...document.querySelectorAll(".page *")].filter((item) =>
  !item.closest("SCROLLING") && item.getBoundingClientRect().right > window.innerWidth + 1
).map((item) => `${item.tagName}.${item.className}`)"""


def opened(page: Page, file: Path) -> Page:
    """The page, once its figures are drawn."""
    page.open(file.as_uri(), until="document.documentElement?.dataset.drawn !== undefined")
    page.settle()
    return page


def is_quiet(page: Page, file: Path) -> None:
    """The page asked for itself alone and logged nothing."""
    assert [url for url in page.requests if not url.startswith("data:")] == [file.as_uri()]
    assert page.console == []


def fits(page: Page, width: int, *, scrolling: str = ".scroll, .chart, svg, .skip") -> None:
    """Nothing is cut off at the right; what scrolls in a place of its own may be wider."""
    assert page.value("window.innerWidth") == width
    assert page.value("document.documentElement.scrollWidth") <= width
    assert page.value(_TOO_WIDE.replace("SCROLLING", scrolling)) == []
