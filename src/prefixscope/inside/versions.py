"""What differs between vLLM releases, in one place.

| what | 0.28 | 0.29 | 0.30–0.32 | 0.33 |
|---|---|---|---|---|
| retention interval | environment variable | flag, or the variable | flag | flag |
| groups that drop a block | `eagle_group_ids` | same | same | `drop_eagle_group_ids` |
| a lookup's ceiling | prompt − 1 | same | same | may be passed in |
| block pools | one | one | one | one per manager possible |

Everything else that the tracer touches has one shape in all of them; `unexpected` checks that it still has.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

KNOWN = ((0, 28), (0, 29), (0, 30), (0, 31), (0, 32), (0, 33))
"""Releases whose code was read and run with the tracer on."""

# Module, class, method, and the parameters that the tracer relies on.
_EXPECTED: tuple[tuple[str, str, str, tuple[str, ...]], ...] = (
    ("vllm.v1.core.kv_cache_manager", "KVCacheManager", "get_computed_blocks", ("self", "request")),
    (
        "vllm.v1.core.kv_cache_manager",
        "KVCacheManager",
        "allocate_slots",
        ("self", "request", "num_new_tokens", "num_new_computed_tokens", "new_computed_blocks"),
    ),
    ("vllm.v1.core.kv_cache_manager", "KVCacheManager", "free", ("self", "request")),
    ("vllm.v1.core.kv_cache_manager", "KVCacheManager", "pop_blocks_for_free", ("self", "request")),
    ("vllm.v1.core.sched.scheduler", "Scheduler", "__init__", ("self", "vllm_config", "kv_cache_config")),
    ("vllm.v1.core.sched.scheduler", "Scheduler", "_preempt_request", ("self", "request")),
    (
        "vllm.v1.core.block_pool",
        "BlockPool",
        "cache_full_blocks",
        (
            "self",
            "request",
            "blocks",
            "num_cached_blocks",
            "num_full_blocks",
            "block_size",
            "kv_cache_group_id",
            "block_mask",
        ),
    ),
    ("vllm.v1.core.block_pool", "BlockPool", "evict_blocks", ("self", "block_ids")),
    ("vllm.v1.core.kv_cache_utils", "FreeKVCacheBlockQueue", "popleft_n", ("self", "n")),
    ("vllm.v1.core.block_pool", "BlockPool", "reset_prefix_cache", ("self",)),
    (
        "vllm.v1.core.single_type_kv_cache_manager",
        "SlidingWindowManager",
        "_contiguous_blocks_for_hit",
        ("window_size", "block_size", "use_eagle"),
    ),
)

_LOOKUP_PARAMETERS = ("max_length", "kv_cache_group_ids", "block_pool", "drop_eagle_block", "alignment_tokens")
_RULE_PARAMETERS = ("reachable_boundaries",)


class Unexpected(Exception):
    """A release, or a shape in it, that the tracer does not know."""


def parse(version: str) -> tuple[int, int]:
    """``"0.29.0+cpu"`` → ``(0, 29)``; ``(-1, -1)`` where it has no such form."""
    numbers = version.split("+")[0].split(".")
    try:
        return int(numbers[0]), int(numbers[1])
    except (IndexError, ValueError):
        return -1, -1


def load() -> dict[str, Any]:
    """The classes to patch, by name, plus ``version`` and ``managers`` (every per-group manager class).

    Raises
    ------
    Unexpected
        naming the release, class or parameter that is not as known.
    """
    import vllm

    version = str(vllm.__version__)
    if parse(version) not in KNOWN:
        raise Unexpected(f"vLLM {version} is not one of the releases known here (0.28 to 0.33)")
    found: dict[str, Any] = {"version": version}
    for module_name, class_name, method, parameters in _EXPECTED:
        owner = getattr(importlib.import_module(module_name), class_name, None)
        function = getattr(owner, method, None)
        if function is None:
            raise Unexpected(f"vLLM {version} has no {class_name}.{method}")
        names = tuple(inspect.signature(function).parameters)
        if names[: len(parameters)] != parameters:
            raise Unexpected(f"vLLM {version}: {class_name}.{method} takes ({', '.join(names)})")
        found[class_name] = owner
    base = importlib.import_module("vllm.v1.core.single_type_kv_cache_manager").SingleTypeKVCacheManager
    found["managers"] = tuple(_subclasses(base))
    for manager in found["managers"]:
        for method, needed in (
            ("find_longest_cache_hit", _LOOKUP_PARAMETERS),
            ("reachable_block_mask", _RULE_PARAMETERS),
        ):
            if method in vars(manager):
                names = tuple(inspect.signature(getattr(manager, method)).parameters)
                absent = [name for name in needed if name not in names]
                if absent:
                    raise Unexpected(f"vLLM {version}: {manager.__name__}.{method} has no {', '.join(absent)}")
    return found


def _subclasses(base: type) -> list[type]:
    found, waiting = [], [base]
    while waiting:
        current = waiting.pop()
        if current not in found:
            found.append(current)
            waiting.extend(current.__subclasses__())
    return found


def drop_groups(coordinator: Any) -> list[int]:
    """Ids of the groups that give up a block at lookup because of speculative decoding."""
    groups = getattr(coordinator, "drop_eagle_group_ids", None)
    return sorted(coordinator.eagle_group_ids if groups is None else groups)


def alignment_tokens(coordinator: Any) -> int:
    """What a hit is rounded down to: the hash block in fine-grained mode, else the scheduler block."""
    value = getattr(coordinator, "_cache_hit_alignment_tokens", None)
    return int(coordinator.scheduler_block_size if value is None else value)


class _AllCached:
    """Stands in for a block pool in which every block of every group is cached."""

    def __init__(self, block_pool: Any) -> None:
        self.hash_block_size = block_pool.hash_block_size
        self.null_block = block_pool.null_block

    def get_cached_block(self, block_hash: object, kv_cache_group_ids: list[int]) -> list[Any]:
        return [self.null_block] * len(kv_cache_group_ids)


def hit_if_all_cached(coordinator: Any, tokens: int, hash_block: int) -> int | None:
    """What the release's own lookup returns for a prompt of ``tokens`` tokens in a pool that holds everything.

    Copies are asked, so the running coordinator and its pool stay as they are. None where the release's lookup
    does not take such a copy.
    """
    twin = copy.copy(coordinator)
    twin.block_pool = _AllCached(coordinator.block_pool)
    twin.single_type_managers = tuple(copy.copy(manager) for manager in coordinator.single_type_managers)
    for manager in twin.single_type_managers:
        manager.block_pool = twin.block_pool
    try:
        return int(twin.find_longest_cache_hit([b""] * (tokens // hash_block), tokens - 1)[1])
    except (AssertionError, AttributeError, IndexError, KeyError, TypeError, ValueError):
        return None


def interval(coordinator: Any) -> int | str:
    """The retention interval that the coordinator resolved; the releases' ``None`` is ``"dense"``."""
    value = coordinator.retention_interval
    return "dense" if value is None else int(value)


def kind(spec: Any) -> str:
    """``full``, ``sliding``, ``mamba``, ``chunked`` or ``cross``; a class name where it is none of these."""
    names = [base.__name__ for base in type(spec).__mro__]
    if "UniformTypeKVCacheSpecs" in names:
        return kind(next(iter(spec.kv_cache_specs.values())))
    for name, word in (
        ("CircularBufferSpec", "circular"),
        ("SlidingWindowSpec", "sliding"),
        ("ChunkedLocalAttentionSpec", "chunked"),
        ("CrossAttentionSpec", "cross"),
        ("MambaSpec", "mamba"),
        ("FullAttentionSpec", "full"),
    ):
        if name in names:
            return word
    return names[0]


def window(spec: Any) -> int | None:
    """Tokens of the sliding window or the attention chunk; None where the group has neither."""
    for name in ("sliding_window", "attention_chunk_size"):
        value = getattr(spec, name, None)
        if value is not None and kind(spec) in ("sliding", "chunked"):
            return int(value)
    return None


def is_drafter(group: Any) -> bool:
    """Whether the release says that this group belongs to the drafter."""
    return bool(getattr(group, "is_eagle_group", False))


def cached_keys(block_pool: Any) -> Any:
    """The pool's mapping from hash key to block, for membership tests only."""
    keys = block_pool.cached_block_hash_to_block._cache
    if not isinstance(keys, dict):
        raise Unexpected(f"the block pool keeps its hashes in a {type(keys).__name__}, not in a dict")
    return keys


_hash_key = operator.attrgetter("_block_hash")


def hash_keys(blocks: Iterable[Any]) -> list[bytes | None]:
    """The key under which each block is cached; None where it is not."""
    return list(map(_hash_key, blocks))


_hash_end = operator.attrgetter("_block_hash_num_tokens")


def hash_ends(blocks: Iterable[Any]) -> list[int | None]:
    """The token of its prompt at which each cached block's hash ends: where the block lay, as vLLM keeps it."""
    return list(map(_hash_end, blocks))


def key_suffix(group_id: int) -> bytes:
    """What vLLM appends to a block's hash to tell the groups apart."""
    return group_id.to_bytes(4, "big", signed=False)


def group_of_key(key: bytes) -> int:
    """The group id inside a hash key."""
    return int.from_bytes(key[-4:], "big", signed=False)


def whole_blocks(keys: Mapping[bytes, Any], sizes: Sequence[int]) -> list[int]:
    """How many whole blocks of each group are cached; one that is partly filled, which 0.29 caches too, is none.

    ``keys`` as `cached_keys` gives them, ``sizes`` each group's block size in tokens.
    """
    found = [0] * len(sizes)
    for key, held in keys.items():
        block = next(iter(held.values())) if isinstance(held, dict) else held
        gid = group_of_key(key)
        found[gid] += not (_hash_end(block) or 0) % sizes[gid]
    return found
