"""What a server's ``usage`` object says, wherever it says it. Null, missing and malformed are all None, never 0."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

CACHED: tuple[tuple[str, ...], ...] = (
    ("prompt_tokens_details", "cached_tokens"),  # OpenAI, vLLM, SGLang, llama.cpp's server, TensorRT-LLM
    ("input_tokens_details", "cached_tokens"),  # the Responses API
    ("cache_read_input_tokens",),  # Anthropic's Messages API and vLLM's /v1/messages
    ("prompt_cache_hit_tokens",),
    ("cached_tokens",),
)
"""Where cached tokens are counted; the first place that holds a number wins. Other fields are left alone."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one answer; None where the server reports none.

    ``prompt_tokens`` is the whole prompt, cached part included. ``cached_from`` is the field that ``cached_tokens`` was
    read from; empty where there is none.
    """

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    cached_from: str = ""


def read(body: Any) -> Usage:
    """The counts in a ``usage`` object of any known shape; all None where it is none."""
    usage = mapping(body)
    cached, place = next(
        ((found, ".".join(path)) for path in CACHED if (found := _at(usage, path)) is not None), (None, "")
    )
    return Usage(_prompt(usage), cached, _first(usage, "completion_tokens", "output_tokens"), place)


def negative(body: Any) -> tuple[str, int] | None:
    """The first count of a ``usage`` object that is below zero, with its field; None where none is."""
    usage = mapping(body)
    for path in (("prompt_tokens",), ("input_tokens",), ("completion_tokens",), ("output_tokens",), *CACHED):
        value: Any = usage
        for name in path:
            value = mapping(value).get(name)
        found = integer(value)
        if found is not None and found < 0:
            return ".".join(path), found
    return None


def _prompt(usage: Mapping[str, Any]) -> int | None:
    whole = _count(usage.get("prompt_tokens"))
    rest = _count(usage.get("input_tokens"))
    if whole is not None or rest is None or "input_tokens_details" in usage:
        return rest if whole is None else whole
    # Anthropic's input_tokens leaves the cached part out (vllm#40912): total = input + read + created.
    return rest + sum(_count(usage.get(f"cache_{kind}_input_tokens")) or 0 for kind in ("read", "creation"))


def _first(usage: Mapping[str, Any], *names: str) -> int | None:
    return next((value for name in names if (value := _count(usage.get(name))) is not None), None)


def _at(usage: Mapping[str, Any], path: tuple[str, ...]) -> int | None:
    value: Any = usage
    for name in path:
        value = mapping(value).get(name)
    return _count(value)


def _count(value: Any) -> int | None:
    found = integer(value)
    return found if found is not None and found >= 0 else None


def integer(value: Any) -> int | None:
    """An int where the value is one (a numeric string too, which some gateways send); else None."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        return None


def mapping(value: Any) -> dict[str, Any]:
    """The value where it is a JSON object; else an empty one."""
    return value if isinstance(value, dict) else {}
