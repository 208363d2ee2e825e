"""Which sends count: a series that was cut short and sent again has rows of both, and only one of them is whole.

A series can't go on in its middle: the cache that its earlier sends filled is gone with their salt and their server. So
it is sent again from its start. The rows of the cut one stay in their file, and no frame has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prefixscope.frames.rows import Rows, of_kind
from prefixscope.quantities import count
from prefixscope.series import REPEATS

_SENDS = frozenset(f"{send} {index}" for index, send in enumerate(REPEATS, start=1))
"""What every stage sends of a prompt, whatever it sends besides."""


def counted(rows: Rows) -> Rows:
    """The rows without those answered in an attempt at a series that another attempt has whole, or longer."""
    left = _abandoned(rows)
    return [row for row in rows if row.get("status") == "failed" or _attempt(row) not in left]


def cut_short(run_dir: Path) -> str:
    """How much of a run is not counted, in a sentence; empty where all of it is."""
    parts = []
    for kind, noun in (("send", "send"), ("answer", "answer"), ("resend", "resend")):
        rows = of_kind(run_dir, kind)
        many, series = len(rows) - len(counted(rows)), {one for one, _, _ in _abandoned(rows)}
        if many:
            which = "a series that was" if len(series) == 1 else f"{len(series):,} series that were"
            parts.append(f"{count(many, noun)} of {which} cut short and sent again")
    return f"{' and '.join(parts)}: kept in rows.jsonl and not counted" if parts else ""


def _attempt(row: Mapping[str, Any]) -> tuple[str, str, str]:
    return str(row.get("series")), str(row.get("stage")), str(row.get("attempt"))


def _abandoned(rows: Rows) -> set[tuple[str, str, str]]:
    """The attempts (series, stage, attempt) that another one stands for.

    One stage sends the same of a series each time, so what has less than another attempt was cut short; a stage that
    sends less than another is not, unless it lacks sends that all make.
    """
    found: dict[str, dict[tuple[str, str, str], set[str]]] = {}
    for row in rows:
        if row.get("status") == "ok" and row.get("series") and row.get("attempt"):
            cell = f"{row['send']} {row.get('index')}" if row.get("send") else str(row.get("arm"))
            found.setdefault(str(row["series"]), {}).setdefault(_attempt(row), set()).add(cell)
    left = set()
    for attempts in found.values():
        every = list(attempts.items())
        for place, (one, cells) in enumerate(every):
            for later, (other, more) in enumerate(every):
                alike = one[1] == other[1] or _SENDS - cells
                if one != other and alike and (cells < more or (cells == more and place < later)):
                    left.add(one)
    return left
