"""What a replay came to: a row per request, and what is kept at the end."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Predicted:
    """What one request of a replay came to, tokens and blocks.

    ``evicted_blocks`` are those that the pool gave away since the request before; ``cached_blocks`` it held after, and
    ``kept_blocks`` of each group where the request asked for a tally.
    """

    id: str
    prompt_tokens: int
    hit_tokens: int
    preempted: int
    evicted_blocks: int
    cached_blocks: int
    kept_blocks: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """One replay: its rows, what the release resolved, and what it keeps at the end.

    ``interval`` is 0, tokens or ``"dense"``. ``kept_blocks``, ``kept_bytes`` and ``block_bytes`` are per group (bytes
    None where the geometry does not say). ``left_out`` names fields of the geometry's specs that this release does not
    have. ``regrouped`` says that this release grouped and marked another's layers anew. ``drop_groups``
    give up a block at lookup; ``lookahead_tokens`` past a block's end enter its hash.
    """

    release: str
    rows: tuple[Predicted, ...]
    pool_blocks: int
    interval: int | str
    drop_groups: tuple[int, ...]
    kept_blocks: tuple[int, ...]
    kept_bytes: tuple[int | None, ...]
    left_out: tuple[str, ...]
    seconds: float
    block_bytes: tuple[int | None, ...] = ()
    lookahead_tokens: int = 0
    regrouped: bool = False

    def hit(self, request_id: str) -> int:
        """Hit of the request with that id, tokens."""
        return next(row.hit_tokens for row in self.rows if row.id == request_id)

    @property
    def hit_rate(self) -> float | None:
        """Cached tokens over prompt tokens; None without requests."""
        total = sum(row.prompt_tokens for row in self.rows)
        return sum(row.hit_tokens for row in self.rows) / total if total else None
