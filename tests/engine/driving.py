"""Runs the scheduler driver in an engine's Python, and reads what its tracer wrote."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefixscope.trace import Trace, read_trace

DRIVER = Path(__file__).with_name("scheduler_driver.py")


@dataclass(frozen=True)
class Driven:
    """One run of the driver: the hits that the scheduler used, and the folder of the trace."""

    hits: dict[str, int]
    folder: Path
    log: str

    @property
    def trace(self) -> Trace:
        return read_trace(self.folder)


def drive(
    python: str, model_dir: Path, folder: Path, scenarios: list[dict[str, Any]], environment: dict[str, str]
) -> Driven:
    result = folder / "result.json"
    wanted = {"model_dir": str(model_dir), "scenarios": scenarios, "result": str(result)}
    done = subprocess.run(
        [python, str(DRIVER)],
        input=json.dumps(wanted),
        text=True,
        capture_output=True,
        timeout=300,
        env={**os.environ, "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", **environment},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    hits = {name: hit for one in json.loads(result.read_text(encoding="utf-8"))["hits"] for name, hit in one.items()}
    return Driven(hits, folder / "trace", done.stdout + done.stderr)
