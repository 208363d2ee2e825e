"""The figure of a lookup's blocks: stored, needed, missing and evicted on one ruler of tokens."""

from __future__ import annotations

from typing import Any

import altair as alt
import pandas as pd

from prefixscope.charts.encoding import WIDTH, count_axis, inline, narrowest
from prefixscope.charts.lanes import (
    Lane,
    Window,
    beyond,
    blocks_named,
    heading,
    lanes,
    part_shown,
    place,
    spans,
)
from prefixscope.charts.titles import wrapped_title
from prefixscope.quantities import number
from prefixscope.theme import BLOCK_COLOURS

_DRAWN = ("stored", "needed", "missing", "evicted")
_ABSENT = {"missing": "needed and not stored", "evicted": "needed, once stored and evicted since"}
_CROSSED_PX = 12.0


def block_ruler(frame: pd.DataFrame) -> Any:
    """KV cache groups as rows, blocks on one token axis, a panel per lookup: stored, needed, missing and evicted.

    ``frame`` is ``frames.blocks``. Groups with equal ranges are folded into one row and counted; the axis shows the
    part where the hit is decided. Stored is a filled bar, needed an outline around it, missing a second fill and
    evicted a thin one, both with their block numbers written out, so nothing rests on colour. Many rows are cut to
    those that end the hit. A first send, which nothing could be stored for, is a line that says so.
    """
    drawn = frame[frame["state"].isin(_DRAWN)]
    if not len(drawn):
        return None
    first = set(frame["request_id"]) - set(
        frame.loc[frame["state"].isin(["stored", "evicted"]) | (frame["shared_tokens"] > 0), "request_id"]
    )
    window = ruler_window(frame)
    panels = []
    findings = []
    requests = drawn["request_id"].drop_duplicates().tolist()
    for request in requests:
        part = frame[frame["request_id"] == request]
        rows, rest = lanes(part)
        head = part.iloc[0]
        text = f"{head['send_label']}: hit {number(head['hit_tokens'])} of {number(head['prompt_tokens'])}"
        last = request == requests[-1]
        if request in first:
            panels.append(_first_send(f"{text}; a first send, nothing of it is stored yet", window, axis_title=last))
            continue
        blame = next(((row, state) for state in _ABSENT for row in rows if state in row.ranges), None)
        if blame is not None:
            row, state = blame
            text += f"; {_blocks(row, state)} {state} in the {_who(row)}"
            findings.append((head["send_label"], row, state))
        panels.append(_panel(rows, window, int(head["prompt_tokens"]), text + beyond(rest), axis_title=last))
    if findings:
        send, row, state = findings[0]
        verb = "is" if sum(stop - start for start, stop in row.ranges[state]) == 1 else "are"
        title = f"{send}: {_blocks(row, state)} of the {_who(row)} {verb} {_ABSENT[state]}"
    elif first.issuperset(requests):
        title = "Only first sends: nothing of these prompts was stored yet"
    else:
        title = "Every needed block is stored"
    chart = alt.vconcat(*panels, spacing=26)
    key = "Filled: stored. Outline: needed to back the hit. Crossed: needed, not stored."
    if (drawn["state"] == "evicted").any():
        key += " Thin: evicted since."
    return narrowest(chart.properties(title=wrapped_title(title, key)), 430)


def _who(lane: Lane) -> str:
    return lane.name.split(" · ")[0]


def _blocks(lane: Lane, state: str) -> str:
    (start, stop), *more = lane.ranges[state]
    return blocks_named(start, stop) + (f" and {len(more):,} more ranges" if more else "")


def ruler_window(frame: pd.DataFrame) -> Window:
    """The tokens that the ruler of these lookups shows; the store side beside it shows the same."""
    drawn = frame[frame["state"].isin(_DRAWN)]
    repeats = drawn[drawn["shared_tokens"] > 0]
    return part_shown(repeats if len(repeats) else drawn, _DRAWN)


def _first_send(text: str, window: Window, *, axis_title: bool) -> Any:
    data = [{"row": "all groups", "from": window.low, "label": "nothing stored"}]
    base = lane_base(data, ["all groups"], window, axis_title=axis_title)
    return (
        base.mark_text(dx=6, align="left")
        .encode(text="label:N")
        .properties(width=WIDTH, height=26, title=heading(text))
    )


def _panel(rows: list[Lane], window: Window, tokens: int, text: str, *, axis_title: bool) -> Any:
    names = [row.name for row in rows]
    data: list[dict[str, Any]] = []
    for row in rows:
        stored, needed, missing, evicted = (spans(row, state, window) for state in _DRAWN)
        place([(span, False) for span in needed], window, most=1, lines=[tokens])
        widest = sorted(stored, key=lambda span: span["from"] - span["to"])
        absent = [(span, False) for span in (*missing, *evicted)]
        place([*absent, *((span, True) for span in widest)], window, lines=[tokens])
        for span in missing:
            span["middle"] = (span["from"] + span["to"]) / 2
            span["cross"] = span["to"] - span["from"] > window.tokens(_CROSSED_PX)
        data += [*stored, *needed, *missing, *evicted]
        if row.empty and not absent:
            data.append({"row": row.name, "state": "empty", "from": window.low, "to": window.low, "label": row.empty})
    base = lane_base(data, names, window, axis_title=axis_title)
    spanned = base.encode(x2="to:Q")
    stored = spanned.transform_filter("datum.state === 'stored' && !datum.mixed").mark_bar(
        height=14, color=BLOCK_COLOURS["stored"], opacity=0.85
    )
    mixed = spanned.transform_filter("datum.state === 'stored' && datum.mixed").mark_bar(
        height=8, color=BLOCK_COLOURS["stored"], opacity=0.45
    )
    # Light inside a strong edge, and crossed: in grey, too, it is no stored bar.
    missing = spanned.transform_filter("datum.state === 'missing'").mark_bar(
        height=14, fill=BLOCK_COLOURS["missing"], fillOpacity=0.25, stroke=BLOCK_COLOURS["missing"], strokeWidth=2
    )
    crossed = (
        base.transform_filter("datum.cross")
        .encode(x="middle:Q")
        .mark_point(shape="m-1,-1L1,1M1,-1L-1,1", filled=False, stroke=BLOCK_COLOURS["missing"], strokeWidth=2, size=24)
    )
    evicted = spanned.transform_filter("datum.state === 'evicted'").mark_bar(height=6, color=BLOCK_COLOURS["evicted"])
    needed = spanned.transform_filter("datum.state === 'needed'").mark_bar(
        height=24, filled=False, strokeWidth=1.8, stroke=BLOCK_COLOURS["needed"]
    )
    blame = {"color": BLOCK_COLOURS["missing"], "fontWeight": 600}
    labels = [
        *lane_labels(base, "needed", dy=-20),
        *lane_labels(base, "stored", dy=21),
        *lane_labels(base, "missing", dy=21, **blame),
        *lane_labels(base, "evicted", dy=21, **{**blame, "color": BLOCK_COLOURS["evicted"]}),
    ]
    nothing = base.transform_filter("datum.state === 'empty'").mark_text(dx=6, align="left").encode(text="label:N")
    # A layer without data would have a scale without ends, and a browser warns of it.
    at_end = [{"at": tokens}] if tokens <= window.high else []
    end = [alt.Chart(inline(at_end)).mark_rule(strokeDash=[4, 3]).encode(x="at:Q")] if at_end else []
    chart = alt.layer(stored, mixed, missing, crossed, evicted, needed, *end, *labels, nothing)
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
    text = base.encode(text="label:N", x="at:Q")
    left = text.transform_filter(f"datum.state === '{state}' && datum.side === 'left'")
    right = text.transform_filter(f"datum.state === '{state}' && datum.side === 'right'")
    return [
        left.mark_text(dy=dy, align="left", **look),
        right.mark_text(dy=dy, align="right", **look),
    ]
