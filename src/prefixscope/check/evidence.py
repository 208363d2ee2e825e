"""What a check sent and saw: the requests one by one, and what was learned beside them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from prefixscope.metrics import Counters
from prefixscope.preflight import Fact, Finding

FIRST, TURN, PINNED, SPACED, LENGTH = "first", "second turn", "pinned", "spaced", "length"
"""Series: the prompt that the verdict is about; its next turn; the same with one rank pinned, or with a filler between
the two sends; other lengths."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """One request. ``index`` counts the sends of one prompt: 1 is cold. Counts are null where not reported."""

    series: str
    index: int
    prompt_tokens: int | None
    cached_tokens: int | None
    seconds: float
    retries: int = 0

    @property
    def label(self) -> str:
        which = "cold" if self.index == 1 else f"send {self.index}"
        return {FIRST: which, TURN: TURN}.get(self.series, f"{self.series}, {which}")

    @property
    def share(self) -> float | None:
        """Cached part of the prompt, 0 to 1; None where either number is unknown."""
        if self.cached_tokens is None or not self.prompt_tokens:
            return None
        return self.cached_tokens / self.prompt_tokens

    def to_json(self) -> dict[str, Any]:
        share = self.share
        return {
            "series": self.series,
            "index": self.index,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "share": None if share is None else round(share, 4),
            "seconds": round(self.seconds, 3),
            "retries": self.retries,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All of it.

    Attributes
    ----------
    counted : what ``/metrics`` added around the second send alone; None where it was not read.
    total : what it added over the whole check.
    others_tokens : prompt tokens of other requests looked up between our first and second send; None where unknown.
    template_changes : two renderings of the same message differed; None where they could not be compared.
    template_date : the chat template writes today's date into the prompt.
    several_servers : ``/metrics`` was answered by different processes.
    failure : what ended the probing early; empty where nothing did. ``dead`` where the engine no longer answers.
    left_out : probes that the cap on requests kept back.
    """

    url: str
    model: str
    sends: tuple[Sent, ...] = ()
    facts: tuple[Fact, ...] = ()
    findings: tuple[Finding, ...] = ()
    min_reuse: float | None = None
    counted: Counters | None = None
    total: Counters | None = None
    others_tokens: int | None = None
    template_changes: bool | None = None
    template_date: bool = False
    several_servers: bool = False
    failure: str = ""
    dead: bool = False
    left_out: bool = False

    def send(self, series: str, index: int) -> Sent | None:
        """The newest such send; None where none was made."""
        return next((s for s in reversed(self.sends) if s.series == series and s.index == index), None)

    def pairs(self, series: str) -> list[tuple[Sent, Sent]]:
        """Cold sends of a series with the send that follows each."""
        return pairs(self.sends, series)


def gained(cold: Sent | None, later: Sent | None) -> int | None:
    """Tokens that a later send took from the cache and the cold one did not: what our first send put there.

    A first send may hit the chat template's own beginning where a server ignores ``cache_salt``. None where the later
    send reports nothing.
    """
    if later is None or later.cached_tokens is None:
        return None
    return max(0, later.cached_tokens - ((cold.cached_tokens if cold else None) or 0))


def pairs(sends: Iterable[Sent], series: str) -> list[tuple[Sent, Sent]]:
    """Cold sends of a series with the send that follows each."""
    mine = [sent for sent in sends if sent.series == series]
    return [(cold, again) for cold, again in pairwise(mine) if (cold.index, again.index) == (1, 2)]


def allowance(prompt_tokens: int, block: int | None) -> int:
    """How far a full hit may stop short of the prompt: a twentieth, or three blocks (rounding, and two drops)."""
    return max(192, prompt_tokens // 20, 3 * (block or 0))
