"""Numbers of a ``usage`` object that can't be: what is wrong with them, in words that follow "it"."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prefixscope.usage import negative

COLD_SHARE, COLD_TOKENS = 0.1, 256
"""A first send under words of its own may hit the chat template's beginning: not more than the larger of the two."""
SAME_SHARE, SAME_TOKENS = 0.1, 64
"""A clock in the template may change a prompt's length from send to send, by no more than this."""
MOST_CHARS_PER_TOKEN = 50
"""No tokenizer puts as many characters of these prompts, words and hexadecimal digits, into one token."""


def doubt(
    usage: Mapping[str, Any],
    *,
    prompt_tokens: int | None,
    cached_tokens: int | None,
    chars: int,
    cold: bool,
    before: int | None = None,
) -> str:
    """Why a usage can't be believed; empty where it can. What is missing or null is no reason.

    Parameters
    ----------
    chars : length of the prompt that was sent.
    cold : nobody had sent it before.
    before : its prompt tokens as an earlier send counted them.
    """
    below = negative(usage)
    if below:
        return f"reports a count below zero, {below[0]} {below[1]:,}"
    if prompt_tokens == 0:
        return f"counts 0 prompt tokens for a prompt of {chars:,} characters"
    if prompt_tokens is None or cached_tokens is None:
        return ""
    if prompt_tokens * MOST_CHARS_PER_TOKEN < chars:
        return f"counts only {prompt_tokens:,} prompt tokens for a prompt of {chars:,} characters"
    if before is not None and abs(prompt_tokens - before) > max(SAME_TOKENS, SAME_SHARE * before):
        return f"counts {prompt_tokens:,} prompt tokens for a prompt that had {before:,} when it was sent before"
    if cached_tokens > prompt_tokens:
        return f"reports {cached_tokens:,} cached tokens for a prompt of only {prompt_tokens:,}"
    if cold and too_warm(prompt_tokens, cached_tokens):
        return (
            f"reports {cached_tokens:,} of {prompt_tokens:,} prompt tokens as cached for a prompt that nobody had sent "
            "before"
        )
    return ""


def too_warm(prompt_tokens: int, cached_tokens: int) -> bool:
    """Whether a cold send hit more than a chat template's own beginning can be."""
    template = cached_tokens <= max(COLD_SHARE * prompt_tokens, COLD_TOKENS)
    return not template or cached_tokens >= prompt_tokens - 1
