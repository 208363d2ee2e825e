"""The figure of what a hit is worth: time to first token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import pandas as pd

from prefixscope.charts.encoding import WIDTH, colour, count_axis, inline, narrowest
from prefixscope.charts.panels import facet, longest
from prefixscope.charts.titles import wrapped_title
from prefixscope.quantities import number
from prefixscope.theme import SEND_COLOURS

_KEYS = {
    True: "Point: median; bar: lowest to highest. A point without a number of sends is a single one.",
    False: "Each point is a single send: how far equal sends scatter was not measured.",
}


def first_token(table: pd.DataFrame, *, configs: Sequence[str] | None = None) -> Any:
    """Time to first token of the longest prompt, cold and repeated: median, range, count."""
    rows = table[~table["send_label"].isin(["different text"]) & (table["index"] <= 3)]
    rows, names = longest(rows, configs)
    if not len(rows):
        return None
    tokens = int(rows["tokens"].max())
    data = [
        {
            "config": row.config,
            "send": row.send_label,
            "median": round(row.median_ms, 1),
            "low": round(row.min_ms, 1),
            "high": round(row.max_ms, 1),
            "text": f"{number(round(row.median_ms))} ms" + (f" (n = {row.count})" if row.count > 1 else ""),
        }
        for row in rows.rename(columns={"count": "rows"}).assign(count=rows["count"]).itertuples()
    ]
    top = max(item["high"] for item in data)
    for item in data:
        item["left"] = item["high"] > top * 0.6
    base = alt.Chart().encode(
        y=alt.Y("send:N", sort=list(SEND_COLOURS), title=None),
        x=alt.X(
            "median:Q", title="time to first token, ms", axis=count_axis(), scale=alt.Scale(domain=[0, top * 1.05])
        ),
    )
    labels = base.encode(text="text:N")
    chart = alt.layer(
        base.mark_rule(strokeWidth=3, opacity=0.45).encode(x="low:Q", x2="high:Q", color=colour("send", SEND_COLOURS)),
        base.mark_point(filled=True, size=70).encode(color=colour("send", SEND_COLOURS)),
        labels.transform_filter("datum.left").mark_text(align="right", dx=-9),
        labels.transform_filter("!datum.left").mark_text(align="left", dx=9),
    ).properties(width=WIDTH, height=26 * rows["send_label"].nunique())
    faceted = chart.facet(facet=facet("config", names), columns=1, data=inline(data), spacing=14)
    title = wrapped_title(_latency_title(rows, tokens), _KEYS[bool((rows["count"] > 1).any())])
    return narrowest(faceted.properties(title=title), 220)


def _latency_title(rows: pd.DataFrame, tokens: int) -> str:
    hit = rows[rows["cached_tokens"].fillna(0) > 0]
    if len(hit):
        name = hit.iloc[0]["config"]
        warm = hit[hit["config"] == name]["median_ms"].min()
        cold = rows[(rows["config"] == name) & (rows["index"] == 1)]["median_ms"]
        if len(cold) and cold.iloc[0] > warm:
            span = f"from {cold.iloc[0]:,.0f} down to {warm:,.0f} ms"
            return f"A hit brings the first token after {number(tokens)} prompt tokens {span} ({name})"
    return f"Time to first token of a {number(tokens)}-token prompt"
