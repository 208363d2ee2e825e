"""A run's own requests as cases for the replay: one for each traced engine, in the order in which they were sent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from prefixscope.replay.case import Case, Request, Segment, ServerSetting
from prefixscope.replay.geometry import Geometry
from prefixscope.trace import Header, Trace

Row = Mapping[str, Any]
ANSWER_TOKENS = 16
"""Tokens of the answer that a follow-up turn goes on from, where its row does not say."""


def cases(rows: Iterable[Row], trace: Trace) -> list[Case]:
    """One case per engine that answered rows, from the rows that its trace knows; the others have no geometry.

    Each series ran under a salt of its own, so a series is whole here or not at all.
    """
    engines: dict[tuple[str, int], tuple[Header, list[Row]]] = {}
    for row in sorted(rows, key=lambda one: str(one.get("at"))):
        lookup = trace.lookup(row["request_id"]) if _whole(row) else None
        if lookup is not None:
            header = lookup.header
            engines.setdefault((header.engine, header.pid), (header, []))[1].append(row)
    return [_case(header, sent) for header, sent in engines.values()]


def _whole(row: Row) -> bool:
    """Whether a row says all that its request needs; one that was written by hand, or by another tool, may not."""
    if row.get("status") != "ok" or not {"request_id", "series", "attempt", "role", "send", "setting"} <= set(row):
        return False
    counts = [row.get(name) for name in ("cached_tokens", "shared_tokens", "answer_tokens", "answered_tokens")]
    numbers = all(isinstance(value, (int, type(None))) for value in (*counts, row.get("shared_answer_tokens")))
    total, setting = row.get("prompt_tokens"), row["setting"]
    return numbers and isinstance(total, int) and total > 0 and isinstance(setting, Mapping) and "label" in setting


def _case(header: Header, rows: Sequence[Row]) -> Case:
    requests: list[Request] = []
    for row in rows:
        requests += _requests(row)
    return Case(
        geometry=Geometry.from_header(header),
        setting=ServerSetting.from_header(header),
        requests=tuple(requests),
        release=release(header),
        name=str(rows[0]["setting"]["label"]),
        measured={row["request_id"]: row.get("cached_tokens") for row in rows},
    )


def release(header: Header) -> str:
    """The engine's release without what a build adds to it: ``0.29.0+cpu`` is 0.29.0."""
    return header.version.split("+")[0]


def _requests(row: Row) -> list[Request]:
    """One sent row as requests: itself, and before a follow-up turn the one whose answer it goes on from."""
    salt = f"{row['series']} {row['attempt']}"
    lora = "adapter" if row["role"] == "lora" else None  # a served name may say where it comes from
    total, send = int(row["prompt_tokens"]), row["send"]
    whole = f"{salt} prompt"
    if send in ("cold", "repeat"):
        return [Request(id=row["request_id"], segments=((whole, total),), salt=salt, lora=lora)]
    shared = min(int(row.get("shared_tokens") or 0), total)
    if send != "follow_up":
        return [Request(id=row["request_id"], segments=_parts((whole, shared), (f"{salt} {send}", total - shared)),
                        salt=salt, lora=lora)]  # fmt: skip
    answer = (f"{salt} answer", int(row.get("answer_tokens") or ANSWER_TOKENS))
    first = int(row.get("answered_tokens") or shared)
    # How much of the answer's tokens the template and the tokenizer gave back; none where nobody knows.
    kept = min(int(row.get("shared_answer_tokens") or 0), answer[1], total - shared)
    segments = _parts((whole, shared), (answer[0], kept), (f"{salt} {send}", total - shared - kept))
    return [
        Request(id=f"{row['request_id']} before", segments=((whole, first),), salt=salt, lora=lora, answer=answer),
        Request(id=row["request_id"], segments=segments, salt=salt, lora=lora),
    ]


def _parts(*segments: Segment) -> tuple[Segment, ...]:
    return tuple(one for one in segments if one[1] > 0)
