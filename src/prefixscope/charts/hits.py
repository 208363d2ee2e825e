"""Figures of hit lengths: by send, and against the prompt's length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import pandas as pd

from prefixscope.charts.encoding import WIDTH, colour, count_axis, inline, narrowest
from prefixscope.charts.panels import facet, longest, pick
from prefixscope.charts.titles import with_configs, wrapped_title
from prefixscope.quantities import number, span
from prefixscope.theme import GREY, SEND_COLOURS, VERMILION


def hits_by_send(table: pd.DataFrame, *, configs: Sequence[str] | None = None) -> Any:
    """Hit length of the first three sends of the longest prompt, a block of bars per configuration.

    ``table`` is ``frames.hits``; ``configs`` picks configurations and their order.
    """
    rows = table[table["send"].isin(["cold", "repeat"]) & (table["index"] <= 3) & table["cached_tokens"].notna()]
    rows, names = longest(rows, configs)
    if not len(rows):
        return None
    full = int(rows["prompt_tokens"].max())
    data = [
        {
            "config": row.config,
            "send": row.send_label,
            "hit": int(row.cached_tokens),
            "full": full,
            "text": number(row.cached_tokens) if row.cached_tokens or row.send == "cold" else "0 – nothing reused",
            "role": "inside"
            if row.cached_tokens > full * 0.45
            else ("miss" if not row.cached_tokens and row.send != "cold" else "outside"),
        }
        for row in rows.itertuples()
    ]
    base = alt.Chart().encode(
        y=alt.Y("send:N", sort=list(SEND_COLOURS), title=None),
        x=alt.X("hit:Q", title="cached tokens", axis=count_axis(), scale=alt.Scale(domain=[0, full], nice=False)),
    )
    bars = base.mark_bar(height={"band": 0.74}, cornerRadiusEnd=2).encode(color=colour("send", SEND_COLOURS))
    inside = base.transform_filter("datum.role === 'inside'").mark_text(
        align="right", dx=-8, color="#fff", fontWeight=600
    )
    outside = base.transform_filter("datum.role === 'outside'").mark_text(align="left", dx=6)
    miss = base.transform_filter("datum.role === 'miss'").mark_text(align="left", dx=6, color=VERMILION, fontWeight=600)
    limit = alt.Chart().mark_rule(strokeDash=[4, 3]).encode(x="full:Q")
    layers = alt.layer(bars, limit, *(mark.encode(text="text:N") for mark in (inside, outside, miss)))
    chart = layers.properties(width=WIDTH, height=26 * rows["send_label"].nunique())
    faceted = chart.facet(facet=facet("config", names), columns=1, data=inline(data), spacing=14)
    second = rows[rows["index"] == 2]
    missed = _unique(second.loc[second["cached_tokens"] == 0, "setting"])
    if missed:
        title = f"Send 2 of the same {number(full)} tokens reuses nothing {with_configs(missed)}"
    elif len(second):
        title = f"Send 2 of the same {number(full)} tokens reuses {span(second['cached_tokens'])} of them"
    else:
        title = f"Hits of a {number(full)}-token prompt"
    return narrowest(faceted.properties(title=wrapped_title(title, "The dashed line is the whole prompt.")), 200)


def hits_by_length(table: pd.DataFrame, *, configs: Sequence[str] | None = None, whole: bool = True) -> Any:
    """Hit length of sends 2 and 3 against prompt length, one panel per configuration, with the line of a full hit."""
    rows = table[(table["send"] == "repeat") & table["index"].isin([2, 3]) & table["cached_tokens"].notna()]
    rows, names = pick(rows, configs)
    lengths = rows.groupby("config")["tokens"].nunique()
    names = [name for name in names if lengths.get(name, 0) > 1]
    rows = rows[rows["config"].isin(names)]
    if not len(rows):
        return None
    top = int(rows["prompt_tokens"].max())
    data: list[dict[str, Any]] = []
    for name in names:
        part = rows[rows["config"] == name].sort_values(["index", "tokens"])
        ends = part.groupby("index")["cached_tokens"].last()
        same = len(ends) == 2 and abs(ends.iloc[0] - ends.iloc[1]) < top * 0.06
        for row in part.itertuples():
            last = row.tokens == part["tokens"].max()
            text = ("sends 2 and 3" if same else row.send_label) if last and not (same and row.index == 3) else ""
            data.append(
                {
                    "config": name,
                    "send": row.send_label,
                    "length": int(row.prompt_tokens),
                    "hit": int(row.cached_tokens),
                    "text": text,
                    "below": row.cached_tokens > top * 0.3,
                }
            )
        data += [{"config": name, "send": "full", "length": end, "hit": end, "text": ""} for end in (0, top)]
    base = alt.Chart().encode(
        x=alt.X("length:Q", title="prompt tokens", axis=count_axis(4), scale=alt.Scale(domain=[0, top], nice=False)),
        y=alt.Y(
            "hit:Q", title="cached tokens", axis=count_axis(4), scale=alt.Scale(domain=[0, top * 1.14], nice=False)
        ),
    )
    full = base.transform_filter("datum.send === 'full'").mark_line(strokeDash=[4, 3], strokeWidth=1, color=GREY)
    measured = base.transform_filter("datum.send !== 'full'").encode(color=colour("send", SEND_COLOURS))
    third = measured.transform_filter("datum.send === 'send 3'")
    second = measured.transform_filter("datum.send === 'send 2'")
    labels = measured.encode(text="text:N")
    chart = alt.layer(
        full,
        third.mark_line(strokeWidth=1.5),
        second.mark_line(strokeWidth=1.5),
        third.mark_point(filled=False, size=110, strokeWidth=2),
        second.mark_point(filled=True, size=36),
        labels.transform_filter("datum.below").mark_text(align="right", dx=-10, dy=-14, fontWeight=600),
        labels.transform_filter("!datum.below").mark_text(align="right", dx=-2, dy=-14, fontWeight=600),
    )
    width, columns = (260, 2) if len(names) <= 4 else (230, 3)
    faceted = chart.properties(width=width, height=190).facet(
        facet=facet("config", names, width=width), columns=columns, data=inline(data), spacing=24
    )
    broken = rows[(rows["index"] == 2) & (rows["verdict"] == "none")]
    if len(broken):
        first = int(broken["prompt_tokens"].min())
        who = with_configs(_unique(broken["setting"]))
        title = f"From {number(first)} tokens on, the second send misses {who}"
    else:
        title = f"Hits follow the prompt's length in every configuration{'' if whole else ' measured'}"
    words = "Dashed: every token reused. Filled blue point: send 2; green ring: send 3."
    return narrowest(faceted.properties(title=wrapped_title(title, words)), 240)


def _unique(values: pd.Series[Any]) -> list[str]:
    return [str(value) for value in values.drop_duplicates()]
