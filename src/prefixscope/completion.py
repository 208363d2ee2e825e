"""One answer of a model, and the three APIs that give one: what is sent to each, and where each says what."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from prefixscope import usage
from prefixscope.usage import mapping

CHAT = "/v1/chat/completions"
PATHS: Mapping[str, str] = {"chat": CHAT, "completions": "/v1/completions", "messages": "/v1/messages"}
"""The APIs by the names that ``prefixscope check --api`` takes: OpenAI's two, and Anthropic's, which vLLM serves."""
ANTHROPIC_VERSION = "2023-06-01"
PATIENCE_S, PROMPT_TOKENS_PER_S, ANSWER_TOKENS_PER_S = 60.0, 100, 1
"""A slow server on a CPU still does better than these rates."""


@dataclass(frozen=True, slots=True)
class Completion:
    """What one completion answered.

    Attributes
    ----------
    prompt_tokens, cached_tokens, completion_tokens : from ``usage``; None where the server reports none. A null
        ``prompt_tokens_details`` is None, never 0.
    token_ids, prompt_token_ids : where the server returns them (vLLM's ``return_token_ids``).
    margins : at each answered token, the log-probability of the best token minus the second best, nats.
    seconds : wall time of the whole call; with ``max_tokens`` 1 this is the time to the first token.
    retries : how often the server said 429 or 503 first.
    cached_from : the field of ``usage`` that ``cached_tokens`` was read from; empty where none has it.
    """

    request_id: str
    text: str
    prompt_tokens: int | None
    cached_tokens: int | None
    completion_tokens: int | None
    token_ids: tuple[int, ...] | None
    prompt_token_ids: tuple[int, ...] | None
    logprobs: tuple[float, ...] | None
    margins: tuple[float, ...] | None
    finish_reason: str | None
    seconds: float
    retries: int = 0
    usage: Mapping[str, Any] = field(default_factory=dict)
    cached_from: str = ""


def patience_s(prompt_tokens: int, answer_tokens: int) -> float:
    """How long a whole answer may take, from the request to its last byte."""
    return PATIENCE_S + prompt_tokens / PROMPT_TOKENS_PER_S + answer_tokens / ANSWER_TOKENS_PER_S


def chat_body(
    messages: Sequence[Mapping[str, str]],
    *,
    model: str,
    max_tokens: int,
    salt: str | None,
    logprobs: bool = False,
    extra: Mapping[str, Any] | None = None,
    api: str = "chat",
) -> dict[str, Any]:
    """The body of a greedy completion; a field that ``extra`` gives as None is left out.

    ``/v1/completions`` knows no messages: it gets their text alone, a line each, so a next turn begins with the last.
    """
    said: dict[str, Any] = {"messages": list(messages)}
    if api == "completions":
        said = {"prompt": "\n".join(one["content"] for one in messages)}
    body = {
        "model": model,
        **said,
        "max_tokens": max_tokens,
        "temperature": 0,
        **({"cache_salt": salt} if salt else {}),
        **({"logprobs": True, "top_logprobs": 2} if logprobs else {}),
        **(extra or {}),
    }
    return {name: value for name, value in body.items() if value is not None}


def completion(
    answer: Mapping[str, Any], *, request_id: str, seconds: float, retries: int, api: str = "chat"
) -> Completion | None:
    """The record of an answer; None where it has none of its API's answer in it."""
    choice = _choice(answer, api)
    if choice is None:
        return None
    message, listed = mapping(choice.get("message")), mapping(choice.get("logprobs"))
    text = message.get("content") or message.get("reasoning_content") or message.get("reasoning") or choice.get("text")
    counted = usage.read(answer.get("usage"))
    logprobs = listed.get("content") or None
    return Completion(
        request_id=request_id or str(answer.get("id", "")),
        text=str(text or ""),
        prompt_tokens=counted.prompt_tokens,
        cached_tokens=counted.cached_tokens,
        completion_tokens=counted.completion_tokens,
        token_ids=integers(choice.get("token_ids")),
        prompt_token_ids=integers(answer.get("prompt_token_ids")),
        logprobs=_each(logprobs, lambda entry: float(entry["logprob"])),
        margins=_each(logprobs, _margin),
        finish_reason=choice.get("finish_reason"),
        seconds=seconds,
        retries=retries,
        usage=mapping(answer.get("usage")),
        cached_from=counted.cached_from,
    )


def _choice(answer: Mapping[str, Any], api: str) -> dict[str, Any] | None:
    if api == "messages":
        blocks = answer.get("content")
        if not isinstance(blocks, list):
            return None
        text = "".join(str(mapping(one).get("text") or mapping(one).get("thinking") or "") for one in blocks)
        return {"text": text, "finish_reason": answer.get("stop_reason")}
    choices = answer.get("choices")
    return choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else None


def integers(value: Any) -> tuple[int, ...] | None:
    """The value where it is a list of whole numbers, at least one; else None."""
    return tuple(value) if isinstance(value, list) and value and all(isinstance(v, int) for v in value) else None


def _each(entries: Any, read: Callable[[dict[str, Any]], float]) -> tuple[float, ...] | None:
    try:
        return tuple(read(entry) for entry in entries) if entries else None
    except (LookupError, TypeError, ValueError):
        return None


def _margin(entry: dict[str, Any]) -> float:
    best = sorted((float(top["logprob"]) for top in entry["top_logprobs"]), reverse=True)
    return best[0] - best[1]
