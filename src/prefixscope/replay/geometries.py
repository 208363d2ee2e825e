"""Geometries by name, from a file, and from a model's ``config.json``.

A shipped one (``data/geometries/NAME.json``) holds the KV cache groups that vLLM 0.29.0 makes with the drafter on,
those that another release or a server without the drafter makes where they differ (``variants``), and the model's
config that all of them were made from, so that any release can make them again.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefixscope.errors import ReplayError
from prefixscope.replay.geometry import Geometry
from prefixscope.replay.worker import Replayer
from prefixscope.resources import data_path

CONFIG = "config.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafter:
    """Speculative decoding of a server: vLLM's ``method``, draft tokens, and the drafter's own config (None: the
    drafter comes with the model)."""

    method: str
    tokens: int
    config: Mapping[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        return {"method": self.method, "tokens": self.tokens, "config": self.config}


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A shipped geometry.

    ``sources`` say where its numbers come from, ``inferred`` which of them nobody published. ``model`` is what
    `Replayer.group` takes to make it again. ``made`` is what 0.29.0 makes with the drafter, and its variants.
    """

    name: str
    about: str
    sources: tuple[str, ...]
    inferred: tuple[str, ...]
    model: Mapping[str, Any]
    releases: tuple[str, ...]
    made: Geometry

    @property
    def drafter_tokens(self) -> int:
        """Draft tokens of the server that it describes."""
        return int(self.model["drafter"]["tokens"])

    def geometry(self, release: str, *, drafter: bool = True) -> Geometry:
        """What that release makes of the model, with the drafter or without.

        Raises
        ------
        ReplayError
            where the release was never asked, or does not know the model.
        """
        if release in self.releases:
            return self.made.on(release, drafter=drafter)
        raise ReplayError(
            f"the geometry {self.name} is not known for vLLM {release}",
            cause=f"it was made for {', '.join(self.releases)}",
            remedy=f"choose one of them with --vllm, or another geometry: {', '.join(names())}",
        )


def names() -> list[str]:
    """The shipped geometries."""
    return sorted(path.stem for path in data_path("geometries").glob("*.json"))


def preset(name: str) -> Preset:
    """A shipped geometry by its name.

    Raises
    ------
    ReplayError
        where there is none of that name: the message has their names.
    """
    if name not in names():
        raise ReplayError(
            f"there is no geometry {name!r}",
            remedy=f"use one of {', '.join(names())}; a file; or a server's own groups: --trace FILE",
        )
    value = _read(data_path("geometries", f"{name}.json"))
    return Preset(
        name=name,
        about=value["about"],
        sources=tuple(value["sources"]),
        inferred=tuple(value["inferred"]),
        model=value["model"],
        releases=tuple(sorted({release for one in (value, *value["variants"]) for release in one["releases"]})),
        made=Geometry.from_json(value),
    )


def load(name: str | Path, *, release: str = "0.29.0", drafter: bool = True) -> Geometry:
    """A geometry by the name of a shipped one, or from a file; what it is on other releases, `Geometry.on` says.

    Raises
    ------
    ReplayError
        for a name or a file that is not there, and a file that holds no geometry.
    """
    text = str(name)
    if "/" not in text and not text.endswith(".json") and not Path(text).is_file():
        return preset(text).geometry(release, drafter=drafter)
    value = _read(Path(text))
    if "groups" not in value:
        has = (
            "a model's config"
            if "architectures" in value
            else f"neither a geometry nor a model's config: {_keys(value)}"
        )
        raise ReplayError(
            f"{text} is no geometry",
            cause=f"it holds {has}",
            remedy=f"--config {shlex.quote(text)}"
            if "architectures" in value
            else "give a JSON file with groups, or --trace FILE",
        )
    return Geometry.from_json(value).on(release, drafter=drafter)


def from_config(
    replayer: Replayer,
    path: Path | str,
    *,
    drafter: Drafter | None = None,
    dtype: str = "auto",
    kv_cache_dtype: str = "auto",
    tensor_parallel: int = 1,
    block_size: int | None = None,
) -> Geometry:
    """The groups that a release makes of a model on a GPU.

    Parameters
    ----------
    path : the model's ``config.json``, or the folder that holds it; no weights are needed.
    drafter : how the server speculates; `read_config` reads its config.
    dtype, kv_cache_dtype, tensor_parallel, block_size : the server's own flags, ``block_size`` in tokens.

    Raises
    ------
    ReplayError
        where the file is missing or holds something else, or the release can't build the model.
    """
    return replayer.group(
        {
            "config": read_config(path),
            "drafter": None if drafter is None else drafter.to_json(),
            "dtype": dtype,
            "kv_cache_dtype": kv_cache_dtype,
            "tensor_parallel": tensor_parallel,
            "block_size": block_size,
        }
    )


def read_config(path: Path | str) -> dict[str, Any]:
    """A model's ``config.json``, given as such or as the folder that holds it.

    Raises
    ------
    ReplayError
        where it is missing, not JSON, or holds something else.
    """
    file = Path(path) / CONFIG if Path(path).is_dir() else Path(path)
    value = _read(file)
    if "architectures" not in value:
        has = "a geometry" if "groups" in value else f"neither a model's config nor a geometry: {_keys(value)}"
        raise ReplayError(
            f"{file} is no model's config",
            cause=f"it holds {has}; a config names its architectures",
            remedy=f"--geometry {file}" if "groups" in value else f"give the folder of the model, or its {CONFIG}",
        )
    return value


def _read(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ReplayError(
            f"{path} can't be read: {error.strerror or error}",
            remedy=f"give a file that is there, or a shipped geometry: {', '.join(names())}",
        ) from error
    except ValueError as error:
        raise ReplayError(
            f"{path} is not JSON: {error}", remedy="give a geometry or a model's config as JSON"
        ) from error
    if not isinstance(value, dict):
        raise ReplayError(
            f"{path} holds a JSON {type(value).__name__}, not an object",
            remedy="give a geometry or a model's config as JSON",
        )
    return value


def _keys(value: Mapping[str, Any]) -> str:
    shown = ", ".join(map(str, list(value)[:6]))
    return f"its fields are {shown}" if shown else "it is empty"
