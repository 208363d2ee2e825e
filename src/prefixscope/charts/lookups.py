"""The figure of a trace over time: how much of each prompt was in the cache."""

from __future__ import annotations

from typing import Any

import altair as alt
import pandas as pd

from prefixscope.charts.encoding import WIDTH, count_axis, inline, narrowest, time_unit
from prefixscope.charts.titles import wrapped_title
from prefixscope.quantities import count, number
from prefixscope.theme import LOOKUP_COLOURS

_SHAPES = {"nothing to hit": "circle", "hit": "circle", "miss": "cross"}
"""Drawn in this order: a miss is never hidden."""


def lookups_over_time(frame: pd.DataFrame) -> Any:
    """Hit share against time: a point per lookup; where there are too many, middle half and misses per stretch.

    ``frame`` is ``frames.lookups_over_time``. A hit is a filled point, a miss a cross, a ring had nothing to hit.
    """
    if not len(frame):
        return None
    misses, total = int(frame["misses"].sum()), int(frame["lookups"].sum())
    end = float(frame["stop_s"].max())
    per_unit, unit = time_unit(end)
    since = f"{unit} since the first lookup"
    title = f"{number(misses)} of {count(total, 'lookup')} missed what an earlier request had brought"
    if not misses:
        title = f"No miss: {count(total, 'lookup')}, and none lacked what an earlier request had brought"
    if frame["kind"].notna().all():
        chart = _points(frame, per_unit, since)
        words = "Filled: hit. Cross, with a tick above the plot: miss. Ring: nothing to hit yet."
    else:
        chart = _stretches(frame, per_unit, since)
        words = (
            f"{len(frame):,} stretches of time, {frame['lookups'].median():,.0f} lookups each at the median. Point: "
            "median of those with something to hit. Bar: the middle half. Below: how many missed."
        )
    return narrowest(chart.properties(title=wrapped_title(title, words)), 240)


def _share_axis(field: str) -> Any:
    return alt.Y(
        f"{field}:Q",
        title="share of the prompt that hit",
        axis=alt.Axis(format=".0%", tickCount=5),
        scale=alt.Scale(domain=[0, 1], nice=False),
    )


def _points(frame: pd.DataFrame, per_unit: int, since: str) -> Any:
    data = [
        {"at": round(row.start_s / per_unit, 4), "share": round(row.share, 4), "kind": row.kind}
        for row in frame.itertuples()
    ]
    base = alt.Chart(inline(data)).encode(x=alt.X("at:Q", title=since, axis=count_axis(7)), y=_share_axis("share"))
    layers = []
    present = {row["kind"] for row in data}
    for kind, shape in _SHAPES.items():
        if kind not in present:
            continue  # a layer without data would have a scale without ends
        filled = kind != "nothing to hit"
        size = 110 if kind == "miss" else 34
        points = base.transform_filter(f"datum.kind === '{kind}'")
        layers.append(points.mark_point(shape=shape, filled=filled, color=LOOKUP_COLOURS[kind], size=size, opacity=0.8))
    # Misses at 0 lie among the first sends, which are at 0 too: above the plot they stand alone.
    misses = [row for row in data if row["kind"] == "miss"]
    strip = alt.Chart(inline(misses)).mark_tick(
        orient="vertical", height=9, thickness=1.5, color=LOOKUP_COLOURS["miss"]
    )
    layers += [strip.encode(x="at:Q", y=alt.value(-9))] if misses else []
    return alt.layer(*layers).properties(width=WIDTH, height=200)


def _stretches(frame: pd.DataFrame, per_unit: int, since: str) -> Any:
    data = [
        {
            "at": round((row.start_s + row.stop_s) / 2 / per_unit, 4),
            "left": round(row.start_s / per_unit, 4),
            "right": round(row.stop_s / per_unit, 4),
            "share": None if pd.isna(row.share) else round(row.share, 4),
            "low": None if pd.isna(row.low) else round(row.low, 4),
            "high": None if pd.isna(row.high) else round(row.high, 4),
            "misses": int(row.misses),
        }
        for row in frame.itertuples()
    ]
    end, most = max(item["right"] for item in data), max(item["misses"] for item in data)
    width = alt.Scale(domain=[0, end or 1], nice=False)
    base = alt.Chart(inline(data))
    ranged = base.transform_filter("datum.share !== null").encode(
        x=alt.X("at:Q", title=None, axis=count_axis(7), scale=width)
    )
    shares = alt.layer(
        ranged.mark_rule(strokeWidth=2.5, opacity=0.35, color=LOOKUP_COLOURS["hit"]).encode(
            y=_share_axis("low"), y2="high:Q"
        ),
        ranged.mark_point(filled=True, size=22, color=LOOKUP_COLOURS["hit"]).encode(y=_share_axis("share")),
    ).properties(width=WIDTH, height=180)
    missed = (
        base.mark_bar(color=LOOKUP_COLOURS["miss"])
        .encode(
            x=alt.X("left:Q", title=since, axis=count_axis(7), scale=width),
            x2="right:Q",
            y=alt.Y("misses:Q", title="misses", axis=count_axis(3), scale=alt.Scale(domain=[0, most or 1])),
            y2=alt.Y2(datum=0),
        )
        .properties(width=WIDTH, height=60)
    )
    return alt.vconcat(shares, missed, spacing=10)
