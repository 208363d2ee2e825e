"""Numbers in a sentence: with separators, with their noun, with the interval that a share is known to."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd


def number(value: Any) -> str:
    """``6,336``; an em dash where there is no value."""
    if value is None or pd.isna(value):
        return "—"
    return f"{value:,.0f}" if float(value).is_integer() or abs(float(value)) >= 100 else f"{float(value):,.1f}"


def span(values: pd.Series[Any]) -> str:
    """``6,336``, or ``0–6,336`` of values that differ."""
    low, high = number(values.min()), number(values.max())
    return low if low == high else f"{low}–{high}"


def count(value: int, noun: str) -> str:
    """``1 request``, ``2 requests``."""
    return f"{value:,} {noun}{'' if value == 1 else 's'}"


def wilson(successes: int, total: int, z: float = 1.96) -> tuple[float, float]:
    """The 95 % score interval of a share: 19 of 20 is 0.76 to 0.99, and 20 of 20 is not certainty."""
    if not total:
        return 0.0, 1.0
    share, weight = successes / total, z * z / total
    half = z * math.sqrt(share * (1 - share) / total + weight / (4 * total))
    low, high = ((share + weight / 2 + sign * half) / (1 + weight) for sign in (-1, 1))
    return max(low, 0.0), min(high, 1.0)


def listing(names: Sequence[str]) -> str:
    """``MTP, no MTP and MTP + LoRA``; ``MTP; and MTP, interval 2,048`` where a name has a comma of its own."""
    mark = ";" if any(", " in name for name in names) else ""
    return names[0] if len(names) == 1 else f"{mark or ','} ".join(names[:-1]) + f"{mark} and {names[-1]}"
