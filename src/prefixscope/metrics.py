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


def _delta(after: int | None, before: int | None) -> int | None:
    return None if after is None or before is None or after < before else after - before


def samples(text: str, name: str) -> list[tuple[dict[str, str], float]]:
    """All samples of one metric: labels and value."""
    found = []
    for line in text.splitlines():
        match = _SAMPLE.match(line)
        if match and match["name"] == name:
            found.append((dict(_LABEL.findall(match["labels"] or "")), float(match["value"])))
    return found


def counters(text: str | None) -> Counters:
    """The counters in a ``/metrics`` page; all None for no page."""
    values: dict[str, int | None] = {}
    for key, names in NAMES.items():
        found = next((s for s in (samples(text or "", name) for name in names) if s), None)
        total = sum(value for _, value in found or ())
        values[key] = round(total) if found and math.isfinite(total) else None
    return Counters(**values)


def cache_config(text: str | None) -> dict[str, str]:
    """The labels of ``vllm:cache_config_info``: block size, prefix caching, pool. Empty where there is none."""
    found = samples(text or "", "vllm:cache_config_info")
    return found[0][0] if found else {}


def engines(text: str | None) -> int:
    """How many engines (data-parallel ranks) report; 0 where unknown."""
    return len({labels.get("engine", "0") for labels, _ in samples(text or "", "vllm:cache_config_info")})
