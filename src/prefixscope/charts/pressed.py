"""The hit rate of a workload when the pool evicts: which interval is best depends on how large the pool is."""

from __future__ import annotations

from typing import Any

import altair as alt
import pandas as pd

from prefixscope.charts.encoding import WIDTH, colour, inline
from prefixscope.charts.panels import facet
from prefixscope.charts.titles import wrapped_title
from prefixscope.quantities import listing
from prefixscope.theme import SERIES

_ENDLESS = "endless"
_GAP = 0.055  # of the axis: what a label needs above the next


def hit_rate_under_pressure(table: pd.DataFrame, *, workload: str = "") -> Any:
    """Hit rate against the retention interval, one line per pool, the best interval of each ringed.

    ``table`` is ``frames.pressed``. The line of the user's own pool is bold. One panel per release.
    """
    rows = table[table["hit_rate"].notna()]
    if rows["interval"].nunique() < 2:
        return None
    order = rows.sort_values("interval_order")["interval"].drop_duplicates().tolist()
    pools = rows.drop_duplicates("pool")
    top = float(rows["hit_rate"].max()) * 1.12 or 0.01
    several = rows["release"].nunique() > 1
    colours = {str(pool): SERIES[place % len(SERIES)] for place, pool in enumerate(reversed(pools["pool"].tolist()))}
    data: list[dict[str, Any]] = []
    for _, panel in rows.groupby("release", sort=False):
        best = {row.pool: f"{row.hit_rate:.1%}" for row in panel.itertuples() if row.best}
        ends = {row.pool: row.Index for row in panel.itertuples()}
        heights = _apart({row.pool: row.hit_rate for row in panel.itertuples()}, top)
        for row in panel.itertuples():
            own = ", your server" if row.own else ""
            data.append(
                {
                    "release": f"vLLM {row.release}",
                    "interval": row.interval,
                    "rate": round(row.hit_rate, 5),
                    "pool": row.pool,
                    "own": bool(row.own),
                    "best": bool(row.best),
                    "label": f"{row.pool}{own}: {best[row.pool]}" if row.Index == ends[row.pool] else "",
                    "height": heights[row.pool],
                }
            )
    x = alt.X(
        "interval:O", sort=order, title="retention interval, tokens", axis=alt.Axis(labelAngle=0),
        scale=alt.Scale(padding=0.3),
    )  # fmt: skip
    scale = alt.Scale(domain=[0, top], nice=False)
    y = alt.Y("rate:Q", title="prompt tokens that hit", axis=alt.Axis(format=".0%", tickCount=6), scale=scale)
    base = alt.Chart().encode(x=x, y=y, color=colour("pool", colours), detail="pool:N")
    # A line takes its width from no row in particular, so the bold one is a layer of its own.
    lines = [
        base.transform_filter(test).mark_line(strokeWidth=width)
        for test, width in (("!datum.own", 1.5), ("datum.own", 4))
    ]
    ring = base.transform_filter("datum.best").mark_point(filled=False, size=170, strokeWidth=2)
    label = alt.Chart().mark_text(align="left", dx=10, fontWeight=600).encode(
        x=x, y=alt.Y("height:Q", scale=scale), text="label:N", color=colour("pool", colours)
    ).transform_filter("datum.label != ''")  # fmt: skip
    chart = alt.layer(*lines, base.mark_point(filled=True, size=45), ring, label)
    title = wrapped_title(pressure_title(table), _subtitle(workload))
    if several:
        chart = chart.properties(width=WIDTH // 2 - 60, height=240)
        names = [f"vLLM {name}" for name in rows["release"].drop_duplicates()]
        faceted = chart.facet(facet=facet("release", names), columns=2, data=inline(data))
        return faceted.properties(title=title)
    return chart.properties(width=WIDTH, height=320, title=title, data=inline(data))


def pressure_title(table: pd.DataFrame) -> str:
    """What the figure shows: which interval is best on which pool; of several releases for the last, which is named."""
    rows = table[table["hit_rate"].notna()]
    release = rows["release"].iloc[-1]
    text = _title(rows[rows["release"] == release])
    return text if rows["release"].nunique() == 1 else f"vLLM {release}: {text[:1].lower()}{text[1:]}"


def _title(last: pd.DataFrame) -> str:
    best = last[last["best"].fillna(False)]
    places: dict[str, list[str]] = {}
    for row in best.itertuples():
        places.setdefault(str(row.interval), []).append(str(row.pool))
    flat = all(part["hit_rate"].max() - part["hit_rate"].min() <= 0.001 for _, part in last.groupby("pool"))
    if flat:
        return "No interval changes this workload's hit rate, whatever the pool"
    if len(places) == 1:
        interval = next(iter(places))
        if len(best) == 1:
            pool = places[interval][0]
            where = "an endless pool" if pool == _ENDLESS else f"a pool of {pool}"
            return f"Interval {interval} hits most of this workload in {where}"
        first, last = _short(places[interval])[0], _short(places[interval])[-1]
        return f"Interval {interval} hits most of this workload on every pool, {first} to {last}"
    names = iter(_short([pool for pools in places.values() for pool in pools]))
    parts = [f"{interval} on {listing([next(names) for _ in pools])}" for interval, pools in places.items()]
    return f"The best interval moves with the pool: {'; '.join(parts)}"


def _short(pools: list[str]) -> list[str]:
    """Pools as a sentence lists them: the unit stands at the last number, and ``an endless one`` has none."""
    numbered = [place for place, pool in enumerate(pools) if pool != _ENDLESS]
    return [
        "an endless one" if pool == _ENDLESS else pool if place == numbered[-1] else pool.removesuffix(" blocks")
        for place, pool in enumerate(pools)
    ]


def _subtitle(workload: str) -> str:
    return (
        f"Replayed: {workload}. " if workload else ""
    ) + "One line per pool, named with its best rate; the ring is at its interval."


def _apart(ends: dict[str, float], top: float) -> dict[str, float]:
    """Heights for the labels at the lines' right ends, none on top of another."""
    found: dict[str, float] = {}
    floor = 0.0
    for pool, height in sorted(ends.items(), key=lambda item: item[1]):
        found[pool] = max(height, floor)
        floor = found[pool] + top * _GAP
    over = max(found.values()) - top
    return {pool: round(height - max(over, 0.0), 5) for pool, height in found.items()}
