"""The blocks of one lookup, drawn with characters: a row per kind of group, its tokens from left to right."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prefixscope.diagnosis import groups_text
from prefixscope.trace import GroupView, Lookup, Ranges, intersect, ranges_text, subtract

STORED, BACKING, MISSING, EVICTED, NOTHING, UNKNOWN = "░", "█", "×", "○", "·", "?"
KEY = f"{BACKING} stored and needed  {STORED} stored, not needed  {MISSING} needed, missing  {NOTHING} neither"
_RANGES, _SEEN, _AROUND_BLOCKS = 4, 50, 16


def ruler(lookup: Lookup, *, width: int = 100, limit: int = 8) -> list[str]:
    """Lines no longer than ``width`` characters; past ``limit`` rows the rest is counted.

    Groups that hold and lack the same blocks share a row; those that end the hit come first, marked. A character
    stands for several blocks where there are more blocks than characters: one missing block is enough to show.
    """
    rows = fold(lookup)
    low, high = part(lookup)
    cells = max(min(width, 120) - 2, 10)
    left, right = f"{low:,}", f"{high:,} tokens"
    lines = [f"  {left}{right:>{max(cells - len(left), len(right) + 1)}}"]
    for views in rows[:limit]:
        view = views[0]
        names = groups_text(lookup, [one.group.gid for one in views])
        lines.append(("▸ " if view.limiting else "  ") + names + (", ending the hit" if view.limiting else ""))
        lines.append("  " + _bar(view, low, high, cells))
        lines += [f"  {text}" for text in _numbers(view)]
    if len(rows) > limit:
        rest = rows[limit:]
        lacking = sum(bool(views[0].missing) for views in rest)
        more = f"  and {len(rest):,} more kinds of rows ({sum(map(len, rest)):,} groups)"
        lines.append(f"{more}, {lacking:,} of them with missing blocks" if lacking else f"{more} that lack no block")
    more = f"  {EVICTED} evicted since" if any(view.evicted for view in lookup.groups) else ""
    more += f"  {UNKNOWN} not scanned" if any(map(_in_part, lookup.groups)) else ""
    return [*lines, f"  {KEY}{more}"]


def fold(lookup: Lookup) -> list[list[GroupView]]:
    """The groups of a lookup, those that look alike together: first what ends the hit, then what lacks a block."""
    rows: dict[tuple[object, ...], list[GroupView]] = {}
    for view in lookup.groups:
        group = view.group
        kind = (group.kind, group.block_size, group.window, group.drafter)
        seen = (view.cached, view.needed, view.missing, view.evicted, view.known, view.scanned, view.limiting)
        rows.setdefault((kind, seen), []).append(view)
    return sorted(rows.values(), key=lambda views: (not views[0].limiting, not views[0].missing))


def part(lookup: Lookup) -> tuple[int, int]:
    """The tokens between which the hit is decided: from a little before the first block that is needed or stored
    without the prefix that leads there, to the prompt's end; closer where what is needed would be too small to see."""
    high, starts = lookup.tokens, []
    wanted: list[tuple[int, int]] = []
    for view in lookup.groups:
        size = view.group.block_size
        asked = [*view.missing, *([view.needed] if view.needed else [])]
        high = max([high, *(stop * size for _, stop in (*view.cached, *asked))])
        starts += [start * size for start, _ in (*view.cached, *asked) if start > 0]
        wanted += [(start * size, stop * size) for start, stop in asked if start > 0]
    if not starts:
        return 0, high
    first = min(starts)
    low = max(first - max((high - first) // 8, 1), 0)
    if not wanted or min(stop - start for start, stop in wanted) * _SEEN >= high - low:
        return low, high
    first, last = min(start for start, _ in wanted), max(stop for _, stop in wanted)
    pad = max((last - first) // 4, _AROUND_BLOCKS * max(view.group.block_size for view in lookup.groups))
    return max(first - pad, low), min(last + pad, high)


def _bar(view: GroupView, low: int, high: int, cells: int) -> str:
    known = view.known and view.scanned is None
    bar = [NOTHING if known else UNKNOWN] * cells
    if view.known and view.scanned is not None:
        _paint(bar, [view.scanned], NOTHING, view, low, high)
    _paint(bar, view.cached, STORED, view, low, high)
    if view.needed is not None:
        _paint(bar, intersect(view.cached, [view.needed]), BACKING, view, low, high)
    _paint(bar, view.evicted, EVICTED, view, low, high)
    _paint(bar, subtract(view.missing, view.evicted), MISSING, view, low, high)
    return "".join(bar)


def _paint(bar: list[str], ranges: Iterable[Sequence[int]], mark: str, view: GroupView, low: int, high: int) -> None:
    size, per_token = view.group.block_size, len(bar) / max(high - low, 1)
    for start, stop in ranges:
        if stop * size <= low or start * size >= high:
            continue
        first = max(int((start * size - low) * per_token), 0)
        last = min(max(int((stop * size - low) * per_token), first + 1), len(bar))
        bar[first:last] = mark * max(last - first, 0)


def _numbers(view: GroupView) -> list[str]:
    needed = "not asked" if view.needed is None else f"needed {ranges_text([view.needed])}"
    if not view.known:
        return [f"{needed} · not scanned"]
    parts = [needed, f"stored {_some(view.cached)}"]
    if view.missing:
        parts.append(f"missing {_some(view.missing)}")
    if view.evicted:
        parts.append(f"evicted since {_some(view.evicted)}")
    if view.scanned is not None:
        parts.append(f"scanned {ranges_text([view.scanned])} only")
    return [" · ".join(parts)]


def _some(ranges: Ranges) -> str:
    return ranges_text(ranges, limit=_RANGES)


def _in_part(view: GroupView) -> bool:
    return not view.known or view.scanned is not None
