"""What follows from the rows: how answers differ, and what makes a count less than certain."""

from __future__ import annotations

from typing import Any

from prefixscope import frames
from prefixscope.equality import difference
from prefixscope.investigation import Investigation
from prefixscope.runs import Stage
from prefixscope.setting import digest


def compare(investigation: Investigation, stage: Stage) -> None:
    """Write how the answers to each prompt differ: each arm against itself, and one arm against the other."""
    rows = [row for row in investigation.run.rows("speculation") if row.get("kind") in ("generation", "pair")]
    known = {row["pair_id"] for row in rows if row["kind"] == "pair"}
    answers: dict[tuple[Any, ...], dict[tuple[str, int], dict[str, Any]]] = {}
    for row in rows:
        if row["kind"] == "generation" and row["status"] == "ok":
            item = (row["shape"], row["document"], row["prompt"]["digest"], row["answer_tokens"])
            answers.setdefault(item, {})[row["arm"], row["repeat"]] = row
    for (shape, document, *_), asked in answers.items():
        pairs = [("A / A", ("A", 1), ("A", 2)), ("B / B", ("B", 1), ("B", 2)), ("A / B", ("A", 1), ("B", 1))]
        for pair, left, right in pairs:
            if left not in asked or right not in asked:
                continue
            pair_id = digest([pair, asked[left]["cell"], asked[right]["cell"]])
            if pair_id not in known:
                told = {"kind": "pair", "pair_id": pair_id, "pair": pair, "shape": shape, "document": document}
                found = difference({**asked[left], "margins": None}, {**asked[right], "margins": None})
                stage.append({**told, **found})


def doubts(investigation: Investigation, stage: Stage) -> None:
    """One warning for each way in which the rows of an arm are less than certain."""
    table = frames.generations(investigation.path)
    for label, part in table[table["status"] == "ok"].groupby("label", sort=False):
        moved, apart = int(part["disturbed"].fillna(False).sum()), int((~part["agree"].fillna(True)).sum())
        if moved:
            stage.warn(
                "counters-moved-by-others",
                f"{label}: during {moved} of {len(part)} requests the counters moved by more than the request; what "
                "they say of those is not used",
                "measure when nobody else asks it, or start it with --per-request-spec-decode-metrics detailed",
            )
        if apart:
            stage.warn(
                "sources-disagree",
                f"{label}: in {apart} of {len(part)} requests the answer's own speculative metrics are not what the "
                "server's counters say",
                "trust the answer's own",
            )
        if part["completion_tokens"].isna().any():
            stage.warn(
                "no-usage",
                f"{label}: {int(part['completion_tokens'].isna().sum())} streams ended without usage: tokens unknown",
                "ask vLLM directly: it sends usage at the end of a stream when asked",
            )
