"""What every figure encodes with: inline data, axes that count, colours by name."""

from __future__ import annotations

from typing import Any

import altair as alt
import pandas as pd

WIDTH = 620
"""Plot width in px where nobody asks for another; a report fits charts to its page."""
_UNITS = ((2 * 86_400, 86_400, "days"), (2 * 3_600, 3_600, "hours"), (300, 60, "minutes"), (0, 1, "seconds"))


def narrowest(chart: Any, px: int) -> Any:
    """The chart with the narrowest plot, in px, that its labels can bear; a page on a small screen asks for it."""
    return chart.properties(usermeta={"narrowest_px": px})


def colour(field: str, colours: dict[str, str]) -> Any:
    """The colour of each value of ``field``; no legend, since marks carry their names."""
    return alt.Color(f"{field}:N", scale=alt.Scale(domain=list(colours), range=list(colours.values())), legend=None)


def time_unit(end_s: float) -> tuple[int, str]:
    """The seconds of the unit that an axis up to so many seconds counts in, and its name."""
    return next((per_unit, unit) for least, per_unit, unit in _UNITS if end_s >= least)


def count_axis(ticks: int = 8) -> Any:
    """An axis of whole numbers with thousands separators."""
    return alt.Axis(format=",.6~r", tickCount=ticks)


def inline(rows: list[dict[str, Any]]) -> Any:
    """The rows as data inside the chart."""
    return alt.InlineData(values=[{key: _plain(value) for key, value in row.items()} for row in rows])


def _plain(value: Any) -> Any:
    """JSON's own types: a NumPy scalar becomes Python's, a missing value null."""
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if value is None or pd.isna(value):
        return None
    return value.item() if hasattr(value, "item") else value


def price_axes(cost: float, short: float) -> tuple[Any, Any]:
    """What an interval keeps, in blocks up to ``cost``, against what it leaves, in tokens up to ``short``."""
    x = alt.X(
        "cost:Q",
        title="blocks kept in the cache after one prompt",
        axis=count_axis(6),
        scale=alt.Scale(domain=[0, cost * 1.1], nice=False),
    )
    y = alt.Y(
        "short:Q",
        title="tokens short of full on send 2",
        axis=count_axis(6),
        scale=alt.Scale(domain=[0, max(short * 1.12, 1)], nice=False),
    )
    return x, y
