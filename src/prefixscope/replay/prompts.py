"""Which prompts a prediction is about: lengths and reuse patterns, each with how often it comes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefixscope.errors import ReplayError
from prefixscope.replay.grid import PATTERNS

MOST_TOKENS = 1_000_000
"""Longest prompt: the context that replays are given."""
MOST_LENGTHS = 64
"""Different lengths that are asked of the scheduler; more are stood for by quantiles."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """One kind of prompt: ``tokens`` long, sent again in this ``pattern``, ``weight`` times."""

    tokens: int
    pattern: str = PATTERNS[0]
    weight: float = 1.0


def parse_tokens(text: str) -> tuple[Share, ...]:
    """``"6392,9887"``, or with how often each comes: ``"1000x9,6392x1"``.

    Raises
    ------
    ReplayError
        naming the part that is no length.
    """
    found = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d[\d_]*)(?:x(\d+(?:\.\d+)?))?", part.strip(), re.ASCII)
        if not match:
            raise ReplayError(
                f"--tokens {text}: {part.strip()!r} is no prompt length",
                remedy="give lengths in tokens: --tokens 1000,6392, or with how often each comes: 1000x9,6392x1",
            )
        found.append(Share(tokens=_length(match[1], "--tokens"), weight=float(match[2] or 1)))
    return _merged(found, f"--tokens {text}")


def read_prompts(path: Path) -> tuple[Share, ...]:
    """Prompts of a file: a length a line, or JSON lines with ``tokens``, and ``count`` and ``pattern`` where known.

    Rows of a run's ``raw/`` count too: each cold send is a prompt of its ``prompt_tokens``.

    Raises
    ------
    ReplayError
        where the file can't be read, with the line that is no prompt.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise ReplayError(f"{path} can't be read: {reason}", remedy="name a file of prompt lengths") from error
    found: list[Share] = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            found += _of_line(line.strip(), f"{path}, line {number}")
    return _merged(found, str(path))


def _of_line(line: str, where: str) -> list[Share]:
    if re.fullmatch(r"\d[\d_]*", line, re.ASCII):
        return [Share(tokens=_length(line, where))]
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        row = None
    if isinstance(row, dict) and row.get("kind") is not None:  # of a run
        cold = row.get("kind") == "send" and row.get("send") == "cold" and isinstance(row.get("prompt_tokens"), int)
        return [Share(tokens=_length(row["prompt_tokens"], where))] if cold else []
    tokens = row.get("tokens", row.get("prompt_tokens")) if isinstance(row, dict) else None
    if not isinstance(row, dict) or not isinstance(tokens, int) or isinstance(tokens, bool):
        raise ReplayError(
            f"{where} is no prompt: {line[:60]!r}",
            cause="a text can't be counted in tokens without its model's tokenizer",
            remedy='give a length in tokens a line, or JSON lines: {"tokens": 6392, "count": 3, "pattern": "repeat"}',
        )
    return [Share(tokens=_length(tokens, where), pattern=_pattern(row, where), weight=_count(row, where))]


def _pattern(row: Mapping[str, Any], where: str) -> str:
    pattern = str(row.get("pattern", PATTERNS[0])).replace("-", "_").replace(" ", "_")
    if pattern not in PATTERNS:
        raise ReplayError(
            f"{where}: pattern {row['pattern']!r}", remedy=f"use one of {', '.join(PATTERNS).replace('_', '-')}"
        )
    return pattern


def _count(row: Mapping[str, Any], where: str) -> float:
    value = row.get("count", 1)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e15:
        raise ReplayError(f"{where}: count {value!r}", remedy="give a positive number")
    return float(value)


def _length(value: str | int, where: str) -> int:
    tokens = int(value)
    if not 0 < tokens <= MOST_TOKENS:
        raise ReplayError(
            f"{where}: a prompt of {tokens:,} tokens", remedy=f"give lengths from 1 to {MOST_TOKENS:,} tokens"
        )
    return tokens


def _merged(found: Iterable[Share], where: str) -> tuple[Share, ...]:
    """Equal ones added up, the shortest first."""
    total: dict[tuple[int, str], float] = {}
    for one in found:
        total[one.tokens, one.pattern] = total.get((one.tokens, one.pattern), 0) + one.weight
    if not any(total.values()):
        raise ReplayError(f"{where}: there is no prompt in it", remedy="give lengths in tokens: --tokens 6392")
    return tuple(Share(tokens=n, pattern=pattern, weight=w) for (n, pattern), w in sorted(total.items()) if w)


def thinned(shares: Iterable[Share], most: int = MOST_LENGTHS) -> tuple[Share, ...]:
    """At most ``most`` lengths of each pattern: the middle of equal parts of the traffic stands for the part."""
    found: list[Share] = []
    for pattern in PATTERNS:
        rows = [one for one in shares if one.pattern == pattern]
        if len(rows) <= most:
            found += rows
            continue
        part, total = sum(one.weight for one in rows) / most, 0.0
        middles = iter([(n + 0.5) * part for n in range(most)])
        middle = next(middles)
        for one in rows:
            total += one.weight
            weight = 0.0
            while middle is not None and middle <= total:
                weight += part
                middle = next(middles, None)  # type: ignore[assignment]
            if weight:
                found.append(Share(tokens=one.tokens, pattern=pattern, weight=weight))
    return tuple(found)
