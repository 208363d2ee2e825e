"""Frames of the answers: what was said, and which pairs are equal."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from prefixscope.frames.attempts import counted
from prefixscope.frames.columns import BOOL, FLOAT, INT, TEXT, make_frame
from prefixscope.frames.rows import Rows, of_kind, setting_columns
from prefixscope.quantities import wilson

ANSWER_COLUMNS = {
    "setting": TEXT, "model": TEXT, "document": TEXT, "arm": TEXT, "request_id": TEXT, "status": TEXT, "error": TEXT,
    "prompt_tokens": INT, "cached_tokens": INT, "answer_tokens": INT, "distinct_tokens": INT, "text": TEXT,
}  # fmt: skip

COMPARISON_COLUMNS = {
    "setting": TEXT, "document": TEXT, "model": TEXT, "prompt_tokens": INT, "pair": TEXT, "identical": BOOL, "by": TEXT,
    "first_difference": INT, "margin": FLOAT, "class": TEXT, "cached_tokens": INT,
}  # fmt: skip


def answers(run_dir: Path) -> pd.DataFrame:
    """One row per answer of the equality stage, those of a cut series (``attempts``) not.

    ``arm`` is cold, control, warm or follow_up; ``answer_tokens`` and ``distinct_tokens`` are null where the server
    returned no token ids.
    """
    out: Rows = []
    for row in counted(of_kind(run_dir, "answer")):
        ids = row.get("token_ids")
        lengths = (
            {"answer_tokens": len(ids), "distinct_tokens": len(set(map(str, ids)))} if isinstance(ids, list) else {}
        )
        out.append({**row, **setting_columns(row), **lengths})
    return make_frame(out, ANSWER_COLUMNS)


def comparisons(run_dir: Path) -> pd.DataFrame:
    """One row per document × served name × pair of answers.

    ``class`` is identical, whitespace, markup, words or void; ``first_difference`` is a token (or character) position
    and ``margin`` the log-probability distance of the two best tokens there, both null where the answers are equal.
    """
    rows = [{**row, **setting_columns(row)} for row in of_kind(run_dir, "comparison")]
    return make_frame(rows, COMPARISON_COLUMNS)


def equality(pairs: pd.DataFrame) -> pd.DataFrame:
    """One row per served name × pair: how many answers are identical, with the 95 % interval of that share."""
    out: Rows = []
    for (model, pair), part in pairs.groupby(["model", "pair"], sort=False):
        judged = part[part["identical"].notna()]
        same = int(judged["identical"].sum())
        low, high = wilson(same, len(judged))
        out.append(
            {
                "model": model,
                "pair": str(pair).replace("-", " / "),
                "compared": len(judged),
                "identical": same,
                "void": len(part) - len(judged),
                "share_low": low if len(judged) else None,
                "share_high": high if len(judged) else None,
            }
        )
    columns = (
        {"model": TEXT, "pair": TEXT}
        | dict.fromkeys(("compared", "identical", "void"), INT)
        | dict.fromkeys(("share_low", "share_high"), FLOAT)
    )
    return make_frame(out, columns)
