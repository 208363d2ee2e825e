"""What the engine tests measure with: the command line, and series on the embedded engine."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefixscope.investigation import Investigation
from prefixscope.measure import finished, measure
from prefixscope.series import REPEATS, Series
from prefixscope.setting import Setting


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
