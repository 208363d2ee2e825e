"""What a person calls each cause: the one place where a code becomes words."""

from __future__ import annotations

WORDS = {
    "full_hit": "as long a hit as there can be",
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

MEANINGS = {
    "full_hit": "Only the last tokens are computed, as for every prompt.",
    "spec_drop": "All of it is cached; the drafter costs the last block, and the rest is rounded down.",
    "cannot_hit": "The prompt is shorter than the shortest that can hit.",
    "cold": "Nothing before it starts like this prompt.",
    "windows_dont_meet": "The engine kept the blocks beside those that the lookup needs.",
    "third_send": "An earlier send missed and left behind the blocks that this one hit.",
    "chunk_ends": "A recurrent state exists only where a step of the prefill ended, and none ended there.",
    "interval_too_long": "The retention interval keeps checkpoints, but none near enough to where this prompt resumes.",
    "shared_part": "Only a part of the prompt was seen before, and nothing was kept where that part ends.",
    "prompts_differ": "Only a part of the prompt was seen before, and that part hits.",
    "evicted": "The blocks were cached, and newer ones have pushed them out.",
    "cache_reset": "Something emptied the cache in between.",
    "other_engine": "The prompt is cached in another process of the server.",
    "retried": "The request waited in the queue, or was preempted, and blocks left the cache meanwhile.",
    "hit_not_used": "The lookup found more than the engine then used.",
    "caching_off": "The engine, or this request, uses no prefix cache.",
    "cant_tell": "What was recorded fits more than one cause; the sentence names the measurement that decides.",
}
"""What each cause means, without numbers; a diagnosis's sentence has those."""


def cause_words(cause: str) -> str:
    """``windows_dont_meet`` → ``stored and needed windows don't meet``; a code that has no words stays as it is."""
    return WORDS.get(cause, cause.replace("_", " "))


def cause_meaning(cause: str) -> str:
    """What a cause means in one sentence; empty for a code that has none."""
    return MEANINGS.get(cause, "")
