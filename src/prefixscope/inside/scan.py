"""Which blocks of a prompt are cached and which a hit needs, read within an allowance of time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from . import versions
from .ranges import from_flags, from_indices
from .state import Engine

# Scanning may use this share of the wall clock; a burst is what an idle engine may spend at once.
_SHARE, _BURST_S = 0.01, 0.25
# One lookup may take so much of it: beyond, a prompt would notice.
_ONE_LOOKUP_S = 0.015


class Scanner:
    """Reads the prefix cache at a lookup; ``contiguous`` is the release's own count of blocks that a window needs."""

    def __init__(self) -> None:
        self.contiguous: Callable[..., int] | None = None
        self.allowance_s, self.refilled = _BURST_S, time.monotonic()
        self.per_block_s = 0.2e-6

    def scan(
        self, engine: Engine, hashes: Sequence[bytes], steps: list[dict[str, Any]], limiting: list[int]
    ) -> tuple[list[dict[str, Any]], str, list[float]]:
        """Cached and needed blocks of every group; ``full``, ``narrow`` or ``none`` as the allowance permits; and when
        those of the prompt's blocks that are not there any more were evicted."""
        needs = [self._needed(engine, gid, steps, gid in limiting) for gid in range(len(engine.managers))]
        counts = [len(hashes) * engine.hash_block // size for size in engine.block_sizes]
        spans: list[list[int] | None] = [[0, count] for count in counts]
        scan = "full"
        if not self._afford(sum(counts)):
            # Look only around what the lookup needed.
            scan = "narrow"
            spans = []
            for need, count in zip(needs, counts, strict=True):
                width = 0 if need is None else min(need[1] - need[0], 256)
                spans.append(None if need is None else [max(0, need[1] - 2 * width), min(count, need[1] + width)])
            if not self._afford(sum(span[1] - span[0] for span in spans if span)):
                scan, spans = "none", [None] * len(counts)
        # What this thread worked: on a busy machine the wall clock also counts what others did meanwhile.
        started, looked = time.thread_time(), 0
        rows = []
        gone: list[float] = []
        for gid, (span, need) in enumerate(zip(spans, needs, strict=True)):
            row: dict[str, Any] = {"gid": gid, "cached": None, "needed": need, "backs": _backs(steps, gid)}
            if span is not None:
                scale = engine.block_sizes[gid] // engine.hash_block
                keys, suffix = versions.cached_keys(engine.pools[gid]), versions.key_suffix(gid)
                start, stop = span
                found = [
                    hashes[index] + suffix in keys for index in range(start * scale + scale - 1, stop * scale, scale)
                ]
                looked += len(found)
                row["cached"] = from_flags(found, start)
                if engine.gone and need is not None:
                    # One lost block of full attention takes all that follow along, up to what a lookup may look at.
                    reach = steps[0]["max"] // engine.block_sizes[gid]
                    first, last = (start, reach) if engine.kinds[gid] == "full" else need
                    absent = [one for one in range(max(first, start), min(last, stop)) if not found[one - start]]
                    if evicted := self._evicted(engine, hashes, scale, suffix, absent):
                        row["evicted"] = from_indices(evicted)
                        gone += evicted.values()
                if scan != "full":
                    row["scanned"] = span
                if engine.alignment < engine.block_sizes[gid]:
                    # Fine-grained mode also finds blocks by a boundary inside them.
                    inside = [
                        index
                        for index in range(start * scale, min(len(hashes), stop * scale + scale))
                        if (index + 1) % scale and hashes[index] + suffix in keys
                    ]
                    row["partial_tokens"] = [(index + 1) * engine.hash_block for index in inside]
            rows.append(row)
        spent = time.thread_time() - started
        self.allowance_s -= spent
        if looked > 200:
            self.per_block_s = 0.8 * self.per_block_s + 0.2 * spent / looked
        return rows, scan, gone

    def _evicted(
        self, engine: Engine, hashes: Sequence[bytes], scale: int, suffix: bytes, absent: list[int]
    ) -> dict[int, float]:
        """Which of these blocks of a group were cached once and evicted, and when."""
        if not absent or not self._afford(2 * len(absent)):
            return {}
        when = engine.gone.when
        times = [when(hashes[index * scale + scale - 1] + suffix) for index in absent]
        return {index: time for index, time in zip(absent, times, strict=True) if time is not None}

    def _afford(self, blocks: int) -> bool:
        now = time.monotonic()
        self.allowance_s = min(_BURST_S, self.allowance_s + (now - self.refilled) * _SHARE)
        self.refilled = now
        return blocks * self.per_block_s <= min(self.allowance_s, _ONE_LOOKUP_S)

    def _needed(self, engine: Engine, gid: int, steps: list[dict[str, Any]], limiting: bool) -> list[int] | None:
        """Blocks that a hit at the group's own candidate takes: the one it could not back, else the last it was asked.

        | kind | blocks for a hit at c tokens |
        |---|---|
        | full | all up to c, one more where one is dropped, never past what the lookup may look at |
        | sliding | the window that ends at c, one more where one is dropped |
        | mamba | the one that ends at c |
        | chunked | from the start of c's chunk |
        """
        asked = [step for step in steps if gid in step["gids"] and step["candidate"] > 0]
        if not asked:
            return None
        kind, size = engine.kinds[gid], engine.block_sizes[gid]
        step = asked[-1]
        if limiting or kind == "full":
            for one in asked:
                if one["backs"] < one["candidate"] // engine.alignment * engine.alignment:
                    step = one
        extra = 1 if step["drop"] else 0
        if kind == "full":
            tokens = step["candidate"] if limiting else min(step["candidate"], step["backs"] or step["candidate"])
            return [0, min(tokens // size + extra, step["max"] // size)]
        end = step["candidate"] // engine.alignment * engine.alignment // size
        if kind == "sliding" and self.contiguous is not None:
            window = versions.window(engine.managers[gid].kv_cache_spec)
            if window is not None:
                stop = self.possible(engine, step, end * size) // size + extra
                blocks = self.contiguous(window_size=window, block_size=size, use_eagle=step["drop"])
                return [max(0, stop - blocks), stop]
        if kind == "mamba":
            # In fine-grained mode the candidate may lie inside a block.
            end = -(-(step["candidate"] // engine.alignment * engine.alignment) // size)
            return [max(0, end - 1), end]
        if kind == "chunked":
            chunk = versions.window(engine.managers[gid].kv_cache_spec)
            if chunk is not None:
                return [step["candidate"] // chunk * chunk // size, end]
        return None

    def possible(self, engine: Engine, step: dict[str, Any], candidate: int) -> int:
        """The longest hit up to ``candidate`` that sliding-window groups could back at this step if all were cached.

        A group that drops a block needs one whole block past the hit, and the prompt may end before it does.
        """
        gid = step["gids"][0]
        if not step["drop"] or engine.kinds[gid] != "sliding":
            return candidate
        size = engine.block_sizes[gid]
        most: int = max(0, step["max"] // size - 1) * size
        return min(candidate, most - most % engine.alignment)


def _backs(steps: list[dict[str, Any]], gid: int) -> int | None:
    backs = [step["backs"] for step in steps if gid in step["gids"]]
    return min(backs) if backs else None
