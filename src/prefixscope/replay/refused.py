"""What a release's own code refused, in words: the likely cause and what to do."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from prefixscope.errors import ReplayError


def refused(release: str, asked: Mapping[str, Any], error: Mapping[str, Any]) -> ReplayError:
    """The error of a worker's answer to what it was asked."""
    message = str(error["message"])
    if error["about"] == "model":
        words = _one_line(message)  # for an unknown architecture, the list of all that it knows
        words = words if len(words) <= 400 else f"{words[:400].rpartition(' ')[0]} …"
        lacks = [] if "model_type" in asked["model"]["config"] else ["model_type"]
        lacks += re.findall(r"(?:has|and) no (\w+_config)", words)
        return ReplayError(
            f"vLLM {release}'s own code could not build this model from its config.json: {words}",
            cause=f"the config lacks {' or '.join(lacks)}"
            if lacks
            else "the release does not know the architecture, the config lacks a field, or a kernel is needed",
            remedy="give the model's whole config.json, or take the geometry from a trace of its server: "
            "prefixscope predict --trace FILE",
        )
    interval, block = asked["setting"].get("interval"), asked["geometry"]["scheduler_block"]
    if error["about"] == "interval" and isinstance(interval, int):
        if interval % block:
            below, above = interval // block * block, (interval // block + 1) * block
            return ReplayError(
                f"vLLM {release} refuses the retention interval {interval:,}",
                cause=f"it is not a multiple of the scheduler block, {block:,} tokens",
                remedy=f"use {' or '.join(f'{n:,}' for n in (below, above) if n)}",
            )
        return ReplayError(
            f"vLLM {release} refuses the retention interval {interval:,}",
            cause=_one_line(message),
            remedy="leave the interval out: no KV cache group of this geometry is thinned out by one",
        )
    if error["about"] == "pool":
        return ReplayError(
            f"vLLM {release} can't replay this: {_one_line(message)}",
            cause="the pool is too small for that one request, whatever else is in it",
            remedy="a larger pool: --pool-blocks N",
        )
    remedy = {
        "geometry": "take the geometry from a trace of this release, or choose another release with --vllm",
        "setting": "a larger pool (--pool-blocks), or another setting",
    }.get(str(error["about"]), "see the fields in prefixscope.inside.replayer")
    return ReplayError(f"vLLM {release} can't replay this: {_one_line(message)}", remedy=remedy)


def _one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()[:600]
