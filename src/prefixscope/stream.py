"""One chat completion as it arrives: when each chunk came, how many tokens it was, and how the drafter did.

A chunk is not a token. With speculative decoding every verified step sends one chunk of one to k + 1 tokens, so a
benchmark that counts chunks counts steps: here tokens are those of ``usage``, and the chunks are counted beside them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import requests

from prefixscope.client import Client
from prefixscope.completion import CHAT, chat_body, integers, patience_s
from prefixscope.metrics import Drafting
from prefixscope.usage import integer, mapping
from prefixscope.usage import read as read_usage

_SPOKEN = ("content", "reasoning_content", "reasoning", "tool_calls")


@dataclass(frozen=True, slots=True, kw_only=True)
class Streamed:
    """What one streamed completion answered.

    Attributes
    ----------
    arrivals_s : when each chunk that carried something came, seconds after the request was sent; the first is the
        time to the first token.
    chunk_tokens : tokens of each chunk; None where the server sends no token ids.
    prompt_tokens, cached_tokens, completion_tokens : from the last event's ``usage``; None where there is none.
    drafting : this request's own speculative metrics (``--per-request-spec-decode-metrics``, vLLM 0.29.0); None where
        the server sends none.
    """

    request_id: str
    text: str
    token_ids: tuple[int, ...] | None
    prompt_tokens: int | None
    cached_tokens: int | None
    completion_tokens: int | None
    finish_reason: str | None
    arrivals_s: tuple[float, ...]
    chunk_tokens: tuple[int, ...] | None
    drafting: Drafting | None
    seconds: float
    retries: int

    @property
    def chunks(self) -> int:
        return len(self.arrivals_s)


def stream(
    client: Client,
    messages: Sequence[Mapping[str, str]],
    *,
    model: str,
    max_tokens: int,
    salt: str | None = None,
    request_id: str = "",
    extra: Mapping[str, Any] | None = None,
    expected_tokens: int = 0,
) -> Streamed:
    """One greedy chat completion, read as it comes.

    Raises
    ------
    Unreachable, Rejected
        as ``Client.chat``; a stream that breaks off, or has not ended in time, is the first, one that ends before its
        end or holds an error is a Rejected with status 0.
    """
    body = chat_body(messages, model=model, max_tokens=max_tokens, salt=salt, extra=extra)
    response, started, retries = client.post(
        CHAT,
        {**body, "stream": True, "stream_options": {"include_usage": True}},
        headers={"X-Request-Id": request_id} if request_id else {},
        timeout_s=patience_s(expected_tokens, max_tokens),
        model=model,
        stream=True,
    )
    text: list[str] = []
    ids: list[tuple[int, ...]] = []
    arrivals: list[float] = []
    usage: dict[str, Any] = {}
    scored: Drafting | None = None
    reason: str | None = None
    whole = False
    with response:
        try:
            # Byte by byte where the stream isn't chunked: a read of n bytes would wait until n have come.
            size = 512 if getattr(response.raw, "chunked", False) else 1
            for data in _events(response.iter_lines(size)):
                at = time.perf_counter() - started
                if data == "[DONE]":
                    whole = True
                    break
                event = _decoded(client, data)
                choices = event.get("choices")
                choice = mapping(choices[0]) if isinstance(choices, list) and choices else {}
                delta = mapping(choice.get("delta"))
                tokens = integers(choice.get("token_ids"))
                if tokens or any(delta.get(name) for name in _SPOKEN):
                    arrivals.append(at)
                    ids.append(tokens or ())
                    text.append(str(next((delta[n] for n in _SPOKEN[:3] if delta.get(n)), "")))
                reason = choice.get("finish_reason") or reason
                usage = mapping(event.get("usage")) or usage
                scored = per_request(mapping(event.get("metrics")).get("speculative_decoding")) or scored
        except requests.RequestException as error:
            raise client.broke(CHAT, error, f"{len(arrivals)} chunks") from error
    if not (whole or reason):
        raise client.malformed(CHAT, f"{len(arrivals)} chunks", "the stream ended before its end")
    told = read_usage(usage)
    counted = all(ids) and bool(ids)
    return Streamed(
        request_id=request_id,
        text="".join(text),
        token_ids=tuple(token for chunk in ids for token in chunk) if counted else None,
        prompt_tokens=told.prompt_tokens,
        cached_tokens=told.cached_tokens,
        completion_tokens=told.completion_tokens,
        finish_reason=reason,
        arrivals_s=tuple(arrivals),
        chunk_tokens=tuple(map(len, ids)) if counted else None,
        drafting=scored,
        seconds=time.perf_counter() - started,
        retries=retries,
    )


def per_request(value: Any) -> Drafting | None:
    """vLLM's ``metrics.speculative_decoding`` of one answer as counters; None where it is not there, or not readable.

    ``acceptance_histogram[n]`` counts steps that accepted n tokens, so a place in the draft was accepted as often as
    more tokens than its number were (vLLM 0.29.0).
    """
    found = mapping(value)
    steps, accepted, drafted = (
        integer(found.get(name)) for name in ("num_spec_steps", "num_accepted_draft_tokens", "num_draft_tokens")
    )
    if steps is None or accepted is None or drafted is None:
        return None
    histogram = integers(found.get("acceptance_histogram"))
    places = tuple(sum(histogram[place + 1 :]) for place in range(len(histogram) - 1)) if histogram else None
    return Drafting(drafts=steps, drafted=drafted, accepted=accepted, per_position=places)


def _events(lines: Iterable[bytes]) -> Iterable[str]:
    """The data of each server-sent event."""
    for line in lines:
        if line.startswith(b"data:"):
            yield line[5:].decode("utf-8", "replace").strip()


def _decoded(client: Client, data: str) -> dict[str, Any]:
    try:
        event = json.loads(data)
    except ValueError:
        raise client.malformed(CHAT, data, "an event of the stream is not JSON") from None
    if not isinstance(event, dict) or event.get("error"):
        raise client.malformed(CHAT, data, "the stream holds an error")
    return event
