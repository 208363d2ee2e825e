"""Half-open block ranges: how block lists are kept small."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Ranges = list[list[int]]


def from_flags(flags: Iterable[object], start: int = 0) -> Ranges:
    """The ranges of positions whose flag is true, counted from ``start``."""
    found: Ranges = []
    open_at = -1
    position = start
    for flag in flags:
        if flag:
            if open_at < 0:
                open_at = position
        elif open_at >= 0:
            found.append([open_at, position])
            open_at = -1
        position += 1
    if open_at >= 0:
        found.append([open_at, position])
    return found


def union(left: Sequence[Sequence[int]], right: Sequence[Sequence[int]]) -> Ranges:
    """Both sets of ranges as one, sorted and merged."""
    merged: Ranges = []
    for start, stop in sorted([*left, *right], key=lambda item: (item[0], item[1])):
        if stop <= start:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], stop)
        else:
            merged.append([start, stop])
    return merged
