"""The figure of the store side: what a request kept and dropped, and the boundaries that the rule aimed at."""

from __future__ import annotations

from typing import Any

import altair as alt
import pandas as pd

from prefixscope.charts.encoding import WIDTH, inline
from prefixscope.charts.lanes import Lane, Window, beyond, heading, lanes, part_shown, place, spans
from prefixscope.charts.ruler import lane_base, lane_labels
from prefixscope.charts.titles import listing, wrapped_title
from prefixscope.quantities import number
from prefixscope.theme import GREY, SEND_COLOURS

_MOST_AIMS = 6


def store_ruler(frame: pd.DataFrame) -> Any:
    """KV cache groups as rows, blocks on one token axis, a panel per request: kept, dropped, and the boundaries.

    ``frame`` is ``frames.stores``. Kept is a filled bar, dropped a dashed outline, a boundary a line across the rows
    with its token written above it.
    """
    drawn = frame[frame["state"].isin(["kept", "dropped"])]
    if not len(drawn):
        return None
    window = part_shown(drawn, ["kept"])
    panels = []
    requests = drawn["request_id"].drop_duplicates().tolist()
    for request in requests:
        part = frame[frame["request_id"] == request]
        rows, rest = lanes(part[part["state"] != "boundary"])
        aims = sorted({int(token) for token in part.loc[part["state"] == "boundary", "start_token"]})
        head = part.iloc[0]
        kept, of = _counts(part)
        text = f"{head['send_label']}: keeps {number(kept)} of {number(of)} blocks{_aiming(aims)}{beyond(rest)}"
        panels.append(_panel(rows, aims, window, text, axis_title=request == requests[-1]))
    first = frame[frame["request_id"] == requests[0]]
    kept, of = _counts(first)
    aims = sorted({int(token) for token in first.loc[first["state"] == "boundary", "start_token"]})
    title = f"{first.iloc[0]['send_label']} keeps {number(kept)} of {number(of)} blocks{_aiming(aims)}"
    chart = alt.vconcat(*panels, spacing=26)
    return chart.properties(
        title=wrapped_title(title, "Filled: kept. Dashed outline: dropped. Lines across: boundaries the rule aimed at.")
    )


def _aiming(aims: list[int]) -> str:
    if not aims:
        return ""
    if len(aims) > 3:
        return f", aiming at {number(aims[-1])}, {number(aims[-2])} and {len(aims) - 2:,} more tokens"
    return f", aiming at {listing([number(token) for token in aims])} tokens"


def _counts(part: pd.DataFrame) -> tuple[int, int]:
    size = (part["stop"] - part["start"]).fillna(0)
    kept = int(size[part["state"] == "kept"].sum())
    return kept, kept + int(size[part["state"] == "dropped"].sum())


def _panel(rows: list[Lane], aims: list[int], window: Window, text: str, *, axis_title: bool) -> Any:
    names = [row.name for row in rows]
    data: list[dict[str, Any]] = []
    for row in rows:
        kept, dropped = spans(row, "kept", window), spans(row, "dropped", window)
        widest = sorted(kept, key=lambda span: span["from"] - span["to"])
        place([*((span, True) for span in widest), *((span, False) for span in dropped)], window)
        data += [*dropped, *kept]
    base = lane_base(data, names, window, axis_title=axis_title)
    spanned = base.encode(x2="to:Q")
    dropped = spanned.transform_filter("datum.state === 'dropped'").mark_bar(
        height=14, filled=False, stroke=GREY, strokeWidth=1.2, strokeDash=[3, 2]
    )
    kept = spanned.transform_filter("datum.state === 'kept' && !datum.mixed").mark_bar(
        height=14, color=SEND_COLOURS["send 2"], opacity=0.85
    )
    mixed = spanned.transform_filter("datum.state === 'kept' && datum.mixed").mark_bar(
        height=8, color=SEND_COLOURS["send 2"], opacity=0.45
    )
    seen = [token for token in aims if window.low <= token <= window.high]
    marks = [{"state": "aim", "from": token, "to": token, "label": f"aim {token:,}"} for token in seen]
    # The last ones decide the next send, so they get the room.
    place([(mark, True) for mark in reversed(marks)], window, most=_MOST_AIMS, counted=False)
    lines = alt.Chart(inline(marks)).encode(x="from:Q")
    words = lines.encode(text="label:N", y=alt.value(-7))
    named = [
        words.transform_filter(f"datum.side === '{side}'").mark_text(align=side, fontWeight=600)
        for side in ("left", "right")
    ]
    labels = [*lane_labels(base, "kept", dy=17), *lane_labels(base, "dropped", dy=17)]
    few = len(marks) <= _MOST_AIMS
    rules = lines.mark_rule(strokeWidth=1.4 if few else 0.7, opacity=1 if few else 0.5)
    drawn = [*([rules, *named] if marks else []), dropped, mixed, kept, *labels]
    return alt.layer(*drawn).properties(width=WIDTH, height=52 * len(names), title=heading(text, offset=20))
