"""The figure of the store side: what a request kept and dropped, and the boundaries that the rule aimed at."""

from __future__ import annotations

from typing import Any

import altair as alt
import pandas as pd

from prefixscope.charts.encoding import WIDTH, inline
from prefixscope.charts.lanes import (
    CHARACTER_PX,
    Lane,
    Ranges,
    Window,
    beyond,
    block_range,
    blocks_named,
    heading,
    lanes,
    part_shown,
    place,
    spans,
)
from prefixscope.charts.ruler import lane_base, lane_labels, ruler_window
from prefixscope.charts.titles import wrapped_title
from prefixscope.quantities import listing, number
from prefixscope.theme import BLOCK_COLOURS

_MOST_AIMS = 6
_KEY = (
    "Filled: kept. Dashed: dropped. Lines across: replay boundaries, where the next such prompt is expected to resume."
)


def store_ruler(frame: pd.DataFrame, *, beside: pd.DataFrame | None = None) -> Any:
    """KV cache groups as rows, blocks on one token axis, a panel per request: kept, dropped, and the boundaries.

    ``frame`` is ``frames.stores``. Kept is a filled bar, dropped a dashed outline, a boundary a line across the rows
    with its token written above it. With ``beside``, the ``frames.blocks`` of the same sends, the same part of the
    prompt is shown, and what the next lookup needed is an outline around what was kept.
    """
    drawn = frame[frame["state"].isin(["kept", "dropped"])]
    if not len(drawn):
        return None
    asked = _asked(beside)
    window = part_shown(drawn, ["kept"]) if beside is None or not asked else ruler_window(beside)
    panels = []
    requests = drawn["request_id"].drop_duplicates().tolist()
    title = ""
    for request in requests:
        part = frame[frame["request_id"] == request]
        rows, rest = lanes(part[part["state"] != "boundary"])
        head = part.iloc[0]
        needed = _next(asked, request)
        text = f"{head['send_label']}: {_summary(part)}{beyond(rest)}"
        panels.append(_panel(rows, _aims(part), needed, window, text, axis_title=request == requests[-1]))
        title = title or _finding(str(head["send_label"]), rows, needed)
    first = frame[frame["request_id"] == requests[0]]
    title = title or f"{first.iloc[0]['send_label']} {_summary(first)}"
    key = f"{_KEY} Solid outline: what the next send needed." if asked else _KEY
    return alt.vconcat(*panels, spacing=26).properties(title=wrapped_title(title, key))


Needs = dict[int, tuple[Ranges, Ranges]]
"""Group → what a lookup needed, and what of it was missing."""


def _asked(beside: pd.DataFrame | None) -> list[tuple[str, Needs]]:
    """By lookup, in order, what each group needed; empty for one that had nothing in common with an earlier one."""
    found: dict[str, Needs] = {}
    if beside is not None:
        for row in beside.itertuples():
            needs = found.setdefault(str(row.request_id), {})
            if row.state in ("needed", "missing") and row.shared_tokens:
                of = needs.setdefault(int(row.gid), ([], []))
                of[row.state == "missing"].append((int(row.start), int(row.stop)))
    return list(found.items()) if any(found.values()) else []


def _next(asked: list[tuple[str, Needs]], request: str) -> Needs:
    """What the lookup after this request's own needed; that of the first where this one is not among them."""
    names = [name for name, _ in asked]
    place = names.index(request) + 1 if request in names else 0
    return asked[place][1] if place < len(asked) else {}


def _finding(label: str, rows: list[Lane], needed: Needs) -> str:
    """What was kept beside what the next lookup lacked; empty where it lacked nothing."""
    for row in rows:
        wanted, missing = needed.get(row.gids[0], ([], []))
        kept = row.ranges.get("kept", [])
        if not wanted or not missing:
            continue
        (start, stop), who = wanted[0], row.name.split(" · ")[0]
        near = [one for one in kept if one[0] < stop and one[1] > start]
        if not near:
            return f"{label} kept none of the blocks of the {who} that the next send needed, {block_range(start, stop)}"
        had = f"{label} kept {blocks_named(*near[-1])} of the {who}"
        if all(any(one[0] <= low and high <= one[1] for one in kept) for low, high in missing):
            return f"{had}; the next send needed {block_range(start, stop)} and did not find them any more"
        return f"{had}; the next send needed {block_range(start, stop)}"
    return ""


def _aims(part: pd.DataFrame) -> list[int]:
    return sorted({int(token) for token in part.loc[part["state"] == "boundary", "start_token"]})


def _summary(part: pd.DataFrame) -> str:
    """``keeps 265 of 1,105 blocks; replay boundary 6,400``."""
    size = (part["stop"] - part["start"]).fillna(0)
    kept, dropped = (int(size[part["state"] == state].sum()) for state in ("kept", "dropped"))
    aims = _aims(part)
    end = f"; replay {'boundaries' if len(aims) > 1 else 'boundary'} {listing([number(one) for one in aims])}"
    if len(aims) > 3:
        end = f"; {len(aims):,} replay boundaries"
    return f"keeps {number(kept)} of {number(kept + dropped)} blocks{end if aims else ''}"


def _panel(rows: list[Lane], aims: list[int], needed: Needs, window: Window, text: str, *, axis_title: bool) -> Any:
    names = [row.name for row in rows]
    seen = [token for token in aims if window.low <= token <= window.high]
    data: list[dict[str, Any]] = []
    for row in rows:
        kept, dropped = spans(row, "kept", window), spans(row, "dropped", window)
        widest = sorted(kept, key=lambda span: span["from"] - span["to"])
        place([*((span, True) for span in widest), *((span, False) for span in dropped)], window, lines=seen)
        wanted, _ = needed.get(row.gids[0], ([], []))
        asked = Lane(row.name, row.gids, row.size, {"needed": wanted}, "", False)
        outlines = spans(asked, "needed", window)
        for span in outlines:
            span["label"] = span["label"].replace("needed", "needed next", 1)
        place([(span, False) for span in outlines], window, most=1, lines=seen)
        data += [*dropped, *kept, *outlines]
    base = lane_base(data, names, window, axis_title=axis_title)
    spanned = base.encode(x2="to:Q")
    dropped = spanned.transform_filter("datum.state === 'dropped'").mark_bar(
        height=14, filled=False, stroke=BLOCK_COLOURS["dropped"], strokeWidth=1.2, strokeDash=[3, 2]
    )
    kept = spanned.transform_filter("datum.state === 'kept' && !datum.mixed").mark_bar(
        height=14, color=BLOCK_COLOURS["kept"], opacity=0.85
    )
    mixed = spanned.transform_filter("datum.state === 'kept' && datum.mixed").mark_bar(
        height=8, color=BLOCK_COLOURS["kept"], opacity=0.45
    )
    outline = spanned.transform_filter("datum.state === 'needed'").mark_bar(
        height=24, filled=False, strokeWidth=1.8, stroke=BLOCK_COLOURS["needed"]
    )
    marks = [{"state": "aim", "from": token, "to": token, "label": f"boundary {token:,}"} for token in seen]
    # The last ones decide the next send, so they get the room.
    place([(mark, True) for mark in reversed(marks)], window, most=_MOST_AIMS, counted=False)
    few = len(marks) <= _MOST_AIMS
    if few:
        _share_labels(marks, window)
    lines = alt.Chart(inline(marks)).encode(x="from:Q")
    words = lines.encode(text="label:N", y=alt.value(-7))
    named = [
        words.transform_filter(f"datum.side === '{side}'").mark_text(align=side, fontWeight=600)
        for side in ("left", "right")
    ]
    labels = [
        *lane_labels(base, "kept", dy=20),
        *lane_labels(base, "dropped", dy=20),
        *lane_labels(base, "needed", dy=-19),
    ]
    rules = lines.mark_rule(strokeWidth=1.4 if few else 0.7, opacity=1 if few else 0.5)
    drawn = [*([rules, *named] if marks else []), dropped, mixed, kept, outline, *labels]
    height = (64 if needed else 52) * len(names)
    return alt.layer(*drawn).properties(width=WIDTH, height=height, title=heading(text, offset=20))


def _share_labels(marks: list[dict[str, Any]], window: Window) -> None:
    """A boundary whose label has no room is named in that of the next one, where that has the room."""
    taken, waiting = 0.0, []
    for mark in marks:
        if not mark["label"]:
            waiting.append(mark["from"])
            continue
        text = f"boundaries {listing([number(token) for token in (*waiting, mark['from'])])}"
        end = window.px(mark["from"])
        if waiting and mark["side"] == "right" and end - len(text) * CHARACTER_PX >= taken:
            mark["label"] = text
        taken, waiting = end if mark["side"] == "right" else end + len(mark["label"]) * CHARACTER_PX, []
