"""Figures of the retention sweep: what each interval brings back, and what it keeps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import altair as alt
import pandas as pd

from prefixscope.charts.encoding import WIDTH, count_axis, inline, narrowest, price_axes
from prefixscope.charts.panels import facet
from prefixscope.charts.titles import spans, wrapped_title
from prefixscope.frames import cheaper_interval, interval_totals
from prefixscope.quantities import listing, number
from prefixscope.theme import MEASURED, PREDICTED, RECOMMENDED, VERMILION


def hit_against_interval(table: pd.DataFrame) -> Any:
    """Hit length of send 2 at each retention interval, a row per interval and a panel per prompt length.

    ``table`` is ``frames.sweep``. Nothing joins the intervals: between two of them nothing was measured. Each panel has
    an axis of its own, up to its whole prompt.
    """
    rows = table[table["hit_2"].notna()]
    if rows["interval"].nunique() < 2:
        return None
    order = rows.sort_values("interval_order")["interval"].drop_duplicates().tolist()
    lengths = sorted(rows["tokens"].unique().tolist(), reverse=True)
    alone = not rows["measured"].any()
    data = [
        {
            "interval": row.interval,
            "prompt": f"prompt of {row.tokens:,} tokens",
            "full": int(row.tokens),
            "hit": int(row.hit_2),
            "predicted": int(row.hit_2 if pd.isna(row.predicted_2) else row.predicted_2),
            "known": not pd.isna(row.predicted_2),
            "text": number(row.hit_2),
            "role": "none" if not row.hit_2 else "inside" if row.hit_2 > row.tokens * 0.45 else "outside",
        }
        for row in rows.itertuples()
    ]
    base = alt.Chart().encode(
        y=alt.Y("interval:O", sort=order, title=None),  # along so few rows it would be longer than they are high
        x=alt.X("hit:Q", title="cached tokens on send 2", axis=count_axis(4), scale=alt.Scale(nice=False)),
    )
    bars = base.mark_bar(height={"band": 0.66}, cornerRadiusEnd=2, color=PREDICTED if alone else MEASURED)
    limit = alt.Chart().mark_rule(strokeDash=[4, 3]).encode(x="full:Q")
    # No layer is filtered: in a panel without any of its rows an axis of its own would have no ends.
    words = [
        base.mark_text(**look).encode(text=alt.condition(f"datum.role === '{role}'", "text:N", alt.value("")))
        for role, look in (
            ("inside", {"align": "right", "dx": -13, "color": "#fff", "fontWeight": 600}),
            ("outside", {"align": "left", "dx": 13}),
            ("none", {"align": "left", "dx": 13, "color": VERMILION, "fontWeight": 600}),
        )
    ]
    layers = [bars, limit]
    text = "Each row is a retention interval in tokens; the dashed line is the whole prompt. "
    text += "Predicted, not measured." if alone else "Bar: measured."
    if rows["predicted_2"].notna().any():
        seen = alt.condition("datum.known", alt.value(1), alt.value(0))
        ring = base.encode(x="predicted:Q", opacity=seen)
        layers.append(
            ring.mark_point(shape="diamond", filled=True, fill="#fff", stroke=PREDICTED, size=90, strokeWidth=2)
        )
        text += " Diamond: what the release's own scheduler predicts."
    chart = alt.layer(*layers, *words).properties(width=300, height=24 * len(order))
    names = [f"prompt of {length:,} tokens" for length in lengths]
    faceted = chart.facet(facet=facet("prompt", names), columns=2, data=inline(data), spacing=24)
    title = _interval_title(rows[rows["tokens"] == lengths[0]], lengths[0])
    faceted = faceted.resolve_scale(x="independent").properties(title=wrapped_title(title, text))
    return narrowest(faceted, 220)


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
    """What one prompt leaves in the cache against the tokens that send 2 is short of full; a point per interval.

    The interval that the verdict recommends, which is the first of ``frames.interval_totals``, is ringed.
    """
    rows = table[table["short_2"].notna() & table["blocks"].notna()]
    if not len(rows) or rows["interval"].nunique() < 2:
        return None
    tokens = int(rows["tokens"].max())
    best = _recommended(table, tokens)
    rows = rows[rows["tokens"] == tokens].sort_values("interval_order")
    data = merge_labels((float(row.blocks), int(row.short_2), str(row.interval)) for row in rows.itertuples())
    right, top = max(item["cost"] for item in data), max(item["short"] for item in data)
    for item in data:
        item["left"] = item["cost"] > right * 0.6
    x, y = price_axes(right, top)
    base = alt.Chart(inline(data)).encode(x=x, y=y)
    labels = base.encode(text="text:N")
    layers = [
        base.mark_point(filled=True, size=90, color=MEASURED)
        if rows["measured"].any()
        else base.mark_point(shape="diamond", filled=False, strokeWidth=2, size=90, color=PREDICTED),
        labels.transform_filter("datum.left").mark_text(align="right", dy=-26, dx=8),
        labels.transform_filter("!datum.left").mark_text(align="left", dx=10, dy=-8),
    ]
    words = "Each point is a retention interval; lower left is better."
    if best is not None:
        mark = [{"cost": float(best["blocks"]), "short": int(best["short_2"])}]
        ring = alt.Chart(inline(mark)).mark_point(filled=False, size=300, strokeWidth=2, color=RECOMMENDED)
        layers.append(ring.encode(x=x, y=y))
        words += f" The ring is the recommendation, interval {best['interval']}."
    chart = alt.layer(*layers).properties(width=WIDTH, height=280, title=wrapped_title(_cost_title(table, best), words))
    return narrowest(chart, 240)


def _recommended(table: pd.DataFrame, tokens: int) -> pd.Series[Any] | None:
    """The recommended interval's row of that prompt; None where no interval does better than what is the default."""
    tried = table[(table["interval_order"] > 0) & table["hit_2"].notna()]
    base = table[(table["interval_order"] <= 0) & (table["tokens"] == tokens)]["hit_2"].dropna()
    if not len(tried) or not len(base):
        return None
    order = interval_totals(tried).iloc[0]["interval_order"]
    mine = tried[(tried["interval_order"] == order) & (tried["tokens"] == tokens) & tried["blocks"].notna()]
    return mine.iloc[0] if len(mine) and mine.iloc[0]["hit_2"] > base.min() else None


def _cost_title(table: pd.DataFrame, best: pd.Series[Any] | None) -> str:
    rows = table[table["blocks"].notna() & table["short_2"].notna()]
    tokens = rows["tokens"].max()
    if best is None:
        return f"More retention buys nothing for a prompt of {number(tokens)} tokens"
    mine = rows[rows["tokens"] == tokens]
    base = mine[mine["interval_order"] <= 0]
    least = (base if len(base) else mine).sort_values("blocks", kind="stable").iloc[0]

    def times(blocks: Any) -> str:
        return f"{blocks / max(least['blocks'], 1):.1f}"

    title = (
        f"Interval {best['interval']} leaves {number(best['short_2'])} of {number(tokens)} tokens to compute, for "
        f"{times(best['blocks'])} times the blocks of interval {least['interval']}"
    )
    cheaper = cheaper_interval(table[table["interval_order"] > 0], best)
    if cheaper is not None and cheaper.worse:
        lengths = listing([number(length) for length in cheaper.worse])
        does = f"{cheaper.interval} does it for {times(cheaper.blocks)} times"
        title += f"; {does}, but reuses less of prompts of {lengths} tokens"
    return title


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
