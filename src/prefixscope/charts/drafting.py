"""Figures of speculative decoding: speed by prompt shape, places in the draft, and the balance of the trade."""

from __future__ import annotations

from typing import Any

import altair as alt
import pandas as pd

from prefixscope.charts.encoding import WIDTH, colour, count_axis, inline
from prefixscope.charts.panels import facet
from prefixscope.charts.titles import as_subject, wrapped_title
from prefixscope.paired import Effect
from prefixscope.quantities import count
from prefixscope.theme import ARM_COLOURS, BLUE, GREEN

_NEAR = 1.25
"""A change of a quarter would have shown."""


def speed_by_shape(shapes: pd.DataFrame, faster: Effect | None = None) -> Any:
    """Tokens a second by prompt shape, a bar per arm; what was accepted stands in words beside it.

    ``shapes`` is ``frames.by_shape``; ``faster`` how many times B's speed A's is, for the title.
    """
    known = shapes["tokens_per_s"].notna()
    if not known.any():
        return None
    rows = shapes[shapes["shape"].isin(shapes.loc[known, "shape"])]
    labels = rows.drop_duplicates("arm").set_index("arm")["label"].to_dict()
    data = [
        {
            "shape": row.shape,
            "arm": row.arm,
            "label": row.label,
            "median": _rounded(row.tokens_per_s),
            "low": _rounded(row.tokens_per_s_p10),
            "high": _rounded(row.tokens_per_s_p90),
            "words_at": _rounded(row.tokens_per_s_p90) or 0,
            "text": "speed not known" if pd.isna(row.tokens_per_s) else f"{row.tokens_per_s:,.1f} tokens/s",
            "accepted": "" if pd.isna(row.tokens_per_s) else _accepted(row),
        }
        for row in rows.sort_values("arm", kind="stable").itertuples()
    ]
    top = max(item["words_at"] for item in data)
    base = alt.Chart().encode(y=alt.Y("label:N", sort=list(labels.values()), title=None))
    axis = alt.X(
        "median:Q",
        title="tokens a second",
        axis=count_axis(6),
        # The words stand right of the longest bar, in two lines: in one they are too wide for half a page.
        scale=alt.Scale(domain=[0, top * 1.75], nice=False),
    )
    bars = base.mark_bar(height={"band": 0.7}, cornerRadiusEnd=2, opacity=0.6).encode(
        x=axis, color=colour("arm", ARM_COLOURS)
    )
    spread = base.mark_rule(strokeWidth=2).encode(x="low:Q", x2="high:Q")
    words = base.encode(x="words_at:Q")
    lines = (("datum.accepted === ''", 0, "text"), ("datum.accepted", -6, "text"), ("datum.accepted", 7, "accepted"))
    said = [
        words.transform_filter(which).mark_text(align="left", dx=8, dy=dy).encode(text=f"{field}:N")
        for which, dy, field in lines
    ]
    chart = alt.layer(bars, spread, *said).properties(width=WIDTH - 60, height=28 * len(labels))
    order = rows["shape"].drop_duplicates().tolist()
    faceted = chart.facet(facet=facet("shape", order), columns=1, data=inline(data), spacing=10)
    return faceted.properties(
        title=wrapped_title(
            speed_title(rows, faster),
            "Bar: median; line: 10th to 90th percentile of the requests. Tokens are those in usage, not the stream's "
            "chunks."
            + ("" if faster is None else " The title's ratio is the geometric mean over prompts that both answered."),
        )
    )


def accepted_by_position(places: pd.DataFrame) -> Any:
    """In which share of the drafts each place was accepted, a row of cells per prompt shape."""
    rows = places[places["arm"] == places["arm"].min()]
    if not len(rows):
        return None
    shapes = rows["shape"].drop_duplicates().tolist()
    data = [
        {
            "shape": r.shape,
            "place": f"token {r.position}",
            "share": r.share,
            "text": f"{r.share:.0%}",
            "light": r.share < 0.5,
        }
        for r in rows.itertuples()
    ]
    base = alt.Chart().encode(
        y=alt.Y("shape:N", sort=shapes, title=None),
        x=alt.X("place:N", sort=None, title=None, axis=alt.Axis(orient="top", labelAngle=0, domain=False, ticks=False)),
    )
    cells = base.mark_rect(cornerRadius=3, height={"band": 0.86}, width={"band": 0.94}, color=BLUE).encode(
        opacity=alt.Opacity("share:Q", scale=alt.Scale(domain=[0, 1], range=[0.08, 1]), legend=None)
    )
    light = base.transform_filter("datum.light").mark_text(fontWeight=600).encode(text="text:N")
    dark = base.transform_filter("!datum.light").mark_text(fontWeight=600, color="#fff").encode(text="text:N")
    first = rows[rows["position"] == 1]
    best = first.sort_values("share", kind="stable").iloc[-1]
    title = f"The drafter's first token is right in up to {best['share']:.0%} of its drafts ({best['shape']})"
    chart = alt.layer(cells, light, dark, data=inline(data)).properties(
        width=130 * rows["position"].nunique(), height=30 * len(shapes)
    )
    return chart.properties(title=wrapped_title(title, "A later token counts only where every earlier one was right."))


def balance_over_reuse(balance: pd.DataFrame, labels: tuple[str, str] = ("A", "B")) -> Any:
    """Seconds per request that arm A saves, against the share of prompts that were sent before.

    ``balance`` is ``trade.over_reuse``.
    """
    if not len(balance):
        return None
    data = balance.to_dict("records")
    base = alt.Chart(inline(data)).encode(
        x=alt.X("reuse:Q", title="share of the prompts that were sent once before", axis=alt.Axis(format=".0%"))
    )
    y = alt.Y("net:Q", title=f"seconds a request that {labels[0]} saves", axis=alt.Axis(format="+,.3~r"))
    layers = [
        alt.Chart(inline([{"zero": 0}])).mark_rule(strokeDash=[4, 3]).encode(y="zero:Q"),
        base.mark_area(opacity=0.18, color=BLUE).encode(y=alt.Y("low:Q"), y2="high:Q"),
        base.mark_line(color=BLUE).encode(y=y),
    ]
    last = data[-1]
    notes = [{"reuse": 1, "net": last["net"], "text": "as measured", "hit": False}]
    if pd.notna(last["hit"]):
        layers.append(base.mark_line(color=GREEN, strokeDash=[6, 3]).encode(y="hit:Q"))
        notes.append({"reuse": 1, "net": last["hit"], "text": "if send 2 hit as send 3 does", "hit": True})
    words = alt.Chart(inline(notes)).encode(x="reuse:Q", y="net:Q", text="text:N")
    below = pd.notna(last["hit"]) and last["hit"] > last["net"]
    for picked, ink, side in (("false", BLUE, 16 if below else -14), ("true", GREEN, -14 if below else 16)):
        kept = words.transform_filter(f"datum.hit === {picked}")
        layers.append(kept.mark_text(align="right", dx=-4, dy=side, color=ink, fontWeight=600))
    chart = alt.layer(*layers).properties(width=WIDTH, height=220)
    return chart.properties(
        title=wrapped_title(
            _balance_title(balance, labels),
            "Above the dashed line it saves time, below it costs time. Line: the estimate, band: 95 %. Prefill was "
            "timed with long prompts, sent to one server after the other.",
        )
    )


def _rounded(value: float) -> float | None:
    return None if pd.isna(value) else round(value, 2)


def _accepted(row: Any) -> str:
    """Of all that was drafted for the shape, as the sentences beside the figure count it."""
    if pd.isna(row.accepted) or not row.drafted:
        return ""
    share = row.accepted / row.drafted
    percent = f"{share:.0%}" if share >= 0.1 else f"{share:.1%}"
    return f"{percent} accepted, {1 + row.accepted / row.drafts:.2f} tokens a step"


def speed_title(rows: pd.DataFrame, faster: Effect | None) -> str:
    """What ``frames.by_shape`` and the effect of arm A over B say, in one line."""
    labels = rows.drop_duplicates("arm").set_index("arm")["label"].to_dict()
    if faster is None or len(labels) < 2:
        medians = rows["tokens_per_s"]
        who = as_subject(str(labels[min(labels)]))
        return f"{who} generates {medians.min():,.1f} to {medians.max():,.1f} tokens a second, by shape"
    a, b = labels["A"], labels["B"]
    if faster.low is None or faster.high is None:
        return f"{a} generates {faster.value:.2f} times as many tokens a second as {b}: too few prompts to be sure"
    known = f"(95 %: {faster.low:.2f} to {faster.high:.2f}; {count(faster.pairs, 'prompt')})"
    if faster.low <= 1 <= faster.high:
        near = faster.low > 1 / _NEAR and faster.high < _NEAR
        what = f"{a} generates about as fast as {b}" if near else f"Whether {a} generates faster than {b} can't be told"
        return f"{what}: {faster.value:.2f} times {known}"
    return f"{a} generates {faster.value:.2f} times as many tokens a second as {b} {known}"


def _balance_title(balance: pd.DataFrame, labels: tuple[str, str]) -> str:
    sure_gain = balance[balance["low"] > 0]
    sure_loss = balance[balance["high"] < 0]
    if len(sure_gain) == len(balance):
        return f"{labels[0]} saves time whatever is reused"
    if len(sure_loss) == len(balance):
        return f"{labels[0]} costs time whatever is reused"
    if len(sure_loss):
        return _beyond(f"{labels[0]} costs time", sure_loss["reuse"], balance)
    if len(sure_gain):
        return _beyond(f"{labels[0]} saves time", sure_gain["reuse"], balance)
    return f"Whether {labels[0]} saves or costs time can't be told from these requests"


def _beyond(what: str, sure: pd.Series[Any], balance: pd.DataFrame) -> str:
    """From which share of reuse on that is certain, and from which on it is what the estimate says."""
    more = bool(sure.max() == 1)
    share = sure.min() if more else sure.max()
    text = f"{what} where {share:.0%} or {'more' if more else 'less'} of the prompts were sent before"
    signs = balance["net"] > 0
    turned = balance.loc[signs.ne(signs.shift()).fillna(False) & (balance.index > balance.index[0])]
    if not len(turned):
        return text
    (low, high), (before, after) = (
        balance.loc[[turned.index[0] - 1, turned.index[0]], column] for column in ("reuse", "net")
    )
    even = low + (high - low) * before / (before - after)
    return f"{text}; the estimate alone says so {f'from {even:.0%} on' if more else f'up to {even:.0%}'}"
