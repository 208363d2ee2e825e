"""What a check may cost: a cap on requests and on prompt tokens, and each further probe's price in words."""

from __future__ import annotations

MAX_SENDS = 16
MAX_TOKENS = 100_000
SENDS_OF_THE_PROMPT = 5
"""A prompt so long that five of it are more than ``MAX_TOKENS`` may be sent as often as that."""


def most_tokens(tokens: int) -> int:
    """The cap on prompt tokens where a prompt has about so many."""
    return max(MAX_TOKENS, SENDS_OF_THE_PROMPT * tokens)


def price(requests: int, tokens: int) -> str:
    """``2 requests, about 12,800 tokens``."""
    return f"{requests} request{'' if requests == 1 else 's'}, about {tokens:,} tokens"


def stated() -> str:
    """The cap as help and documentation say it."""
    times = {5: "five"}[SENDS_OF_THE_PROMPT]
    return f"{MAX_SENDS} requests and {MAX_TOKENS:,} prompt tokens ({times} times --tokens where that is more)"
