"""What a check sent and saw: the requests one by one, and what was learned beside them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from prefixscope.errors import Rejected, TargetError
from prefixscope.metrics import Counters
from prefixscope.preflight import Fact, Finding

FIRST, TURN, LENGTH, PINNED = "first", "second turn", "length", "pinned"
SPACED, FRESH, FILLER, CALIBRATION = "spaced", "other prompt", "filler", "calibration"
"""Series: the prompt that the verdict is about; its next turn; other lengths; another prompt with one rank pinned, or
with a filler between its two sends, or sent twice in a row; the filler; what tells how long a token is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """One request. ``index`` counts the sends of one prompt: 1 is cold. Counts are null where not reported.

    ``doubt`` says why its usage can't be believed; empty where it can.
    """

    series: str
    index: int
    prompt_tokens: int | None
    cached_tokens: int | None
    seconds: float
    retries: int = 0
    doubt: str = ""

    @property
    def label(self) -> str:
        which = "cold" if self.index == 1 else f"send {self.index}"
        alone = {FIRST: which, TURN: TURN, FILLER: FILLER, CALIBRATION: CALIBRATION}
        return alone.get(self.series, f"{self.series}, {which}")

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
            "doubt": self.doubt or None,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The request that ended the check: refused, or not answered.

    Attributes
    ----------
    kind : ``refused``, ``malformed``, ``unreachable``, or ``engine-failed`` where the engine is at fault.
    asked : which request it was, from 1.
    detail : the beginning of a body that can't be read.
    health : what ``/health`` said afterwards, in words; empty where it says nothing of use.
    """

    kind: str
    asked: int
    what: str
    cause: str
    remedy: str
    detail: str = ""
    health: str = ""

    @classmethod
    def of(cls, error: TargetError, *, asked: int, health: int | None) -> Failure:
        """From the error of a request, and the status of ``/health`` afterwards; None where that did not answer."""
        kind = "unreachable"
        if isinstance(error, Rejected):
            kind = "engine-failed" if error.status == 500 else "refused" if error.status else "malformed"
        known = {None: "/health does not answer either", 200: "/health still answers 200", 404: ""}
        said = known.get(health, f"/health answers {health}")
        words = {"what": error.what, "cause": error.cause, "remedy": error.remedy, "detail": error.detail}
        return cls(kind=kind, asked=asked, health=said, **words)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spending:
    """What the check cost, and what it could have cost at most: requests, and prompt tokens by the server's count.

    ``estimated`` says that it gave no count for some of them, whose length is estimated.
    """

    requests: int
    tokens: int
    estimated: bool = False
    most_requests: int
    most_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All of it.

    Attributes
    ----------
    api : which of ``completion.PATHS`` was asked.
    counted : what ``/metrics`` added around the second send alone; None where it was not read.
    total : what it added over the whole check.
    others_tokens : prompt tokens of other requests looked up between our first and second send; None where unknown.
    template_changes : two renderings of the same message differed; None where they could not be compared.
    template_date, template_time : the chat template writes today's date into the prompt; and this minute.
    several_servers : ``/metrics`` was answered by different processes, or by one that saw only some of our requests.
    split : whether our first two sends were answered by different engines of one server; None where nothing tells.
    one_cache : the counters of one server with one engine saw every send of ours.
    clipped : the prompt length that was wanted and does not fit the context; None where it fits.
    failure : the request that ended the check; None where none failed.
    left_out : probes that the cap on requests and tokens kept back.
    """

    url: str
    model: str
    api: str = "chat"
    sends: tuple[Sent, ...] = ()
    facts: tuple[Fact, ...] = ()
    findings: tuple[Finding, ...] = ()
    min_reuse: float | None = None
    spending: Spending
    counted: Counters | None = None
    total: Counters | None = None
    others_tokens: int | None = None
    template_changes: bool | None = None
    template_date: bool = False
    template_time: bool = False
    several_servers: bool = False
    split: bool | None = None
    one_cache: bool = False
    clipped: int | None = None
    failure: Failure | None = None
    left_out: bool = False

    def send(self, series: str, index: int) -> Sent | None:
        """The newest such send; None where none was made."""
        return next((s for s in reversed(self.sends) if s.series == series and s.index == index), None)

    def pairs(self, series: str) -> list[tuple[Sent, Sent]]:
        """Cold sends of a series with the send that follows each."""
        return pairs(self.sends, series)

    def later_hit(self) -> Sent | None:
        """The first send of the prompt, from the fourth on, that hit; None where none did, or was made."""
        cold = self.send(FIRST, 1)
        return next((s for s in self.sends if s.series == FIRST and s.index > 3 and gained(cold, s)), None)


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
    """How far a full hit may stop short of the prompt: a twentieth, or what ``rounding`` takes."""
    return max(prompt_tokens // 20, rounding(block))


def rounding(block: int | None) -> int:
    """Tokens that whole blocks leave of a full hit at most: three blocks (rounding, and two drops), or 192."""
    return max(192, 3 * (block or 0))
