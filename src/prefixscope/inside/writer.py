"""One JSON-lines file per process, bounded, that never raises into the engine."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any, TextIO

SCHEMA = 1


class Writer:
    """Appends events to ``DIRECTORY/trace-PID.jsonl``; the file appears with the first event.

    Past ``limit_bytes`` it writes one ``gap`` event and then nothing. A fork gets a file of its own.
    """

    def __init__(self, directory: str, limit_bytes: int) -> None:
        self.directory, self.limit_bytes = directory, limit_bytes
        self.full = False
        self._file: TextIO | None = None
        self._pid = 0
        self._bytes = 0
        self._lock = threading.Lock()

    def write(self, event: str, fields: dict[str, Any]) -> None:
        """One line. Raises OSError where the file can't be written: the caller then turns tracing off."""
        with self._lock:
            pid = os.getpid()
            if self._file is None or pid != self._pid:
                self._open(pid)
            if self.full or self._file is None:
                return
            head = {"schema": SCHEMA, "event": event, "t": round(time.time(), 6), "pid": pid}
            line = json.dumps({**head, **fields}, separators=(",", ":")) + "\n"
            if self._bytes + len(line) > self.limit_bytes:
                self.full = True
                reason = f"the file reached its limit of {self.limit_bytes} bytes"
                line = json.dumps({**head, "event": "gap", "reason": reason}, separators=(",", ":")) + "\n"
            self._file.write(line)
            self._bytes += len(line)

    def _open(self, pid: int) -> None:
        path = Path(self.directory) / f"trace-{pid}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        cut_off = path.exists() and not _ends_with_newline(path)
        # Line buffering: a killed engine loses at most the line it was writing.
        self._file = path.open("a", buffering=1, encoding="utf-8")
        self._bytes = self._file.tell()
        self._pid, self.full = pid, False
        if cut_off:
            # An earlier process with this id stopped in mid-line.
            self._file.write("\n")


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        if not file.seek(0, os.SEEK_END):
            return True
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
