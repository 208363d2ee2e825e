"""Which rows of a run are sends: one prompt, for the first time and again, so that its hit lengths are known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

Row = Mapping[str, Any]


def sent_rows(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """The sends among a run's rows, in their order: those of the stages that ask for hit lengths.

    Where none of them was answered, the long prompts of stage speculation are the run's sends, each under the name of
    its server. In a run that was asked for hit lengths they count for the trade alone: they are no part of its answer.
    """
    every = list(rows)
    asked = [dict(row) for row in every if row.get("kind") == "send"]
    if any(row.get("status") in (None, "ok") for row in asked):
        return asked
    # What was taken over from another stage has no setting of its own.
    settings = {str(row.get("side")): row["setting"] for row in every if isinstance(row.get("setting"), Mapping)}
    return asked + [_send(row, settings) for row in every if row.get("kind") == "resend"]


def _send(row: Row, settings: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """A long prompt's row in the form of a send; each arm is a series of its own, as each sends under its own salt."""
    side, tokens = str(row.get("side")), row.get("tokens")
    series = f"{side} {tokens}"
    setting = dict(row["setting"] if isinstance(row.get("setting"), Mapping) else settings.get(side, {}))
    if setting.get("label") != row.get("label"):
        # Two servers that ran already have one setting, and are told apart by the arm.
        setting |= {"label": row.get("label"), "id": side}
    named = {"name": f"{tokens:,} tokens" if isinstance(tokens, int) else None, "tokens": tokens}
    return {
        **row,
        "kind": "send",
        "cell": None,
        "series": series,
        "attempt": row.get("attempt") or series,
        "role": "base",
        "setting": setting,
        "model": row.get("model"),
        "prompt": row["prompt"] if isinstance(row.get("prompt"), Mapping) else named,
        "status": row.get("status") or "ok",
        "shared_tokens": None,
    }
