"""The frame of a cache under pressure: what hit, what was evicted and when it was emptied, over time."""

from __future__ import annotations

import numpy as np
import pandas as pd

from prefixscope.frames.columns import FLOAT, INT, make_frame
from prefixscope.trace import Trace

WINDOWS = 60

EVICTION_COLUMNS = {
    "start_s": FLOAT, "stop_s": FLOAT, "lookups": INT, "share": FLOAT, "evicted_blocks": INT, "resets": INT,
}  # fmt: skip


def evictions_over_time(trace: Trace, *, windows: int = WINDOWS) -> pd.DataFrame:
    """One row per window of time; no row where the trace holds neither an eviction nor a reset.

    ``start_s``/``stop_s`` count seconds from the trace's first lookup or eviction. ``share`` is hit ÷ prompt tokens of
    all lookups of the window together (null where there was none), ``evicted_blocks`` a count over all groups,
    ``resets`` how often the prefix cache was emptied.
    """
    resets = [one.t for one in trace.incidents if one.kind == "reset"]
    if not trace.evictions and not resets:
        return make_frame([], EVICTION_COLUMNS)
    times = [[one.t for one in trace.lookups], [one.t for one in trace.evictions], resets]
    first, last = min(min(one) for one in times if one), max(max(one) for one in times if one)
    width = max(last - first, 1e-6) / windows

    def per_window(at: list[float], weights: list[int] | None = None) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        numbers = np.minimum(((np.array(at) - first) / width).astype(int), windows - 1)
        return np.bincount(numbers, weights, minlength=windows).astype(float)

    lookups = per_window(times[0])
    hit = per_window(times[0], [min(one.hit_tokens, one.tokens) for one in trace.lookups])
    asked = per_window(times[0], [one.tokens for one in trace.lookups])
    evicted = per_window(times[1], [one.blocks for one in trace.evictions])
    emptied = per_window(resets)
    return make_frame(
        [
            {
                "start_s": number * width,
                "stop_s": (number + 1) * width,
                "lookups": int(lookups[number]),
                "share": float(hit[number] / asked[number]) if asked[number] else None,
                "evicted_blocks": int(evicted[number]),
                "resets": int(emptied[number]),
            }
            for number in range(windows)
        ],
        EVICTION_COLUMNS,
    )
