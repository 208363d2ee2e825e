"""Prompts described by what they contain, as token ids and block hashes, each computed once.

A prompt is a list of segments ``[content, length]``: the first ``length`` tokens of a content that has a name. Two
prompts share exactly the tokens of the segments that they begin with alike. Which numbers stand for a content does not
matter to a cache, only that they differ; the hashes are vLLM's own, of those numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

_STRIDE = 1 << 21  # more than any context
_HASHES_KEPT = 3_000_000  # about 300 MB

Segment = tuple[str, int]


class Contents:
    """Token ids of named contents, and the block hashes of prompts made of them, at one hash block size."""

    def __init__(self, hasher: Callable[[Any], list[bytes]], hash_block: int, lookahead: int) -> None:
        self._hasher, self._hash_block, self._lookahead = hasher, hash_block, lookahead
        self._bases: dict[str, int] = {}
        self._nodes: dict[tuple[object, object], int] = {}
        self._hashes: list[list[bytes]] = []
        self._held = 0

    def tokens(self, segments: Sequence[Segment]) -> list[int]:
        """The token ids of a prompt."""
        found: list[int] = []
        for name, length in segments:
            base = self._bases.setdefault(name, len(self._bases) * _STRIDE)
            found += range(base, base + length)
        return found

    def hasher(self, segments: Sequence[Segment], scope: tuple[object, ...]) -> Callable[[Any], list[bytes]]:
        """vLLM's hasher for one request, which takes from earlier requests what their prompts share with this one.

        ``scope`` is what else enters a hash: salt and adapter.
        """
        first = True

        def hash_new_blocks(request: Any) -> list[bytes]:
            nonlocal first
            if not first:
                return self._hasher(request)  # blocks of generated tokens
            first = False
            hashes = self._shared(segments, scope)
            # The hasher goes on from the blocks that the request already has.
            request.block_hashes[:] = hashes
            hashes += self._hasher(request)
            request.block_hashes.clear()
            self._remember(segments, scope, hashes)
            return hashes

        return hash_new_blocks

    def _shared(self, segments: Sequence[Segment], scope: tuple[object, ...]) -> list[bytes]:
        found: list[bytes] = []
        node: object = scope
        for segment in segments:
            known = self._nodes.get((node, segment))
            if known is None:
                break
            found += self._hashes[known]
            node = known
        return found

    def _remember(self, segments: Sequence[Segment], scope: tuple[object, ...], hashes: list[bytes]) -> None:
        """Keep each segment's own blocks: those that it and the segments before it decide alone."""
        if self._held > _HASHES_KEPT:
            self._nodes.clear()
            self._hashes.clear()
            self._held = 0
        node: object = scope
        total = start = 0
        for segment in segments:
            total += segment[1]
            stop = max(start, min(len(hashes), (total - self._lookahead) // self._hash_block))
            known = self._nodes.get((node, segment))
            if known is None:
                known = self._nodes[node, segment] = len(self._hashes)
                self._hashes.append(hashes[start:stop])
                self._held += stop - start
            node, start = known, stop
