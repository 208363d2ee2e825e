"""How far a stage is, and an honest estimate of what is left.

A stage plans weighted steps (seconds expected on an idle machine); the estimate is what the steps left are expected
to take, scaled by how the finished ones compared with their expectation.
"""

from __future__ import annotations

import json
import sys
import time
from html import escape
from pathlib import Path
from typing import Any

RENEW_S = 0.4
"""A line in a notebook is renewed no more often."""


class Progress:
    """Written to a small file that the runner shows; in a notebook one line too, which renews itself.

    Parameters
    ----------
    paced : whether what is planned holds for this target before anything is finished. The expected seconds are the
        embedded engine's; on another server they only weigh the steps against each other.
    """

    def __init__(self, file: Path, stage: str, *, paced: bool = True) -> None:
        self.file, self.stage, self.paced = file, stage, paced
        self.total_s = self.done_s = 0.0
        self.steps = self.step = 0
        self.text = ""
        self._started = time.monotonic()
        self._line = _Line()

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
        """Seconds left; None before anything was planned, or finished where the plan's own pace is not the target's."""
        if not self.total_s or not self.done_s:
            return (self.total_s or None) if self.paced else None
        pace = (time.monotonic() - self._started) / self.done_s
        # Early on, one slow first step must not multiply the whole plan: the plan's own pace counts with it.
        trust = min(1.0, self.done_s / self.total_s * 3) if self.paced else 1.0
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

    def close(self, outcome: str = "done", note: str = "") -> None:
        """Leave one line that says how the stage ended; the same one is in the saved notebook."""
        took = duration(time.monotonic() - self._started)
        if outcome == "skipped":
            said = f"{self.stage}: nothing was done: {note}"
        elif outcome in ("failed", "interrupted"):
            done = f" at {self.step:,} of {self.steps:,}" if self.steps else ""
            said = f"{self.stage}: {outcome}{done} after {took}; what was measured is kept; run the cell again to go on"
        elif not self.steps:
            said = f"{self.stage}: nothing was left to do; the run directory holds all of it"
        else:
            said = f"{self.stage}: {self.step:,} of {self.steps:,} done in {took}"
            said += f"; {note or 'not all of it could be measured'}" if outcome == "partial" else ""
        self._line.show(said, f"<p>{escape(said)}</p>", last=True)

    def _show(self) -> None:
        parts = [f"{self.step:,} of {self.steps:,}" if self.steps else "", self.text]
        left = self.left_s
        spent = duration(time.monotonic() - self._started)
        parts.append(spent if left is None else f"{spent}, about {duration(left)} left")
        said = f"{self.stage}: {' · '.join(part for part in parts if part)}"
        bar = f'<progress max="{self.total_s:.1f}" value="{min(self.done_s, self.total_s):.1f}"></progress> '
        self._line.show(said, f"<p>{bar if self.total_s else ''}{escape(said)}</p>")

    def _write(self) -> None:
        self._show()
        temporary = self.file.with_suffix(".tmp")
        try:
            temporary.write_text(json.dumps(self.snapshot()), "utf-8")
            temporary.replace(self.file)
        except OSError:
            return  # a full disk stops the stage at its next row, with a better message than this one


class _Line:
    """One output of the running notebook cell that is renewed in place; nothing outside a notebook."""

    def __init__(self) -> None:
        shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
        self._live = getattr(shell, "kernel", None) is not None
        self._handle: Any = None
        self._at = 0.0

    def show(self, text: str, html: str, *, last: bool = False) -> None:
        if not self._live or (not last and time.monotonic() - self._at < RENEW_S):
            return
        self._at = time.monotonic()
        # An untrusted notebook shows HTML without scripts and styles; a bar is an element of its own.
        bundle = {"text/plain": text, "text/html": html}
        if self._handle is None:
            from IPython.display import display

            self._handle = display(bundle, raw=True, display_id=True)
        else:
            self._handle.update(bundle, raw=True)


def duration(seconds: float) -> str:
    """``41 s``, ``3 min``: as a person says how long something takes."""
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
