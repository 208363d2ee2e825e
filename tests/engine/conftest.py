"""Real servers, shared by the whole session: a start costs a quarter of a minute."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench import Bench, QuickRun, prefixscope

from prefixscope.engine import Engine
from prefixscope.investigation import Investigation
from prefixscope.kit import write_kit
from prefixscope.runs import Run
from prefixscope.target import Target


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
