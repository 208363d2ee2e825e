"""What a person calls each cause: the one place where a code becomes words."""

from __future__ import annotations

WORDS = {
    "full_hit": "all that can hit, hits",
    "spec_drop": "the block that speculative decoding gives up",
    "cannot_hit": "too short to hit",
    "cold": "first send",
    "windows_dont_meet": "stored and needed windows don't meet",
    "third_send": "recovered after an earlier miss",
    "chunk_ends": "no prefill chunk ended where the lookup lands",
    "interval_too_long": "checkpoints too far apart",
    "shared_part": "no checkpoint at the end of the shared part",
    "prompts_differ": "the prompts differ",
    "evicted": "evicted since",
    "cache_reset": "the cache was reset",
    "other_engine": "another engine saw the prompt",
    "retried": "the hit shrank while the request waited",
    "hit_not_used": "the admission did not use the hit",
    "caching_off": "nothing was looked up",
    "cant_tell": "the trace doesn't tell",
}


def cause_words(cause: str) -> str:
    """``windows_dont_meet`` → ``stored and needed windows don't meet``; a code that has no words stays as it is."""
    return WORDS.get(cause, cause.replace("_", " "))
