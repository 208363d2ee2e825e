"""The figure of a lookup's blocks: stored, needed, missing and evicted on one ruler of tokens."""

from __future__ import annotations

from typing import Any

import altair as alt
import pandas as pd

from prefixscope.charts.encoding import WIDTH, count_axis, inline
from prefixscope.charts.lanes import Lane, Window, beyond, block_range, heading, lanes, part_shown, place, spans
from prefixscope.charts.titles import wrapped_title
from prefixscope.quantities import number
from prefixscope.theme import GREY, PURPLE, SEND_COLOURS, VERMILION

_DRAWN = ("stored", "needed", "missing", "evicted")
_ABSENT = {"missing": "are needed and not stored", "evicted": "are needed, were stored and have been evicted"}


def block_ruler(frame: pd.DataFrame) -> Any:
    """KV cache groups as rows, blocks on one token axis, a panel per lookup: stored, needed, missing and evicted.

    ``frame`` is ``frames.blocks``. Groups with equal ranges are folded into one row and counted; the axis shows the
    part where the hit is decided. Stored is a filled bar, needed an outline around it, missing a second fill and
    evicted a thin one, both with their block numbers written out, so nothing rests on colour. Many rows are cut to
    those that end the hit.
    """
    drawn = frame[frame["state"].isin(_DRAWN)]
    if not len(drawn):
        return None
    window = part_shown(drawn, _DRAWN)
    panels = []
    findings = []
    requests = drawn["request_id"].drop_duplicates().tolist()
    for request in requests:
        part = frame[frame["request_id"] == request]
        rows, rest = lanes(part)
        head = part.iloc[0]
        text = f"{head['send_label']}: hit {number(head['hit_tokens'])} of {number(head['prompt_tokens'])}"
        blame = next(((row, state) for state in _ABSENT for row in rows if state in row.ranges), None)
        if blame is not None:
            row, state = blame
            text += f"; blocks {_blocks(row, state)} {state} in {_who(row)}"
            findings.append((head["send_label"], row, state))
        last = request == requests[-1]
        panels.append(_panel(rows, window, int(head["prompt_tokens"]), text + beyond(rest), axis_title=last))
    if findings:
        send, row, state = findings[0]
        title = f"{send}: blocks {_blocks(row, state)} of {_who(row)} {_ABSENT[state]}"
    else:
        title = "Every needed block is stored"
    chart = alt.vconcat(*panels, spacing=26)
    key = "Filled: stored. Outline: needed to back the hit. Orange: needed, not stored."
    if (drawn["state"] == "evicted").any():
        key += " Thin: stored once, evicted since."
    return chart.properties(title=wrapped_title(title, key))


def _who(lane: Lane) -> str:
    return lane.name.split(" · ")[0]


def _blocks(lane: Lane, state: str) -> str:
    (start, stop), *more = lane.ranges[state]
    return block_range(start, stop) + (f" and {len(more):,} more ranges" if more else "")


def _panel(rows: list[Lane], window: Window, tokens: int, text: str, *, axis_title: bool) -> Any:
    names = [row.name for row in rows]
    data: list[dict[str, Any]] = []
    for row in rows:
        stored, needed, missing, evicted = (spans(row, state, window) for state in _DRAWN)
        place([(span, False) for span in needed], window, most=1)
        widest = sorted(stored, key=lambda span: span["from"] - span["to"])
        absent = [(span, False) for span in (*missing, *evicted)]
        place([*absent, *((span, True) for span in widest)], window)
        data += [*stored, *needed, *missing, *evicted]
        if row.empty and not absent:
            data.append({"row": row.name, "state": "empty", "from": window.low, "to": window.low, "label": row.empty})
    base = lane_base(data, names, window, axis_title=axis_title)
    spanned = base.encode(x2="to:Q")
    stored = spanned.transform_filter("datum.state === 'stored' && !datum.mixed").mark_bar(
        height=14, color=SEND_COLOURS["send 2"], opacity=0.85
    )
    mixed = spanned.transform_filter("datum.state === 'stored' && datum.mixed").mark_bar(
        height=8, color=SEND_COLOURS["send 2"], opacity=0.45
    )
    missing = spanned.transform_filter("datum.state === 'missing'").mark_bar(height=14, color=VERMILION)
    evicted = spanned.transform_filter("datum.state === 'evicted'").mark_bar(height=6, color=PURPLE)
    needed = spanned.transform_filter("datum.state === 'needed'").mark_bar(
        height=24, filled=False, strokeWidth=1.8, stroke=GREY
    )
    blame = {"color": VERMILION, "fontWeight": 600}
    labels = [
        *lane_labels(base, "needed", dy=-20),
        *lane_labels(base, "stored", dy=21),
        *lane_labels(base, "missing", dy=21, **blame),
        *lane_labels(base, "evicted", dy=21, **{**blame, "color": PURPLE}),
    ]
    nothing = base.transform_filter("datum.state === 'empty'").mark_text(dx=6, align="left").encode(text="label:N")
    end = (
        alt.Chart(inline([{"at": tokens}] if tokens <= window.high else []))
        .mark_rule(strokeDash=[4, 3])
        .encode(x="at:Q")
    )
    chart = alt.layer(stored, mixed, missing, evicted, needed, end, *labels, nothing)
    return chart.properties(width=WIDTH, height=66 * len(names), title=heading(text))


def lane_base(data: list[dict[str, Any]], names: list[str], window: Window, *, axis_title: bool) -> Any:
    """A chart of lanes above each other over the window's tokens; spans go from ``from`` to ``to``."""
    return alt.Chart(inline(data)).encode(
        y=alt.Y(
            "row:N",
            sort=names,
            title=None,
            axis=alt.Axis(labelExpr="split(datum.label, ' · ')", grid=False),
            scale=alt.Scale(domain=names),
        ),
        x=alt.X(
            "from:Q",
            scale=alt.Scale(domain=[window.low, window.high], nice=False, zero=False),
            title="position in the prompt, tokens" if axis_title else None,
            axis=count_axis(7),
        ),
    )


def lane_labels(base: Any, state: str, *, dy: int, **look: Any) -> list[Any]:
    """The words of one state's spans, above or below them, at the end where there is room."""
    text = base.encode(text="label:N")
    left = text.transform_filter(f"datum.state === '{state}' && datum.side === 'left'")
    right = text.transform_filter(f"datum.state === '{state}' && datum.side === 'right'").encode(x="to:Q")
    return [
        left.mark_text(dy=dy, align="left", **look),
        right.mark_text(dy=dy, align="right", **look),
    ]
