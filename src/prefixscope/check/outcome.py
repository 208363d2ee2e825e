"""What a check answers: a code, one sentence with the numbers, why, and what helps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from prefixscope.check.evidence import FIRST, TURN, Evidence, Sent
from prefixscope.completion import PATHS
from prefixscope.preflight import Finding
from prefixscope.preflight import fact as f
from prefixscope.preflight.fact import to_json

CODES = ("reuses", "short", "none", "cannot hit", "not reported", "inconclusive", "refused")
"""The verdicts on reuse, and ``refused`` for a check that a request which was refused or not answered has ended."""

COUNTING = frozenset({"no-metrics", "no-counters", "metrics-disagree"})
"""Findings on how far the counted hits can be checked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The answer of a check.

    ``code`` is one of ``CODES``; ``cause`` a short name for why, empty where nothing is wrong; ``sentence`` has the
    numbers; ``because`` and ``remedy`` are empty where there is nothing to say; ``notes`` are doubts that do not
    change the verdict.
    """

    code: str
    sentence: str
    cause: str = ""
    because: str = ""
    remedy: str = ""
    notes: tuple[Finding, ...] = ()
    evidence: Evidence

    @property
    def told(self) -> tuple[Finding, ...]:
        """What the server's own words show to be wrong, then the notes; under a refusal nothing on how hits are
        counted, for there are none."""
        found = (*self.evidence.findings, *self.notes)
        return tuple(one for one in found if self.code != "refused" or one.code not in COUNTING)

    def to_json(self) -> dict[str, Any]:
        """For scripts; every number that is not known is null."""
        e = self.evidence
        second, turn = e.send(FIRST, 2), e.send(TURN, 1)
        return {
            "verdict_code": self.code,
            "sentence": self.sentence,
            "cause": self.cause or None,
            "because": self.because or None,
            "remedy": self.remedy or None,
            "url": e.url,
            "model": e.model,
            "api": e.api,
            "prompt_tokens": second.prompt_tokens if second else None,
            "cached_tokens": second.cached_tokens if second else None,
            "reuse": second.share if second else None,
            "second_turn_reuse": turn.share if turn else None,
            "min_reuse": e.min_reuse,
            "counters": counted_alone(e),
            "requests": e.spending.requests,
            "tokens": e.spending.tokens,
            "tokens_estimated": e.spending.estimated,
            "most_requests": e.spending.most_requests,
            "most_tokens": e.spending.most_tokens,
            "seconds": round(sum(s.seconds for s in e.sends), 3),
            "sends": [sent.to_json() for sent in e.sends],
            "facts": to_json(e.facts),
            "findings": [{"code": one.code, "detail": one.detail, "remedy": one.remedy} for one in self.told],
        }


def subject(e: Evidence) -> str:
    """``gemma (vLLM 0.29.0)``."""
    engine = f.value(e.facts, f.ENGINE)
    version = f.value(e.facts, f.VERSION) or f.value(e.facts, "server version")
    engine = engine or ("vLLM" if f.value(e.facts, f.VERSION) else None)
    known = [" ".join(str(part) for part in (engine, version) if part), PATHS[e.api] if e.api != "chat" else ""]
    return f"{e.model} ({', '.join(filter(None, known))})" if any(known) else e.model


def ratio(sent: Sent) -> str:
    """``6,336 of 6,446 prompt tokens``."""
    total = "an unknown number of" if sent.prompt_tokens is None else f"{sent.prompt_tokens:,}"
    return f"{'unknown' if sent.cached_tokens is None else f'{sent.cached_tokens:,}'} of {total} prompt tokens"


def counted_alone(e: Evidence) -> dict[str, Any] | None:
    """What ``/metrics`` counted around the second send, and whether that was our send alone: null where usage does not
    say how many tokens it had. None where the page was not read."""
    second = e.send(FIRST, 2)
    moved = e.counted
    if moved is None or moved.queries is None or moved.hits is None or second is None:
        return None
    alone = None if second.prompt_tokens is None else moved.queries == second.prompt_tokens
    return {"queries": moved.queries, "hits": moved.hits, "alone": alone}
