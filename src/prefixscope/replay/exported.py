"""A case as a pytest for vLLM's own tree: public vLLM imports only, and no dependency on prefixscope."""

from __future__ import annotations

import itertools
import json
from importlib.resources import files
from typing import Any

import jinja2

from prefixscope.errors import ReplayError
from prefixscope.provenance import package_version
from prefixscope.quantities import number
from prefixscope.replay.case import Case
from prefixscope.replay.geometry import Group

_SPECS = {"full": "FullAttentionSpec", "sliding": "SlidingWindowSpec", "mamba": "MambaSpec"}
_MOST = {"block_size", "num_kv_heads", "head_size", "head_size_v", "sliding_window", "page_size_padded"}


def to_test(case: Case) -> str:
    """The test of one prompt's three sends.

    Raises
    ------
    ReplayError
        where a group is of a kind that the test can't spell out.
    """
    lines = [_spec(group) for group in case.geometry.groups]
    runs = [(line, len(list(same))) for line, same in itertools.groupby(lines)]
    specs = [line if times == 1 else f"*[{line}] * {times}" for line, times in runs]
    setting = case.setting
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(
            lambda name: files("prefixscope").joinpath(f"templates/{name}").read_text("utf-8")
        ),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # Python, not HTML: every value is a number, or words that _word went through
    )
    tokens = case.requests[0].tokens
    hits = [case.measured.get(one.id) for one in case.requests]
    blocks = sum(3 * (tokens // group.block_size + 3) for group in case.geometry.groups)
    return environment.get_template("test_case.py.j2").render(
        release=_word(case.release),
        name=_word(case.name),
        version=_word(package_version()),
        tokens=tokens,
        length=number(tokens),
        measured=", ".join(number(hit) if hit is not None else "unknown" for hit in hits),
        spec_names=sorted({line.split("(")[0] for line in lines}),
        specs=specs,
        flags=[group.drafter for group in case.geometry.groups],
        scheduler_block=case.geometry.scheduler_block,
        hash_block=case.geometry.hash_block,
        pool_blocks=blocks + 64,
        interval=None if setting.interval == "dense" else int(setting.interval or 0),
        drafter_tokens=setting.drafter_tokens or 0,
        batched=setting.max_batched_tokens or 2048,
    )


def _spec(group: Group) -> str:
    name = group.spec or _SPECS.get(group.kind, "")
    if name not in _SPECS.values() or group.kind == "mamba":
        raise ReplayError(
            f"a test can't be written for a KV cache group of kind {group.kind!r}",
            cause="only full-attention and sliding-window groups are spelled out",
            remedy="share the report: prefixscope predict --trace report.html replays it",
        )
    known: dict[str, Any] = json.loads(group.fields) if group.fields else {}
    values = {key: value for key, value in known.items() if key in _MOST and isinstance(value, int)}
    values |= {"block_size": group.block_size}
    values.setdefault("num_kv_heads", 1)
    values.setdefault("head_size", 128)
    if group.window is not None:
        values["sliding_window"] = group.window
    given = ", ".join(f"{key}={value}" for key, value in sorted(values.items()))
    return f"{name}({given}, dtype=dtype)"


def _word(text: str) -> str:
    """Text that can stand in a docstring."""
    return "".join(one for one in text if one.isprintable() and one not in '"\\')[:120]
