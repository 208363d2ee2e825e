"""Rows of streamed answers whose rates and acceptance are known, for what is computed from them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from prefixscope.setting import Setting, digest

ON, OFF = Setting(), Setting(drafter=False)
ACCEPTED = {"prose": (3, 3, 2, 3, 3), "XML": (1, 0, 2, 1, 0, 1, 0, 1), "code": (2, 1, 3, 0, 2, 2)}
"""Shape → tokens that each step of a drafter with k = 3 accepts."""
FIRST_MS = {"A": 140.0, "B": 100.0}


def generation(
    arm: str = "A",
    shape: str = "prose",
    document: int = 1,
    repeat: int = 1,
    *,
    accepted: Sequence[int] | None = (3, 3, 2),
    step_ms: float = 40.0,
    tokens: int = 0,
    **changes: Any,
) -> dict[str, Any]:
    """One streamed answer: the first token, then a chunk every ``step_ms``; ``accepted`` None has no drafter."""
    sizes = [1, *(1 + n for n in accepted)] if accepted is not None else [1] * tokens
    setting = ON if arm == "A" else OFF
    places = [sum(1 for n in accepted or () if n > place) for place in range(3)]
    score = {"drafts": len(sizes) - 1, "drafted": 3 * (len(sizes) - 1), "accepted": sum(accepted or ())}
    score = None if accepted is None else {**score, "per_position": places, "generated": None, "prompted": None}
    return {
        "schema": 1, "kind": "generation", "stage": "speculation", "at": "2026-11-29T10:00:00.000Z",
        "cell": digest([arm, shape, document, repeat]), "arm": arm, "label": setting.label, "side": setting.id,
        "shape": shape, "document": document, "repeat": repeat, "setting": setting.to_json(), "server": f"s{arm}",
        "model": "gemma4-tiny", "prompt": {"name": f"{shape} {document}", "tokens": 512, "seed": 1, "digest": "d"},
        "request_id": f"ps-{arm}-{shape}-{document}-{repeat}", "status": "ok", "error": None, "prompt_tokens": 512,
        "cached_tokens": 0, "completion_tokens": sum(sizes), "finish_reason": "length", "chunks": len(sizes),
        "chunk_tokens": sizes, "arrivals_ms": [FIRST_MS[arm] + step_ms * n for n in range(len(sizes))],
        "seconds": (FIRST_MS[arm] + step_ms * len(sizes)) / 1000, "retries": 0, "per_request": score, "counters": score,
        "disturbed": False, "interleaved": True, "text": "The harbour lights.", "token_ids": [1, 2, 3],
        **changes,
    }  # fmt: skip


def resend(arm: str, index: int, cached: int, first_ms: float, tokens: int = 6446) -> dict[str, Any]:
    """One send of a long prompt."""
    setting = ON if arm == "A" else OFF
    return {
        "schema": 1, "kind": "resend", "stage": "speculation", "arm": arm, "label": setting.label, "side": setting.id,
        "tokens": tokens, "send": "cold" if index == 1 else "repeat", "index": index, "prompt_tokens": tokens,
        "cached_tokens": cached, "first_token_ms": first_ms,
    }  # fmt: skip


def pair(name: str, shape: str, document: int, *, identical: bool = True) -> dict[str, Any]:
    """How two answers to one prompt compare."""
    return {
        "schema": 1, "kind": "pair", "stage": "speculation", "pair_id": f"{name}-{shape}-{document}", "pair": name,
        "shape": shape, "document": document, "identical": identical, "by": "token ids",
        "first_difference": None if identical else 4, "margin": None, "class": "identical" if identical else "words",
    }  # fmt: skip


def speculation_rows() -> Iterator[dict[str, Any]]:
    """A whole stage: three shapes, two prompts of each, asked twice on either arm; the drafter's arm loses its hit."""
    for document in (1, 2):
        for repeat in (1, 2):
            for shape, accepted in ACCEPTED.items():
                tokens = 1 + len(accepted) + sum(accepted)
                # Not all steps take the same time, so that an interval has a width.
                slow = 1 + 0.02 * (document + repeat)
                yield generation("A", shape, document, repeat, accepted=accepted, step_ms=40 * slow)
                yield generation("B", shape, document, repeat, accepted=None, tokens=tokens, step_ms=36 / slow)
    for arm, sends in {
        "A": ((0, 2400.0), (0, 2400.0), (6336, 140.0)),
        "B": ((0, 2200.0), (6400, 60.0), (6400, 60.0)),
    }.items():
        for index, (cached, first_ms) in enumerate(sends, start=1):
            yield resend(arm, index, cached, first_ms)
        label = (ON if arm == "A" else OFF).label
        yield {"schema": 1, "kind": "headroom", "stage": "speculation", "arm": arm, "label": label, "tokens": 269_243,
               "blocks": 8192, "source": "vllm:cache_config_info, kv_cache_size_tokens"}  # fmt: skip
    for name in ("A / A", "B / B", "A / B"):
        for shape in ACCEPTED:
            for document in (1, 2):
                yield pair(name, shape, document)
