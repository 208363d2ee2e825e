"""Frames of the run's own clock: servers, and what each stretch of time was spent on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from prefixscope.frames.columns import FLOAT, TEXT, TIME, make_frame
from prefixscope.frames.rows import Rows, dicts_in, setting_columns

SPAN_COLUMNS = {
    "lane": TEXT, "what": TEXT, "status": TEXT, "start": TIME, "stop": TIME, "start_min": FLOAT, "stop_min": FLOAT,
    "seconds": FLOAT,
}  # fmt: skip

SERVER_COLUMNS = {
    "id": TEXT, "setting": TEXT, "setting_id": TEXT, "command": TEXT, "started_at": TIME, "ready_at": TIME,
    "stopped_at": TIME, "start_s": FLOAT,
}  # fmt: skip


def servers(run: Mapping[str, Any]) -> pd.DataFrame:
    """One row per server that the run started: setting, command, times (null where it has not got there)."""
    return make_frame([{**row, **setting_columns(row)} for row in dicts_in(run, "servers")], SERVER_COLUMNS)


def timeline(run: Mapping[str, Any]) -> pd.DataFrame:
    """One row per span of time: a stage, a server starting, a server serving.

    ``start_min``/``stop_min`` count minutes from the first span; a span without an end is left out.
    """
    out: Rows = []
    for name, stage in (run.get("stages") or {}).items():
        if isinstance(stage, Mapping) and stage.get("started_at"):
            stop = stage.get("finished_at")
            out.append(
                {
                    "lane": name,
                    "what": "stage",
                    "status": stage.get("status"),
                    "start": stage["started_at"],
                    "stop": stop,
                }
            )
    for row in dicts_in(run, "servers"):
        lane = f"{row.get('id', '?')} {setting_columns(row)['setting'] or ''}".strip()
        ready = row.get("ready_at")
        out.append(
            {"lane": lane, "what": "starting", "start": row.get("started_at"), "stop": ready or row.get("stopped_at")}
        )
        out.append({"lane": lane, "what": "serving", "start": ready, "stop": row.get("stopped_at")})
    frame = make_frame(out, SPAN_COLUMNS)
    frame = frame[frame["start"].notna() & frame["stop"].notna()].copy()
    frame["seconds"] = (frame["stop"] - frame["start"]).dt.total_seconds()
    first = frame["start"].min()
    for column in ("start", "stop"):
        frame[f"{column}_min"] = (frame[column] - first).dt.total_seconds() / 60
    return frame.sort_values(["start", "lane"], kind="stable").reset_index(drop=True)
