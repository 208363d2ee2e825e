"""What the field's words mean: the one place that report, notebook and terminal explain them from."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

TERMS: Mapping[str, str] = {
    "MTP": "Multi-token prediction, a kind of speculative decoding: a small drafter guesses a few tokens ahead.",
    "LoRA": "A small adapter on top of a model, asked for under a name of its own.",
    "hit": "How many tokens at the start of a prompt the engine found cached and did not compute again.",
    "short of full": "Prompt tokens minus cached tokens: what a send still has to compute.",
    "cache block": "So many tokens of one KV cache group. What a prompt leaves in the cache is counted in blocks.",
    "KV cache group": "Layers that share one block table. A hit is a length that every group can back.",
    "sliding window": "Such a layer looks back only so many tokens, so its group backs a hit with the blocks of the "
    "last window before it, without gaps.",
    "full attention": "Such a layer looks back to the start, so its group backs a hit with all blocks up to it.",
    "Mamba": "A recurrent layer (GDN counts too). Its group backs a hit with one state, the one after the last token.",
    "scheduler block": "Hits are multiples of so many tokens: the least common multiple of the groups' block sizes.",
    "hash block": "Prompts are compared in pieces of so many tokens.",
    "minimum cacheable prompt": "The shortest prompt that can hit on this engine when everything is cached.",
    "checkpoint": "Blocks or a state kept so that a later prompt can resume right there.",
    "retention interval": "--prefix-cache-retention-interval: 0 keeps checkpoints only where the engine expects a "
    "prompt to resume, N one more every N tokens, dense keeps every block.",
    "dense": "Every block is kept; no checkpoint is left out.",
    "replay boundary": "Where the store side expects the next identical prompt to resume. It keeps the blocks before, "
    "and the one that starts there where a lookup gives one up.",
    "store side": "The part of the engine that decides which blocks of a finished prompt stay in the cache.",
    "speculative decoding": "A drafter (MTP, EAGLE) guesses tokens ahead. At lookup vLLM gives up the last cached "
    "block for it, and rounds down again: the drop.",
    "drafter": "The small model that guesses tokens ahead; MTP is one.",
    "junction": "vLLM's word for a common prefix that it noticed and did not find cached. The request that meets one "
    "stores its blocks, so that the next one hits.",
    "first send": "A prompt that nothing before it starts like: nothing can hit. Cold is the same.",
    "prefill chunk": "A long prompt is computed in steps; a chunk is what one step takes.",
    "as served": "With the settings that the server had; one that is only attached to is not restarted with others.",
    "evicted": "Pushed out of the cache by newer blocks when the pool was full. What is evictable takes no room from "
    "running requests.",
    "pool": "All blocks of the KV cache together.",
    "rank": "One engine process of a data-parallel server; each has a prefix cache of its own.",
}
"""Term → what it means, in reading order."""

_ALSO: Mapping[str, str] = {
    "KV cache group": "groups?",
    "sliding window": "sliding",
    "full attention": r"full(?=[\s-](?:attention|groups?)| ·)",
    "minimum cacheable prompt": "min_prompt_tokens",
    "retention interval": "interval",
    "cache block": "blocks kept|kept blocks",
    "speculative decoding": "drop|eagle",
    "evicted": "evictable|eviction",
    "as served": "as_served",
}
"""Other forms under which a term shows, as patterns."""


def used(texts: Iterable[str]) -> dict[str, str]:
    """The terms that occur in these texts, with their meanings, in reading order."""
    text = " ".join(texts)
    return {term: meaning for term, meaning in TERMS.items() if _pattern(term).search(text)}


def _pattern(term: str) -> re.Pattern[str]:
    forms = re.escape(term).replace(r"\ ", r"[\s-]")
    if term in _ALSO:
        forms += f"|{_ALSO[term]}"
    return re.compile(rf"\b(?:{forms})(?:s|es)?\b", re.IGNORECASE)
