"""Frames of the prefix cache: KV cache groups, what each held at a lookup, and what one prompt left behind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from prefixscope.diagnosis import cause_words
from prefixscope.frames.columns import BOOL, FLOAT, INT, TEXT, make_frame
from prefixscope.frames.rows import Rows, dict_in, of_kind, setting_columns
from prefixscope.setting import interval_label
from prefixscope.trace import ranges_text, subtract

KEPT_COLUMNS = {
    "stage": TEXT, "series": TEXT, "setting": TEXT, "setting_id": TEXT, "drafter": BOOL, "lora": BOOL,
    "interval": TEXT, "interval_order": FLOAT, "prompt": TEXT, "tokens": INT, "gid": INT, "group_kind": TEXT,
    "resolved": TEXT, "block_size": INT, "blocks": INT, "bytes": INT,
}  # fmt: skip

BLOCK_COLUMNS = {
    "request_id": TEXT, "send_label": TEXT, "prompt_tokens": INT, "hit_tokens": INT, "candidate_tokens": INT,
    "shared_tokens": INT, "gid": INT, "group": TEXT, "kind": TEXT, "block_size": INT, "limiting": BOOL, "state": TEXT,
    "start": INT, "stop": INT, "start_token": INT, "stop_token": INT,
}  # fmt: skip


def kept(run_dir: Path) -> pd.DataFrame:
    """One row per setting × prompt × KV cache group: the blocks that one send left in the cache.

    Columns: ``resolved`` (the interval that the engine worked with; null where it did not say), ``gid``,
    ``group_kind``, ``block_size`` (tokens), ``blocks`` (count) and ``bytes`` (null where the engine did not say what
    a block costs); setting and prompt columns as in :func:`sends`.
    """
    rows = [
        {
            **row,
            **setting_columns(row),
            "prompt": dict_in(row, "prompt").get("name"),
            "tokens": dict_in(row, "prompt").get("tokens"),
            "resolved": _resolved(row),
        }
        for row in of_kind(run_dir, "kept")
    ]
    return make_frame(rows, KEPT_COLUMNS)


def groups(headers: Iterable[Any]) -> pd.DataFrame:
    """One row per kind of KV cache group × distinct engine geometry, from trace headers.

    ``groups`` counts the identical ones; ``window_tokens`` is null for full attention, ``bytes_per_block`` where
    unknown.
    """
    out: dict[tuple[Any, ...], dict[str, Any]] = {}
    for header in headers:
        for group in header.groups:
            key = (
                header.version,
                group.kind,
                group.block_size,
                group.window,
                group.layers,
                group.drafter,
                header.scheduler_block,
            )
            row = out.setdefault(
                key,
                {
                    "vllm": header.version,
                    "kind": group.kind,
                    "groups": 0,
                    "layers_each": group.layers,
                    "block_tokens": group.block_size,
                    "window_tokens": group.window,
                    "drafter": group.drafter,
                    "bytes_per_block": group.bytes_per_block,
                    "scheduler_block_tokens": header.scheduler_block,
                    "seen": header,
                },
            )
            row["groups"] += row["seen"] is header
    columns = {
        "vllm": TEXT,
        "kind": TEXT,
        "groups": INT,
        "layers_each": INT,
        "block_tokens": INT,
        "window_tokens": INT,
        "drafter": BOOL,
        "bytes_per_block": INT,
        "scheduler_block_tokens": INT,
    }
    return make_frame([{name: row[name] for name in columns} for row in out.values()], columns)


def blocks(lookups: Iterable[Any], *, labels: Mapping[str, str] | None = None) -> pd.DataFrame:
    """One row per lookup × KV cache group × block range × state (stored, needed, missing, evicted).

    Evicted blocks were cached for this very prompt once; missing ones are needed, not stored, and not known to have
    been evicted. A group that held nothing has one row of state ``nothing``, one that was not scanned ``unknown``,
    without a range.

    Parameters
    ----------
    lookups : objects as ``prefixscope.trace`` gives them.
    labels : request id → what to call that lookup.

    ``start``/``stop`` are half-open in the group's own blocks; ``start_token``/``stop_token`` put groups of different
    block sizes on one axis. ``shared_tokens`` is what an earlier request had in common. ``limiting`` marks the group
    that ended the hit.
    """
    out: Rows = []
    for lookup in lookups:
        for view in lookup.groups:
            group = view.group
            base = {
                "request_id": lookup.request_id,
                "send_label": (labels or {}).get(lookup.request_id, lookup.request_id),
                "prompt_tokens": lookup.prompt_tokens,
                "hit_tokens": lookup.hit_tokens,
                "candidate_tokens": lookup.candidate_tokens,
                "shared_tokens": lookup.common_tokens,
                "gid": group.gid,
                "kind": group.kind,
                "group": group_label(group.kind, group.block_size, group.window, bool(group.drafter)),
                "block_size": group.block_size,
                "limiting": bool(view.limiting),
            }
            known = getattr(view, "known", True)
            states = [
                ("stored", view.cached if known else ()),
                ("needed", _ranges(view.needed)),
                ("missing", subtract(_ranges(view.missing), view.evicted)),
                ("evicted", view.evicted),
            ]
            for state, ranges in states:
                for start, stop in ranges:
                    size = group.block_size
                    span = {"start": start, "stop": stop, "start_token": start * size, "stop_token": stop * size}
                    out.append({**base, "state": state, **span})
            if not states[0][1]:
                out.append({**base, "state": "nothing" if known else "unknown"})
    return make_frame(out, BLOCK_COLUMNS)


def lookups(found: Iterable[tuple[str, Any, str]]) -> pd.DataFrame:
    """One row per lookup × kind of group that was asked, from (label, lookup, cause); ranges as people read them."""
    out: Rows = []
    for label, lookup, cause in found:
        seen = set()
        for view in lookup.groups:
            row = {
                "send": label,
                "hit_tokens": lookup.hit_tokens,
                "cause": cause_words(cause),
                "group": group_label(
                    view.group.kind, view.group.block_size, view.group.window, bool(view.group.drafter)
                ),
                "ends_the_hit": bool(view.limiting),
                "stored_blocks": ranges_text(view.cached),
                "needed_blocks": ranges_text([view.needed]) if view.needed else "not asked",
                "missing_blocks": ranges_text(view.missing)
                + (f"; evicted since: {ranges_text(view.evicted)}" if view.evicted else ""),
            }
            if tuple(row.items()) not in seen:
                seen.add(tuple(row.items()))
                out.append(row)
    columns = {
        "send": TEXT,
        "hit_tokens": INT,
        "cause": TEXT,
        "group": TEXT,
        "ends_the_hit": BOOL,
        "stored_blocks": TEXT,
        "needed_blocks": TEXT,
        "missing_blocks": TEXT,
    }
    return make_frame(out, columns)


def group_label(kind: str, block_size: int, window: int | None, drafter: bool) -> str:
    """What a reader calls one KV cache group: ``sliding · window 1,024 · 32-token blocks``."""
    name = {"sliding_window": "sliding", "full_attention": "full"}.get(kind, kind)
    name = f"{name} · window {window:,}" if window else name
    return f"{name} · {block_size}-token blocks" + (" · drafter" if drafter else "")


def _resolved(row: Mapping[str, Any]) -> str | None:
    interval = row.get("interval")
    return None if interval is None else interval_label(interval)


def _ranges(value: Any) -> list[tuple[int, int]]:
    if not value:
        return []
    return [tuple(value)] if isinstance(value[0], int) else [tuple(item) for item in value]
