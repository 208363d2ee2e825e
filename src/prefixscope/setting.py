"""One way to start the server, and the identities built from it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

Interval = int | str | None
"""A retention interval: tokens, ``"dense"``, or None where the flag is not given and the release's default holds."""


def digest(value: object, length: int = 16) -> str:
    """A stable hex identity of any JSON value."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def interval_label(interval: Interval) -> str:
    """How people read an interval: ``1,024``, ``dense``, ``default``."""
    if interval is None:
        return "default"
    return f"{interval:,}" if isinstance(interval, int) else str(interval)


def parse_interval(text: str | int | None) -> Interval:
    """``"1024"`` → 1024, ``"dense"`` → "dense", ``"default"`` → None.

    Raises
    ------
    ValueError
        where the text is none of these; the message names them.
    """
    if text is None or text in ("default", ""):
        return None
    if text == "dense":
        return "dense"
    try:
        value = int(str(text))  # str(): 1.5 and True are no intervals
    except ValueError:
        value = -1
    if value < 0:
        raise ValueError(f"retention interval {text!r}: use 0, a positive whole number of tokens, 'dense' or 'default'")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One way to start the server.

    ``drafter`` False strips the speculative config; ``lora`` serves the adapter too; ``interval`` becomes
    ``--prefix-cache-retention-interval`` (vLLM 0.29.0, ``CacheConfig.prefix_cache_retention_interval``).
    ``as_served`` marks an attached server, whose settings are not ours.
    """

    drafter: bool = True
    lora: bool = False
    interval: Interval = None
    dtype: str = "float32"
    as_served: bool = False

    @property
    def id(self) -> str:
        """Hex identity: equal settings share a server."""
        return digest(asdict(self), 8)

    @property
    def label(self) -> str:
        """How a report names it: ``MTP + LoRA, interval 1,024``."""
        if self.as_served:
            return "as served"
        name = "MTP" if self.drafter else "no MTP"
        name += " + LoRA" if self.lora else ""
        name += f" ({self.dtype})" if self.dtype != "float32" else ""
        return name if self.interval is None else f"{name}, interval {interval_label(self.interval)}"

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "label": self.label, "id": self.id}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Setting:
        known = {name: value[name] for name in cls.__slots__ if name in value}
        return cls(**known)
