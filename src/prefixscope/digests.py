"""Short digests of a file's lines: which of them were changed since.

A page keeps them of what it is made from. They find an edit, and prove nothing: who edits a line can make its digest
again. Equal files have equal digests.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

MOST = 4_096
"""Digests of one file: of more lines, each is of a few together, so that a page stays small."""
_SIZE = 8  # hexadecimal digits: enough to tell which of some thousand values a line held


def lines_of(text: str) -> list[str]:
    """A file's lines; only a line feed ends one: JSON may hold every other separator as it is."""
    return text.removesuffix("\n").split("\n") if text else []


def of_line(line: str) -> str:
    """The digest of one line, or of a few."""
    return hashlib.sha256(line.encode()).hexdigest()[:_SIZE]


def of_lines(text: str) -> dict[str, Any]:
    """How many lines a file has, and the digests of them in order, as one text."""
    lines = lines_of(text)
    return {"lines": len(lines), "digests": "".join(of_line(part) for _, _, part in _parts(lines, len(lines)))}


def changed(text: str, known: Mapping[str, Any]) -> Iterator[tuple[int, int, str]]:
    """What of a file has another digest than it had: (first line, last line, digest it had).

    Lines count from 1. Where their number changed it is the first place that differs, up to the end.
    """
    lines, number, digests = lines_of(text), known.get("lines"), known.get("digests")
    if not isinstance(number, int) or not isinstance(digests, str):
        return
    for place, (first, last, part) in enumerate(_parts(lines, number)):
        before = digests[place * _SIZE : (place + 1) * _SIZE]
        if of_line(part) != before:
            if len(lines) != number:
                yield first, len(lines), ""
                return
            yield first, last, before
    if len(lines) < number:
        yield len(lines) + 1, len(lines), ""


def _parts(lines: list[str], number: int) -> Iterator[tuple[int, int, str]]:
    """(First line, last line, text) of what one digest is of, in a file that had so many lines."""
    step = max(-(-number // MOST), 1)
    for start in range(0, len(lines), step):
        part = lines[start : start + step]
        yield start + 1, start + len(part), "\n".join(part)
