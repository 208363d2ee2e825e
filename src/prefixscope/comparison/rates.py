"""Numbers that vary from one request to the next: on paired prompts, is a difference a change, or noise?

Runs are not interleaved, so a pair takes out what is particular to a prompt and nothing else: an interval knows the
scatter between requests, and not a machine that was busier on one day.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import pandas as pd

from prefixscope import paired
from prefixscope.comparison.hits import Cell, Change
from prefixscope.comparison.side import Side
from prefixscope.paired import Effect

MATERIAL = 1.25
"""A ratio that an interval must leave out before "within noise" is said: a quarter."""
POINTS = 0.05
"""The same for shares: 5 percentage points."""
COLD, WARM, FOLLOWS = "first token, cold", "first token, same hit", "first token, other hit"
_UNMOVED = ("same", "not reported", "doubtful")
"""Of a hit: no change of it is known."""


_STREAMED = (
    ("tokens_per_s", "tokens a second", "tokens/s"), ("acceptance", "acceptance", "share"),
    ("tokens_per_step", "tokens per step", "tokens"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Spread:
    """One side's values: the median, the range, and of how many requests."""

    median: float
    low: float
    high: float
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """One quantity on two sides.

    ``of`` is a server, and a shape where ``by_shape``. ``effect`` is how many times the base's value the other's is (of
    ``unit`` share: the difference), over paired prompts. ``code`` is change · noise · same (equal in every pair) ·
    can't tell · follows (a time whose hit changed is no noise and no news). ``p`` counts in every quantity that was
    looked at with it; ``needed`` is the number of pairs that would tell, where one is known.
    """

    what: str
    of: str
    unit: str
    base: Spread
    other: Spread
    effect: Effect | None
    by_shape: bool = False
    code: str = "can't tell"
    p: float | None = None
    needed: int | None = None

    @property
    def name(self) -> str:
        """What it is, and of which server or shape."""
        return f"{self.what}, {self.of}" if self.of else self.what


@dataclass(frozen=True, slots=True)
class _Pairs:
    what: str
    of: str
    unit: str
    values: Sequence[tuple[tuple[float, ...], tuple[float, ...]]]
    by_shape: bool = False


def rates(base: Side, other: Side, found: Sequence[Change]) -> tuple[Rate, ...]:
    """Every quantity of which both sides have values for the same prompts."""
    made = [_rate(one) for one in (*_first_tokens(found), *_streamed(base, other)) if one.values]
    return tuple(_corrected(made))


def _first_tokens(found: Sequence[Change]) -> Iterable[_Pairs]:
    groups: dict[str, list[tuple[tuple[float, ...], tuple[float, ...]]]] = {COLD: [], WARM: [], FOLLOWS: []}
    for one in found:
        if one.base.times_ms and one.other.times_ms and _asked(one.cell) and one.code != "another prompt":
            what = COLD if one.cell.send == "cold" else WARM if one.code in _UNMOVED else FOLLOWS
            groups[what].append((one.base.times_ms, one.other.times_ms))
    return (_Pairs(what, "", "ms", values) for what, values in groups.items())


def _asked(cell: Cell) -> bool:
    return cell.send in ("cold", "repeat") and cell.index <= 3


def _streamed(base: Side, other: Side) -> Iterable[_Pairs]:
    tables = [streamed_of(base.generations), streamed_of(other.generations)]
    common = [key for key in tables[0] if key in tables[1]]
    for column, what, unit in _STREAMED:
        groups: dict[tuple[bool, str], list[tuple[tuple[float, ...], tuple[float, ...]]]] = {}
        for key in common:
            values = [tuple(float(row[column]) for row in table[key] if not pd.isna(row[column])) for table in tables]
            if values[0] and values[1]:
                for place in ((False, key[0]), (True, f"{key[0]}, {key[1]}")):
                    groups.setdefault(place, []).append((values[0], values[1]))
        for by_shape, of in sorted(groups, key=lambda place: place[0]):
            yield _Pairs(what, of, unit, groups[by_shape, of], by_shape)


def streamed_of(table: pd.DataFrame) -> dict[tuple[str, str, str, str], list[dict[str, Any]]]:
    """Streamed answers by server label, shape, prompt and its text."""
    found: dict[tuple[str, str, str, str], list[dict[str, Any]]] = {}
    for row in table[table["status"] == "ok"].to_dict("records"):
        key = (str(row["label"]), str(row["shape"]), str(row["item"]), str(row["digest"]))
        found.setdefault(key, []).append(row)
    return found


def _rate(pairs: _Pairs) -> Rate:
    sides = [[value for pair in pairs.values for value in pair[place]] for place in (0, 1)]
    spreads = [Spread(median(values), min(values), max(values), len(values)) for values in sides]
    means = [tuple(sum(part) / len(part) for part in pair) for pair in pairs.values]
    share = pairs.unit == "share"
    effect = paired.mean([b - a for a, b in means]) if share else paired.ratio((b, a) for a, b in means)
    found = Rate(what=pairs.what, of=pairs.of, unit=pairs.unit, base=spreads[0], other=spreads[1], effect=effect,
                 by_shape=pairs.by_shape)  # fmt: skip
    if pairs.what == FOLLOWS:
        return replace(found, code="follows")
    if all(a == b for a, b in means) and len(means) > 1:
        return replace(found, code="same")
    return found


def _corrected(found: Sequence[Rate]) -> list[Rate]:
    """Each with its code. What is asked by shape is one question of many: its p counts all of them in."""
    told: dict[int, Rate] = {}
    for shapes in (False, True):
        asked = [one for one in found if one.code == "can't tell" and one.effect is not None and one.effect.sure]
        asked = [one for one in asked if one.by_shape == shapes]
        chances = paired.holm([_chance(one) for one in asked])
        told |= {id(one): _told(one, chance) for one, chance in zip(asked, chances, strict=True)}
    return [told.get(id(one), one) for one in found]


def _told(one: Rate, chance: float) -> Rate:
    value, half, pairs = _scale(one)
    bound = POINTS if one.unit == "share" else math.log(MATERIAL)
    if chance < paired.LEVEL:
        return replace(one, code="change", p=chance)
    if abs(value) + half <= bound:
        return replace(one, code="noise", p=chance)
    scatter = half / paired.t975(pairs - 1) * math.sqrt(pairs)
    if half > bound:
        return replace(one, p=chance, needed=paired.needed(scatter, bound))
    # Narrow enough, but away from none: so many would tell if it stayed where it is, one way or the other.
    many = chance / alone if (alone := _chance(one)) else 1.0
    shown = paired.shown(scatter, abs(value), paired.LEVEL / max(many, 1.0))
    told = [n for n in (shown, paired.needed(scatter, bound - abs(value))) if n is not None]
    return replace(one, p=chance, needed=min(told, default=None))


def _chance(one: Rate) -> float:
    value, half, pairs = _scale(one)
    if not half:
        return 0.0 if value else 1.0
    return paired.two_sided(value / half * paired.t975(pairs - 1), pairs - 1)


def _scale(one: Rate) -> tuple[float, float, int]:
    """The effect on the scale that its interval is symmetric on, half that interval, and the pairs behind it."""
    found = one.effect
    if found is None or found.high is None:
        return 0.0, math.inf, 0
    if one.unit == "share":
        return found.value, found.high - found.value, found.pairs
    return math.log(found.value), math.log(found.high) - math.log(found.value), found.pairs
