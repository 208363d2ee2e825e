"""The tracer on a served engine is harmless: what it answers and hits is the same without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from bench import QuickRun

from prefixscope import equality
from prefixscope.engine import Engine
from prefixscope.investigation import Investigation
from prefixscope.run_files import read_rows
from prefixscope.runs import Run
from prefixscope.setting import Setting
from prefixscope.target import Target

pytestmark = pytest.mark.engine


class Untraced(Investigation):
    """An investigation whose servers have no tracer."""

    def trace_environment(self) -> dict[str, str]:
        return {}

    def start_ahead(self, setting: Setting) -> None:
        """No later stage will come."""


def answers(run: Path) -> dict[tuple[str, ...], tuple[Any, ...]]:
    """(served name, document, arm) → cached tokens and answered token ids."""
    rows = [row for row in read_rows(run / "raw" / "equality.jsonl") if row["kind"] == "answer"]
    return {(row["role"], row["document"], row["arm"]): (row["cached_tokens"], row["token_ids"]) for row in rows}


def test_answers_and_hits_are_the_same_without_the_tracer(quick_run: QuickRun, engine: Engine, tmp_path: Path) -> None:
    """Every hit and every greedy token of the traced run is the same on a server without the tracer."""
    parameters = Run(quick_run.path).manifest["parameters"]["equality"]
    target = Target(kind="embedded", engine=engine.version)
    investigation = Untraced(Run.create(tmp_path / "run", target=target.to_json(), parameters={}), target)
    try:
        equality.run(investigation, **parameters)
    finally:
        investigation.stop_servers()
    plain = answers(investigation.path)
    assert plain == answers(quick_run.path)
    assert len(plain) == 24
    assert any(cached for cached, _ in plain.values())
    assert list((quick_run.path / "trace").glob("*.jsonl"))
    assert not list(investigation.path.rglob("trace-*.jsonl"))
