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
from prefixscope.sections import Section


def render_pressed(section: Section, rows: Mapping[str, Any], target: Path) -> Path:
    """Write the page of one workload's section, with its rows to download, and give its path.

    Raises
    ------
    ReportError
        where it can't be written.
    """
    drawn = {one.id: page.Drawn(one.id, themed(one.chart)) for one in section.figures}
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
        sections=[replace(section, before=section.before[1:], after=())],
        downloads=[page.download("pressure.json", "every row and the geometry", json.dumps(rows, sort_keys=True))],
        pressure="under pressure",
        cache="in a cache of each size, which they fill themselves",
    )
    return page.write(text, target)
