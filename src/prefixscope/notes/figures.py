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
    """The figures that the run has data for: ``headline``, ``blocks`` and ``intervals``.

    A file is named for what it shows: ``incident-hits.svg``; of a run that streamed alone ``incident-speed.svg``.
    """
    headline = headline_figure(told.material)
    drawn: dict[str, Any] = {
        "blocks": charts.block_ruler(told.material.telling.blocks),
        "intervals": charts.hit_against_interval(told.material.sweep) if len(told.material.sweep) else None,
    }
    made = {name: (name, chart) for name, chart in drawn.items()}
    if headline is not None:
        made.pop(headline.shows, None)  # once is enough
        made = {"headline": (headline.shows, headline.chart), **made}
    return {
        place: Picture(f"{stem}-{shows}.svg", title_of(chart), page.own_ids(to_svg(chart), shows))
        for place, (shows, chart) in made.items()
        if chart is not None
    }
