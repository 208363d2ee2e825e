"""Paired comparisons with few pairs: an effect with its interval, the exact test of two outcomes, many tests at once.

Everything here is textbook: Student's t on paired differences, McNemar's test as an exact binomial one, Holm's
step-down.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_T975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""Student's t at 97.5 % for 1 to 10 degrees of freedom; beyond, its expansion around the normal one is exact enough."""

Z975 = 1.959964
LEVEL = 0.05


@dataclass(frozen=True, slots=True)
class Effect:
    """An estimate with its 95 % interval; ``low`` and ``high`` are None where fewer than two pairs leave none."""

    value: float
    low: float | None
    high: float | None
    pairs: int

    @property
    def sure(self) -> bool:
        """Whether there is an interval at all."""
        return self.low is not None and self.high is not None


def t975(freedom: int) -> float:
    """Student's t at 97.5 %."""
    if freedom <= len(_T975):
        return _T975[max(freedom, 1) - 1]
    z, n = Z975, freedom
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
    return z + (z**3 + z) / (4 * n) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2) + third


def two_sided(t: float, freedom: int) -> float:
    """The two-sided p of Student's t, by its finite series (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    angle, odd = math.atan2(abs(t), math.sqrt(freedom)), freedom % 2
    total, term, square = 0.0, math.cos(angle) if odd else 1.0, math.cos(angle) ** 2
    for k in range(freedom // 2):
        total += term
        term *= square * ((2 * k + 2) / (2 * k + 3) if odd else (2 * k + 1) / (2 * k + 2))
    area = 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total
    return min(max(1 - area, 0.0), 1.0)


def needed(scatter: float, bound: float, most: int = 10_000) -> int | None:
    """The fewest pairs whose 95 % interval reaches no further than ``bound`` to either side; None where even the most
    would not do."""
    found = (n for n in range(2, most + 1) if t975(n - 1) * scatter / math.sqrt(n) <= bound)
    return next(found, None)


def shown(scatter: float, value: float, level: float, most: int = 10_000) -> int | None:
    """The fewest pairs at which a mean of ``value`` has a two-sided p below ``level``; None where the most have not."""
    pairs = range(2, most + 1)
    place = bisect_left(pairs, True, key=lambda n: two_sided(value / scatter * math.sqrt(n), n - 1) < level)
    return pairs[place] if place < len(pairs) else None


def mean(differences: Sequence[float]) -> Effect | None:
    """The mean of paired differences; None of no pairs."""
    n = len(differences)
    if not n:
        return None
    value = sum(differences) / n
    if n < 2:
        return Effect(value, None, None, n)
    spread = math.sqrt(sum((one - value) ** 2 for one in differences) / (n - 1) / n)
    half = t975(n - 1) * spread
    return Effect(value, value - half, value + half, n)


def ratio(pairs: Iterable[tuple[float, float]]) -> Effect | None:
    """How many times the first of each pair is the second: the geometric mean, and its interval on the log scale.

    Pairs with a value that is not positive are left out; None where none is left.
    """
    logs = [math.log(a / b) for a, b in pairs if a > 0 and b > 0]
    found = mean(logs)
    if found is None:
        return None
    low, high = (None if edge is None else math.exp(edge) for edge in (found.low, found.high))
    return Effect(math.exp(found.value), low, high, found.pairs)


def mcnemar(only_a: int, only_b: int) -> float:
    """The two-sided p of so many pairs that passed only in A and only in B: exact, a fair coin for each such pair."""
    total, fewer = only_a + only_b, min(only_a, only_b)
    tail: float = sum(math.comb(total, k) for k in range(fewer + 1)) / 2**total
    return min(1.0, 2 * tail)


def holm(values: Sequence[float]) -> list[float]:
    """Each p as it stands among the others: below 0.05 after this, one keeps a 5 % risk over all of them together."""
    order = sorted(range(len(values)), key=values.__getitem__)
    adjusted, worst = [0.0] * len(values), 0.0
    for rank, place in enumerate(order):
        worst = max(worst, min(1.0, (len(values) - rank) * values[place]))
        adjusted[place] = worst
    return adjusted


LEAST_ONE_SIDED = next(n for n in range(1, 20) if mcnemar(n, 0) < LEVEL)
"""So many pairs that differ, all in one direction, are the fewest that the exact test takes for more than chance: 6."""
