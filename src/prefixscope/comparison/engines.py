"""What the traced engines of a run resolved their settings to, whatever they were asked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from prefixscope import redact
from prefixscope.errors import TraceError
from prefixscope.replay.case import Case, ServerSetting
from prefixscope.replay.geometry import Geometry
from prefixscope.replay.measured import release
from prefixscope.trace import read_trace

_ANSWERS = ("answer", "generation")


def engines(
    sent: pd.DataFrame, cases: Iterable[Case], rows: Sequence[Mapping[str, Any]], trace: Path
) -> dict[str, Case]:
    """A case by setting: of the engine that answered the first send, or else the first compared or streamed answer.

    The trace is only read where the cases do not tell of each setting.
    """
    started = {row["request_id"]: row["setting"] for row in sent[["request_id", "setting"]].to_dict("records")}
    found: dict[str, Case] = {}
    for case in cases:
        for request in case.measured:
            if request in started:
                found.setdefault(str(started[request]), case)
    asked: dict[str, list[str]] = {}
    for row in rows:
        setting, name = row.get("setting"), row.get("request_id")
        if row.get("kind") in _ANSWERS and isinstance(setting, Mapping) and isinstance(name, str):
            asked.setdefault(redact.clean(setting.get("label"), limit=120), []).append(name)
    if asked.keys() <= found.keys():
        return found
    try:
        known = read_trace(trace)
    except TraceError:
        return found
    for label, names in asked.items():
        lookup = next((one for name in names if (one := known.lookup(name)) is not None), None)
        if lookup is not None and label not in found:
            header = lookup.header
            found[label] = Case(
                geometry=Geometry.from_header(header), setting=ServerSetting.from_header(header), requests=(),
                release=release(header), name=label,
            )  # fmt: skip
    return found
