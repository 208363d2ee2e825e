"""Real servers, shared by the whole session: a start costs a quarter of a minute."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from prefixscope.engine import Engine
from prefixscope.investigation import Investigation
from prefixscope.kit import write_kit
from prefixscope.measure import REPEATS, Series, finished, measure
from prefixscope.runs import Run
from prefixscope.setting import Setting
from prefixscope.target import Target


@dataclass(frozen=True)
class QuickRun:
    """What ``prefixscope run --quick`` left behind."""

    path: Path
    exit_code: int
    answer: dict[str, Any]
    progress: str


def prefixscope(*arguments: str, timeout_s: float = 900.0) -> subprocess.CompletedProcess[str]:
    """The command line, as a user calls it."""
    return subprocess.run(
        [sys.executable, "-m", "prefixscope.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        env=os.environ.copy(),
    )


@pytest.fixture(scope="session")
def quick_run(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> QuickRun:
    """One quick run on the embedded engine, through the command line."""
    path = tmp_path_factory.mktemp("quick") / "run"
    done = prefixscope("run", "--quick", "--json", "-o", str(path))
    answer = json.loads(done.stdout) if done.stdout.strip().startswith("{") else {}
    return QuickRun(path, done.returncode, answer, done.stderr)


@pytest.fixture(scope="session")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tracing kit, written once."""
    return write_kit(tmp_path_factory.mktemp("kit"))


class Bench:
    """Measures series on the embedded engine, each setting's server started once and only while it is needed."""

    def __init__(self, investigation: Investigation) -> None:
        self.investigation = investigation

    def hits(self, setting: Setting, tokens: tuple[int, ...], *, role: str = "base") -> dict[int, list[int | None]]:
        """Prompt tokens → hit length of sends 1, 2 and 3."""
        plan = [Series(setting=setting, role=role, tokens=n, sends=REPEATS) for n in tokens]
        if any(finished(self.investigation, series) is None for series in plan):
            with self.investigation.stage("trace") as stage:
                measure(self.investigation, stage, plan, keep_last=True)
        return {
            series.tokens: [row["cached_tokens"] for row in finished(self.investigation, series) or []]
            for series in plan
        }


@pytest.fixture(scope="session")
def bench(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """The bench, on a run directory of its own, in a shell whose settings must not reach the engine."""
    os.environ["VLLM_PREFIX_CACHE_RETENTION_INTERVAL"] = "1024"
    target = Target(kind="embedded", engine=engine.version)
    run = Run.create(tmp_path_factory.mktemp("bench") / "run", target=target.to_json(), parameters={})
    investigation = Investigation(run, target)
    yield Bench(investigation)
    investigation.stop_servers()
    del os.environ["VLLM_PREFIX_CACHE_RETENTION_INTERVAL"]
