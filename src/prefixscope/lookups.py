"""What did each lookup see? The block trace of one prompt, with and without a drafter."""

from __future__ import annotations

from typing import Any

import pandas as pd

from prefixscope import frames
from prefixscope.baseline import settings
from prefixscope.diagnosis import explain
from prefixscope.geometry import traced
from prefixscope.investigation import Investigation
from prefixscope.measure import ALL_SENDS, REPEATS, Series, finished, measure
from prefixscope.setting import Setting

TOKENS = 6_446
Rows = list[dict[str, Any]]


def run(investigation: Investigation, *, tokens: int = TOKENS, seed: int = 1) -> Rows:
    """Make sure that the prompt was sent three times under each setting, and return the rows of those sends.

    Rows that the baseline made are used as they are: its servers were traced too.
    """
    with investigation.stage("trace", tokens=tokens, seed=seed) as stage:
        if investigation.target.kind == "attached":
            stage.outcome, stage.note = "skipped", "an attached server is not restarted, so it has no tracer"
            stage.warn(
                "no-trace",
                "block ranges need the tracer inside the engine, and an attached server is not restarted",
                "prefixscope run --serve-cmd 'vllm serve …'",
            )
            return []
        chosen = [s for s, role in settings(investigation) if role == "base" and not s.lora]
        return measure(
            investigation,
            stage,
            [Series(setting=s, tokens=tokens, seed=seed, sends=sends(investigation, s, tokens, seed)) for s in chosen],
        )


def sends(investigation: Investigation, setting: Setting, tokens: int, seed: int) -> tuple[str, ...]:
    """All sends where the baseline has them, else only the repeats."""
    whole = Series(setting=setting, tokens=tokens, seed=seed, sends=ALL_SENDS)
    return ALL_SENDS if finished(investigation, whole) else REPEATS


def groups(investigation: Investigation) -> pd.DataFrame:
    """One row per KV cache group of each kind of engine that was traced (``frames.groups``)."""
    return frames.groups(traced(investigation.path).headers)


def blocks(investigation: Investigation, rows: Rows, *, drafter: bool) -> pd.DataFrame:
    """``frames.blocks`` of the repeats, with or without a drafter; on the cold send nothing can be there."""
    known = traced(investigation.path)
    labels = {
        row["request_id"]: f"{row['setting']['label']}, {frames.send_label(row['send'], row['index'])}"
        for row in rows
        if row["send"] == "repeat" and row["setting"]["drafter"] == drafter
    }
    found = [known.lookup(request_id) for request_id in labels]
    return frames.blocks([lookup for lookup in found if lookup is not None], labels=labels)


def summary(investigation: Investigation, rows: Rows) -> pd.DataFrame:
    """``frames.lookups`` of the repeats: per group needed, stored and missing blocks, and the cause."""
    known, first = traced(investigation.path), frames.repeats(frames.sends(investigation.path))
    found = []
    for row in rows:
        lookup = known.lookup(row["request_id"]) if row["send"] == "repeat" else None
        if lookup is not None:
            label = f"{row['setting']['label']}, {frames.send_label(row['send'], row['index'])}"
            found.append(
                (label, lookup, explain(known, row["request_id"], repeat_of=first.get(row["request_id"])).cause)
            )
    return frames.lookups(found)
