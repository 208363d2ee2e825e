"""What may leave the run directory: named fields only, and inside them no path, host or key.

An allow-list: a field that nobody named here stays behind, whatever a later version writes into a run.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from prefixscope import impossible
from prefixscope.errors import mask
from prefixscope.provenance import UNKNOWN

_SETTING = {"drafter", "lora", "interval", "dtype", "as_served", "label", "id"}
_PROMPT = {"name", "tokens", "digest", "seed"}
_COMMON = {"schema", "kind", "stage", "at", "cell", "series", "attempt", "role", "server", "model", "status", "error",
           impossible.NAME}  # fmt: skip
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
               "completion_tokens", "metrics", "request_id", "taken_from"},
    "headroom": {"arm", "label", "side", "tokens", "blocks", "source"},
    "discarded": {"prompt_tokens", "seconds"},
    "beside": {"why", "request_id", "prompt_tokens", "cached_tokens", "completion_tokens", "metrics", "seconds"},
}  # fmt: skip
_TEXT = {"text", "token_ids", "logprobs", "top2", "margins"}
_ENVIRONMENT = {
    "prefixscope", "commit", "python", "system", "platform", "machine", "cpus", "cpu", "memory_gib", "memory_gb", "os",
    "kernel", "gpu", "gpus", "gpu_count", "driver", "cuda", "torch", "vllm", "transformers", "libc", "container",
}  # fmt: skip
_MANIFEST = {"schema_version", "run_id", "created_at", "prefixscope_version", "plan"}
_STAGE = {"status", "started_at", "finished_at", "seconds", "error", "note"}
_PARAMETERS = {"lengths", "configurations", "workaround", "seed", "tokens", "intervals", "documents", "answer_tokens",
               "dtype", "shapes", "repeats", "load"}  # fmt: skip
_SERVER = {"id", "command", "start_s", "started_at", "ready_at", "stopped_at"}

_EVENTS = {
    "header": {"version", "caching", "groups", "scheduler_block", "hash_block", "alignment", "pool_blocks", "interval",
               "drop_groups", "min_prompt_tokens", "spec_method", "spec_tokens", "dp_rank", "max_batched_tokens",
               "max_seqs"},
    "lookup": {"request", "n", "prompt_tokens", "tokens", "max_hit_tokens", "hit_tokens", "reachable_tokens",
               "candidate_tokens", "junction_tokens", "skipped", "steps", "limiting", "groups", "scan", "free_blocks",
               "closest", "near", "evicted_s"},
    "admit": {"request", "hit_tokens", "external_tokens", "retries"},
    "store": {"request", "groups"},
    "evict": {"groups"},
    "retry": {"request"}, "preempt": {"request"}, "reset": {"request"}, "end": {"request"},
    "off": {"reason"}, "gap": {"reason"},
}  # fmt: skip
_EVENT = {"schema", "event", "t", "pid", "engine"}
_GROUP = {
    "gid",
    "kind",
    "spec",
    "fields",
    "block_size",
    "window",
    "layers",
    "layer_names",
    "drafter",
    "bytes_per_block",
}

_OURS = {"schema", "kind", "stage", "at", "cell", "series", "attempt", "role", "send", "request_id", "digest"}
"""Fields that only prefixscope writes: identities and times, nothing to clean."""

_PATH = re.compile(r"(?<![\w./…])(?!//)(?:~|\.{1,2})?/(?:[^\s'\",;:=()<>/]+/)*[^\s'\",;:=()<>/]+/?")
_FILE = re.compile(r"\bfile://(?=/)")
_URL = re.compile(r"\b([a-z][a-z0-9+.-]*://)(?:[^/\s@'\"]*@)?([^/\s:'\"]+)")
_ENDPOINT = re.compile(r"/(v1(/[a-z_/]+)?|metrics|health|version|tokenize|detokenize|ping|load)/?$")
_CONTROL = re.compile(
    r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"
    r"|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff\ufffe\uffff]"
)
_HOST = re.compile(
    r"(?P<before>\bhost=['\"]|--(?:host|master-addr|data-parallel-address)[= ]['\"]?)(?P<named>[\w.:\[\]-]+)"
    r"|(?<![\w.])(?<!==)(?P<four>\d{1,3}(?:\.\d{1,3}){3})(?![\w.]*\d)"
    r"|(?<![\w:.])(?P<six>(?:[0-9A-Fa-f]{1,4}:+){4,7}[0-9A-Fa-f]{1,4})(?![\w:])"
    # host:8000, but not the file:line of a log.
    r"|(?<![\w./-])(?P<ported>[A-Za-z0-9][\w-]*(?:\.[\w-]+)*\.(?!(?:py|pyx|cpp|cc|cu|cuh|c|h|rs|js|so):)[A-Za-z]{2,})(?=:\d{2,5}\b)"
    r"|(?<![\w./-])(?P<inside>[\w-]+(?:\.[\w-]+)*\.(?:internal|local|localdomain|lan|corp|intranet|svc|home\.arpa))(?![\w.])"
)
_HERE = {"localhost", "127.0.0.1", "0.0.0.0", "::", "::1", "[::1]", "host"}

Clean = Callable[[object], str]


def clean(text: object, *, limit: int = 2000, hosts: tuple[str, ...] = ()) -> str:
    """Text fit for a report: keys masked, paths and hosts shortened, control and direction marks dropped, bounded.

    ``hosts`` are names to leave out wherever they stand, however little they look like a host's.
    """
    value = _CONTROL.sub("", mask(str(text)))
    value = value if len(value) <= limit else value[:limit] + f" … ({len(value) - limit:,} characters more)"
    value = _HOST.sub(_short_host, _URL.sub(_short_url, _FILE.sub("file:", value)))
    for name in hosts:
        value = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", "host", value)
    return _PATH.sub(_short_path, value)


def inert(text: str) -> str:
    """Text as Markdown that shows it to the letter: nothing in it is a mark, a link or a picture."""
    return re.sub(r"([\\`*_\[\]<>#|!$&~])", r"\\\1", text.replace("\n", " "))


def row(value: Mapping[str, Any], *, include_text: bool = False, say: Clean = clean) -> dict[str, Any]:
    """A raw row with the fields that may leave; ``say`` cleans their text."""
    kind = str(value.get("kind"))
    allowed = _COMMON | _ROWS.get(kind, set()) | (_TEXT if include_text and kind in ("answer", "generation") else set())
    out = {key: value[key] if key in _OURS else _value(value[key], say) for key in value if key in allowed}
    for name, keys in (("setting", _SETTING), ("prompt", _PROMPT)):
        if isinstance(value.get(name), Mapping):
            out[name] = _picked(value[name], keys, say)
    return out


def event(value: Mapping[str, Any], *, say: Clean = clean) -> dict[str, Any] | None:
    """An event of a trace with the fields that may leave; None for one of a kind that nobody named here."""
    name = str(value.get("event"))
    if name not in _EVENTS:
        return None
    out = _picked(value, _EVENT | _EVENTS[name], say)
    if name == "header" and isinstance(out.get("groups"), list):
        groups = [group for group in value["groups"] if isinstance(group, Mapping)]
        out["groups"] = [_picked(group, _GROUP, say) for group in groups]
    return out


def environment(run: Mapping[str, Any], *, say: Clean = clean) -> dict[str, str]:
    """What is said about the machine."""
    found = run.get("environment")
    if not isinstance(found, Mapping):
        return {}
    return {key: say(value) for key, value in found.items() if key in _ENVIRONMENT and value != UNKNOWN}


def manifest(run: Mapping[str, Any], *, say: Clean = clean) -> dict[str, Any]:
    """The manifest with the fields that may leave."""
    out = {key: value for key, value in _picked(run, _MANIFEST, say).items() if value != UNKNOWN}
    target, engine = run.get("target"), run.get("engine")
    if isinstance(target, Mapping):
        out["target"] = {key: say(target[key]) for key in ("kind", "label") if key in target}
    if isinstance(engine, Mapping):
        version = engine.get("version")
        out["engine"] = {"version": None if version is None else say(version)}
    out["environment"] = environment(run, say=say)
    stages = run.get("stages")
    if isinstance(stages, Mapping):
        out["stages"] = {
            say(name): _picked(stage, _STAGE, say) | {"parameters": _picked(given, _PARAMETERS, say)}
            for name, stage in stages.items()
            # Of the page that is being made nothing is known yet: it is the same when it is made once more.
            if isinstance(stage, Mapping) and name != "report"
            for given in [_mapping(stage, "parameters")]
        }
    out["servers"] = [
        _picked(server, _SERVER, say) | {"setting": _picked(setting, _SETTING, say)}
        for server in _items(run, "servers")
        for setting in [_mapping(server, "setting")]
    ]
    for name, keys in (
        ("facts", ("name", "value", "source")),
        ("warnings", ("code", "stage", "detail", "remedy")),
        ("time", ("stage", "what", "seconds", "at")),
    ):
        out[name] = [{key: _value(item.get(key), say) for key in keys} for item in _items(run, name)]
    asked = run.get("collect_env")
    if isinstance(asked, Mapping):
        out["collect_env"] = _picked(asked, {"lines", "absent"}, say)
    if isinstance(run.get("problems"), list):
        out["problems"] = [say(problem) for problem in run["problems"]]
    return out


def _picked(value: Mapping[str, Any], keys: set[str], say: Clean) -> dict[str, Any]:
    return {key: _value(value[key], say) for key in value if key in keys}


def _value(value: Any, say: Clean) -> Any:
    if isinstance(value, str):
        return say(value)
    if isinstance(value, Mapping):
        return {say(key): _value(item, say) for key, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None  # JSON has no such number, and nobody measured one
    return [_value(item, say) for item in value] if isinstance(value, list) else value


def _short_host(match: re.Match[str]) -> str:
    found = match["named"] or match["four"] or match["six"] or match["ported"] or match["inside"]
    return (match["before"] or "") + (found if found.strip("[]") in _HERE or found in _HERE else "host")


def _short_path(match: re.Match[str]) -> str:
    path = match.group(0)
    parts = [part for part in path.split("/") if part]
    # A server's own addresses (/v1/models) say nothing about the machine.
    return path if _ENDPOINT.fullmatch(path) or len(parts) < 2 else f"…/{parts[-1]}"


def _short_url(match: re.Match[str]) -> str:
    host = match.group(2)
    return match.group(1) + (host if host in _HERE else "host")


def _mapping(value: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = value.get(name)
    return found if isinstance(found, Mapping) else {}


def _items(run: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    value = run.get(name)
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []
