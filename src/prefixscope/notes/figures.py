"""Figures beside a note, as SVG files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefixscope import charts, page
from prefixscope.display import title_of, to_svg
from prefixscope.notes.account import Account
from prefixscope.notes.markdown import Markdown, inert
from prefixscope.sections import headline_figure


@dataclass(frozen=True, slots=True)
class Picture:
    """One figure: its file beside the note, what it shows in one sentence, and the SVG."""

    name: str
    title: str
    svg: str

    @property
    def shown(self) -> Markdown:
        """The picture in Markdown; its finding is the alternative text."""
        return Markdown(f"![{inert(self.title)}]({self.name})")

    def write(self, folder: Path) -> None:
        page.write(self.svg, folder / self.name)


def pictures(told: Account, stem: str) -> dict[str, Picture]:
    """The figures that the run has data for: ``hits``, ``blocks`` and ``intervals``."""
    headline = headline_figure(told.material)
    blocks = told.material.telling.blocks
    if headline is not None and not len(told.material.sent):
        blocks = blocks.head(0)  # the headline shows them already
    drawn: dict[str, Any] = {
        "hits": None if headline is None else headline.chart,
        "blocks": charts.block_ruler(blocks),
        "intervals": charts.hit_against_interval(told.material.sweep) if len(told.material.sweep) else None,
    }
    return {
        name: Picture(f"{stem}-{name}.svg", title_of(chart), page.own_ids(to_svg(chart), name))
        for name, chart in drawn.items()
        if chart is not None
    }
