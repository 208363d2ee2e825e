"""Frames of several runs side by side, as figures take them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from prefixscope.frames.columns import FLOAT, INT, TEXT, make_frame


def compared_hits(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """One row per panel × run: ``panel`` (configuration and send), ``run``, ``hit`` and ``full`` in tokens."""
    return make_frame(rows, {"panel": TEXT, "run": TEXT, "hit": INT, "full": INT})


def compared_sweep(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """One row per prompt length × retention interval × run: ``tokens``, ``interval``, ``run``, ``hit`` of send 2."""
    return make_frame(rows, {"tokens": INT, "interval": TEXT, "run": TEXT, "hit": INT})


def compared_rates(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """One row per quantity × run: how many times the base's it is, with its 95 % interval, and what may be said."""
    return make_frame(rows, {"what": TEXT, "run": TEXT, "times": FLOAT, "low": FLOAT, "high": FLOAT, "code": TEXT})
