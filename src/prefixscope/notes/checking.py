"""How a reader checks a server of their own: commands, and a script that needs nothing but Python."""

from __future__ import annotations

import json
from importlib.resources import files

from prefixscope.errors import ReplayError
from prefixscope.notes.account import Account
from prefixscope.notes.context import known
from prefixscope.replay.exported import to_test
from prefixscope.replay.travel import of_run, worst_series

ADDRESS = "http://localhost:8000"
TOKENS = 6_400
"""A prompt's length where the run has none."""


def commands(told: Account) -> str:
    """prefixscope's own checks, one a line."""
    lines = [
        (f"prefixscope check {ADDRESS}", "three requests, one sentence, an exit code"),
        (f"prefixscope check {ADDRESS} --min-reuse 0.95", "as a gate after a deployment"),
        ("prefixscope trace kit KIT", "a folder for PYTHONPATH: records each lookup inside vLLM"),
        ("prefixscope trace show TRACE_DIR", "each lookup with its cause, the blocks of the worst miss"),
    ]
    width = max(len(line) for line, _ in lines)
    return "\n".join(f"{line:{width}}  # {what}" for line, what in lines)


def script(told: Account) -> str:
    """Three sends of one prompt, by Python's standard library alone; it prints the cached tokens of each."""
    tokens = told.material.sent["tokens"].dropna()
    model = known(told).get("served models", "").split(", ")[0] or "MODEL"
    text = files("prefixscope").joinpath("templates/resend.py.txt").read_text("utf-8")
    return (
        text.replace("@ADDRESS@", json.dumps(ADDRESS))
        .replace("@MODEL@", json.dumps(model))
        .replace("@TOKENS@", str(int(tokens.max()) if len(tokens) else TOKENS))
    )


def test(told: Account) -> str:
    """The run's fault as a pytest for vLLM's own tree; empty where there is none, or it can't be written."""
    if not told.faulty:
        return ""
    try:
        return to_test(worst_series(of_run(told.run_dir)))
    except ReplayError:
        return ""
