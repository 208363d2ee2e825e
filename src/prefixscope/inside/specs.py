"""KV cache specs as plain JSON and back: what a trace header says of a group, and what a replay builds it from."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any

from . import engine_api, versions

# What a group described by its kind alone is taken to be. Only bytes depend on it, never a hit.
_HEADS, _HEAD_SIZE = 1, 128


def spec_fields(spec: Any) -> dict[str, Any]:
    """The fields of a spec that JSON can hold; a dtype by its name. Left out: what equals no plain value.

    Source: the dataclasses of ``vllm.v1.kv_cache_interface``.
    """
    found: dict[str, Any] = {}
    for field in dataclasses.fields(spec):
        try:
            found[field.name] = _plain(getattr(spec, field.name))
        except TypeError:
            continue
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.value
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (tuple, list)):
        return [_plain(one) for one in value]
    if type(value).__name__ == "dtype":
        return str(value).removeprefix("torch.")
    raise TypeError(type(value).__name__)


def build_spec(group: Mapping[str, Any]) -> tuple[Any, list[str]]:
    """The release's own spec for a group of a geometry, and the names of fields that this release does not have.

    Parameters
    ----------
    group : ``spec`` and ``fields`` as in a trace header, or ``kind``, ``block_size`` and ``window`` alone.

    Raises
    ------
    versions.Unexpected
        where the release has no such spec, or refuses the fields.
    """
    interface = engine_api.interface()
    name = group.get("spec") or _SPEC_OF_KIND.get(str(group.get("kind")))
    found = getattr(interface, str(name), None)
    if found is None:
        raise versions.Unexpected(f"this release has no KV cache spec for a group of kind {group.get('kind')!r}")
    fields = dict(group["fields"]) if group.get("fields") else _fields_of_kind(group)
    known = {field.name for field in dataclasses.fields(found)}
    left_out = sorted(set(fields) - known)
    try:
        return found(**{key: _typed(key, value) for key, value in fields.items() if key in known}), left_out
    except (TypeError, ValueError, AssertionError) as error:
        raise versions.Unexpected(f"this release can't build a {name} from {fields}: {error}") from error


_SPEC_OF_KIND = {
    "full": "FullAttentionSpec",
    "sliding": "SlidingWindowSpec",
    "mamba": "MambaSpec",
    "chunked": "ChunkedLocalAttentionSpec",
}


def _fields_of_kind(group: Mapping[str, Any]) -> dict[str, Any]:
    size = group["block_size"]
    if group["kind"] == "mamba":
        return {
            "block_size": size,
            "shapes": [[1, size * 512]],
            "dtypes": ["bfloat16"],
            "mamba_cache_mode": group.get("mode", "align"),
        }
    fields = {
        "block_size": size,
        # Heads tell groups with equal blocks apart, as they do in the models.
        "num_kv_heads": group.get("heads", _HEADS),
        "head_size": group.get("head_size", _HEAD_SIZE),
        "dtype": group.get("dtype", "bfloat16"),
    }
    if group["kind"] == "sliding":
        fields["sliding_window"] = group["window"]
    elif group["kind"] == "chunked":
        fields["attention_chunk_size"] = group["window"]
    return fields


def _typed(name: str, value: Any) -> Any:
    """A field's value as the release's dataclass wants it: dtypes as such, lists as tuples."""
    import torch

    if name in ("dtype", "dtypes"):
        return getattr(torch, value) if isinstance(value, str) else tuple(getattr(torch, each) for each in value or ())
    if name == "kv_quant_mode" and value is not None:
        return engine_api.quant_mode(value)
    if isinstance(value, list):
        return tuple(_typed("", one) for one in value)
    return value
