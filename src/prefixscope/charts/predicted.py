"""Figures of a prediction: the heat map of lengths and intervals, the price of each interval, releases side by side."""

from __future__ import annotations

import bisect
import itertools
import math
from typing import Any

import altair as alt
import pandas as pd

from prefixscope.charts.encoding import WIDTH, count_axis, inline, narrowest, price_axes
from prefixscope.charts.panels import facet
from prefixscope.charts.retention import merge_labels
from prefixscope.charts.titles import spans, wrapped_title
from prefixscope.quantities import listing, number
from prefixscope.theme import GREY, PREDICTED, RECOMMENDED

HEAT = ("#ffffe5", "#fff0b8", "#fed776", "#fead3a", "#f07f1e", "#cf5509", "#963304", "#5c1e02")
"""Few tokens short to many: ever darker, so that it can be read in grey."""
_DARK_FROM = 5
_PAPER, _INK = "#ffffff", "#1c2024"


def _classes(block: int) -> list[tuple[float, str]]:
    """Upper bound in tokens and label of each colour: 1, 2, 4 … scheduler blocks."""
    bounds = [float(block << n) for n in range(len(HEAT) - 1)]
    return [*((bound, f"≤ {bound:,.0f}") for bound in bounds), (math.inf, f"> {bounds[-1]:,.0f}")]


def short_heat(frame: pd.DataFrame, *, block: int) -> Any:
    """Tokens short of full on send 2 over prompt length × interval, a panel for releases that agree in every cell.

    ``frame`` is ``frames.predicted`` of lengths a whole number of scheduler blocks (``block`` tokens) apart.
    """
    rows = frame[frame["send"] == 2]
    if rows["tokens"].nunique() < 2:
        return None
    classes = _classes(block)
    bounds = [bound for bound, _ in classes]
    panels: dict[tuple[Any, ...], list[str]] = {}
    for release, part in rows.groupby("release", sort=False):
        part = part.sort_values(["interval_order", "tokens"], kind="stable")
        cells = tuple(zip(part["interval_order"], part["tokens"], part["short_tokens"], strict=True))
        panels.setdefault(cells, []).append(str(release))
    lengths = sorted(rows["tokens"].unique().tolist())
    step = min(after - before for before, after in itertools.pairwise(lengths))
    order = rows.drop_duplicates("interval_order").sort_values("interval_order", ascending=False)
    names = {row.interval_order: str(row.interval).removesuffix(" (default)") for row in order.itertuples()}
    releases = rows["release"].drop_duplicates().tolist()
    data: list[dict[str, Any]] = []
    for cells, who in panels.items():
        last: dict[str, Any] = {}
        for interval, tokens, short in cells:
            shade = bisect.bisect_left(bounds, short)
            start, stop = max(0, int(tokens) - step // 2), int(tokens) + step // 2
            if last and (last["interval"], last["shade"], last["x2"]) == (names[interval], classes[shade][1], start):
                last["x2"] = stop  # one bar for equal neighbours
                continue
            last = {"who": spans(who, releases), "interval": names[interval], "x": start, "x2": stop}
            last["shade"] = classes[shade][1]
            data.append(last)
    top = max(item["x2"] for item in data)
    used = [label for _, label in classes]
    chart = (
        alt.Chart()
        .mark_rect()
        .encode(
            x=alt.X("x:Q", title="prompt tokens", axis=count_axis(6), scale=alt.Scale(domain=[0, top], nice=False)),
            x2="x2:Q",
            y=alt.Y(
                "interval:O",
                sort=list(names.values()),
                title=None,  # few rows are lower than a title that runs along them: the subtitle says what they are
                axis=alt.Axis(labelOverlap=True),
            ),
            color=alt.Color(
                "shade:O",
                scale=alt.Scale(domain=used, range=list(HEAT)),
                legend=alt.Legend(title="tokens short of full on send 2", orient="top", columns=4, titleLimit=0),
            ),
        )
        .properties(width=430 if len(panels) > 1 else WIDTH, height=13 * len(names))
    )
    order_of_panels = [spans(who, releases) for who in panels.values()]
    faceted = chart.facet(facet=facet("who", order_of_panels), columns=2, data=inline(data), spacing=24)
    near = {
        spans(who, releases): sum(short <= 2 * block for _, _, short in cells) / len(cells)
        for cells, who in panels.items()
    }
    # Prompts of up to two blocks are always within two blocks of full: they tell nobody apart, but are counted.
    best, *others = sorted(near, key=near.__getitem__, reverse=True)
    title = f"Within two blocks of full in {near[best]:.0%} of all cells on vLLM {best}"
    title += "".join(f", in {near[name]:.0%} on {name}" for name in others)
    under = "in a pool that evicts" if frame["evicted_blocks"].any() else "unpressured"
    subtitle = f"Each row is a retention interval in tokens, each column a prompt length one step further; {under}."
    return faceted.properties(title=wrapped_title(title, subtitle))


def interval_front(totals: pd.DataFrame, *, release: str, prompts: float, pressure: str = "unpressured") -> Any:
    """Tokens short of full against blocks kept, both for the average prompt: a point per interval, the front as a line.

    ``totals`` is ``frames.interval_totals`` with the recommended interval first, ``prompts`` the sum of the weights
    behind it, ``pressure`` what is said of the pool.
    """
    rows = totals[totals["short"].notna() & totals["blocks"].notna()]
    if len(rows) < 2:
        return None
    points = [
        (float(row.blocks) / prompts, round(float(row.short) / prompts), str(row.interval))
        for row in rows.sort_values("interval_order").itertuples()
    ]
    data = merge_labels(points)
    right, top = max(item["cost"] for item in data), max(item["short"] for item in data)
    for item in data:
        item["left"] = item["cost"] > right * 0.7
    line = [
        {"cost": float(row.blocks) / prompts, "short": float(row.short) / prompts}
        for row in rows[rows["front"]].sort_values("blocks").itertuples()
    ]
    x, y = price_axes(right, top)
    base = alt.Chart(inline(data)).encode(x=x, y=y)
    labels = base.encode(text="text:N")
    best = rows.iloc[0]
    mark = [{"cost": float(best["blocks"]) / prompts, "short": float(best["short"]) / prompts}]
    chart = alt.layer(
        alt.Chart(inline(line)).mark_line(color=GREY, strokeWidth=1.5, strokeDash=[5, 3]).encode(x=x, y=y),
        base.mark_point(shape="diamond", filled=False, strokeWidth=2, size=80, color=PREDICTED),
        alt.Chart(inline(mark)).mark_point(filled=False, size=300, color=RECOMMENDED, strokeWidth=2).encode(x=x, y=y),
        labels.transform_filter("datum.left").mark_text(align="right", dy=-18, dx=6),
        labels.transform_filter("!datum.left").mark_text(align="left", dx=10, dy=-9),
    )
    front = rows[rows["front"]]
    title = (
        f"On vLLM {release} interval {best['interval']} leaves the fewest tokens short, "
        f"{number(round(mark[0]['short']))} of the average prompt, for {number(round(mark[0]['cost']))} blocks"
    )
    if len(front.drop_duplicates(["short", "blocks"])) == 1:
        title = (
            f"On vLLM {release} nothing beats {best['interval']}: no interval leaves less short or keeps fewer blocks"
        )
    subtitle = f"The ring is the recommendation, {pressure}; on the dashed line less short takes more blocks."
    return narrowest(chart.properties(width=WIDTH, height=300, title=wrapped_title(title, subtitle)), 240)


def version_matrix(table: pd.DataFrame, *, block: int) -> Any:
    """Releases side by side: what each probe hits, coloured by the tokens it is short of full.

    ``table`` is ``frames.predicted_versions``.
    """
    if not len(table):
        return None
    bounds = [bound for bound, _ in _classes(block)]
    data: list[dict[str, Any]] = []

    def cell(row: Any, what: str, hit: int) -> None:
        shade = bisect.bisect_left(bounds, int(row.tokens) - hit)
        data.append(
            {
                "release": row.release,
                "what": what,
                "fill": HEAT[shade],
                "text": number(hit),
                "ink": _PAPER if shade >= _DARK_FROM else _INK,
            }
        )

    for row in table.itertuples():
        if row.probe == "default":
            cell(row, "default interval, send 2", int(row.hit_2))
            data[-1]["text"] += f" ({row.interval})"
        elif row.probe == "sparse":
            cell(row, "interval 0, send 2", int(row.hit_2))
            cell(row, "interval 0, send 3", int(row.hit_3))
        else:
            cell(row, _PROBE_LABELS[row.probe].format(tokens=f"{row.tokens:,}"), int(row.hit_2))
    releases = table["release"].drop_duplicates().tolist()
    base = alt.Chart(inline(data)).encode(
        x=alt.X("release:O", sort=releases, title="vLLM", axis=alt.Axis(labelAngle=0, orient="top", ticks=False)),
        y=alt.Y("what:N", sort=list(dict.fromkeys(item["what"] for item in data)), title=None),
    )
    chart = alt.layer(
        base.mark_rect(stroke=GREY, strokeWidth=0.3).encode(color=alt.Color("fill:N", scale=None)),
        base.mark_text(fontWeight=600).encode(text="text:N", color=alt.Color("ink:N", scale=None)),
    )
    sparse = table[table["probe"] == "sparse"]
    tokens, never = number(sparse["tokens"].max()), sparse.loc[sparse["hit_3"] == 0, "release"].tolist()
    missed = sparse.loc[sparse["hit_2"] < sparse["hit_3"], "release"].tolist()
    title = (
        f"At interval 0 the second send of {tokens} tokens falls behind the third on vLLM {spans(missed, releases)}"
        if missed
        else f"At interval 0 no resend of {tokens} tokens hits on vLLM {spans(never, releases)}"
        if never
        else f"At interval 0 the second send of {tokens} tokens hits what the third does on vLLM {listing(releases)}"
    )
    height = 30 * len({item["what"] for item in data})
    subtitle = "Tokens hit; the darker, the more tokens short of full."
    return chart.properties(width=WIDTH, height=height, title=wrapped_title(title, subtitle))


_PROBE_LABELS = {
    "multiple": "exactly {tokens} tokens, send 2",
    "plain": "no drafter, send 2",
    "legacy": "lookahead hashes off, send 2",
}
