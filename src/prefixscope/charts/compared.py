"""Figures of several runs side by side: hits, the retention sweep, and what varies with its interval."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import Any

import altair as alt
import pandas as pd

from prefixscope.charts.encoding import WIDTH, colour, count_axis, inline, narrowest
from prefixscope.charts.titles import wrapped_title
from prefixscope.quantities import number
from prefixscope.theme import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILION

RUNS = (GREY, BLUE, GREEN, PURPLE, ORANGE, SKY, VERMILION)
"""The base is grey; what is compared with it has a colour."""
_LINE = 32
"""Characters in a line of a name: above a panel it fits a phone."""
_SPLIT = "split(datum.label, '\\n')"
_NO_NEWS = ("within noise", "can't tell", "the same in every pair")
CODES = {"change": VERMILION, **dict.fromkeys(_NO_NEWS, GREY), "follows the hit": BLUE}
_MOST_TICKS = 8


def compared_hits(table: pd.DataFrame, *, title: str) -> Any:
    """Hit lengths of a few sends, a panel each and a bar per run; ``table`` is ``frames.compared_hits``."""
    if not len(table):
        return None
    table = table.assign(panel=_wrapped(table["panel"]), run=_wrapped(table["run"]))
    panels, runs = table["panel"].drop_duplicates().tolist(), table["run"].drop_duplicates().tolist()
    top = int(table["full"].max())
    data = [
        {
            "panel": row.panel, "run": row.run, "hit": row.hit, "full": row.full,
            "text": "not reported" if pd.isna(row.hit) else number(row.hit) if row.hit else "0 – nothing reused",
            "role": "miss" if pd.isna(row.hit) or not row.hit else "inside" if row.hit > top * 0.45 else "outside",
            # A number beside its bar stands clear of the dashed line.
            "beside": row.full if not pd.isna(row.hit) and 0 <= row.full - row.hit < top * 0.12 else row.hit,
            "clear": row.full if row.full < top * 0.65 else 0,
        }
        for row in table.itertuples()
    ]  # fmt: skip
    base = alt.Chart().encode(
        y=alt.Y("run:N", sort=runs, title=None, axis=alt.Axis(labelExpr=_SPLIT)),
        x=alt.X("hit:Q", title="cached tokens", axis=count_axis(), scale=alt.Scale(domain=[0, top], nice=False)),
    )
    words = base.encode(text="text:N")
    layers = alt.layer(
        base.mark_bar(height={"band": 0.74}, cornerRadiusEnd=2).encode(color=colour("run", _colours(runs))),
        alt.Chart().mark_rule(strokeDash=[4, 3]).encode(x="full:Q"),
        words.transform_filter("datum.role === 'inside'").mark_text(align="right", dx=-8, color="#fff", fontWeight=600),
        words.transform_filter("datum.role === 'outside'").mark_text(align="left", dx=6).encode(x="beside:Q"),
        words.transform_filter("datum.role === 'miss'")
        .mark_text(align="left", dx=6, color=VERMILION, fontWeight=600)
        .encode(x="clear:Q"),
    ).properties(width=WIDTH - 40, height=_row_px(runs, 26) * len(runs))
    faceted = layers.facet(facet=_facet("panel", panels), columns=1, data=inline(data), spacing=14)
    return narrowest(faceted.properties(title=wrapped_title(title, "The dashed line is the whole prompt.")), 200)


def compared_sweep(table: pd.DataFrame, *, title: str) -> Any:
    """Hit length of send 2 at each retention interval, a panel per prompt length and a mark per run."""
    if table["interval"].nunique() < 2 or table["run"].nunique() < 2:
        return None
    table = table.assign(run=_wrapped(table["run"]))
    intervals, runs = table["interval"].drop_duplicates().tolist(), table["run"].drop_duplicates().tolist()
    data = [
        {"length": f"{row.tokens:,} tokens", "interval": row.interval, "run": row.run, "hit": row.hit}
        for row in table.itertuples()
    ]
    lengths = [f"{tokens:,} tokens" for tokens in sorted(table["tokens"].unique(), reverse=True)]
    shapes = ["circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right"]
    legend = alt.Legend(title=None, symbolOpacity=1, labelExpr=_SPLIT, labelLimit=0, columns=min(len(runs), 3))
    scale = alt.Scale(domain=runs, range=[_colours(runs)[run] for run in runs])
    base = alt.Chart().encode(
        x=alt.X(
            "interval:O", sort=intervals, title="retention interval, tokens", axis=alt.Axis(labelAngle=0),
            scale=alt.Scale(padding=0.3),
        ),
        xOffset=alt.XOffset("run:N", sort=runs),
        y=alt.Y("hit:Q", title="cached tokens on send 2", axis=count_axis(4)),
        color=alt.Color("run:N", sort=runs, scale=scale, legend=legend),
    )  # fmt: skip
    marks = alt.layer(
        base.mark_rule(strokeWidth=3, opacity=0.45).encode(y2=alt.Y2(datum=0)),
        base.mark_point(filled=True, opacity=1, size=70).encode(
            shape=alt.Shape(
                "run:N", sort=runs, legend=legend,
                scale=alt.Scale(domain=runs, range=[shapes[n % len(shapes)] for n in range(len(runs))]),
            )
        ),
    ).properties(width=WIDTH, height=150)  # fmt: skip
    faceted = marks.facet(facet=_facet("length", lengths), columns=1, data=inline(data), spacing=14)
    return faceted.properties(title=wrapped_title(title, "A mark at 0 reuses nothing; each panel is a prompt length."))


def compared_rates(table: pd.DataFrame, *, title: str) -> Any:
    """How many times the base's value each quantity is, with its interval; ``table`` is ``frames.compared_rates``."""
    rows = table[table["low"].notna()]
    if not len(rows):
        return None
    rows = rows.assign(what=_wrapped(rows["what"]), run=_wrapped(rows["run"]))
    names, runs = rows["what"].drop_duplicates().tolist(), rows["run"].drop_duplicates().tolist()
    # An interval from two prompts can reach over any scale; the axis goes to twice the outermost value.
    low = min(max(rows["low"].min(), min(rows["times"].min(), 1) / 2), 0.8)
    high = max(min(rows["high"].max(), max(rows["times"].max(), 1) * 2), 1.25)
    data = [
        {
            "what": row.what, "run": row.run, "times": row.times, "low": max(row.low, low), "high": min(row.high, high),
            "beyond": [row.low < low, row.high > high], "code": row.code,
            "text": f"{times_named(row.times)}  {row.code}",
        }
        for row in rows.itertuples()
    ]  # fmt: skip
    base = alt.Chart().encode(
        y=alt.Y("what:N", sort=names, title=None, axis=alt.Axis(labelExpr=_SPLIT)),
        color=colour("code", CODES),
    )
    # The words stand right of the widest interval.
    x = alt.X(
        "times:Q", title="times the base, 95 % interval", axis=alt.Axis(format=",.3~r", values=_log_ticks(low, high)),
        scale=alt.Scale(type="log", domain=[low, high * (high / low) ** 0.4], nice=False),
    )  # fmt: skip
    one = alt.Chart().mark_rule(strokeDash=[4, 3]).encode(x=alt.datum(1))
    arrows = [
        base.transform_filter(f"datum.beyond[{place}]")
        .mark_point(shape=f"triangle-{way}", filled=True, size=80)
        .encode(x=alt.X(f"{end}:Q"))
        for place, (end, way) in enumerate((("low", "left"), ("high", "right")))
        if any(item["beyond"][place] for item in data)
    ]
    marks = alt.layer(
        one,
        base.mark_rule(strokeWidth=3, opacity=0.5).encode(x=alt.X("low:Q"), x2="high:Q"),
        *arrows,
        base.mark_point(filled=True, size=70).encode(x=x),
        base.mark_text(align="left", dx=8).encode(x=alt.datum(high), text="text:N"),
    ).properties(width=WIDTH - 120, height=_row_px(names, 24) * len(names))
    faceted = marks.facet(facet=_facet("run", runs), columns=1, data=inline(data), spacing=14)
    words = (
        "Left of the dashed line it is less than on the base. The words count in how many were looked at together "
        "(Holm), a bar does not: one beside the line can still be noise."
    )
    words += " Arrow: the interval goes on, the table says to where." if arrows else ""
    return faceted.properties(title=wrapped_title(title, words))


def times_named(value: float) -> str:
    """A ratio that is never told as none, nor to the hundredth of hundreds: ``0.64``, ``<0.01``, ``23,772``."""
    return "<0.01" if value < 0.005 else f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def _log_ticks(low: float, high: float) -> list[float]:
    """0.2, 0.5, 1, 2 … between the two; of many powers of ten those alone, or every so many of them."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [
        float(f"{digit}e{power}") for power in powers for digit in (1, 2, 5) if low <= float(f"{digit}e{power}") <= high
    ]
    if len(ticks) < 3:
        return [tenth / 10 for tenth in range(math.ceil(low * 10), math.floor(high * 10) + 1)]
    if len(ticks) <= _MOST_TICKS:
        return ticks
    step = math.ceil(len(powers) / _MOST_TICKS)
    return [10.0**power for power in powers if power % step == 0 and low <= 10.0**power <= high]


def _wrapped(names: pd.Series) -> pd.Series:
    """Names in lines that fit: nothing of one is cut."""
    return names.map(lambda name: "\n".join(textwrap.wrap(str(name), _LINE)))


def _row_px(names: Sequence[str], least: int) -> int:
    """The height of a row whose label has as many lines as the longest of these."""
    return max(least, 14 * max(name.count("\n") + 1 for name in names) + 8)


def _facet(field: str, names: Sequence[str]) -> Any:
    """A panel per name, the whole name above it."""
    look = {"title": None, "labelAnchor": "start", "labelPadding": 4, "labelExpr": _SPLIT, "labelLimit": 0}
    return alt.Facet(f"{field}:N", sort=list(names), header=alt.Header(**look))


def _colours(runs: Sequence[str]) -> dict[str, str]:
    return {run: RUNS[place % len(RUNS)] for place, run in enumerate(runs)}
