"""What changed between releases, in sentences computed from their answers to the same prompts."""

from __future__ import annotations

import pandas as pd

from prefixscope.charts.titles import spans
from prefixscope.quantities import count, number


def changes(table: pd.DataFrame, *, drafter_group: bool) -> list[tuple[str, str]]:
    """(about what, what was found) from ``frames.predicted_versions``; what was not asked is left out.

    ``drafter_group`` says whether a KV cache group is the drafter's own.
    """
    found = [
        ("The retained checkpoint (vllm#53945)", _checkpoint(table)),
        ("Prompts of an exact number of blocks (vllm#54713)", _multiple(table)),
        ("Which groups drop a block (vllm#61455)", _drop(table, drafter_group)),
        ("Lookahead hashes", _lookahead(table)),
    ]
    return [(title, text) for title, text in found if text]


def _checkpoint(table: pd.DataFrame) -> str:
    rows = table[table["probe"] == "sparse"]
    if not len(rows):
        return ""
    order, tokens = rows["release"].tolist(), number(rows["tokens"].iloc[0])
    behind, level = rows[rows["hit_2"] < rows["hit_3"]], rows[rows["hit_2"] >= rows["hit_3"]]
    never, level = level[level["hit_3"] == 0], level[level["hit_3"] > 0]
    none = (
        f"At interval 0 no resend of {tokens} tokens hits on {spans(never['release'].tolist(), order)}."
        if len(never)
        else ""
    )
    if not len(behind):
        hits = f"At interval 0 the second send of {tokens} tokens hits what the third does: "
        level_too = f"{hits}{_by_value(level, 'hit_2', order)}." if len(level) else ""
        return f"{none} {level_too}".strip()
    third = " and ".join(number(value) for value in behind["hit_3"].drop_duplicates())
    text = (
        f"At interval 0 the second send of {tokens} tokens hits {_by_value(behind, 'hit_2', order)}, "
        f"and only the third {third}"
    )
    text = f"{none} {text}".strip()
    if not len(level):
        return f"{text}."
    last, before = behind.iloc[-1]["release"], behind.iloc[-1]["blocks"]
    price = (
        f"with as many blocks kept, {number(before)}: the checkpoint is elsewhere, not larger"
        if set(level["blocks"]) == {before}
        else f"keeping {_by_value(level, 'blocks', order)}, where {last} keeps {number(before)} blocks"
    )
    return f"{text}. The second itself hits {_by_value(level, 'hit_2', order)}, {price}."


def _multiple(table: pd.DataFrame) -> str:
    rows, plain = table[table["probe"] == "multiple"], table[table["probe"] == "plain"]
    if not len(rows):
        return ""
    order, tokens = rows["release"].tolist(), number(rows["tokens"].iloc[0])
    text = f"At interval 0 the second send of exactly {tokens} tokens hits {_by_value(rows, 'hit_2', order)}"
    best = plain["hit_2"].max() if len(plain) else None
    full = rows.loc[rows["hit_2"] == rows["hit_2"].max(), "release"].tolist()
    reached = rows["hit_2"].max()
    if best is not None and rows["hit_2"].nunique() > 1:
        text += f"; {number(reached)}, the most of them, is reached on {spans(full, order)}"
    return f"{text}."


def _drop(table: pd.DataFrame, drafter_group: bool) -> str:
    rows, legacy = table[table["probe"] == "sparse"], table[table["probe"] == "legacy"]
    if not len(rows) or not rows["drop_groups"].max():
        return ""
    order, total = rows["release"].tolist(), number(rows["groups"].iloc[0])
    who = "one is the drafter's own" if drafter_group else "none is marked as the drafter's own"
    text = (
        f"Groups that give up a block for the drafter, of {total} KV cache groups ({who}): "
        f"{_by_value(rows, 'drop_groups', order)}"
    )
    for row in legacy.itertuples():
        text += f"; with lookahead hashes off {number(row.drop_groups)} on {row.release}"
    return f"{text}."


def _lookahead(table: pd.DataFrame) -> str:
    parts = []
    for row in table[table["probe"] == "legacy"].itertuples():
        same = table[(table["release"] == row.release) & (table["probe"] == "sparse")]
        if len(same):
            mine = same.iloc[0]
            ahead, drops = count(int(mine["lookahead_tokens"]), "token"), count(int(mine["drop_groups"]), "group")
            parts.append(
                f"vLLM {row.release} hashes {ahead} past each block's end, drops in {drops} and hits "
                f"{number(mine['hit_2'])} of {number(row.tokens)} tokens on send 2; with lookahead hashes off "
                f"{number(row.hit_2)}"
            )
    return f"{'; '.join(parts)}." if parts else ""


def _by_value(rows: pd.DataFrame, column: str, order: list[str]) -> str:
    """``0 on 0.28.0 and 0.29.0, 6,272 on 0.30.0 to 0.32.0``."""
    groups: dict[int, list[str]] = {}
    for release, value in zip(rows["release"], rows[column], strict=True):
        groups.setdefault(int(value), []).append(str(release))
    return ", ".join(f"{number(value)} on {spans(who, order)}" for value, who in groups.items())
