"""Half-open block ranges: how block lists are kept small."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Ranges = list[list[int]]


def from_flags(flags: Iterable[bool] | bytes, start: int = 0) -> Ranges:
    """The ranges of positions whose flag is true (1 in bytes), counted from ``start``."""
    raw = flags if isinstance(flags, bytes) else bytes(flags)
    found: Ranges = []
    position = raw.find(1)
    while position >= 0:
        end = raw.find(0, position)
        end = len(raw) if end < 0 else end
        found.append([start + position, start + end])
        position = raw.find(1, end)
    return found


def from_indices(indexes: Iterable[int]) -> Ranges:
    """Ascending positions as ranges; a repeated one counts once."""
    found: Ranges = []
    for index in indexes:
        if found and index <= found[-1][1]:
            found[-1][1] = max(found[-1][1], index + 1)
        else:
            found.append([index, index + 1])
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
