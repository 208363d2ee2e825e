"""What may leave the run directory: named fields only, and inside them no path, host or key.

An allow-list: a field that nobody named here stays behind, whatever a later version writes into a run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from prefixscope.errors import mask

_SETTING = {"drafter", "lora", "interval", "dtype", "as_served", "label", "id"}
_PROMPT = {"name", "tokens", "digest", "seed"}
_COMMON = {"schema", "kind", "stage", "at", "cell", "series", "attempt", "role", "server", "model", "status", "error"}
_ROWS = {
    "send": {"send", "index", "request_id", "prompt_tokens", "cached_tokens", "shared_tokens", "completion_tokens",
             "first_token_ms", "metrics", "overlapped", "retries", "answered_tokens", "answer_tokens",
             "shared_answer_tokens"},
    "predicted": {"send", "index", "request_id", "prompt_tokens", "cached_tokens", "predicted_tokens", "release",
                  "interval"},
    "predicted_sweep": {"release", "interval_asked", "interval", "tokens", "hits", "blocks", "bytes"},
    "kept": {"gid", "group_kind", "block_size", "blocks", "bytes", "interval", "request_id"},
    "answer": {"document", "arm", "request_id", "prompt_tokens", "cached_tokens", "completion_tokens"},
    "comparison": {"document", "pair", "identical", "by", "first_difference", "margin", "class", "cached_tokens",
                   "prompt_tokens", "distinct_tokens"},
    "generation": {"arm", "label", "side", "shape", "document", "repeat", "request_id", "prompt_tokens",
                   "cached_tokens", "completion_tokens", "finish_reason", "chunks", "chunk_tokens", "arrivals_ms",
                   "seconds", "retries", "per_request", "counters", "disturbed", "interleaved", "answer_tokens"},
    "pair": {"pair", "shape", "document", "identical", "by", "first_difference", "class"},
    "resend": {"arm", "label", "side", "tokens", "send", "index", "prompt_tokens", "cached_tokens", "first_token_ms",
               "request_id", "taken_from"},
    "headroom": {"arm", "label", "side", "tokens", "blocks", "source"},
    "discarded": {"prompt_tokens", "seconds"},
}  # fmt: skip
_TEXT = {"text", "token_ids", "logprobs", "top2", "margins"}
_ENVIRONMENT = {
    "prefixscope", "python", "system", "platform", "machine", "cpus", "cpu", "memory_gib", "memory_gb", "os", "kernel",
    "gpu", "gpus", "gpu_count", "driver", "cuda", "torch", "vllm", "transformers", "libc", "container",
}  # fmt: skip
_MANIFEST = {"schema_version", "run_id", "created_at", "prefixscope_version"}
_STAGE = {"status", "started_at", "finished_at", "seconds", "error", "note"}
_SERVER = {"id", "command", "start_s", "started_at", "ready_at", "stopped_at"}

_OURS = {"schema", "kind", "stage", "at", "cell", "series", "attempt", "role", "send", "request_id", "digest"}
"""Fields that only prefixscope writes: identities and times, nothing to clean."""

_PATH = re.compile(r"(?<![\w./…])(?!//)(?:~|\.{1,2})?/(?:[^\s'\",;:=()<>/]+/)*[^\s'\",;:=()<>/]+/?")
_URL = re.compile(r"(https?://)(?:[^/\s@'\"]*@)?([^/\s:'\"]+)")
_ENDPOINT = re.compile(r"/(v1(/[a-z_/]+)?|metrics|health|version|tokenize|detokenize|ping|load)/?$")
_CONTROL = re.compile(
    r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)


def clean(text: object, *, limit: int = 2000) -> str:
    """Text fit for a report: keys masked, paths and hosts shortened, control and direction marks dropped, bounded."""
    value = _CONTROL.sub("", mask(str(text)))
    value = value if len(value) <= limit else value[:limit] + f" … ({len(value) - limit:,} characters more)"
    return _PATH.sub(_short_path, _URL.sub(_short_url, value))


def inert(text: str) -> str:
    """Text as Markdown that shows it to the letter: nothing in it is a mark, a link or a picture."""
    return re.sub(r"([\\`*_\[\]<>#|!$&~])", r"\\\1", text.replace("\n", " "))


def row(value: Mapping[str, Any], *, include_text: bool = False) -> dict[str, Any]:
    """A raw row with the fields that may leave."""
    kind = str(value.get("kind"))
    allowed = _COMMON | _ROWS.get(kind, set()) | (_TEXT if include_text and kind in ("answer", "generation") else set())
    out = {key: value[key] if key in _OURS else _value(value[key]) for key in value if key in allowed}
    if isinstance(value.get("setting"), Mapping):
        out["setting"] = {key: _value(item) for key, item in value["setting"].items() if key in _SETTING}
    if isinstance(value.get("prompt"), Mapping):
        out["prompt"] = {key: _value(item) for key, item in value["prompt"].items() if key in _PROMPT}
    return out


def environment(run: Mapping[str, Any]) -> dict[str, str]:
    """What is said about the machine."""
    found = run.get("environment")
    return (
        {key: clean(value) for key, value in found.items() if key in _ENVIRONMENT} if isinstance(found, Mapping) else {}
    )


def manifest(run: Mapping[str, Any]) -> dict[str, Any]:
    """The manifest with the fields that may leave."""
    out: dict[str, Any] = {key: _value(run[key]) for key in run if key in _MANIFEST}
    target, engine = run.get("target"), run.get("engine")
    if isinstance(target, Mapping):
        out["target"] = {key: clean(target[key]) for key in ("kind", "label") if key in target}
    if isinstance(engine, Mapping):
        out["engine"] = {"version": clean(engine.get("version"))}
    out["environment"] = environment(run)
    stages = run.get("stages")
    if isinstance(stages, Mapping):
        out["stages"] = {
            name: {key: _value(stage[key]) for key in stage if key in _STAGE}
            for name, stage in stages.items()
            if isinstance(stage, Mapping)
        }
    out["servers"] = [
        {key: _value(server[key]) for key in server if key in _SERVER}
        | {"setting": {key: _value(item) for key, item in (server.get("setting") or {}).items() if key in _SETTING}}
        for server in _items(run, "servers")
    ]
    for name, keys in (
        ("facts", ("name", "value", "source")),
        ("warnings", ("code", "stage", "detail", "remedy")),
        ("time", ("stage", "what", "seconds", "at")),
    ):
        out[name] = [{key: _value(item.get(key)) for key in keys} for item in _items(run, name)]
    return out


def _value(value: Any) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, Mapping):
        return {clean(key): _value(item) for key, item in value.items()}
    return [_value(item) for item in value] if isinstance(value, list) else value


def _short_path(match: re.Match[str]) -> str:
    path = match.group(0)
    parts = [part for part in path.split("/") if part]
    # A server's own addresses (/v1/models) say nothing about the machine.
    return path if _ENDPOINT.fullmatch(path) or len(parts) < 2 else f"…/{parts[-1]}"


def _short_url(match: re.Match[str]) -> str:
    host = match.group(2)
    return match.group(1) + (host if host in ("localhost", "127.0.0.1", "0.0.0.0") else "host")


def _items(run: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    value = run.get(name)
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []
