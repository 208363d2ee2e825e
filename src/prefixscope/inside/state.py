"""What is remembered of one engine: its KV cache groups, and the requests that it is busy with."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from typing import Any

from . import versions
from .ranges import Ranges

_RECENT_REQUESTS, _RECENT_HASHES = 128, 400_000
_OPEN_REQUESTS = 20_000


class Request:
    """What is remembered of one request until it ends."""

    __slots__ = (
        "admitted",
        "boundaries",
        "dropped",
        "kept",
        "lookups",
        "prompt_stored",
        "retries",
        "signature",
        "unwritten",
    )

    def __init__(self) -> None:
        self.signature: object = None
        self.lookups = self.retries = 0
        self.admitted = self.prompt_stored = self.unwritten = False
        self.kept: dict[int, Ranges] = {}
        self.dropped: dict[int, Ranges] = {}
        self.boundaries: dict[int, list[int]] = {}


class Engine:
    """One KV cache manager (one scheduler) and the requests it is busy with."""

    def __init__(self, manager: Any, vllm_config: Any = None) -> None:
        self.key = os.urandom(4).hex()
        self.vllm_config = vllm_config
        self.coordinator = manager.coordinator
        self.managers = tuple(self.coordinator.single_type_managers)
        groups = manager.kv_cache_config.kv_cache_groups
        self.kinds = [versions.kind(group.kv_cache_spec) for group in groups]
        self.pools = [getattr(one, "block_pool", manager.block_pool) for one in self.managers]
        self.block_sizes = [int(one.block_size) for one in self.managers]
        self.hash_block = int(manager.block_pool.hash_block_size)
        self.alignment = versions.alignment_tokens(self.coordinator)
        self.drop = set(versions.drop_groups(self.coordinator)) if manager.enable_caching else set()
        self.requests: dict[str, Request] = {}
        self.recent: deque[tuple[str, Sequence[bytes]]] = deque()
        self.recent_hashes = 0
        self.evicted: dict[int, int] = {}
        self.reach: dict[int, int | None] = {}

    def request(self, request_id: str) -> Request:
        """What is remembered of this request, from now on if nothing was yet."""
        found = self.requests.get(request_id)
        if found is None:
            found = self.requests[request_id] = Request()
            if len(self.requests) > _OPEN_REQUESTS:
                # An engine that forgets to end requests must not make us grow without bound.
                self.requests.pop(next(iter(self.requests)))
        return found

    def reachable(self, tokens: int, *, ask: bool = True) -> int | None:
        """The hit that this release's own lookup gives a prompt of so many tokens when every block is cached.

        Without ``ask`` only a length that was asked before is answered.
        """
        units = (tokens - 1) // self.hash_block
        if units not in self.reach and ask:
            if len(self.reach) > 4096:
                self.reach.clear()
            self.reach[units] = versions.hit_if_all_cached(self.coordinator, tokens, self.hash_block)
        return self.reach.get(units)

    def shortest_that_hits(self) -> int | None:
        """Tokens of the shortest prompt that can hit at all; None where the first 64 alignments bring nothing."""
        for units in range(1, 64 * self.alignment // self.hash_block + 1):
            if self.reachable(units * self.hash_block + 1):
                return units * self.hash_block + 1
        return None

    def closest(self, request_id: str, hashes: Sequence[bytes]) -> tuple[str, int] | None:
        """The newest earlier request that shares the longest prefix with this one, and how many tokens of it.

        Hashes are chained, so equal hashes at one position mean equal prefixes up to there.
        """
        best: tuple[str, int] | None = None
        if not hashes:
            return None
        for other_id, other in reversed(self.recent):
            if other_id == request_id or not other or other[0] != hashes[0]:
                continue
            low, high = 1, min(len(hashes), len(other))
            while low < high:
                middle = (low + high + 1) // 2
                if other[middle - 1] == hashes[middle - 1]:
                    low = middle
                else:
                    high = middle - 1
            if best is None or low * self.hash_block > best[1]:
                best = (other_id, low * self.hash_block)
                if low == len(hashes):
                    break
        return best

    def remember(self, request_id: str, hashes: Sequence[bytes]) -> None:
        """Keep this prompt's hashes for later requests to be compared with."""
        self.recent.append((request_id, hashes))
        self.recent_hashes += len(hashes)
        while len(self.recent) > _RECENT_REQUESTS or (self.recent_hashes > _RECENT_HASHES and len(self.recent) > 1):
            self.recent_hashes -= len(self.recent.popleft()[1])
