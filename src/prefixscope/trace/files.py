"""Which files a trace is in, their lines, and what was wrong with each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from prefixscope.errors import TraceError
from prefixscope.quantities import count

LONGEST_LINE = 64 * 2**20
"""Bytes; an event of 40 groups with 10,000 separate blocks each has about 6 MB."""


@dataclass(slots=True)
class File:
    """What was wrong with one file so far."""

    newer: int = 0
    unreadable: int = 0
    orphans: int = 0
    cut_off: bool = False
    backwards_s: float = 0.0
    clock: dict[str, float] = field(default_factory=dict)

    def warnings(self, name: str) -> Iterator[tuple[str, str]]:
        if self.cut_off:
            yield (
                "truncated",
                f"{name}: the last line is cut off and left out; if its disk was full, later ones are missing",
            )
        if self.newer:
            yield "newer_schema", f"{name}: {count(self.newer, 'line')} of a newer schema left out; update prefixscope"
        if self.unreadable:
            what = (
                "1 line is no event and was"
                if self.unreadable == 1
                else f"{self.unreadable:,} lines are not events and were"
            )
            yield "unreadable", f"{name}: {what} left out"
        if self.orphans:
            yield "no_header", f"{name}: {count(self.orphans, 'event')} of an engine without a header left out"
        if self.backwards_s > 0.001:
            yield "clock", f"{name}: the clock went back by up to {self.backwards_s:.3f} s; file order was kept"


def files_of(sources: Iterable[Path]) -> list[Path]:
    """The trace files in these files, folders and run directories, each once.

    Raises
    ------
    TraceError
        where a path does not exist.
    """
    found: list[Path] = []
    for path in sources:
        if path.is_dir():
            found += sorted((path / "trace" if (path / "run.json").exists() else path).glob("*.jsonl"))
        elif path.exists():
            found.append(path)
        else:
            raise TraceError(f"No file {path}", remedy="check the path; a run keeps its traces in RUN/trace/")
    return list(dict.fromkeys(found))


def lines_of(file: BinaryIO) -> Iterator[bytes]:
    """Its lines; what is longer than any event comes in pieces, none of which is one."""
    return iter(lambda: file.readline(LONGEST_LINE), b"")
