"""Arithmetic of half-open block ranges, and how people read them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Range = tuple[int, int]
Ranges = tuple[Range, ...]


def count(ranges: Iterable[Sequence[int]]) -> int:
    """Blocks in the ranges."""
    return sum(stop - start for start, stop in ranges)


def subtract(whole: Iterable[Sequence[int]], parts: Iterable[Sequence[int]]) -> Ranges:
    """What of ``whole`` is in none of ``parts``."""
    left = [(start, stop) for start, stop in whole if start < stop]
    for cut_start, cut_stop in parts:
        rest: list[Range] = []
        for start, stop in left:
            if cut_stop <= start or stop <= cut_start:
                rest.append((start, stop))
                continue
            if start < cut_start:
                rest.append((start, cut_start))
            if cut_stop < stop:
                rest.append((cut_stop, stop))
        left = rest
    return tuple(left)


def intersect(one: Iterable[Sequence[int]], other: Iterable[Sequence[int]]) -> Ranges:
    """What is in both."""
    others = tuple(other)
    found = [(max(a, c), min(b, d)) for a, b in one for c, d in others if max(a, c) < min(b, d)]
    return tuple(sorted(found))


def union(one: Iterable[Sequence[int]], other: Iterable[Sequence[int]]) -> Ranges:
    """What is in either, merged and in order."""
    merged: list[Range] = []
    for start, stop in sorted((start, stop) for start, stop in (*one, *other) if start < stop):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], stop))
        else:
            merged.append((start, stop))
    return tuple(merged)


def ranges_text(ranges: Iterable[Sequence[int]], *, inclusive: bool = True, limit: int | None = None) -> str:
    """``328–391`` in prose, or ``[328, 392)``; ``none`` where there is no block; past ``limit`` ranges a count."""
    parts = []
    found = tuple(ranges)
    for start, stop in found[:limit]:
        if not inclusive:
            parts.append(f"[{start}, {stop})")
        elif stop - start == 1:
            parts.append(f"{start}")
        else:
            parts.append(f"{start}–{stop - 1}")
    more = len(found) - len(parts)
    return ", ".join(parts) + (f" and {more:,} more" if more else "") if parts else "none"
