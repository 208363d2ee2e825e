"""The figure of a lookup's blocks: stored, needed and missing on one ruler of tokens."""

from __future__ import annotations

from typing import Any

import altair as alt
import pandas as pd

from prefixscope.charts.encoding import WIDTH, count_axis, inline
from prefixscope.charts.titles import wrapped_title
from prefixscope.quantities import number
from prefixscope.theme import GREY, SEND_COLOURS, VERMILION

_EMPTY = {"nothing": "nothing stored", "unknown": "not scanned"}


def block_ruler(frame: pd.DataFrame) -> Any:
    """KV cache groups as rows, blocks on one token axis, a panel per lookup: stored, needed and missing.

    ``frame`` is ``frames.blocks``. Groups with equal ranges are folded into one row and counted; the axis shows the
    part where the hit is decided. Stored is a filled bar, needed an outline around it, missing a second fill with
    its block numbers written out, so nothing rests on colour.
    """
    drawn = frame[frame["state"].isin(["stored", "needed", "missing"])]
    if not len(drawn):
        return None
    low, high = _zoom(drawn)
    panels = []
    findings = []
    requests = drawn["request_id"].drop_duplicates().tolist()
    for request in requests:
        part = frame[frame["request_id"] == request]
        rows = _fold(part)
        head = part.iloc[0]
        missing = [row for row in rows if row["state"] == "missing"]
        text = f"{head['send_label']}: hit {number(head['hit_tokens'])} of {number(head['prompt_tokens'])}"
        if missing:
            blame = missing[0]
            text += f"; blocks {blame['range']} missing in {blame['row'].split(' · ')[0]}"
            findings.append((head["send_label"], blame))
        last = request == requests[-1]
        panels.append(_ruler_panel(rows, low, high, int(head["prompt_tokens"]), text, axis_title=last))
    if findings:
        send, blame = findings[0]
        who = blame["row"].split(" · ")[0]
        title = f"{send}: blocks {blame['range']} of {who} are needed and not stored"
    else:
        title = "Every needed block is stored"
    chart = alt.vconcat(*panels, spacing=26)
    return chart.properties(
        title=wrapped_title(title, "Filled: stored. Outline: needed to back the hit. Orange: needed, not stored.")
    )


def _ruler_panel(rows: list[dict[str, Any]], low: int, high: int, tokens: int, text: str, *, axis_title: bool) -> Any:
    names = list(dict.fromkeys(row["row"] for row in rows))
    data = []
    for row in rows:
        if row["state"] in _EMPTY:
            data.append({**row, "from": low, "to": low, "label": _EMPTY[row["state"]]})
            continue
        if row["stop_token"] <= low or row["start_token"] >= high:
            continue
        start, stop = max(row["start_token"], low), min(row["stop_token"], high)
        data.append({**row, "from": start, "to": stop, "middle": (start + stop) / 2})
    scale = alt.Scale(domain=[low, high], nice=False, zero=False)
    base = alt.Chart(inline(data)).encode(
        y=alt.Y(
            "row:N",
            sort=names,
            title=None,
            axis=alt.Axis(labelExpr="split(datum.label, ' · ')", grid=False),
            scale=alt.Scale(domain=names),
        ),
        x=alt.X(
            "from:Q", scale=scale, title="position in the prompt, tokens" if axis_title else None, axis=count_axis(7)
        ),
    )
    spans = base.encode(x2="to:Q")
    stored = spans.transform_filter("datum.state === 'stored'").mark_bar(
        height=14, color=SEND_COLOURS["send 2"], opacity=0.85
    )
    missing = spans.transform_filter("datum.state === 'missing'").mark_bar(height=14, color=VERMILION)
    needed = spans.transform_filter("datum.state === 'needed'").mark_bar(
        height=24, filled=False, strokeWidth=1.8, stroke=GREY
    )
    label = base.encode(text="label:N")
    above = label.transform_filter("datum.state === 'needed'").mark_text(dy=-20, align="left")
    below = label.transform_filter("datum.state === 'stored'").mark_text(dy=21, align="right").encode(x="to:Q")
    blame = label.transform_filter("datum.state === 'missing'").mark_text(
        dy=21, align="left", color=VERMILION, fontWeight=600
    )
    absent = label.transform_filter("datum.state === 'nothing' || datum.state === 'unknown'").mark_text(
        dx=6, align="left"
    )
    end = alt.Chart(inline([{"at": tokens}])).mark_rule(strokeDash=[4, 3]).encode(x="at:Q")
    chart = alt.layer(stored, missing, needed, end, above, below, blame, absent)
    return chart.properties(width=WIDTH, height=66 * len(names), title=alt.TitleParams(text=text, fontSize=12))


def _fold(part: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows of one panel; groups of one label with equal ranges become one, named with their number."""
    folded: dict[tuple[Any, ...], list[pd.DataFrame]] = {}
    for _, group in part.groupby("gid", sort=True):
        ranges = tuple(zip(group["state"], group["start"].fillna(-1), group["stop"].fillna(-1), strict=True))
        folded.setdefault((group["group"].iloc[0], ranges), []).append(group)
    out = []
    for (label, _), groups in folded.items():
        first = groups[0]
        gids = [int(group["gid"].iloc[0]) for group in groups]
        kind, _, size = str(label).partition(" · ")
        name = f"{len(gids)} {kind} groups" if len(gids) > 1 else f"{kind} group"
        wanted = [block_range(row.start, row.stop) for row in first.itertuples() if row.state == "needed"]
        for row in first.itertuples():
            empty = pd.isna(row.start)
            span = "" if empty else block_range(row.start, row.stop)
            item = {"row": f"{name} · {size}", "state": row.state, "range": span, "wanted": ", ".join(wanted)}
            item["start_token"] = 0 if empty else int(row.start_token)
            item["stop_token"] = 0 if empty else int(row.stop_token)
            out.append({**item, "label": f"{row.state} {span}"})
    return out


def _zoom(drawn: pd.DataFrame) -> tuple[int, int]:
    """The token range where hits are decided: from the first needed or missing block that isn't a whole prefix."""
    high = int(max(drawn["stop_token"].max(), drawn["prompt_tokens"].max()))
    wanted = drawn[drawn["state"].isin(["needed", "missing"]) & (drawn["start"] > 0)]
    kept = drawn[(drawn["state"] == "stored") & (drawn["start"] > 0)]
    starts = [int(part["start_token"].min()) for part in (wanted, kept) if len(part)]
    if not starts:
        return 0, high
    pad = max(int((high - min(starts)) * 0.12), 1)
    return max(min(starts) - pad, 0), high + pad // 3


def block_range(start: Any, stop: Any) -> str:
    """Blocks as people read them, both ends included: ``328–391``."""
    return f"{start:,}–{stop - 1:,}" if stop - start > 1 else f"{start:,}"
