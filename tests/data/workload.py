"""What a workload would hit under pressure: made-up rates in which the best interval moves with the pool."""

from __future__ import annotations

from typing import Any

from prefixscope.replay import Geometry, Pressure, PressureRow, ServerSetting, read_workload
from prefixscope.setting import Interval

RATES: dict[tuple[int | None, Interval], float] = {
    (10_000, 0): 0.12, (10_000, 4096): 0.10, (10_000, "dense"): 0.06,
    (50_000, 0): 0.12, (50_000, 4096): 0.25, (50_000, "dense"): 0.16,
    (None, 0): 0.12, (None, 4096): 0.27, (None, "dense"): 0.2704,
}  # fmt: skip


def row(pool: int | None, interval: Interval, rate: float | None, **more: Any) -> PressureRow:
    told: dict[str, Any] = {"release": "0.29.0", "resolved": interval, "requests": 100, "prompt_tokens": 100_000}
    if rate is not None:
        told |= {"cached_tokens": round(rate * 100_000), "retained_blocks": 900, "evicted_blocks": 5000}
        told |= {"follow_ups": 40, "warm": round(rate * 100), "preemptions": 0, "blocks": pool or 10**6}
    return PressureRow(**{"pool_blocks": pool, "interval": interval, **told, **more})


ROWS = [row(pool, interval, rate) for (pool, interval), rate in RATES.items()]


def pressure() -> Pressure:
    """What was asked for these rows."""
    return Pressure(
        workload=read_workload("example"),
        geometry=Geometry.from_json({"groups": [{"kind": "full", "block_size": 16}]}),
        setting=ServerSetting(),
        pools=(10_000, 50_000, None),
        intervals=(0, 4096, "dense"),
        releases=("0.29.0",),
    )
