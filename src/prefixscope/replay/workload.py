"""Traffic to replay: a Mooncake-format file, a tracer's file or a run directory, as requests.

A prompt is described by what it has in common with earlier ones, never by its text. Names of contents come from the
file itself, so that the same file is the same workload in every process.

| source | a prompt is made of | an answer is |
|---|---|---|
| Mooncake JSONL | its ``hash_ids``, 512 tokens each, the last one what is left | ``output_length`` tokens of its own |
| tracer file | what it has in common with its closest earlier request, then its own | one token: a trace does not say |
| run directory | ``shared_tokens`` of its series' prompt, then its own; a salt per attempt | ``completion_tokens`` |
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from prefixscope.errors import ReplayError
from prefixscope.replay.case import Request, Segment, total_tokens
from prefixscope.resources import data_path
from prefixscope.sent import sent_rows
from prefixscope.setting import digest
from prefixscope.trace import read_trace

EXAMPLE = "example"
BLOCK_TOKENS = 512
"""Tokens of one ``hash_ids`` entry; source: the traces' own README."""

_LONGEST = 1 << 20
_ALL_DRAFTS = 64
_HELP = "a request is {timestamp, input_length, output_length, hash_ids}, one JSON object a line"


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Requests in the order in which they came, and which of them go on with an earlier one.

    ``repeats`` has a number per request: tokens of the earlier turn that it repeats whole (up to that turn's last
    incomplete 512 tokens), 0 where it opens a conversation. ``warnings`` say what was left out.
    """

    name: str
    requests: tuple[Request, ...]
    repeats: tuple[int, ...]
    warnings: tuple[str, ...] = ()

    @property
    def tokens(self) -> int:
        """Prompt tokens."""
        return total_tokens(self.requests)

    @property
    def distinct_tokens(self) -> int:
        """Prompt tokens that no earlier prompt had at the same place of the same beginning."""
        nodes: dict[tuple[object, ...], int] = {}
        found = 0
        for one in self.requests:
            node: object = (one.salt, one.lora)
            for segment in one.segments:
                if (node, segment) not in nodes:
                    found += segment[1]
                node = nodes.setdefault((node, segment), len(nodes))
        return found

    @property
    def follow_ups(self) -> int:
        """How many requests go on with an earlier one."""
        return sum(1 for tokens in self.repeats if tokens)

    @property
    def id(self) -> str:
        """Hex identity of what is replayed."""
        return digest([one.to_json() for one in self.requests])

    def first(self, count: int) -> Workload:
        """The first requests alone."""
        if count >= len(self.requests):
            return self
        name = f"the first {count:,} requests of {self.name}"
        return replace(self, name=name, requests=self.requests[:count], repeats=self.repeats[:count])


def read_workload(source: str | Path) -> Workload:
    """The workload in a file or folder; ``"example"`` is the stored excerpt of a public trace.

    Raises
    ------
    ReplayError
        where it is none of the three, holds no request, or has a bad line: the message has its number.
    """
    if str(source) == EXAMPLE:
        return _made("an excerpt of the Mooncake conversation trace", *_mooncake(data_path("traces", _EXCERPT)))
    path = Path(source)
    if (path / "raw").is_dir():
        return _made(f"the run {path.name}", _run(path), [])
    if path.is_dir() or _is_trace(path):
        return _made(f"the trace {path.name}", _traced(path), [])
    return _made(f"the file {path.name}", *_mooncake(path))


_EXCERPT = "mooncake-conversation-excerpt.jsonl"


def _made(name: str, requests: list[Request], warnings: list[str]) -> Workload:
    if not requests:
        raise ReplayError(f"{name} holds no request to replay", remedy=f"{_HELP}; or --workload {EXAMPLE}")
    return Workload(name=name, requests=tuple(requests), repeats=tuple(_repeated(requests)), warnings=tuple(warnings))


def _repeated(requests: list[Request]) -> Iterator[int]:
    """Tokens of the longest earlier prompt that each request repeats whole, up to its last incomplete block.

    At least two blocks of 512 tokens: with one, everything that shares a short system prompt would be one conversation.
    """
    nodes: dict[tuple[object, ...], int] = {}
    ends: dict[tuple[object, str], dict[int, int]] = {}  # in which content, how far in → tokens of the prompt
    for one in requests:
        node: object = (one.salt, one.lora)
        best = place = 0
        whole, last = one.tokens // BLOCK_TOKENS * BLOCK_TOKENS, None
        for name, length in one.segments:
            for inside, tokens in ends.get((node, name), {}).items():
                if inside <= length:
                    best = max(best, tokens)
            if place < whole <= place + length:
                last = (node, name), whole - place
            place += length
            node = nodes.setdefault((node, name, length), len(nodes))
        if last is not None and whole >= 2 * BLOCK_TOKENS:
            ends.setdefault(last[0], {})[last[1]] = whole
        yield best


def _lines(path: Path, warnings: list[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Each object with its line number; a last line that was cut off becomes a warning."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                try:
                    value = json.loads(line)
                except ValueError as error:
                    if not line.endswith("\n"):
                        warnings.append(f"{path.name}: line {number:,}, the last one, is cut off and left out")
                        return
                    raise ReplayError(f"{path}, line {number:,} is not JSON: {error}", remedy=_HELP) from error
                if not isinstance(value, dict):
                    raise ReplayError(
                        f"{path}, line {number:,} is a JSON {type(value).__name__}, no object", remedy=_HELP
                    )
                yield number, value
    except OSError as error:
        raise ReplayError(
            f"the workload {path} can't be read: {error.strerror}",
            remedy=f"name a JSONL file, a run directory or a trace, or --workload {EXAMPLE}",
        ) from error


# ---- Mooncake's format


def _mooncake(path: Path) -> tuple[list[Request], list[str]]:
    requests: list[Request] = []
    warnings: list[str] = []
    late = 0
    before = float("-inf")
    for number, row in _lines(path, warnings):
        where = f"{path}, line {number:,}"
        tokens, answer = (_tokens(row, name, where) for name in ("input_length", "output_length"))
        blocks = row.get("hash_ids")
        if not isinstance(blocks, list) or not all(isinstance(one, (int, str)) for one in blocks):
            raise ReplayError(f"{where}: hash_ids is {_short(blocks)}, no list of ids", remedy=_HELP)
        if len(blocks) != -(-tokens // BLOCK_TOKENS) or not tokens:
            raise ReplayError(
                f"{where}: {tokens:,} input tokens with {len(blocks):,} hash_ids",
                cause=f"each id stands for {BLOCK_TOKENS} tokens, the last one for what is left",
                remedy=_HELP,
            )
        arrival = row.get("timestamp", 0)
        late += isinstance(arrival, (int, float)) and arrival < before
        before = max(before, arrival) if isinstance(arrival, (int, float)) else before
        requests.append(
            Request(
                id=f"{number}",
                segments=tuple(
                    (f"block {block}", min(BLOCK_TOKENS, tokens - place * BLOCK_TOKENS))
                    for place, block in enumerate(blocks)
                ),
                answer=(f"answer {number}", answer) if answer else None,
                accepted=_ALL_DRAFTS,
            )
        )
    if late:
        warnings.append(f"{path.name}: {late:,} requests have a timestamp before an earlier line's; line order is kept")
    return requests, warnings


def _tokens(row: Mapping[str, Any], name: str, where: str) -> int:
    value = row.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _LONGEST:
        raise ReplayError(f"{where}: {name} is {_short(value)}, no number of tokens", remedy=_HELP)
    return value


def _short(value: object) -> str:
    return "missing" if value is None else repr(value)[:60]


# ---- a tracer's file


def _is_trace(path: Path) -> bool:
    return any("event" in row for _, row in zip(range(3), (row for _, row in _lines(path, [])), strict=False))


def _traced(path: Path) -> list[Request]:
    """Each request by its first lookup, in time order; what it shares with its closest is the closest's beginning."""
    trace = read_trace(path)
    found: dict[tuple[str, str], Request] = {}
    for one in sorted(trace.lookups, key=lambda lookup: lookup.t):
        engine, name = one.header.engine, one.engine_request_id or one.request_id
        if (engine, name) in found or not 0 < one.prompt_tokens < _LONGEST:
            continue
        closest = found.get((engine, one.closest_engine_id or ""))
        common = one.exact_tokens if one.exact_tokens is not None else one.common_tokens
        shared = _beginning(closest.segments, min(common, one.prompt_tokens)) if closest else ()
        left = one.prompt_tokens - sum(length for _, length in shared)
        own = ((name, left),) if left else ()
        # Engines share nothing: where there are several, each request stays with its own.
        salt = engine if len(trace.headers) > 1 else None
        found[engine, name] = Request(id=name, segments=(*shared, *own), salt=salt)
    return list(found.values())


def _beginning(segments: tuple[Segment, ...], tokens: int) -> tuple[Segment, ...]:
    """The first tokens of a prompt."""
    found: list[Segment] = []
    for name, length in segments:
        if tokens <= 0:
            break
        found.append((name, min(length, tokens)))
        tokens -= length
    return tuple(found)


# ---- a run directory


def _run(folder: Path) -> list[Request]:
    """The sends that a run made, in the order in which they were made, whatever server they went to."""
    rows: list[dict[str, Any]] = []
    for file in sorted((folder / "raw").glob("*.jsonl")):
        rows += [row for _, row in _lines(file, [])]
    requests = []
    for row in sorted(sent_rows(rows), key=lambda row: str(row.get("at", ""))):
        tokens, shared = row.get("prompt_tokens"), row.get("shared_tokens")
        if row.get("status") != "ok" or not isinstance(tokens, int) or tokens < 1:
            continue
        name, prompt = str(row.get("request_id")), f"prompt of {row.get('attempt')}"
        if row.get("send") in ("cold", "repeat"):
            shared = tokens
        shared = min(shared, tokens) if isinstance(shared, int) else 0
        parts = ((prompt, shared), (name, tokens - shared))
        answer = row.get("completion_tokens")
        requests.append(
            Request(
                id=name,
                segments=tuple(part for part in parts if part[1]),
                salt=str(row.get("attempt")),
                lora="adapter" if row.get("role") == "lora" else None,
                answer=(f"answer to {name}", answer) if isinstance(answer, int) and answer > 1 else None,
                accepted=_ALL_DRAFTS,
            )
        )
    return requests
