"""Which rows a figure draws, and the panels they are drawn in: one per configuration, in the caller's order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import pandas as pd

from prefixscope.charts.encoding import WIDTH


def pick(rows: pd.DataFrame, configs: Sequence[str] | None) -> tuple[pd.DataFrame, list[str]]:
    """The rows of these configurations and their names; of the first eight where none were asked for."""
    names = list(configs) if configs is not None else rows["config"].drop_duplicates().tolist()[:8]
    return rows[rows["config"].isin(names)], names


def longest(rows: pd.DataFrame, configs: Sequence[str] | None) -> tuple[pd.DataFrame, list[str]]:
    """As :func:`pick`, of the longest prompt alone; the names are those of configurations that were sent it."""
    rows, names = pick(rows, configs)
    rows = rows[rows["tokens"] == rows["tokens"].max()]
    return rows, [name for name in names if name in set(rows["config"])]


_CHARACTER_PX = 6.8


def facet(field: str, order: Sequence[str], *, width: float = WIDTH) -> Any:
    """A panel of that width per value of ``field``, its name above it: in two lines where it is too long for one."""
    look: dict[str, Any] = {"title": None, "labelAnchor": "start", "labelPadding": 4}
    if max((len(name) for name in order), default=0) * _CHARACTER_PX > width:
        look["labelExpr"] = "split(datum.label, ' · ')"
    return alt.Facet(f"{field}:N", sort=list(order), header=alt.Header(**look))
