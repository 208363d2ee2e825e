"""Answers that both sides have and that could not be paired, with why; and those that only one side has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from prefixscope.comparison.answers import told
from prefixscope.comparison.rates import streamed_of
from prefixscope.comparison.side import Side
from prefixscope.quantities import number

STREAMED, COMPARED = "streamed answers", "compared answers"
_Table = Mapping[str, Mapping[Any, tuple[str, int]]]
"""Configuration → what is paired by → how many tokens its prompt has, and how many answers there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpaired:
    """Answers of one configuration: ``have`` are the sides that gave some, ``why`` what kept those of two apart."""

    what: str
    config: str
    have: tuple[str, ...]
    without: tuple[str, ...]
    many: int
    why: str = ""


def unpaired(base: Side, other: Side) -> tuple[Unpaired, ...]:
    """What was streamed and what was compared, by configuration, of which not one answer has its like."""
    kinds: tuple[tuple[str, Callable[[Side], _Table]], ...] = (
        (STREAMED, _streamed),
        (COMPARED, _compared),
    )
    return tuple(one for what, read in kinds for one in _apart(what, base, other, read))


def _apart(what: str, base: Side, other: Side, read: Callable[[Side], _Table]) -> Iterable[Unpaired]:
    tables = [read(base), read(other)]
    letters = (base.letter, other.letter)
    for config in dict.fromkeys((*tables[0], *tables[1])):
        found = [table.get(config, {}) for table in tables]
        if found[0].keys() & found[1].keys():
            continue
        have = tuple(letter for letter, keys in zip(letters, found, strict=True) if keys)
        yield Unpaired(
            what=what,
            config=config,
            have=have,
            without=tuple(letter for letter in letters if letter not in have),
            many=sum(many for keys in found for _, many in keys.values()),
            why=_why(letters, found) if len(have) > 1 else "",
        )


def _why(letters: tuple[str, str], found: list[Mapping[Any, tuple[str, int]]]) -> str:
    lengths = [sorted({int(tokens) for tokens, _ in keys.values() if tokens.isdigit()}) for keys in found]
    if lengths[0] == lengths[1] or not all(lengths):
        return "their prompts are not the same"
    first, second = (" or ".join(map(number, many)) for many in lengths)
    return f"prompts of {first} tokens on {letters[0]}, of {second} on {letters[1]}"


def _streamed(side: Side) -> _Table:
    found: dict[str, dict[Any, tuple[str, int]]] = {}
    for key, rows in streamed_of(side.generations).items():
        found.setdefault(key[0], {})[key] = (str(rows[0]["prompt_tokens"]), len(rows))
    return found


def _compared(side: Side) -> _Table:
    found: dict[str, dict[Any, tuple[str, int]]] = {}
    for key, _ in told(side):
        known = found.setdefault(key[0], {})
        known[key] = (key[4], known.get(key, ("", 0))[1] + 1)
    return found
