"""What of a page's own sources was edited after the page was made, by the digests that it keeps of their lines.

Which field of a row was edited, and what stood there, is known where one value put back gives the row's old digest:
one that the field has in another row, or a number that what was made of the row still shows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from prefixscope import digests, shared
from prefixscope.difference import MISSING, around, both, field_apart, parsed, printable
from prefixscope.frames import send_label
from prefixscope.frames.columns import whole
from prefixscope.frames.rows import dict_in
from prefixscope.impossible import MOST_COUNT

MOST_SEARCHED, MOST_NUMBERS = 10, 2_000
"""Edited rows of a file whose field is searched for, and numbers of the page that are tried in it."""
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")


@dataclass(frozen=True, slots=True)
class Edit:
    """One place of an embedded file that is not as the page was made from it, and what is known of it."""

    place: str
    told: str

    def __str__(self) -> str:
        return f"{self.place}: {self.told}"


def unreadable(name: str, text: str) -> Iterator[Edit]:
    """The rows of a file that can't be read, which are therefore left out of what is made again."""
    for number, line in enumerate(digests.lines_of(text) if name.endswith(".jsonl") else (), 1):
        if line.strip() and not isinstance(parsed(line), dict):
            yield Edit(f"{name}, row {number:,} is unreadable", f"shown {around(line)}, recomputed nothing")


def found(files: Mapping[str, str], known: Any, shown: Iterable[str]) -> Iterator[Edit]:
    """Every line that has another digest than the page keeps of it.

    Parameters
    ----------
    files : what the page embeds, by name.
    known : name → digests of its lines, as the page has them.
    shown : texts of the page that no longer follow; the number that an edited row held may be in them.
    """
    numbers = dict(islice((pair for text in shown for pair in _numbers(text)), MOST_NUMBERS))
    for name, of in known.items() if isinstance(known, dict) else ():
        text = files.get(name)
        if text is not None and isinstance(of, dict):
            yield from _of_file(name, text, of, numbers)


def _of_file(name: str, text: str, known: Mapping[str, Any], numbers: Mapping[str, float]) -> Iterator[Edit]:
    lines, noun = digests.lines_of(text), "row" if name == shared.ROWS else "line"
    rows = [parsed(line) for line in lines] if name.endswith(".jsonl") else []
    held = None
    for searched, (first, last, digest) in enumerate(digests.changed(text, known)):
        if not digest:
            was, now = known["lines"], len(lines)
            yield Edit(name, f"it had {was:,} {noun}s when the page was made and has {now:,}: from {noun} {first:,} on "
                             "they are others")  # fmt: skip
        elif last > first:
            yield Edit(f"{name}, {noun}s {first:,}–{last:,}", "one or more were edited after the page was made")
        elif not rows:
            yield Edit(
                f"{name}, line {first:,}",
                f"edited after the page was made, it reads {around(lines[first - 1].strip())}",
            )
        elif isinstance(row := rows[first - 1], dict):
            held = _held(rows) if held is None and searched < MOST_SEARCHED else held
            before = _before(row, digest, held or {}, numbers) if searched < MOST_SEARCHED else None
            yield Edit(f"{name}, {noun} {first:,}{_who(row)}", f"edited after the page was made{_field(row, before)}")


def _who(row: Mapping[str, Any]) -> str:
    """What a row is about, as far as it says so."""
    kind = str(row.get("kind") or row.get("event") or "")
    send = send_label(str(row.get("send")), whole(row.get("index"))) if kind == "send" else kind
    about = (row.get("stage"), dict_in(row, "setting").get("label"), dict_in(row, "prompt").get("name"), send)
    said = ", ".join(around(str(part)) for part in about if part)
    return f" ({said})" if said else ""


def _field(row: Mapping[str, Any], before: Mapping[str, Any] | None) -> str:
    if before is None:
        return ""
    path, now, was = field_apart(row, before)
    texts = (None if one is MISSING else json.dumps(one, ensure_ascii=False) for one in (now, was))
    return ": {} is {}, was {}".format(printable(path), *both(*texts))


_Place = tuple[str, str]


def _held(rows: Iterable[Any]) -> dict[_Place, dict[str, Any]]:
    """(Field, field of that field) → the values that it has in any row, by their JSON; the inner one may be empty."""
    found: dict[_Place, dict[str, Any]] = {}
    for row in rows:
        for name, value in row.items() if isinstance(row, dict) else ():
            found.setdefault((name, ""), {})[json.dumps(value, sort_keys=True)] = value
            for inner, part in value.items() if isinstance(value, dict) else ():
                found.setdefault((name, inner), {})[json.dumps(part, sort_keys=True)] = part
    return found


def _before(
    row: Mapping[str, Any], digest: str, held: Mapping[_Place, Mapping[str, Any]], numbers: Mapping[str, float]
) -> dict[str, Any] | None:
    """The row with one value put back that gives it the digest; None where none does."""
    for (name, inner), values in held.items():
        outer = row.get(name)
        if inner and not isinstance(outer, dict):
            continue
        counted = any(isinstance(value, (int, float)) for value in values.values())
        for value in (*values.values(), *(numbers.values() if counted else ()), MISSING):
            made = _with(outer, inner, value) if inner else value
            tried = _with(row, name, made)
            if digests.of_line(shared.as_line(tried).removesuffix("\n")) == digest:
                return tried
    return None


def _with(value: Any, name: str, part: Any) -> dict[str, Any]:
    """The mapping with another value under that name, or without it."""
    return {key: item for key, item in value.items() if key != name} | ({} if part is MISSING else {name: part})


def _numbers(text: str) -> Iterator[tuple[str, float]]:
    """The numbers in a text as JSON may hold each: 21 is 21 and 21.0."""
    for found in _NUMBER.findall(text):
        value = float(found.replace(",", ""))
        for one in (value, int(value)) if value < MOST_COUNT and value == int(value) else (value,):
            yield str(one), one
