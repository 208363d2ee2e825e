"""How far a stage is, and an honest estimate of what is left.

A stage plans weighted steps (seconds expected on an idle machine); the estimate is what the steps left are expected
to take, scaled by how the finished ones compared with their expectation.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any


class Progress:
    """Written to a small file that the runner shows; printed in place where a person looks on."""

    def __init__(self, file: Path, stage: str) -> None:
        self.file, self.stage = file, stage
        self.total_s = self.done_s = 0.0
        self.steps = self.step = 0
        self.text = ""
        self._started = time.monotonic()

    def plan(self, expected_s: float, steps: int) -> None:
        """Add steps to come."""
        self.total_s += expected_s
        self.steps += steps
        self._write()

    def say(self, text: str) -> None:
        """What is happening now."""
        self.text = text
        self._write()

    def advance(self, expected_s: float, *, steps: int = 1) -> None:
        """Planned work is finished (or turned out not to be needed); a server's start is work, but no step."""
        self.done_s += expected_s
        self.step += steps
        self._write()

    @property
    def left_s(self) -> float | None:
        """Seconds left; None before anything was planned or finished."""
        if not self.total_s or not self.done_s:
            return self.total_s or None
        pace = (time.monotonic() - self._started) / self.done_s
        # Early on, one slow first step must not multiply the whole plan: the plan's own pace counts with it.
        trust = min(1.0, self.done_s / self.total_s * 3)
        return max(0.0, self.total_s - self.done_s) * (trust * pace + (1 - trust))

    def snapshot(self) -> dict[str, Any]:
        left = self.left_s
        return {
            "stage": self.stage,
            "step": self.step,
            "steps": self.steps,
            "text": self.text,
            "elapsed_s": round(time.monotonic() - self._started, 1),
            "left_s": None if left is None else round(left, 1),
        }

    def close(self) -> None:
        if sys.stderr.isatty():
            print(file=sys.stderr)

    def _write(self) -> None:
        temporary = self.file.with_suffix(".tmp")
        try:
            temporary.write_text(json.dumps(self.snapshot()), "utf-8")
            temporary.replace(self.file)
        except OSError:
            return  # a full disk stops the stage at its next row, with a better message than this one
