"""Outcomes from outside: which items passed on arm A and on arm B, tested in pairs, over all and by category."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from prefixscope import paired
from prefixscope.errors import RunError
from prefixscope.frames.columns import BOOL, FLOAT, INT, TEXT, make_frame

_YES, _NO = {"1", "true", "yes", "pass", "passed", "ok"}, {"0", "false", "no", "fail", "failed"}
_BLANK = {"", "na", "n/a", "none", "null", "-"}

_TESTED = {
    "category": TEXT, "items": INT, "unpaired": INT, "pass_a": INT, "pass_b": INT, "only_a": INT, "only_b": INT,
    "p": FLOAT, "p_holm": FLOAT, "planned": BOOL,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The least and the greatest p that two totals allow, whichever items stand behind them."""

    lowest: float
    highest: float
    fewest_changed: int
    most_changed: int


def read_outcomes(path: Path | str) -> pd.DataFrame:
    """One row per item: ``item``, ``category`` (empty where the file has none), ``a`` and ``b`` (null where blank).

    The file has a header with ``item``, optionally ``category``, and two more columns, one per arm; values are 1 or 0,
    pass or fail, true or false, yes or no, or blank. ``attrs["arms"]`` holds the two columns' names.

    Raises
    ------
    RunError
        for a file that can't be read, other columns, another value, or an item that comes twice.
    """
    try:
        with Path(path).open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            names, lines = list(reader.fieldnames or ()), list(reader)
    except (OSError, UnicodeError, csv.Error) as error:
        raise RunError(f"the outcomes in {path} can't be read: {error}", remedy="a CSV: item,category,A,B") from error
    arms = [name for name in names if name not in ("item", "category")]
    if "item" not in names or len(arms) != 2:
        raise RunError(
            f"{path} has the columns {', '.join(names) or '(none)'}",
            cause="it takes item, optionally category, and one column for each of two arms",
            remedy="for example: item,category,run 6,run 7",
        )
    rows = []
    for number, line in enumerate(lines, start=2):
        passed = {key: _truth(line.get(name), path, number, name) for key, name in zip("ab", arms, strict=True)}
        rows.append({"item": line["item"], "category": line.get("category") or "", **passed})
    table = make_frame(rows, {"item": TEXT, "category": TEXT, "a": BOOL, "b": BOOL})
    twice = table.loc[table["item"].duplicated(), "item"]
    if len(twice):
        raise RunError(
            f"{path} holds item {twice.iloc[0]!r} more than once", remedy="one line for each item, with both arms"
        )
    table.attrs["arms"] = tuple(arms)
    return table


def paired_test(table: pd.DataFrame, *, planned: Sequence[str] = ()) -> pd.DataFrame:
    """One row over all items, then one per category, by how unlikely the change is.

    ``only_a`` and ``only_b`` count the items that passed on that arm alone: nothing else tells. ``p`` is McNemar's
    exact one. ``p_holm`` counts all categories in that were not ``planned`` (named before the outcomes were seen): to
    pick the worst of many is to test them all. Items without an outcome on either arm are left out (``unpaired``).
    """
    parts = [("all items", table), *((str(name), part) for name, part in table.groupby("category") if name)]
    rows: list[dict[str, Any]] = []
    for name, part in parts:
        both = part[["a", "b"]].dropna().astype(bool)
        only_a, only_b = int((both["a"] & ~both["b"]).sum()), int((both["b"] & ~both["a"]).sum())
        row = {
            "category": name,
            "items": len(both),
            "unpaired": len(part) - len(both),
            "only_a": only_a,
            "only_b": only_b,
        }
        row |= {"pass_a": int(both["a"].sum()), "pass_b": int(both["b"].sum()), "p": paired.mcnemar(only_a, only_b)}
        rows.append({**row, "planned": name == "all items" or name in planned})
    picked = [row for row in rows if not row["planned"]]
    for row in rows:
        row["p_holm"] = row["p"]
    for row, value in zip(picked, paired.holm([row["p"] for row in picked]), strict=True):
        row["p_holm"] = value
    rows[1:] = sorted(rows[1:], key=lambda row: row["p"])
    return make_frame(rows, _TESTED)


def none() -> pd.DataFrame:
    """What :func:`paired_test` gives where there are no outcomes."""
    return make_frame([], _TESTED)


def warnings(tested: pd.DataFrame) -> list[str]:
    """One sentence for each category that looks changed only because it was picked among many."""
    picked = tested[~tested["planned"]]
    found = []
    for row in picked[picked["p"] < paired.LEVEL].itertuples():
        verdict = "still stands" if row.p_holm < paired.LEVEL else "does not stand"
        found.append(
            f"{row.category}: p = {row.p:.2g} by itself, {row.p_holm:.2g} among {len(picked)} categories that were not "
            f"named beforehand; it {verdict}."
        )
    return found


def bounds(pass_a: int, pass_b: int, items: int) -> Bounds:
    """What two totals of the same items allow, where nobody published which items changed.

    Raises
    ------
    RunError
        where more passed than there are.
    """
    if not (0 <= pass_a <= items and 0 <= pass_b <= items):
        raise RunError(f"{pass_a} and {pass_b} passed of {items} items", remedy="give totals of the same items")
    net = abs(pass_a - pass_b)
    back = min(min(pass_a, pass_b), items - max(pass_a, pass_b))
    chances = [paired.mcnemar(net + many, many) for many in range(back + 1)]
    return Bounds(lowest=min(chances), highest=max(chances), fewest_changed=net, most_changed=net + 2 * back)


def _truth(text: str | None, path: Path | str, number: int, name: str) -> bool | None:
    value = (text or "").strip().lower()
    if value in _BLANK:
        return None
    if value not in _YES | _NO:
        raise RunError(
            f"{path}, line {number}, column {name!r}: {text!r} is neither a pass nor a failure",
            remedy="use 1 or 0, pass or fail, true or false, yes or no; blank where there is no outcome",
        )
    return value in _YES
