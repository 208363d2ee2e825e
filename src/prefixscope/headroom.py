"""How many tokens of KV cache a server has, and who says so."""

from __future__ import annotations

from dataclasses import dataclass

from prefixscope import metrics
from prefixscope.trace import Header


@dataclass(frozen=True, slots=True, kw_only=True)
class Headroom:
    """``tokens`` that one sequence could hold; None where nothing tells. ``source`` names what the number rests on."""

    tokens: int | None
    source: str
    blocks: int | None = None


def headroom(text: str | None, header: Header | None = None) -> Headroom:
    """From a ``/metrics`` page and, where the server is traced, its KV cache groups.

    vLLM 0.29.0 reports ``kv_cache_size_tokens`` itself, groups and windows included. Without it, blocks times block
    size would count each group's blocks as if they were tokens of their own, so the groups are needed.
    """
    config = metrics.cache_config(text)
    blocks = _whole(config.get("num_gpu_blocks"))
    size = _whole(config.get("kv_cache_size_tokens"))
    if size is not None:
        return Headroom(tokens=size, source="vllm:cache_config_info, kv_cache_size_tokens", blocks=blocks)
    if blocks is None:
        return Headroom(tokens=None, source="/metrics names no pool")
    if header is not None and header.groups:
        return Headroom(
            tokens=one_sequence(header, blocks), source="num_gpu_blocks and the traced KV cache groups", blocks=blocks
        )
    return Headroom(tokens=None, source="num_gpu_blocks alone: the KV cache groups are not known", blocks=blocks)


def one_sequence(header: Header, blocks: int) -> int | None:
    """Tokens of the longest single sequence that a pool holds: windowed groups stop growing, the others don't."""
    fixed = sum(-(-group.window // group.block_size) + 1 for group in header.groups if group.window)
    growing = [group.block_size for group in header.groups if not group.window]
    if not growing:
        return None
    per_token = sum(1 / size for size in growing)
    return max(0, int((blocks - fixed) / per_token))


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None
