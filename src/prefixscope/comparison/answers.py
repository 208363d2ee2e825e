"""What was answered: whether warm answers equal cold ones on either side, and whether the sides answer alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from prefixscope import noise, outcomes
from prefixscope.comparison.side import Side
from prefixscope.frames.columns import BOOL, TEXT, make_frame

_PAIRS = {"cold-warm": "warm answers equal to the cold ones", "cold-control": "cold answers equal to themselves"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Equal:
    """Answers of one kind: compared and equal on either side, and the exact paired test over common documents."""

    what: str
    base: tuple[int, int]
    other: tuple[int, int]
    only_base: int
    only_other: int
    pairs: int
    p: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """``equal`` by kind of pair; ``across`` says whether the two sides give the same answers, None if unknown."""

    equal: tuple[Equal, ...]
    across: noise.Judgement | None


def answers(base: Side, other: Side) -> Answers:
    """Equality outcomes of two sides; only documents that are the same on both are paired."""
    tables = [outcomes_of(base), outcomes_of(other)]
    equal = []
    for pair, what in _PAIRS.items():
        keys = [{key: same for key, same in table.items() if key[2] == pair} for table in tables]
        common = [key for key in keys[0] if key in keys[1]]
        if not common:
            continue
        rows = [{"item": str(key), "category": "", "a": keys[0][key], "b": keys[1][key]} for key in common]
        row = outcomes.paired_test(make_frame(rows, {"item": TEXT, "category": TEXT, "a": BOOL, "b": BOOL})).iloc[0]
        counts = [(sum(keys[place][key] for key in common), len(common)) for place in (0, 1)]
        equal.append(
            Equal(
                what=what, base=counts[0], other=counts[1], only_base=int(row["only_a"]), only_other=int(row["only_b"]),
                pairs=len(common), p=float(row["p"]),
            )
        )  # fmt: skip
    return Answers(equal=tuple(equal), across=_across(base, other, tables))


def outcomes_of(side: Side) -> dict[tuple[str, str, str, str, str], bool]:
    """Identical or not, by setting, served role, kind of pair, document and its length; what is void is left out."""
    return dict(told(side))


def told(side: Side) -> Iterator[tuple[tuple[str, str, str, str, str], bool]]:
    """``outcomes_of`` of each comparison, in order: repeats have one key."""
    for row in side.comparisons.to_dict("records"):
        if not pd.isna(row["identical"]):
            role = side.roles.get(str(row["model"]), "base")
            key = (str(row["setting"]), role, str(row["pair"]), str(row["document"]), str(row["prompt_tokens"]))
            yield key, bool(row["identical"])


def _across(base: Side, other: Side, tables: Sequence[dict[Any, bool]]) -> noise.Judgement | None:
    """The cold answers of one side against those of the other, with each side's own noise beside it."""
    common = [key for key in base.answers if key in other.answers]
    if not common:
        return None
    rows: list[dict[str, Any]] = []
    for role, document, digest in common:
        a, b = base.answers[role, document, digest], other.answers[role, document, digest]
        if type(a) is not type(b):
            continue
        many = min(len(a), len(b))  # one run may have asked for longer answers: greedy ones begin alike
        rows.append({"pair": noise.BETWEEN, "shape": role, "document": document, "identical": a[:many] == b[:many]})
    for name, table in zip(noise.WITHIN, tables, strict=True):
        for (_, role, pair, document, _), same in table.items():
            if pair == "cold-control" and (role, document) in {(key[0], key[1]) for key in common}:
                rows.append({"pair": name, "shape": role, "document": document, "identical": same})
    columns = {"pair": TEXT, "shape": TEXT, "document": TEXT, "identical": BOOL}
    if not rows:
        return None
    return noise.judge(make_frame(rows, columns), (base.letter, other.letter), cause="what differs between them")
