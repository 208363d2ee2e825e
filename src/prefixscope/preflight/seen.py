"""Everything a server says of itself, read once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from prefixscope import metrics
from prefixscope.client import Client, ServedModel
from prefixscope.usage import mapping

ENGINES = {"vllm": "vLLM", "sglang": "SGLang", "llamacpp": "llama.cpp", "tensorrt_llm": "TensorRT-LLM"}
"""``owned_by`` in ``/v1/models`` → the engine, as people write it."""

_GATEWAYS = {"litellm": "LiteLLM", "envoy": "Envoy", "kong": "Kong", "cf-ray": "Cloudflare"}
_PROXIES = ("nginx", "openresty", "envoy", "cloudflare", "caddy", "awselb", "haproxy", "traefik", "istio")


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What the endpoints answered; empty or None where one is not there.

    Attributes
    ----------
    engine : as in ``ENGINES``, or None where nothing names it.
    gateway : what the headers say stands between us and the engine.
    page : the text of ``/metrics``.
    config : labels of ``vllm:cache_config_info``; vLLM 0.29.0 shows every field of its ``CacheConfig`` there.
    info : ``vllm_config`` of ``/server_info``, which only a development server opens.
    environment, flags : of the command that started it, where that is ours to read.
    header : of its trace, where it is traced.
    """

    url: str
    models: tuple[ServedModel, ...] = ()
    version: str | None = None
    engine: str | None = None
    gateway: str | None = None
    page: str | None = None
    config: Mapping[str, str] = field(default_factory=dict)
    info: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    flags: Mapping[str, str] = field(default_factory=dict)
    header: Mapping[str, Any] = field(default_factory=dict)


def look(
    client: Client,
    *,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, str] | None = None,
    header: Mapping[str, Any] | None = None,
) -> Seen:
    """Ask ``/v1/models``, ``/version``, ``/metrics`` and ``/server_info``, one after another.

    Raises
    ------
    TargetError
        where the served models can't be listed; every other endpoint may be missing.
    """
    models = client.models()
    answered = {name.lower(): value for name, value in client.answered_with.items()}
    page = client.metrics()
    return Seen(
        url=client.url,
        models=models,
        version=client.version(),
        engine=_engine(models, page, answered),
        gateway=_gateway(answered),
        page=page,
        config=metrics.cache_config(page),
        info=mapping(client.server_info().get("vllm_config")),
        environment=environment or {},
        flags=flags or {},
        header=header or {},
    )


def _engine(models: tuple[ServedModel, ...], page: str | None, headers: Mapping[str, str]) -> str | None:
    named = next((ENGINES[m.owned_by] for m in models if m.owned_by in ENGINES), None)
    if named or headers.get("server", "").lower().startswith("llama.cpp"):
        return named or ENGINES["llamacpp"]
    # Counters are named after their engine: vllm:…, sglang:…, llamacpp:…
    return next((name for key, name in ENGINES.items() if f"\n{key}:" in (page or "")), None)


def _gateway(headers: Mapping[str, str]) -> str | None:
    for name in headers:
        found = next((label for part, label in _GATEWAYS.items() if part in name), None)
        if found:
            return found
    server = headers.get("server", "").lower()
    return next((name for name in _PROXIES if name in server), None) or headers.get("via")
