"""What is remembered of one engine: its KV cache groups, and the requests that it is busy with."""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Sequence
from typing import Any

from . import versions
from .gone import Gone
from .ranges import Ranges

_RECENT_REQUESTS, _RECENT_HASHES = 128, 400_000
# Token ids are looked at, never written: they say where inside a block two prompts part.
_COMPARED_REQUESTS, _RECENT_TOKENS = 32, 400_000
_OPEN_REQUESTS = 20_000


class Request:
    """What is remembered of one request until it ends."""

    __slots__ = (
        "admitted",
        "boundaries",
        "dropped",
        "kept",
        "lookups",
        "null",
        "prompt_stored",
        "requeueing",
        "retries",
        "signature",
        "unwritten",
    )

    def __init__(self) -> None:
        self.signature: object = None
        self.lookups = self.retries = 0
        self.admitted = self.prompt_stored = self.requeueing = self.unwritten = False
        self.kept: dict[int, Ranges] = {}
        self.dropped: dict[int, Ranges] = {}
        self.null: dict[int, Ranges] = {}
        self.boundaries: dict[int, list[int]] = {}


class Recent:
    """A prompt that later ones are compared with; ``scope`` is what else enters its hashes: salt and adapter."""

    __slots__ = ("hashes", "request_id", "scope", "tokens")

    def __init__(self, request: Any) -> None:
        self.request_id: str = request.request_id
        self.hashes: Sequence[bytes] = request.block_hashes
        self.tokens: Sequence[int] = request.prompt_token_ids or ()
        adapter = request.lora_request
        self.scope = (request.cache_salt, None if adapter is None else adapter.lora_name)


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
        self.recent: deque[Recent] = deque()
        self.recent_hashes = self.recent_tokens = 0
        self.gone = Gone()
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

    def closest(self, mine: Recent) -> tuple[str, int, int] | None:
        """The newest earlier request that shares the longest prefix with this one, how many tokens of it in whole
        hash blocks, and how many to the token.

        Hashes are chained, so equal hashes at one position mean equal prefixes up to there.
        """
        best: Recent | None = None
        length = 0
        hashes = mine.hashes
        for one in reversed(self.recent):
            other = one.hashes
            if not hashes or one.request_id == mine.request_id or not other or other[0] != hashes[0]:
                continue
            if best is not None and (len(other) <= length or other[length] != hashes[length]):
                continue
            low, high = max(1, length), min(len(hashes), len(other))
            while low < high:
                middle = (low + high + 1) // 2
                if other[middle - 1] == hashes[middle - 1]:
                    low = middle
                else:
                    high = middle - 1
            if low > length:
                best, length = one, low
                if low == len(hashes):
                    break
        if best is None:
            return None
        start = length * self.hash_block
        return best.request_id, start, start + _common(best.tokens, mine.tokens, start, self.hash_block)

    def near(self, mine: Recent) -> tuple[str, int, bool] | None:
        """An earlier request that starts like this one without sharing a block of its hashes.

        That is: less than a hash block is common, or the salt or the adapter differs. The request, the common tokens
        within the first hash block, and whether salt and adapter are the same.
        """
        best: tuple[str, int, bool] | None = None
        for one in itertools.islice(reversed(self.recent), _COMPARED_REQUESTS):
            if one.request_id == mine.request_id:
                continue
            common = _common(one.tokens, mine.tokens, 0, self.hash_block)
            if common > (best[1] if best else 0):
                best = (one.request_id, common, one.scope == mine.scope)
        return best

    def remember(self, mine: Recent) -> None:
        """Keep this prompt for later ones to be compared with."""
        self.recent.append(mine)
        self.recent_hashes += len(mine.hashes)
        while len(self.recent) > _RECENT_REQUESTS or (self.recent_hashes > _RECENT_HASHES and len(self.recent) > 1):
            oldest = self.recent.popleft()
            self.recent_hashes -= len(oldest.hashes)
            self.recent_tokens -= len(oldest.tokens)
        self.recent_tokens += len(mine.tokens)
        for one in self.recent:
            if self.recent_tokens <= _RECENT_TOKENS:
                break
            self.recent_tokens -= len(one.tokens)
            one.tokens = ()


def _common(left: Sequence[int], right: Sequence[int], start: int, most: int) -> int:
    """How many tokens from ``start`` on are the same, ``most`` at most."""
    low, high = 0, max(0, min(most, len(left) - start, len(right) - start))
    if not high or left[start] != right[start]:
        return 0
    while low < high:
        middle = (low + high + 1) // 2
        if left[start + low : start + middle] == right[start + low : start + middle]:
            low = middle
        else:
            high = middle - 1
    return low
