"""A workload in finite pools, as a table."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from prefixscope.frames.columns import BOOL, FLOAT, INT, TEXT, make_frame
from prefixscope.replay import PressureRow
from prefixscope.replay.releases import age
from prefixscope.setting import interval_label

TIE = 0.001
"""Hit rates closer than this are the same: a tenth of a percentage point."""

_COLUMNS = {
    "release": TEXT,
    "pool_blocks": INT,
    "pool": TEXT,
    "own": BOOL,
    "interval": TEXT,
    "interval_order": FLOAT,
    "default": BOOL,
    "hit_rate": FLOAT,
    "prompt_tokens": INT,
    "cached_tokens": INT,
    "retained_blocks": INT,
    "evicted_blocks": INT,
    "preemptions": INT,
    "follow_ups": INT,
    "warm": INT,
    "best": BOOL,
    "refused": TEXT,
}


def pressed(rows: Sequence[PressureRow], *, own_pool: int | None = None) -> pd.DataFrame:
    """One row per release × pool × interval, in that order, the oldest release and the smallest pool first.

    | column | unit | meaning of null |
    |---|---|---|
    | pool_blocks | blocks | a pool that never evicts |
    | own | | ``own_pool`` is this pool: the user's own server |
    | interval, interval_order | tokens | 0, tokens or dense, as the release resolved it |
    | default | | it is what the release takes where no interval is given; null where that was not asked |
    | hit_rate | share of prompt tokens | the release refuses the setting |
    | retained_blocks, evicted_blocks | blocks | the same |
    | warm | follow-ups that hit at least half of the earlier turn they repeat | the same |
    | best | | the highest rate of its pool; of equal ones (`TIE`) the one that retains least |
    """
    merged: dict[tuple[object, ...], dict[str, object]] = {}
    for row in rows:
        resolved = row.resolved if row.resolved is not None else row.interval
        key = (row.release, row.pool_blocks, resolved)
        default = row.interval is None or bool(merged.get(key, {}).get("default"))
        asked = any(one.interval is None and one.release == row.release for one in rows)
        merged[key] = {
            **row.to_json(),
            "pool": "endless" if row.pool_blocks is None else f"{row.pool_blocks:,} blocks",
            "own": row.pool_blocks is not None and row.pool_blocks == own_pool,
            "interval": interval_label(resolved),
            "interval_order": _order(resolved),
            "default": default if asked else None,
            "best": False,
            "refused": row.refused or None,
        }
    table = make_frame(list(merged.values()), _COLUMNS)
    for _, part in table[table["hit_rate"].notna()].groupby(["release", "pool"], sort=False):
        good = part[part["hit_rate"] >= part["hit_rate"].max() - TIE]
        table.loc[good["interval_order"].map(_density).idxmin(), "best"] = True
    table = table.assign(size=table["pool_blocks"].astype("float64").fillna(math.inf))
    table = table.sort_values(["size", "interval_order"], kind="stable").drop(columns="size")
    return table.sort_values("release", key=lambda names: names.map(age), kind="stable").reset_index(drop=True)


def _order(interval: object) -> float:
    if interval is None:
        return -1.0  # refused before the release said what its default is
    return math.inf if interval == "dense" else float(str(interval))


def _density(order: float) -> float:
    """How much an interval retains, as a rank: 0 least, then from coarse to fine, then dense."""
    return order if order in (0.0, math.inf) else 1 / order if order > 0 else -1.0
