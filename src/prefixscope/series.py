"""One prompt on one server setting, sent several ways: what baseline, trace and sweep plan to measure.

A *series* is one prompt on one server setting under one salt of its own: cold, repeats, a control, a new ending, a
follow-up turn. A *cell* is one send of a series. Its identity does not name the stage, so what two stages need is
measured once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from prefixscope.errors import TargetError
from prefixscope.setting import Setting, digest

REPEATS = ("cold", "repeat", "repeat")
ALL_SENDS = (*REPEATS, "control", "new_ending", "follow_up")
QUIET = frozenset(REPEATS)
"""Sends whose latency is reported; no other server starts while they run."""

PREFILL_TOKENS_PER_S = 2500.0
START_S = 16.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One prompt on one setting. ``role`` is ``base`` or ``lora``: which served name is asked."""

    setting: Setting
    tokens: int
    role: str = "base"
    seed: int = 1
    sends: tuple[str, ...] = ALL_SENDS

    def cells(self) -> tuple[tuple[str, int], ...]:
        """Each send with its index: the k-th of its kind."""
        found: list[tuple[str, int]] = []
        for send in self.sends:
            kind = "cold" if send == "repeat" else send
            index = 1 + sum(1 for s, _ in found if ("cold" if s == "repeat" else s) == kind)
            found.append((send, index))
        return tuple(found)

    def key(self, target_id: str) -> str:
        """Identity of the series on a target, whichever stage asks."""
        return digest([target_id, self.setting.id, self.role, self.tokens, self.seed])

    def expected_s(self) -> float:
        """Seconds on an idle 2-core machine; only progress uses it."""
        slow = 2.0 if self.role == "lora" else 1.0
        return 0.4 + slow * self.tokens / PREFILL_TOKENS_PER_S * (1.2 + ("control" in self.sends))


def lengths_or_error(lengths: Iterable[int]) -> tuple[int, ...]:
    """The lengths, ascending, each once.

    Raises
    ------
    TargetError
        for a length that is no positive number, or none at all.
    """
    values = sorted(set(lengths)) if all(isinstance(n, int) for n in lengths) else []
    if not values or values[0] < 1:
        raise TargetError(
            f"prompt lengths {list(lengths)!r}: give one or more positive numbers of tokens",
            remedy="for example [1600, 6446]",
        )
    return tuple(values)
