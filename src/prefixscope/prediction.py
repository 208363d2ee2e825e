"""What a server would hit, told: tables and sentences from predicted cells. Nothing here is measured on a server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from prefixscope import frames
from prefixscope.quantities import number
from prefixscope.replay import Cell, Geometry, Grid, Share
from prefixscope.setting import interval_label

MOST_COLUMNS = 3
"""Prompt lengths that a terminal table has columns for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Cells of several releases, with what they were asked for.

    ``missing`` are releases that were asked for and are not installed here.
    """

    grid: Grid
    cells: tuple[Cell, ...]
    shares: tuple[Share, ...]
    missing: tuple[str, ...] = ()

    @property
    def geometry(self) -> Geometry:
        return self.grid.geometry

    def cases(self) -> pd.DataFrame:
        """``frames.predicted_cases`` with the weights of these prompts."""
        weights = pd.DataFrame(
            [(one.pattern, one.tokens, one.weight) for one in self.shares], columns=["pattern", "tokens", "weight"]
        )
        return frames.predicted_cases(frames.predicted(self.cells), weights)

    def to_json(self) -> dict[str, Any]:
        return {
            "pressure": "unpressured",
            "geometry": self.geometry.to_json(),
            "not_installed": list(self.missing),
            "rows": [row_json(cell) for cell in self.cells],
        }

    def text(self) -> str:
        """For a terminal: a table with a line per release and interval, and what follows from it."""
        return "\n".join(table_lines(self.cases()))


def row_json(cell: Cell) -> dict[str, Any]:
    """One cell as a script takes it; ``kept_blocks`` and ``kept_bytes`` per group."""
    return {
        "release": cell.release,
        "drafter_tokens": cell.drafter_tokens,
        "interval": cell.resolved,
        "default": cell.interval is None,
        "pattern": cell.pattern,
        "tokens": cell.tokens,
        "send": cell.send,
        "prompt_tokens": cell.prompt_tokens,
        "reusable_tokens": cell.reusable_tokens,
        "hit_tokens": cell.hit_tokens,
        "short_tokens": cell.short_tokens,
        "kept_blocks": None if cell.kept_blocks is None else list(cell.kept_blocks),
        "kept_bytes": None if cell.kept_bytes is None else list(cell.kept_bytes),
    }


def table_lines(cases: pd.DataFrame) -> list[str]:
    """A line per release and interval: hits of sends 2 and 3 of a repeat, and what the longest prompt leaves."""
    repeat = cases[cases["pattern"] == "repeat"]
    lengths = sorted(repeat["tokens"].unique().tolist())
    shown = lengths if len(lengths) <= MOST_COLUMNS else [lengths[0], lengths[len(lengths) // 2], lengths[-1]]
    head = ["vLLM", "interval", *[f"{n:,} tokens" for n in shown], "kept"]
    lines = [head]
    for (release, interval), part in repeat.groupby(["release", "interval"], sort=False):
        cells = [str(release), str(interval)]
        for n in shown:
            row = part[part["tokens"] == n].iloc[0]
            cells.append(f"{number(row['hit_2'])} / {number(row['hit_3'])}")
        cells.append(f"{number(part.iloc[-1]['blocks'])} blocks")
        lines.append(cells)
    wide = [max(len(line[place]) for line in lines) for place in range(len(head))]
    return ["  ".join(cell.ljust(size) for cell, size in zip(line, wide, strict=True)).rstrip() for line in lines]


def interval_words(intervals: Sequence[Any]) -> str:
    """``0, 1,024 and dense``."""
    return ", ".join(interval_label(one) for one in intervals)
