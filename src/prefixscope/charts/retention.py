"""Figures of the retention sweep: what each interval brings back, and what it keeps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import altair as alt
import pandas as pd

from prefixscope.charts.encoding import WIDTH, count_axis, inline
from prefixscope.charts.titles import spans, wrapped_title
from prefixscope.quantities import number
from prefixscope.theme import GREY, SERIES

_SHAPES = ["circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right"]


def hit_against_interval(table: pd.DataFrame) -> Any:
    """Hit length of send 2 at each retention interval, a stem per prompt length.

    ``table`` is ``frames.sweep``. Nothing joins the intervals: between two of them nothing was measured.
    """
    rows = table[table["hit_2"].notna()]
    if rows["interval"].nunique() < 2:
        return None
    order = rows.sort_values("interval_order")["interval"].drop_duplicates().tolist()
    lengths = sorted(rows["tokens"].unique().tolist())
    data = [
        {
            "interval": row.interval,
            "hit": int(row.hit_2),
            "length": f"{row.tokens:,} tokens",
            "predicted": None if pd.isna(row.predicted_2) else int(row.predicted_2),
        }
        for row in rows.itertuples()
    ]
    colours = {f"{length:,} tokens": SERIES[place % len(SERIES)] for place, length in enumerate(reversed(lengths))}
    names = [f"{length:,} tokens" for length in lengths]
    legend = alt.Legend(title="prompt") if len(names) > 1 else None
    base = alt.Chart(inline(data)).encode(
        x=alt.X(
            "interval:O",
            sort=order,
            title="retention interval, tokens",
            axis=alt.Axis(labelAngle=0),
            scale=alt.Scale(padding=0.3),
        ),
        y=alt.Y("hit:Q", title="cached tokens on send 2", axis=count_axis(6)),
        xOffset=alt.XOffset("length:N", sort=names),
        color=alt.Color(
            "length:N",
            sort=names,
            scale=alt.Scale(domain=names, range=[colours[name] for name in names]),
            legend=legend,
        ),
    )
    stems = base.mark_rule(strokeWidth=3, opacity=0.45).encode(y2=alt.Y2(datum=0))
    points = base.mark_point(filled=True, opacity=1, size=70).encode(
        shape=alt.Shape("length:N", sort=names, scale=alt.Scale(domain=names, range=_SHAPES), legend=legend)
    )
    title = _interval_title(rows[rows["tokens"] == lengths[-1]], lengths[-1])
    layers, alone = [stems, points], not rows["measured"].any()
    words = (
        f"Each stem is one interval {'predicted' if alone else 'measured'}, from left to right by prompt length; a "
        "mark at 0 reuses nothing."
    )
    if rows["predicted_2"].notna().any():
        ring = base.transform_filter("datum.predicted !== null").mark_point(
            filled=False, size=230, strokeWidth=1.6, opacity=1
        )
        layers.append(ring.encode(y="predicted:Q", color=alt.value(GREY)))
        words += " A ring is what the release's own scheduler predicts."
    return alt.layer(*layers).properties(width=WIDTH, height=280, title=wrapped_title(title, words))


def _interval_title(rows: pd.DataFrame, tokens: int) -> str:
    best = rows["hit_2"].max()
    if not best:
        return f"No interval brings a hit to the second send of {number(tokens)} tokens"
    order = rows.sort_values("interval_order")["interval"].tolist()
    good = rows.loc[rows["hit_2"] == best, "interval"].tolist()
    if len(good) == len(order):
        return f"Every interval gives the same hit, {number(best)} of {number(tokens)} tokens"
    verb = ("Intervals", "reuse") if len(good) > 1 else ("Interval", "reuses")
    title = f"{verb[0]} {spans(good, order)} {verb[1]} {number(best)} of {number(tokens)} tokens"
    lost = [row for row in rows.sort_values("interval_order").itertuples() if 0 < row.hit_2 < best]
    zero = rows.loc[rows["hit_2"] == 0, "interval"].tolist()
    parts = [f"{row.interval} loses {1 - row.hit_2 / best:.0%} of it" for row in lost[:2]]
    parts += [f"{spans(zero, order)} {'get' if len(zero) > 1 else 'gets'} nothing"] if zero else []
    return "; ".join([title, *parts])


def cost_against_shortfall(table: pd.DataFrame) -> Any:
    """What one prompt leaves in the cache against the tokens that send 2 is short of full; a point per interval."""
    rows = table[table["short_2"].notna() & table["blocks"].notna()]
    if not len(rows) or rows["interval"].nunique() < 2:
        return None
    tokens = int(rows["tokens"].max())
    rows = rows[rows["tokens"] == tokens].sort_values("interval_order")
    in_bytes = bool(rows["bytes"].notna().all())
    points = [
        (row.bytes / 2**20 if in_bytes else float(row.blocks), int(row.short_2), row.interval)
        for row in rows.itertuples()
    ]
    data = merge_labels(points)
    right, top = max(item["cost"] for item in data), max(item["short"] for item in data)
    for item in data:
        item["left"] = item["cost"] > right * 0.7
    base = alt.Chart(inline(data)).encode(
        x=alt.X(
            "cost:Q",
            title=f"kept in the cache after one prompt, {'MiB' if in_bytes else 'blocks'}",
            axis=count_axis(6),
            scale=alt.Scale(domain=[0, right * 1.08], nice=False),
        ),
        y=alt.Y(
            "short:Q",
            title="tokens short of full on send 2",
            axis=count_axis(6),
            scale=alt.Scale(domain=[0, max(top * 1.12, 1)], nice=False),
        ),
    )
    labels = base.encode(text="text:N")
    chart = alt.layer(
        base.mark_point(filled=True, size=90, color=SERIES[0]),
        labels.transform_filter("datum.left").mark_text(align="right", dy=-14, dx=4),
        labels.transform_filter("!datum.left").mark_text(align="left", dx=10, dy=-8),
    )
    cheapest, best = rows.loc[rows["blocks"].idxmin()], rows.sort_values(["short_2", "blocks"]).iloc[0]
    if best["short_2"] < cheapest["short_2"]:
        ratio = best["blocks"] / max(cheapest["blocks"], 1)
        title = (
            f"Reusing all but {number(best['short_2'])} of {number(tokens)} tokens takes {ratio:.1f} times the blocks"
        )
    else:
        title = f"More retention buys nothing for a prompt of {number(tokens)} tokens"
    return chart.properties(
        width=WIDTH, height=280, title=wrapped_title(title, "Each point is a retention interval; lower left is better.")
    )


def merge_labels(points: Iterable[tuple[float, int, str]]) -> list[dict[str, Any]]:
    """Points whose labels would lie on each other share one, in order: ``64, 512, 1,024, dense``."""
    found = list(points)
    wide, tall = max(point[0] for point in found) or 1, max(point[1] for point in found) or 1
    out: list[dict[str, Any]] = []
    for cost, short, name in found:
        near = next(
            (
                item
                for item in out
                if abs(item["cost"] - cost) < wide * 0.05 and abs(item["short"] - short) < tall * 0.06
            ),
            None,
        )
        if near is None:
            out.append({"cost": round(cost, 3), "short": short, "text": name, "names": [name]})
        else:
            near["names"].append(name)
            near["text"] = " · ".join(near["names"])
            if (near["cost"], near["short"]) != (round(cost, 3), short):
                out.append({"cost": round(cost, 3), "short": short, "text": "", "names": []})
    return [{key: value for key, value in item.items() if key != "names"} for item in out]
