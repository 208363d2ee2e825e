"""Two texts that should be the same: where they part, in words for a terminal."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from prefixscope.digests import lines_of

SHOWN, CONTEXT = 100, 30
"""Characters of a text that a message shows, and how many of them stand before the one that differs."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One place of the page: what it shows there, and what its own data give; None where it has no such place."""

    place: str
    shown: str | None
    recomputed: str | None

    def __str__(self) -> str:
        shown, recomputed = both(self.shown, self.recomputed)
        return f"{printable(self.place)}: shown {shown}, recomputed {recomputed}"


def both(left: str | None, right: str | None) -> tuple[str, str]:
    """Two texts around the first character at which they differ; ``nothing`` where there is none."""
    start = _first_apart(left or "", right or "")
    left, right = ("nothing" if one is None else around(one, start) for one in (left, right))
    return left, right


def in_file(name: str, shown: str | None, recomputed: str | None) -> Difference:
    """The first place of an embedded file that differs: in JSON a field, of a row where it has rows; else a line."""
    if shown is None or recomputed is None:
        return Difference(name, shown and "embedded", recomputed and "embedded")
    rows = name.endswith(".jsonl")
    if not rows and (found := _first_field(name, shown, recomputed)):
        return found
    theirs, ours = lines_of(shown), lines_of(recomputed)
    for number, (left, right) in enumerate(zip(theirs, ours, strict=False), 1):
        if left != right:
            place = f"{name}, {'row' if rows else 'line'} {number:,}"
            return _first_field(place, left, right) or Difference(place, left, right)
    return Difference(name, f"{len(theirs):,} lines", f"{len(ours):,} lines")


def _first_field(place: str, shown: str, recomputed: str) -> Difference | None:
    """The first field that differs between two JSON texts; None where either is none, or they say the same."""
    left, right = parsed(shown), parsed(recomputed)
    if MISSING in (left, right) or left == right:
        return None
    path, left, right = field_apart(left, right)
    told = (None if one is MISSING else json.dumps(one, ensure_ascii=False) for one in (left, right))
    return Difference(f"{place}, {path}" if path else place, *told)


def field_apart(left: Any, right: Any) -> tuple[str, Any, Any]:
    """The first field that differs between two JSON values, and both values of it; ``MISSING`` where one has none."""
    path = ""
    while True:
        if isinstance(left, dict) and isinstance(right, dict):
            steps: list[Any] = [*left, *right]
            got = [dict.get(one, step, MISSING) for step in steps for one in (left, right)]
        elif isinstance(left, list) and isinstance(right, list):
            steps = [*range(max(len(left), len(right)))]
            got = [one[step] if step < len(one) else MISSING for step in steps for one in (left, right)]
        else:
            return path, left, right
        step, left, right = next((step, a, b) for step, a, b in zip(steps, got[::2], got[1::2], strict=True) if a != b)
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else step


MISSING = object()


def parsed(text: str) -> Any:
    """The JSON value of a text; ``MISSING`` where it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return MISSING


def _first_apart(left: str, right: str) -> int:
    """The first character at which two texts differ."""
    return next((at for at, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))


def around(text: str, at: int = 0) -> str:
    """The text around one character, for a terminal: what an edited page says there is nobody's command."""
    start = 0 if len(text) <= SHOWN or at <= SHOWN - CONTEXT else at - CONTEXT
    part = printable(text[start : start + SHOWN])
    return ("…" if start else "") + part + ("…" if start + SHOWN < len(text) else "")


def printable(text: str) -> str:
    """The text without characters that a terminal would obey."""
    return "".join(one if one.isprintable() else "�" for one in text)
