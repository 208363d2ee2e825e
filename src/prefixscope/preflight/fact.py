"""What is served and how: facts, each with its source. Unknown stays unknown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prefixscope import metrics
from prefixscope.preflight.model import context
from prefixscope.preflight.seen import Seen
from prefixscope.usage import integer, mapping

CONFIG = "/metrics vllm:cache_config_info"
INFO = "/server_info"
COMMAND = "the serve command"
TRACE = "trace header"
NOWHERE = "not reported"

VERSION, ENGINE, SPECULATION, DRAFT = "vllm version", "engine", "speculative decoding", "draft tokens a step"
INTERVAL, BLOCK, MAMBA_BLOCK = "retention interval reported", "block size reported, tokens", "Mamba block, tokens"
CACHING, POOL, BATCH = "prefix caching", "pool, tokens", "batched tokens a step, at most"
DETAILS = "cached tokens in usage"
RANKS, MEAN_PROMPT = "engines behind the address", "mean prompt so far, tokens"
MODELS, ADAPTERS = "served models", "LoRA names"


@dataclass(frozen=True, slots=True)
class Fact:
    name: str
    value: str | int | float | bool | None
    source: str


def facts(seen: Seen) -> tuple[Fact, ...]:
    """What the server says of itself: release, names, blocks, pool, interval, drafter, ranks, load."""
    found = [
        Fact(VERSION if seen.engine in (None, "vLLM") else "server version", seen.version, "/version"),
        Fact(ENGINE, seen.engine, "/v1/models owned_by"),
        Fact(MODELS, ", ".join(model.name for model in seen.models), "/v1/models"),
        Fact(ADAPTERS, ", ".join(m.name for m in seen.models if m.parent) or None, "/v1/models (parent)"),
        Fact("context, tokens", context(seen.models), "/v1/models"),
        _config(seen, BLOCK, "block_size"),
        _config(seen, MAMBA_BLOCK, "mamba_block_size"),
        _config(seen, CACHING, "enable_prefix_caching"),
        Fact(DETAILS, "--enable-prompt-tokens-details" in seen.flags if seen.flags else None, COMMAND),
        _config(seen, "pool, blocks", "num_gpu_blocks"),
        _config(seen, POOL, "kv_cache_size_tokens"),
        _config(seen, "KV cache dtype", "cache_dtype"),
        _interval(seen),
        *_speculation(seen),
        _batch(seen),
        Fact(RANKS, metrics.engines(seen.page) or None, CONFIG),
        _mean_prompt(seen),
        Fact("counters of the prefix cache", metrics.counter_name(seen.page), "/metrics"),
        Fact("gateway", seen.gateway, "response headers"),
    ]
    return tuple(fact if fact.value not in (None, "") else Fact(fact.name, None, NOWHERE) for fact in found)


def with_answers(known: Iterable[Fact], cached: Sequence[int | None]) -> tuple[Fact, ...]:
    """The facts, with what a server's answers show of its flags; ``cached`` is what each of them reported."""
    shown = Fact(DETAILS, any(tokens is not None for tokens in cached), "the answers") if cached else None
    return tuple(shown if shown and fact.name == DETAILS else fact for fact in known)


def value(known: Iterable[Fact], name: str) -> Any:
    """The value of a fact; None where it is unknown."""
    return next((fact.value for fact in known if fact.name == name), None)


def number(known: Iterable[Fact], name: str) -> int | None:
    """The value of a fact as a whole number; None where it is unknown, or none."""
    return integer(value(known, name))


def _config(seen: Seen, name: str, label: str) -> Fact:
    told = seen.config.get(label)
    if told not in (None, "None"):
        return Fact(name, told, CONFIG)
    inside = mapping(seen.info.get("cache_config")).get(label)
    return Fact(name, inside if isinstance(inside, (str, int, float)) else None, INFO)


def _interval(seen: Seen) -> Fact:
    # The label is the resolved value; "None" there means dense, and no label at all that the release has no such field.
    told: Any = seen.config.get("prefix_cache_retention_interval")
    source = CONFIG
    if told is None and "prefix_cache_retention_interval" in mapping(seen.info.get("cache_config")):
        told, source = str(mapping(seen.info["cache_config"])["prefix_cache_retention_interval"]), INFO
    if told is None and seen.header.get("interval") is not None:
        told, source = str(seen.header["interval"]), TRACE
    if told is None and "--prefix-cache-retention-interval" in seen.flags:
        told, source = seen.flags["--prefix-cache-retention-interval"], COMMAND
    return Fact(INTERVAL, "dense" if told == "None" else told, source)


def _speculation(seen: Seen) -> tuple[Fact, ...]:
    spec = mapping(seen.info.get("speculative_config")) if seen.info else {}
    counted = metrics.drafting(seen.page)
    if spec:
        method, k, source = spec.get("method") or "on", integer(spec.get("num_speculative_tokens")), INFO
    elif seen.header:
        method, k, source = seen.header.get("spec_method") or "off", integer(seen.header.get("spec_tokens")), TRACE
    elif counted.drafts is not None:
        # These counters exist only where a drafter is configured; the positions are as many as it drafts at most.
        method, k, source = "on", len(counted.per_position or ()) or None, "/metrics vllm:spec_decode_*"
    else:
        counters_kept = metrics.counters(seen.page).queries is not None
        method, k = ("off" if counters_kept else None), None
        source = "/metrics has no vllm:spec_decode_*"
    found = [Fact(SPECULATION, method, source), Fact(DRAFT, k, source)]
    if counted.drafts and counted.accepted is not None and counted.drafted:
        length = 1 + counted.accepted / counted.drafts
        share = counted.accepted / counted.drafted
        found.append(
            Fact(
                "mean acceptance length",
                f"{length:.2f} ({share:.0%} of the tokens drafted since the server's start)",
                "/metrics vllm:spec_decode_*",
            )
        )
    return tuple(found)


def _batch(seen: Seen) -> Fact:
    inside = integer(mapping(seen.info.get("scheduler_config")).get("max_num_batched_tokens"))
    if inside is not None:
        return Fact(BATCH, inside, INFO)
    return Fact(BATCH, integer(seen.flags.get("--max-num-batched-tokens")), COMMAND)


def _mean_prompt(seen: Seen) -> Fact:
    total, times = (
        sum(found for _, found in metrics.samples(seen.page or "", f"vllm:request_prompt_tokens_{end}"))
        for end in ("sum", "count")
    )
    return Fact(MEAN_PROMPT, round(total / times) if times >= 1 else None, "/metrics vllm:request_prompt_tokens")


def to_json(known: Iterable[Fact]) -> list[Mapping[str, Any]]:
    """The facts as JSON objects; unknown ones are null."""
    return [{"name": fact.name, "value": fact.value, "source": fact.source} for fact in known]
