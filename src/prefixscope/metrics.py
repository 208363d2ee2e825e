"""Prometheus text → the few counters that matter here, under whichever name the release gives them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

_SAMPLE = re.compile(r"^(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>.*)\})?\s+(?P<value>\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

NAMES: Mapping[str, tuple[str, ...]] = {
    # vLLM renamed these over releases (gpu_ prefix dropped in 0.10); the newest name comes first.
    "queries": ("vllm:prefix_cache_queries_total", "vllm:prefix_cache_queries", "vllm:gpu_prefix_cache_queries_total"),
    "hits": ("vllm:prefix_cache_hits_total", "vllm:prefix_cache_hits", "vllm:gpu_prefix_cache_hits_total"),
    "preemptions": ("vllm:num_preemptions_total", "vllm:num_preemptions"),
}
DRAFTING: Mapping[str, tuple[str, ...]] = {
    "drafts": ("vllm:spec_decode_num_drafts_total", "vllm:spec_decode_num_drafts"),
    "drafted": ("vllm:spec_decode_num_draft_tokens_total", "vllm:spec_decode_num_draft_tokens"),
    "accepted": ("vllm:spec_decode_num_accepted_tokens_total", "vllm:spec_decode_num_accepted_tokens"),
    "generated": ("vllm:generation_tokens_total", "vllm:generation_tokens"),
    "prompted": ("vllm:prompt_tokens_total", "vllm:prompt_tokens"),
}
PER_POSITION = ("vllm:spec_decode_num_accepted_tokens_per_pos_total", "vllm:spec_decode_num_accepted_tokens_per_pos")


@dataclass(frozen=True, slots=True)
class Counters:
    """Totals over all engines of a server, tokens; None where the server exposes none under any known name."""

    queries: int | None
    hits: int | None
    preemptions: int | None

    def since(self, before: Counters) -> Counters:
        """What was added since ``before``; None where either side is unknown or a counter went backwards."""
        return Counters(
            _delta(self.queries, before.queries),
            _delta(self.hits, before.hits),
            _delta(self.preemptions, before.preemptions),
        )


@dataclass(frozen=True, slots=True)
class Drafting:
    """Totals of speculative decoding over all engines of a server; None where it exposes none.

    ``drafts`` counts verified steps, ``drafted`` and ``accepted`` tokens, ``per_position`` accepted tokens by place in
    the draft; ``generated`` and ``prompted``, tokens, tell whose traffic moved them. A server without a drafter has no
    such counters (vLLM 0.29.0, ``SpecDecodingProm``): None, not 0.
    """

    drafts: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    per_position: tuple[int, ...] | None = None
    generated: int | None = None
    prompted: int | None = None

    def since(self, before: Drafting) -> Drafting:
        """What was added since ``before``; None where either side is unknown or a counter went backwards."""
        places: tuple[int, ...] | None = None
        if self.per_position is not None and len(self.per_position) == len(before.per_position or ()):
            steps = [_delta(a, b) for a, b in zip(self.per_position, before.per_position or (), strict=True)]
            places = tuple(step for step in steps if step is not None)
            places = places if len(places) == len(steps) else None
        return Drafting(
            _delta(self.drafts, before.drafts),
            _delta(self.drafted, before.drafted),
            _delta(self.accepted, before.accepted),
            places,
            _delta(self.generated, before.generated),
            _delta(self.prompted, before.prompted),
        )


def _delta(after: int | None, before: int | None) -> int | None:
    return None if after is None or before is None or after < before else after - before


def samples(text: str, name: str) -> list[tuple[dict[str, str], float]]:
    """All samples of one metric: labels and value."""
    found = []
    for line in text.splitlines():
        match = _SAMPLE.match(line)
        value = _number(match["value"]) if match and match["name"] == name else None
        if match and value is not None:
            found.append((dict(_LABEL.findall(match["labels"] or "")), value))
    return found


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None  # a line of words, not a sample


def counters(text: str | None) -> Counters:
    """The counters in a ``/metrics`` page; all None for no page."""
    return Counters(**{key: _total(text, names) for key, names in NAMES.items()})


def queries_by_engine(text: str | None) -> dict[str, int]:
    """Tokens that each engine (data-parallel rank) of a server has looked up; empty where the page does not say."""
    found: dict[str, int] = {}
    for labels, value in _first(text, NAMES["queries"]):
        if "engine" in labels and math.isfinite(value):
            found[labels["engine"]] = found.get(labels["engine"], 0) + round(value)
    return found


def counter_name(text: str | None, key: str = "queries") -> str | None:
    """The name under which a page has this counter of ``NAMES``; None where it has it under none."""
    return next((name for name in NAMES[key] if samples(text or "", name)), None)


def drafting(text: str | None) -> Drafting:
    """The counters of speculative decoding in a ``/metrics`` page; all None for no page."""
    places: dict[int, float] = {}
    for labels, value in _first(text, PER_POSITION):
        if labels.get("position", "").isdigit():
            places[int(labels["position"])] = places.get(int(labels["position"]), 0.0) + value
    known = sorted(places) == list(range(len(places))) and all(map(math.isfinite, places.values()))
    return Drafting(
        **{key: _total(text, names) for key, names in DRAFTING.items()},
        per_position=tuple(round(places[at]) for at in sorted(places)) if places and known else None,
    )


def _first(text: str | None, names: tuple[str, ...]) -> list[tuple[dict[str, str], float]]:
    """The samples of the first of these names that the page has."""
    return next((found for found in (samples(text or "", name) for name in names) if found), [])


def _total(text: str | None, names: tuple[str, ...]) -> int | None:
    found = _first(text, names)
    total = sum(value for _, value in found)
    return round(total) if found and math.isfinite(total) else None


def cache_config(text: str | None) -> dict[str, str]:
    """The labels of ``vllm:cache_config_info``: block size, prefix caching, pool. Empty where there is none."""
    found = samples(text or "", "vllm:cache_config_info")
    return found[0][0] if found else {}


def engines(text: str | None) -> int:
    """How many engines (data-parallel ranks) report; 0 where unknown."""
    return len({labels.get("engine", "0") for labels, _ in samples(text or "", "vllm:cache_config_info")})
