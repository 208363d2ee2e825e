"""What is known to be wrong before anything is measured; each finding with its remedy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from prefixscope import metrics
from prefixscope.preflight import fact as f
from prefixscope.preflight.fact import Fact
from prefixscope.preflight.fault import matching, situation
from prefixscope.preflight.seen import Seen
from prefixscope.usage import integer

VARIABLE = "VLLM_PREFIX_CACHE_RETENTION_INTERVAL"
MIN_DRAFTS = 200
"""Fewer verified steps say nothing about which positions are accepted."""
MIN_ACCEPTED = 0.1
SPARSE_KINDS = ("sliding", "mamba")


@dataclass(frozen=True, slots=True)
class Finding:
    code: str
    detail: str
    remedy: str


def findings(seen: Seen) -> tuple[Finding, ...]:
    """Everything that the server's own words show to be wrong."""
    known = f.facts(seen)
    found = [*_caching(seen, known), *_reach(seen, known), *_interval(seen, known), *_sizes(known), *_drafter(seen)]
    at = situation(known, variable=VARIABLE in seen.environment if seen.environment else None)
    found += [
        Finding(f"known-fault-{fault.id}", fault.sentence, fault.remedy)
        for fault in matching(at, "preflight")
        if fault.certain
    ]
    return tuple(found)


def _caching(seen: Seen, known: tuple[Fact, ...]) -> Iterator[Finding]:
    if str(f.value(known, f.CACHING)) == "False":
        yield Finding(
            "prefix-caching-off",
            "the server runs with prefix caching off, so nothing can be reused",
            "start it with --enable-prefix-caching",
        )
    if seen.page is None:
        yield Finding(
            "no-metrics",
            "the server has no /metrics page, so hits can't be checked against its counters",
            {
                "llama.cpp": "start llama.cpp's server with --metrics",
                "SGLang": "start SGLang with --enable-metrics",
            }.get(
                seen.engine or "",
                "ask the engine directly rather than through a gateway, and don't pass --disable-log-stats",
            ),
        )
    elif seen.engine in (None, "vLLM") and metrics.counters(seen.page).queries is None:
        yield Finding(
            "no-counters",
            "/metrics has no counters of the prefix cache, so hits are read from each answer's usage only",
            "start vLLM without --disable-log-stats",
        )


def _reach(seen: Seen, known: tuple[Fact, ...]) -> Iterator[Finding]:
    ranks = f.number(known, f.RANKS) or 0
    if ranks > 1:
        yield Finding(
            "several-engines",
            f"{ranks} engines answer behind this address, each with its own cache",
            "pin requests to one with the header X-data-parallel-rank",
        )
    if seen.gateway and seen.page is None:
        yield Finding(
            "gateway",
            f"{seen.gateway} stands between us and the engine, and may drop or change what usage says",
            "ask the engine at its own address",
        )


def _interval(seen: Seen, known: tuple[Fact, ...]) -> Iterator[Finding]:
    interval = f.number(known, f.INTERVAL)
    block = integer(seen.header.get("scheduler_block"))
    block = block or f.number(known, f.MAMBA_BLOCK) or f.number(known, f.BLOCK)
    if interval and block and interval % block:
        below, above = interval // block * block, (interval // block + 1) * block
        yield Finding(
            "interval-not-a-multiple",
            f"the retention interval, {interval:,} tokens, is no multiple of the {block:,}-token block",
            f"use {' or '.join(f'{n:,}' for n in (below, above) if n)}",
        )
    groups = seen.header.get("groups")
    if interval and isinstance(groups, list) and groups and not any(_sparse(group) for group in groups):
        yield Finding(
            "interval-does-nothing",
            f"a retention interval of {interval:,} tokens is set on a model without sliding-window or Mamba layers",
            "leave --prefix-cache-retention-interval out: full attention keeps every block",
        )


def _sparse(group: object) -> bool:
    return isinstance(group, dict) and any(kind in str(group.get("kind", "")) for kind in SPARSE_KINDS)


def _sizes(known: tuple[Fact, ...]) -> Iterator[Finding]:
    block = f.number(known, f.MAMBA_BLOCK) or f.number(known, f.BLOCK)
    mean = f.number(known, f.MEAN_PROMPT)
    if block and mean and mean < block:
        yield Finding(
            "block-above-prompts",
            f"the mean prompt so far has {mean:,} tokens, less than a block of {block:,}, and can't be reused",
            "a smaller --block-size where the model allows it; hybrid models set their own",
        )
    batch, k = f.number(known, f.BATCH), f.number(known, f.DRAFT)
    if batch and k and batch <= k + 1:
        yield Finding(
            "batch-below-draft",
            f"--max-num-batched-tokens is {batch:,}, and one sequence drafts {k} tokens a step",
            "raise --max-num-batched-tokens (4096 served Gemma 4 with MTP)",
        )


def _drafter(seen: Seen) -> Iterator[Finding]:
    counted = metrics.drafting(seen.page)
    places = counted.per_position or ()
    if not counted.drafts or counted.drafts < MIN_DRAFTS or len(places) < 2:
        return
    useful = sum(1 for place in places if place / counted.drafts >= MIN_ACCEPTED)
    if useful < len(places):
        last = places[-1] / counted.drafts
        yield Finding(
            "drafts-too-far",
            f"of {len(places)} tokens drafted a step the last is accepted in {last:.0%} of {counted.drafts:,} steps",
            f"try num_speculative_tokens {max(1, useful)}: what is drafted and refused costs a forward pass",
        )
