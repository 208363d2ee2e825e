"""What a figure of blocks is drawn from: a lane per kind of group, spans that a pixel can part, labels with room."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt
import pandas as pd

from prefixscope.charts.encoding import WIDTH

MOST_LANES = 8
CHARACTER_PX, _THINNEST_PX, _GAP_PX, _SEEN_PX = 6.2, 2.5, 1.5, 12.0
_ASIDE_PX = 5.0
_AROUND_BLOCKS, _COUNT_CHARACTERS = 16, 7
_KINDS = {"sliding": "sliding-window", "full": "full-attention", "mamba": "Mamba"}
_EMPTY = {"nothing": "nothing stored", "unknown": "not scanned"}

Ranges = list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Lane:
    """Groups of one kind with equal ranges: ``ranges`` by state, in blocks of ``size`` tokens; ``empty`` in words."""

    name: str
    gids: tuple[int, ...]
    size: int
    ranges: dict[str, Ranges]
    empty: str
    limiting: bool


@dataclass(frozen=True, slots=True)
class Window:
    """The tokens that a figure shows."""

    low: int
    high: int

    def px(self, token: float) -> float:
        """How far right a token is."""
        return (token - self.low) / max(self.high - self.low, 1) * WIDTH

    def tokens(self, px: float) -> float:
        """How many tokens so many px are."""
        return px * max(self.high - self.low, 1) / WIDTH


def lanes(part: pd.DataFrame) -> tuple[list[Lane], list[Lane]]:
    """The lanes of one lookup or request, and those beyond the most that a page shows.

    What ends a hit comes first where there are too many, then what lacks a block.
    """
    folded: dict[tuple[Any, ...], list[int]] = {}
    for gid, group in part.groupby("gid", sort=True):
        first = group.iloc[0]
        known = group[group["start"].notna()]
        spans = tuple(zip(known["state"], known["start"].astype(int), known["stop"].astype(int), strict=True))
        states = [state for state in group["state"] if state in _EMPTY]
        empty = _EMPTY[states[0]] if states else ""
        limiting = bool(first.get("limiting", False))
        folded.setdefault((str(first["group"]), int(first["block_size"]), spans, empty, limiting), []).append(int(gid))
    found = []
    for (label, size, spans, empty, limiting), gids in folded.items():
        kind, _, rest = label.partition(" · ")
        kind = _KINDS.get(kind, kind)
        name = f"{len(gids)} {kind} groups · {rest}" if len(gids) > 1 else f"{kind} group · {rest}"
        ranges: dict[str, Ranges] = {}
        for state, start, stop in spans:
            ranges.setdefault(state, []).append((start, stop))
        found.append(Lane(name, tuple(gids), size, ranges, empty, limiting))
    if len(found) > MOST_LANES:
        found.sort(key=lambda lane: (not lane.limiting, not {"missing", "evicted"} & lane.ranges.keys()))
    return _named(found[:MOST_LANES]), found[MOST_LANES:]


def _named(found: list[Lane]) -> list[Lane]:
    """The lanes under names of their own: two of a kind are told apart by their groups' numbers."""
    names = [lane.name for lane in found]
    out = []
    for lane in found:
        name = lane.name
        if names.count(name) > 1:
            who, _, rest = name.partition(" · ")
            more = " …" if len(lane.gids) > 3 else ""
            name = f"{who} ({', '.join(map(str, lane.gids[:3]))}{more}) · {rest}"
        out.append(Lane(name, lane.gids, lane.size, lane.ranges, lane.empty, lane.limiting))
    return out


def spans(lane: Lane, state: str, window: Window) -> list[dict[str, Any]]:
    """The ranges of one state as they are drawn: cut to the window, none thinner than a line, each with its words.

    Ranges with less than a line between them become one, ``mixed``, that says how many of its blocks are meant.
    """
    merged: list[list[int]] = []
    for start, stop in lane.ranges.get(state, []):
        if stop * lane.size <= window.low or start * lane.size >= window.high:
            continue
        gap = (start - merged[-1][1]) * lane.size if merged else 0
        if merged and gap < window.tokens(_GAP_PX):
            merged[-1][1:] = [stop, merged[-1][2] + stop - start, merged[-1][3] + 1]
        else:
            merged.append([start, stop, stop - start, 1])
    out = []
    for start, stop, blocks, ranges in merged:
        left, right = float(max(start * lane.size, window.low)), float(min(stop * lane.size, window.high))
        thin = window.tokens(_THINNEST_PX) - (right - left)
        if thin > 0:
            left, right = max(left - thin / 2, window.low), min(right + thin / 2, window.high)
        words = f"{state} {block_range(start, stop)}"
        if ranges > 1:
            words = f"{state} {blocks:,} of blocks {block_range(start, stop)}"
        out.append({"row": lane.name, "state": state, "mixed": ranges > 1, "from": left, "to": right, "label": words})
    return out


def place(
    wanted: Iterable[tuple[dict[str, Any], bool]],
    window: Window,
    *,
    most: int = 3,
    counted: bool = True,
    lines: Sequence[int] = (),
) -> None:
    """Keep the labels of one line that have room: the first asked come first; what is left out can be counted.

    ``wanted`` is (span, at its right end?). A label that would leave the figure is turned to the span's other end;
    ``side`` says where it went, ``at`` to which token: aside of ``lines`` that would go through it.
    """
    wanted = list(wanted)
    taken: list[tuple[float, float]] = []
    left_out: dict[str, int] = {}
    last: dict[str, dict[str, Any]] = {}
    # Where some are sure to be left out, each may become the one that counts them, and needs room for it.
    room = _COUNT_CHARACTERS if counted and len(wanted) > most else 0
    for span, right in wanted:
        width = (len(span["label"]) + room) * CHARACTER_PX
        if right and window.px(span["to"]) < width:
            right = False
        if not right and window.px(span["from"]) + width > WIDTH:
            right = True
        span["at"] = _aside(span["to"] if right else span["from"], width, window, lines, right=right)
        x = window.px(span["at"]) - (width if right else 0)
        fits = all(x + width + 8 <= a or b + 8 <= x for a, b in taken)
        if fits and len(taken) < most:
            taken.append((x, x + width))
            span["side"] = "right" if right else "left"
            last[span["state"]] = span
        else:
            span["label"], span["side"] = "", ""
            left_out[span["state"]] = left_out.get(span["state"], 0) + 1
    for state, number in left_out.items():
        if counted and state in last:
            last[state]["label"] += f", +{number:,}"


def _aside(at: float, width: float, window: Window, lines: Sequence[int], *, right: bool) -> float:
    """Where a label of so many px stands that no line goes through it; where it was if it would leave the figure."""
    moved, way = at, -1 if right else 1
    for token in sorted(lines, reverse=right):
        if 0 <= (token - moved) * way < window.tokens(width + _ASIDE_PX):
            moved = token + way * window.tokens(_ASIDE_PX)
    end = window.px(moved) + way * width
    return moved if 0 <= end <= WIDTH else at


def part_shown(frame: pd.DataFrame, states: Sequence[str]) -> Window:
    """The tokens where things are decided: from a little before the first range that isn't a whole prefix.

    Where what is needed or missing would be too small to see there, the figure goes closer to it.
    """
    high = int(max(frame["stop_token"].max(), frame["prompt_tokens"].max()))
    chosen = frame[frame["state"].isin(states) & (frame["start"] > 0)]
    if not len(chosen):
        return Window(0, high)
    first = int(chosen["start_token"].min())
    pad = max(int((high - first) * 0.12), 1)
    whole = Window(max(first - pad, 0), high + pad // 3)
    wanted = chosen[chosen["state"].isin(["needed", "missing"])]
    if not len(wanted) or (wanted["stop_token"] - wanted["start_token"]).min() >= whole.tokens(_SEEN_PX):
        return whole
    first, last = int(wanted["start_token"].min()), int(wanted["stop_token"].max())
    pad = max((last - first) // 4, _AROUND_BLOCKS * int(wanted["block_size"].max()))
    return Window(max(first - pad, whole.low), min(last + pad, whole.high))


def heading(text: str, **look: Any) -> Any:
    """A panel's title, in lines that fit."""
    return alt.TitleParams(text=textwrap.wrap(text, 80), fontSize=12, **look)


def beyond(rest: Sequence[Lane]) -> str:
    """What a panel says of the lanes that it does not draw; empty where it draws all."""
    if not rest:
        return ""
    lacking = sum(bool({"missing", "evicted"} & lane.ranges.keys()) for lane in rest)
    groups = sum(len(lane.gids) for lane in rest)
    return f"; {groups:,} more groups not drawn" + (f", {lacking:,} with missing blocks" if lacking else "")


def block_range(start: Any, stop: Any) -> str:
    """Blocks as people read them, both ends included: ``328–391``."""
    return f"{start:,}–{stop - 1:,}" if stop - start > 1 else f"{start:,}"


def blocks_named(start: Any, stop: Any) -> str:
    """The same after its noun: ``blocks 328–391``, ``block 44``."""
    return f"block{'s' if stop - start > 1 else ''} {block_range(start, stop)}"
