"""What did each lookup see? The block trace of one prompt, with and without a drafter."""

from __future__ import annotations

from typing import Any

from prefixscope.baseline import settings
from prefixscope.diagnosis import Diagnosis, explain
from prefixscope.investigation import Investigation
from prefixscope.measure import ALL_SENDS, REPEATS, Series, measure
from prefixscope.setting import Setting
from prefixscope.trace import Lookup, Trace, read_trace

TOKENS = 6_446


def run(investigation: Investigation, *, tokens: int = TOKENS, seed: int = 1) -> list[dict[str, Any]]:
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
    from prefixscope.measure import finished

    whole = Series(setting=setting, tokens=tokens, seed=seed, sends=ALL_SENDS)
    return ALL_SENDS if finished(investigation, whole) else REPEATS


def trace(investigation: Investigation) -> Trace:
    """The trace of all servers of this run."""
    return read_trace(investigation.path / "trace")


def lookup_of(trace: Trace, rows: list[dict[str, Any]], *, setting: str, send: str, index: int) -> Lookup | None:
    """The lookup behind one row."""
    for row in rows:
        if row["setting"]["label"] == setting and (row["send"], row["index"]) == (send, index):
            return trace.lookup(row["request_id"])
    return None


def diagnose(investigation: Investigation, rows: list[dict[str, Any]]) -> list[tuple[dict[str, Any], Diagnosis]]:
    """The cause of each warm send, in words."""
    known = trace(investigation)
    return [(row, explain(known, row["request_id"])) for row in rows if row["send"] == "repeat"]
