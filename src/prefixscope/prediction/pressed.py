"""A workload under pressure as one HTML file that opens offline."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from prefixscope import page
from prefixscope.display import themed, title_of
from prefixscope.glossary import used
from prefixscope.sections import Section, Table

_REFUSED = "refused: "


def render_pressed(section: Section, rows: Mapping[str, Any], target: Path) -> Path:
    """Write the page of one workload's section, with its rows to download, and give its path.

    Raises
    ------
    ReportError
        where it can't be written.
    """
    drawn = {one.id: page.Drawn(one.id, themed(one.chart)) for one in section.figures}
    noted = [_noted(table) for table in section.tables]
    text = page.render(
        "prediction.html.j2",
        drawn,
        title="What this workload would hit",
        heading=section.before[0],
        answer=title_of(section.figures[0].chart) if section.figures else section.title,
        advice=None,
        upgrade="",
        found=section.after,
        words=tuple(used([*section.before, *section.after]).items()),
        notes=(),
        # What was replayed and what follows from it stand above, as the answer.
        sections=[replace(section, before=section.before[1:], after=(), tables=tuple(table for table, _ in noted))],
        downloads=[page.download("pressure.json", "every row and the geometry", json.dumps(rows, sort_keys=True))],
        below=[note for _, notes in noted for note in notes],
        pressure="under pressure",
        cache="in a cache of each size, which they fill themselves",
    )
    return page.write(text, target)


def _noted(table: Table) -> tuple[Table, list[str]]:
    """The table, and apart from it what releases say to refused settings: in a cell it would make a row tall."""
    found: dict[str, None] = {}
    rows = []
    for row in table.rows:
        before, refused, note = row[-1].partition(_REFUSED)
        found |= {f"Refused: {note.rstrip('.')}.": None} if refused else {}
        rows.append((*row[:-1], f"{before}refused") if refused else row)
    return replace(table, rows=tuple(rows)), list(found)
