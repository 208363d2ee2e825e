"""The figure of a cache under pressure: hits above, evictions below, resets across both."""

from __future__ import annotations

from typing import Any

import altair as alt
import pandas as pd

from prefixscope.charts.encoding import WIDTH, count_axis, inline, narrowest, time_unit
from prefixscope.charts.titles import wrapped_title
from prefixscope.quantities import count, number
from prefixscope.theme import BLUE, PURPLE, VERMILION


def evictions_over_time(frame: pd.DataFrame) -> Any:
    """Share of all prompt tokens that hit, and blocks evicted, per window of time; a dashed line is a reset.

    ``frame`` is ``frames.evictions_over_time``.
    """
    if not len(frame):
        return None
    evicted, resets = int(frame["evicted_blocks"].sum()), int(frame["resets"].sum())
    per_unit, unit = time_unit(float(frame["stop_s"].max()))
    data = [
        {
            "left": round(row.start_s / per_unit, 4),
            "right": round(row.stop_s / per_unit, 4),
            "at": round((row.start_s + row.stop_s) / 2 / per_unit, 4),
            "share": None if pd.isna(row.share) else round(row.share, 4),
            "evicted": int(row.evicted_blocks),
            "resets": int(row.resets),
        }
        for row in frame.itertuples()
    ]
    span = alt.Scale(domain=[0, data[-1]["right"]], nice=False)
    base, emptied = alt.Chart(inline(data)), alt.Chart(inline([row for row in data if row["resets"]]))

    def panel(field: str, colour: str, y: Any, since: str | None) -> Any:
        """One field as bars over time, and the resets."""
        look = {"title": since, "axis": count_axis(7), "scale": span}
        bars = base.transform_filter(f"datum.{field} !== null").mark_bar(color=colour)
        resets = emptied.mark_rule(strokeDash=[4, 3], strokeWidth=1.6, color=VERMILION)
        layers = (
            bars.encode(x=alt.X("left:Q", **look), x2="right:Q", y=y, y2=alt.Y2(datum=0)),
            resets.encode(x=alt.X("at:Q", **look)),
        )
        return alt.layer(*layers).properties(width=WIDTH, height=90)

    most = max(row["evicted"] for row in data)
    share = alt.Y(
        "share:Q", title="share that hit", axis=alt.Axis(format=".0%", tickCount=3), scale=alt.Scale(domain=[0, 1])
    )
    blocks = alt.Y("evicted:Q", title="blocks evicted", axis=count_axis(3), scale=alt.Scale(domain=[0, most or 1]))
    chart = alt.vconcat(
        panel("share", BLUE, share, None),
        panel("evicted", PURPLE, blocks, f"{unit} since the trace began"),
        spacing=10,
    )
    title = f"{number(evicted)} blocks were evicted" if evicted else "Nothing was evicted"
    title += f"; the prefix cache was reset {count(resets, 'time')}" if resets else ""
    words = "Above: share of all prompt tokens that hit. Below: cached blocks that gave way."
    title = wrapped_title(title, words + (" Dashed: a reset." if resets else ""))
    return narrowest(chart.properties(title=title), 240)
