"""Frames of a trace alone: its lookups over time, and the store side of some requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from prefixscope.diagnosis import cause_meaning, cause_words, explain
from prefixscope.frames.cache import group_label
from prefixscope.frames.columns import FLOAT, INT, TEXT, make_frame
from prefixscope.frames.rows import Rows
from prefixscope.trace import Lookup, Trace

MOST_POINTS = 5_000
STRETCHES = 120
MOST_EXPLAINED = 20_000

TIME_COLUMNS = {
    "start_s": FLOAT, "stop_s": FLOAT, "kind": TEXT, "share": FLOAT, "low": FLOAT, "high": FLOAT, "lookups": INT,
    "misses": INT, "request_id": TEXT, "prompt_tokens": INT, "hit_tokens": INT, "missed_tokens": INT,
}  # fmt: skip

CAUSE_COLUMNS = {"cause": TEXT, "lookups": INT, "missed_tokens": INT, "request_id": TEXT, "meaning": TEXT}

STORE_COLUMNS = {
    "request_id": TEXT, "send_label": TEXT, "prompt_tokens": INT, "gid": INT, "group": TEXT, "kind": TEXT,
    "block_size": INT, "state": TEXT, "start": INT, "stop": INT, "start_token": INT, "stop_token": INT,
}  # fmt: skip


def lookups_over_time(trace: Trace, *, most: int = MOST_POINTS) -> pd.DataFrame:
    """One row per lookup in time order; of a trace with more than ``most``, one row per stretch of time.

    ``start_s``/``stop_s`` count seconds from the first lookup. ``share`` is hit ÷ prompt tokens; of a stretch the
    median of the lookups that had something to hit, ``low`` and ``high`` their quartiles (null where none had).
    ``kind`` is hit, miss (``Lookup.missed_tokens``) or nothing to hit; it and the columns of one request are null for
    stretches, which hold ``lookups`` of which ``misses`` missed. A stretch without lookups has no row.
    """
    if not trace.lookups:
        return make_frame([], TIME_COLUMNS)
    first = trace.lookups[0].t
    if len(trace.lookups) <= most:
        return make_frame([_point(one, one.t - first) for one in trace.lookups], TIME_COLUMNS)
    at = np.array([one.t - first for one in trace.lookups])
    share = np.array([_share(one) for one in trace.lookups])
    kind = np.array([_kind(one) for one in trace.lookups])
    width = max(float(at[-1]), 1e-6) / STRETCHES
    stretch = np.minimum((at / width).astype(int), STRETCHES - 1)
    edges = np.searchsorted(stretch, np.arange(STRETCHES + 1))
    rows: Rows = []
    pairs = zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
    for number, (start, stop) in enumerate(pairs):
        if start == stop:
            continue
        able = share[start:stop][kind[start:stop] != "nothing to hit"]
        rows.append(
            {
                "start_s": number * width,
                "stop_s": (number + 1) * width,
                "share": float(np.median(able)) if len(able) else None,
                "low": float(np.quantile(able, 0.25)) if len(able) else None,
                "high": float(np.quantile(able, 0.75)) if len(able) else None,
                "lookups": int(stop - start),
                "misses": int((kind[start:stop] == "miss").sum()),
            }
        )
    return make_frame(rows, TIME_COLUMNS)


def _point(lookup: Lookup, seconds: float) -> dict[str, object]:
    share = _share(lookup)
    return {
        "start_s": seconds,
        "stop_s": seconds,
        "kind": _kind(lookup),
        "share": share,
        "low": share,
        "high": share,
        "lookups": 1,
        "misses": int(lookup.missed_tokens > 0),
        "request_id": lookup.request_id,
        "prompt_tokens": lookup.prompt_tokens,
        "hit_tokens": lookup.hit_tokens,
        "missed_tokens": lookup.missed_tokens,
    }


def _share(lookup: Lookup) -> float:
    return min(lookup.hit_tokens / lookup.tokens, 1.0) if lookup.tokens else 0.0


def _kind(lookup: Lookup) -> str:
    if lookup.missed_tokens:
        return "miss"
    return "hit" if lookup.hit_tokens else "nothing to hit"


def causes(trace: Trace, *, most: int = MOST_EXPLAINED) -> pd.DataFrame:
    """One row per cause of a hit's length, the one that missed most tokens first.

    ``lookups`` and ``missed_tokens`` are sums, ``request_id`` an example, the one that missed most. Of a trace with
    more than ``most`` lookups so many are explained, spread evenly; ``.attrs["explained"]`` is then their number.
    """
    found: dict[str, dict[str, Any]] = {}
    step = -(-len(trace.lookups) // most) if trace.lookups else 1
    chosen = trace.lookups[::step]
    for one in chosen:
        code = explain(trace, one.engine_request_id).cause
        words, meaning = cause_words(code), cause_meaning(code)
        row = found.setdefault(code, {"cause": words, "meaning": meaning, "lookups": 0, "missed_tokens": 0, "most": -1})
        row["lookups"] += 1
        row["missed_tokens"] += one.missed_tokens
        if one.missed_tokens > row["most"]:
            row["most"], row["request_id"] = one.missed_tokens, one.request_id
    rows = sorted(found.values(), key=lambda row: (-row["missed_tokens"], -row["lookups"]))
    frame = make_frame(rows, CAUSE_COLUMNS)
    if step > 1:
        frame.attrs["explained"] = len(chosen)
    return frame


def stores(trace: Trace, labels: Mapping[str, str]) -> pd.DataFrame:
    """One row per request × KV cache group × block range × state (kept, dropped), and one per boundary.

    ``labels`` is request id → what to call it. ``start``/``stop`` are half-open in the group's own blocks; a boundary
    has none, its token, rounded down to the hit unit as the rule does, is ``start_token``. A request that stored
    nothing has no row.
    """
    out: Rows = []
    for request, label in labels.items():
        lookup = trace.lookup(request)
        for one in trace.stored(request):
            group, size = one.group, one.group.block_size
            base = {
                "request_id": request,
                "send_label": label,
                "prompt_tokens": None if lookup is None else lookup.prompt_tokens,
                "gid": group.gid,
                "group": group_label(group.kind, size, group.window, group.drafter),
                "kind": group.kind,
                "block_size": size,
            }
            for state, ranges in (("kept", one.kept), ("dropped", one.dropped)):
                for start, stop in ranges:
                    span = {"start": start, "stop": stop, "start_token": start * size, "stop_token": stop * size}
                    out.append({**base, "state": state, **span})
            unit = 1 if lookup is None else lookup.header.alignment or lookup.header.scheduler_block
            aims = sorted({token // unit * unit for token in one.boundaries})
            out += [{**base, "state": "boundary", "start_token": token, "stop_token": token} for token in aims]
    return make_frame(out, STORE_COLUMNS)
