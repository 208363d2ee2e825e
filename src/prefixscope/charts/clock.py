"""The figure of where the time went."""

from __future__ import annotations

from typing import Any

import altair as alt
import pandas as pd

from prefixscope.charts.encoding import WIDTH, count_axis, inline
from prefixscope.charts.titles import wrapped_title
from prefixscope.quantities import count
from prefixscope.theme import SEND_COLOURS, SERIES


def time_spent(frame: pd.DataFrame) -> Any:
    """Where the time went: stages, then servers starting and serving, on the run's own clock. ``frames.timeline``."""
    if not len(frame):
        return None
    stages = frame[frame["what"] == "stage"]
    lanes = (
        stages["lane"].drop_duplicates().tolist()
        + frame.loc[frame["what"] != "stage", "lane"].drop_duplicates().tolist()
    )
    data = [
        {
            "lane": row.lane,
            "what": row.what,
            "from": round(row.start_min, 3),
            "to": round(row.stop_min, 3),
            "text": f"{row.seconds:,.0f} s" if row.what != "serving" else "",
        }
        for row in frame.itertuples()
    ]
    end = max(item["to"] for item in data)
    for item in data:  # what took a moment is a line, not an empty lane
        item["to"] = max(item["to"], item["from"] + end * 0.004)
    colours = {"stage": SEND_COLOURS["send 1 (cold)"], "starting": SERIES[4], "serving": SERIES[0]}
    base = alt.Chart(inline(data)).encode(
        y=alt.Y("lane:N", sort=lanes, title=None),
        x=alt.X(
            "from:Q",
            title="minutes since the start",
            axis=count_axis(),
            scale=alt.Scale(domain=[0, end * 1.02 or 1], nice=False),
        ),
    )
    bars = base.mark_bar(height={"band": 0.66}, cornerRadius=2).encode(
        x2="to:Q",
        color=alt.Color("what:N", scale=alt.Scale(domain=list(colours), range=list(colours.values())), legend=None),
    )
    labels = base.transform_filter("datum.what === 'stage'").mark_text(align="left", dx=5, color="#fff", fontWeight=600)
    wide = labels.transform_filter(f"datum.to - datum.from > {end * 0.08}").encode(text="text:N")
    chart = alt.layer(bars, wide).properties(width=WIDTH, height=24 * len(lanes))
    starting = frame.loc[frame["what"] == "starting", "seconds"].sum()
    started = int((frame["what"] == "starting").sum())
    title = f"{end:.1f} minutes"
    if started:
        # Not "of them": a server may start behind another one's work.
        title += f"; starting {count(started, 'server')} took {starting / 60:.1f}"
    words = "Grey: a stage. Light blue: a server is starting. Blue: it is serving."
    return chart.properties(title=wrapped_title(title, words if started else ""))
