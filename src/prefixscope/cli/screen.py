"""Progress on stderr."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from prefixscope.progress import duration


def say(text: str) -> None:
    """A line on stderr that stays."""
    print(text, file=sys.stderr, flush=True)


class Screen:
    """Progress on stderr: one line that renews itself on a terminal, a line every 20 s elsewhere."""

    def __init__(self) -> None:
        self.live = sys.stderr.isatty()
        self._last = ""
        self._at = 0.0

    def line(self, text: str) -> None:
        """A line that stays."""
        if self.live and self._last:
            print("\r\x1b[2K", end="", file=sys.stderr)
        say(text)
        self._last = ""

    def progress(self, snapshot: dict[str, Any]) -> None:
        """Where a stage is; one that has nothing to do says nothing."""
        if not snapshot.get("steps") and not snapshot.get("text"):
            return
        left = snapshot.get("left_s")
        steps = f"{snapshot['step']}/{snapshot['steps']}" if snapshot.get("steps") else ""
        text = f"  {snapshot['stage']:9} {steps:>6}  {snapshot.get('text', '')[:80]}"
        text += f"  ({duration(snapshot['elapsed_s'])}" + (
            f", about {duration(left)} left)" if left is not None else ")"
        )
        if self.live:
            print(f"\r\x1b[2K{text[: _columns() - 1]}", end="", file=sys.stderr, flush=True)
            self._last = text
        elif time.monotonic() - self._at > 20 and text != self._last:
            say(text)
            self._last, self._at = text, time.monotonic()


def _columns() -> int:
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns
    except OSError:
        return 100
