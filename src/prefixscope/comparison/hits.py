"""Hit lengths of the same cell on two sides: counts that repeat to the token, so any difference is a real one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from prefixscope import frames
from prefixscope.comparison.side import Side
from prefixscope.verdict import code_of

SURE = ("same", "lower", "higher")
RANK = {"reuses": 0, "short": 1, "none": 2}
"""Verdicts that can be better or worse; of the others nothing is known."""
_COLD = ("cold", "control")


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    """One send of one prompt length to one setting under one name: what has to be equal to be compared."""

    setting: str
    role: str
    tokens: int
    send: str
    index: int

    @property
    def label(self) -> str:
        """What a reader calls the send."""
        return frames.send_label(self.send, self.index)

    @property
    def series(self) -> tuple[str, str, int]:
        """The prompt that this is a send of."""
        return self.setting, self.role, self.tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What one side saw in a cell: hit lengths and times of each repeat, and how long the prompts came out."""

    config: str
    cached: tuple[int, ...]
    prompt_tokens: frozenset[int]
    shared_tokens: frozenset[int]
    verdict: str | None
    failed: int
    times_ms: tuple[float, ...]

    @property
    def varies(self) -> bool:
        """Whether repeats hit different lengths."""
        return len(set(self.cached)) > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One cell on two sides.

    ``code`` is same · lower · higher, or why that can't be told: varies (repeats overlap) · not cold (its first send
    hit something) · not reported · doubtful (its row says nothing possible of it) · failed · another prompt (not the
    same length, so not compared).
    """

    cell: Cell
    base: Seen
    other: Seen
    code: str

    @property
    def delta(self) -> int:
        """Cached tokens more on the other side, of the middle repeat; 0 where nothing can be told."""
        return middle(self.other.cached) - middle(self.base.cached) if self.code in SURE else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """The verdict on the second sends of one setting and name, over the prompt lengths that both sides answered."""

    config: str
    base: str
    other: str
    lengths: tuple[int, ...]

    @property
    def code(self) -> str:
        """same · better · worse · can't tell."""
        if self.base == self.other:
            return "same"
        if self.base not in RANK or self.other not in RANK:
            return "can't tell"
        return "worse" if RANK[self.other] > RANK[self.base] else "better"


def seen(side: Side) -> dict[Cell, Seen]:
    """Every cell that a side asked."""
    parts: dict[Cell, list[Mapping[str, object]]] = {}
    known = frames.current(side.sent)
    known = known[known["tokens"].notna() & known["index"].notna()]
    for row in known.to_dict("records"):
        role = "base" if pd.isna(row["role"]) else str(row["role"])
        cell = Cell(str(row["setting"]), role, int(row["tokens"]), str(row["send"]), int(row["index"]))
        parts.setdefault(cell, []).append(row)
    return {cell: _seen(rows) for cell, rows in parts.items()}


def _seen(rows: Sequence[Mapping[str, object]]) -> Seen:
    good = [row for row in rows if row["status"] == "ok"]
    timed = [row["first_token_ms"] for row in good if row["overlapped"] is not True]
    return Seen(
        config=str(rows[0]["config"]),
        cached=tuple(sorted(_whole(good, "cached_tokens"))),
        prompt_tokens=frozenset(_whole(good, "prompt_tokens")),
        shared_tokens=frozenset(_whole(good, "shared_tokens")),
        verdict=frames.worst(row["verdict"] for row in rows),
        failed=len(rows) - len(good),
        times_ms=tuple(float(str(ms)) for ms in timed if not pd.isna(ms) and float(str(ms)) > 0),
    )


def _whole(rows: Iterable[Mapping[str, object]], column: str) -> list[int]:
    return [int(str(row[column])) for row in rows if not pd.isna(row[column])]


def changes(base: Mapping[Cell, Seen], other: Mapping[Cell, Seen]) -> tuple[Change, ...]:
    """Every cell that both sides asked, in the base's order."""
    hot = {
        cell.series for table in (base, other) for cell, one in table.items() if cell.send in _COLD and any(one.cached)
    }
    return tuple(
        Change(cell=cell, base=one, other=other[cell], code=_code(one, other[cell], cell.series in hot))
        for cell, one in base.items()
        if cell in other
    )


def _code(base: Seen, other: Seen, hot: bool) -> str:
    if any(one.failed and not one.prompt_tokens for one in (base, other)):
        return "failed"
    if any(one.verdict == "inconclusive" and not one.cached for one in (base, other)):
        return "doubtful"
    if base.prompt_tokens != other.prompt_tokens or base.shared_tokens != other.shared_tokens:
        return "another prompt"
    if not base.cached or not other.cached:
        return "not reported"
    if hot:
        return "not cold"
    if not base.varies and not other.varies and base.cached[0] == other.cached[0]:
        return "same"
    if other.cached[-1] < base.cached[0]:
        return "lower"
    return "higher" if other.cached[0] > base.cached[-1] else "varies"


def counted(found: Iterable[Change]) -> list[Change]:
    """The sends that ask something of the cache: not first ones, and not prompts of another length."""
    return [one for one in found if one.cell.send not in _COLD and one.code != "another prompt"]


def judged(found: Iterable[Change]) -> tuple[Judged, ...]:
    """Verdicts by setting and name, over the second sends that both sides answered."""
    groups: dict[tuple[str, str], list[Change]] = {}
    for one in counted(found):
        if one.cell.send == "repeat" and one.cell.index == 2 and one.code not in ("failed", "not cold"):
            groups.setdefault((one.cell.setting, one.cell.role), []).append(one)
    return tuple(
        Judged(
            config=rows[0].base.config,
            base=code_of(pd.Series([one.base.verdict for one in rows])),
            other=code_of(pd.Series([one.other.verdict for one in rows])),
            lengths=tuple(sorted(one.cell.tokens for one in rows)),
        )
        for rows in groups.values()
    )


def middle(values: Sequence[int]) -> int:
    """The median, of an even number the lower one."""
    return values[(len(values) - 1) // 2]
