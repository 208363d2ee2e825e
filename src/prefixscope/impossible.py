"""What the values of a raw row can be: decided here, for everybody who reads rows.

A value that can't be is taken out of its row and kept beside it as text, under ``impossible``: nothing computes with
it, and everybody can say what stood there. ::

    count      a whole number from 0 on, as JSON writes it; a truth value or text is none
    time       a finite number from 0 on (ms or s)
    number     a finite number
    truth      true or false
    interval   a count or "dense"
    text       text
    moment     a date and time of ISO 8601
    send       the name of a send (``_NAMES``)
    status     how a request ended (``_NAMES``)
    name       text or a count
    object     a JSON object
    anything   holds neither NaN nor infinity

Null is always possible: it says that a value is not known.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from datetime import datetime
from itertools import pairwise
from typing import Any

NAME = "impossible"
MOST_COUNT = 2**53
"""What no count of tokens, blocks or bytes, and no time, reaches."""
_SHOWN = 40
"""Characters that are kept of an impossible value."""

_FIELDS = {
    **dict.fromkeys(
        ("prompt_tokens", "cached_tokens", "shared_tokens", "completion_tokens", "answered_tokens", "answer_tokens",
         "shared_answer_tokens", "predicted_tokens", "distinct_tokens", "tokens", "blocks", "bytes", "block_size",
         "gid", "index", "retries", "repeat", "chunks", "first_difference"), "count"),
    **dict.fromkeys(("hits", "chunk_tokens"), "counts"),
    **dict.fromkeys(("first_token_ms", "seconds"), "time"),
    "arrivals_ms": "times",
    "margin": "number",
    **dict.fromkeys(("overlapped", "disturbed", "interleaved", "identical"), "truth"),
    "interval": "interval",
    **dict.fromkeys(
        ("stage", "kind", "cell", "series", "attempt", "role", "server", "model", "error", "request_id",
         "arm", "label", "side", "shape", "pair", "by", "class", "finish_reason", "source", "taken_from",
         "group_kind", "release", "interval_asked", "text"), "text"),
    "document": "name", "at": "moment", "send": "send", "status": "status",
    **dict.fromkeys(("setting", "prompt", "metrics", "counters", "per_request"), "object"),
}  # fmt: skip
_DRAFTING = {"drafts": "count", "drafted": "count", "accepted": "count", "per_position": "counts"}
_INNER = {
    "setting": {"drafter": "truth", "lora": "truth", "as_served": "truth", "interval": "interval",
                **dict.fromkeys(("label", "id", "dtype"), "text")},
    "prompt": {"tokens": "count", "name": "text", "digest": "text"},
    "metrics": {"queries": "count", "hits": "count"},
    "counters": _DRAFTING,
    "per_request": _DRAFTING,
}  # fmt: skip
"""Field, and the field of a field → what it can be."""

_NAMES = {
    "send": {"cold", "repeat", "control", "new_ending", "follow_up"},
    "status": {"ok", "failed", "void", "interrupted"},
}
_WORDS = {
    "count": "is no whole number from 0 on",
    "time": "is no number from 0 on",
    "number": "is no number",
    "truth": "is neither true nor false",
    "interval": 'is no number of tokens, nor "dense"',
    "text": "is no text",
    "moment": "is no date and time",
    "send": "is the name of no send",
    "status": "is no outcome of a request",
    "name": "is neither text nor a number",
    "object": "is no JSON object",
}
_NO_MORE_THAN = {
    "cached_tokens": "prompt_tokens",
    "predicted_tokens": "prompt_tokens",
    "per_request.accepted": "per_request.drafted",
}
"""Of one request's own counts; what a server's counters said around it may be odd, and is compared as it is."""


def judged(row: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """The row with None for each impossible value, and why each is one: field → its value and what is wrong.

    The row's ``impossible`` holds field → value as text, of what is found here and of what was found before.
    """
    out, found = dict(row), {}
    for path, value, kind in _values(row):
        if (wrong := _wrong(value, kind)) is not None:
            found[path] = wrong
        elif isinstance(value, float) and kind in ("count", "interval"):
            _put(out, path, int(value))  # another tool may have written 64 as 64.0
    for path, most in _NO_MORE_THAN.items():
        value, limit = _at(row, path), _at(row, most)
        if value is not None and limit is not None and path not in found and most not in found and value > limit:
            found[path] = value, f"is more than its {most}, {limit}"
    for path in found:
        _put(out, path, None)
    for name, value in out.items():
        if name != NAME and (odd := next(_endless(value), None)) is not None:
            found[name] = odd, "is no finite number"
            out[name] = None
    if found:
        out[NAME] = {**_known(row), **{path: _text(value) for path, (value, _) in found.items()}}
    return out, {path: f"{_text(value)} {words}" for path, (value, words) in found.items()}


def taken_out(row: Mapping[str, Any], *fields: str) -> bool:
    """Whether a judged row said something impossible in one of these fields."""
    return not _known(row).keys().isdisjoint(fields)


def _known(row: Mapping[str, Any]) -> dict[str, str]:
    known = row.get(NAME)
    return known if isinstance(known, dict) else {}


def _values(row: Mapping[str, Any]) -> Iterator[tuple[str, Any, str]]:
    """(Field, value, what it can be) of what a row says and does not leave open."""
    for name, value in row.items():
        if value is not None and name in _FIELDS:
            yield name, value, _FIELDS[name]
        for inner, kind in _INNER.get(name, {}).items() if isinstance(value, dict) else ():
            if value.get(inner) is not None:
                yield f"{name}.{inner}", value[inner], kind


def _wrong(value: Any, kind: str) -> tuple[Any, str] | None:
    """What of a value is not of its kind, and why; None where all is."""
    if kind in ("counts", "times"):
        if not isinstance(value, list):
            return value, "is no list"
        one = kind[:-1]
        # A place that nobody counted is known in a list of counts; every chunk came at some time.
        odd = (item for item in value if (item is not None or one == "time") and _wrong(item, one))
        first = next(odd, _NOTHING)
        if first is not _NOTHING:
            return first, _WORDS[one]
        early = (after for before, after in pairwise(value) if one == "time" and after < before)
        return next(((item, "is before the one that it follows") for item in early), None)
    if _is(value, kind):
        return None
    huge = (
        isinstance(value, (int, float)) and MOST_COUNT <= abs(value) < math.inf and kind in ("count", "time", "number")
    )
    return value, f"is more than any {kind} here" if huge else _WORDS[kind]


def _is(value: Any, kind: str) -> bool:
    if kind == "truth":
        return isinstance(value, bool)
    if kind == "object":
        return isinstance(value, dict)
    if kind in _NAMES:
        return isinstance(value, str) and value in _NAMES[kind]
    if kind == "moment":
        return isinstance(value, str) and _is_moment(value)
    if isinstance(value, str):
        return kind in ("text", "name") or (kind == "interval" and value == "dense")
    if kind == "text":
        return False
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    least = -MOST_COUNT if kind == "number" else 0
    return least <= value < MOST_COUNT and (kind in ("time", "number") or value == int(value))


def _is_moment(text: str) -> bool:
    try:
        datetime.fromisoformat(text.removesuffix("Z"))
    except ValueError:
        return False
    return True


_NOTHING = object()


def _endless(value: Any) -> Iterator[float]:
    """Every NaN and infinity in a value."""
    if isinstance(value, float) and not math.isfinite(value):
        yield value
    elif isinstance(value, (dict, list)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _endless(item)


def _at(row: Mapping[str, Any], path: str) -> Any:
    name, _, inner = path.partition(".")
    value = row.get(name)
    if not inner:
        return value
    return value.get(inner) if isinstance(value, dict) else None


def _put(row: dict[str, Any], path: str, value: Any) -> None:
    name, _, inner = path.partition(".")
    if not inner:
        row[name] = value
    elif isinstance(row[name], dict):
        row[name] = {**row[name], inner: value}


def _text(value: Any) -> str:
    """A value as JSON writes it, for a terminal too."""
    try:
        text = json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        text = type(value).__name__
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
