"""Blocks evicted lately: where they lay in their prompts, for the trace, and their hash keys, for lookups to come.

A key is the hash of the whole prefix up to its block (salt and adapter included), so a lookup finds evictions of its
own blocks and never another prompt's. Keys stay in memory; only positions are written.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any

from . import versions
from .ranges import from_indices

MOST_UNWRITTEN = 4_096
"""Evictions in one event."""
_REMEMBERED = 65_536
"""Keys, twice: about 20 MB at most."""


class Gone:
    """What one engine's block pools evicted; of the keys the oldest half is forgotten in one go."""

    __slots__ = ("ends", "new", "old", "unwritten")

    def __init__(self) -> None:
        self.new: dict[bytes, float] = {}
        self.old: dict[bytes, float] = {}
        self.ends: dict[bytes, list[int]] = {}
        self.unwritten = 0

    def __bool__(self) -> bool:
        return bool(self.new or self.old)

    def take(self, blocks: Iterable[Any], now: float) -> None:
        """These blocks are about to be used again: remember the cached ones of them."""
        blocks = list(blocks)
        keys = versions.hash_keys(blocks)
        if keys.count(None) == len(keys):
            return
        cached = [key for key in keys if key is not None]
        self.new.update(zip(cached, repeat(now)))
        ends = self.ends
        for key, end in zip(keys, versions.hash_ends(blocks), strict=True):
            if key is not None and end is not None:
                group = key[-4:]
                if group in ends:
                    ends[group].append(end)
                else:
                    ends[group] = [end]
        self.unwritten += len(cached)
        if len(self.new) > _REMEMBERED:
            self.old, self.new = self.new, {}

    def when(self, key: bytes) -> float | None:
        """When the block with this key was last evicted; None where that is not remembered."""
        found = self.new.get(key)
        return self.old.get(key) if found is None else found

    def forget(self) -> None:
        """The cache was emptied: what was evicted before explains no miss any more."""
        self.new, self.old = {}, {}

    def rows(self, block_sizes: Sequence[int]) -> list[dict[str, Any]]:
        """What was evicted since the last call, per group: how many blocks, and their positions in their prompts."""
        found, self.ends, self.unwritten = self.ends, {}, 0
        rows = []
        for group in sorted(found):
            gid, size = versions.group_of_key(group), block_sizes[versions.group_of_key(group)]
            # A block cached up to a boundary inside it ends early.
            positions = sorted((end - 1) // size for end in found[group])
            rows.append({"gid": gid, "blocks": len(positions), "ranges": from_indices(positions)})
        return rows
