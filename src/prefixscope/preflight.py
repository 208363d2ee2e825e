"""What is served and how: facts, each with its source; findings, each with a remedy. Unknown stays unknown."""

from __future__ import annotations

from dataclasses import dataclass

from prefixscope import metrics
from prefixscope.client import Client
from prefixscope.errors import Rejected, TargetError


@dataclass(frozen=True, slots=True)
class Fact:
    name: str
    value: str | int | bool | None
    source: str


@dataclass(frozen=True, slots=True)
class Finding:
    code: str
    detail: str
    remedy: str


def facts(client: Client) -> tuple[Fact, ...]:
    """What the server says of itself: version, names, context, cache settings."""
    models = client.models()
    config = metrics.cache_config(client.metrics())
    lora = [model.name for model in models if model.parent]
    found = [
        Fact("vllm version", client.version(), "/version"),
        Fact("served models", ", ".join(model.name for model in models), "/v1/models"),
        Fact("LoRA names", ", ".join(lora) or None, "/v1/models (parent)"),
        Fact("context, tokens", next((m.max_model_len for m in models if m.max_model_len), None), "/v1/models"),
    ]
    shown = {
        "block_size": "block size reported, tokens",
        "enable_prefix_caching": "prefix caching",
        "num_gpu_blocks": "pool, blocks",
        "kv_cache_size_tokens": "pool, tokens",
        "cache_dtype": "KV cache dtype",
        "prefix_cache_retention_interval": "retention interval reported",
    }
    for label, name in shown.items():
        if label in config:
            found.append(Fact(name, config[label], "/metrics vllm:cache_config_info"))
    return tuple(found)


def findings(client: Client) -> tuple[Finding, ...]:
    """What is known to be wrong before anything is measured."""
    text = client.metrics()
    config = metrics.cache_config(text)
    found = []
    if config.get("enable_prefix_caching") == "False":
        found.append(
            Finding(
                "prefix-caching-off",
                "the server runs with prefix caching off, so nothing can be reused",
                "start it with --enable-prefix-caching",
            )
        )
    if text is None:
        found.append(
            Finding(
                "no-metrics",
                "the server has no /metrics page, so hits can't be checked against its counters",
                "ask vLLM directly rather than through a gateway, and don't pass --disable-log-stats",
            )
        )
    if metrics.engines(text) > 1:
        found.append(
            Finding(
                "several-engines",
                f"{metrics.engines(text)} engines answer behind this address, each with its own cache",
                "pin requests to one with the header X-data-parallel-rank",
            )
        )
    return tuple(found)


def choose_model(client: Client, wanted: str = "") -> tuple[str, str | None]:
    """The base model's served name and the first LoRA name (None where there is none).

    Raises
    ------
    Rejected
        where ``wanted`` is not served, listing the names that are.
    TargetError
        where nothing is served.
    """
    models = client.models()
    if not models:
        raise TargetError(f"{client.url} serves no model", remedy="read the server's log")
    names = [model.name for model in models]
    if wanted and wanted not in names:
        raise Rejected(
            f"{client.url} serves no model named {wanted!r}",
            status=404,
            cause="the name must be one of the served ones, to the letter",
            remedy=f"use one of: {', '.join(names)}",
        )
    base = wanted or next((model.name for model in models if not model.parent), names[0])
    return base, next((model.name for model in models if model.parent and model.name != base), None)
