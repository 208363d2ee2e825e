"""How a frame is built: columns with a dtype each, values converted, and what can't be read as missing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

INT, FLOAT, TEXT, BOOL, TIME = "Int64", "float64", "string", "boolean", "datetime64[ns, UTC]"


def make_frame(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> pd.DataFrame:
    """One row per mapping, with just these columns; ``columns`` is name → dtype, and what is not there is null."""
    convert = {INT: whole, FLOAT: _real, TEXT: _text, BOOL: _truth, TIME: _moment}
    data: dict[str, Any] = {}
    for name, dtype in columns.items():
        values = [convert[dtype](row.get(name)) for row in rows]
        if dtype == TIME:
            data[name] = _times(values)
        else:
            data[name] = pd.Series(values, dtype=dtype)
    return pd.DataFrame(data, columns=list(columns))


def whole(value: Any) -> int | None:
    """The value as an integer; None where it is not a finite number."""
    if value is None or value is pd.NA or isinstance(value, bool):
        return None
    try:
        return int(value) if math.isfinite(float(value)) else None
    except (TypeError, ValueError, OverflowError):
        return None


def median(values: Any) -> int | None:
    """The median, cut to an integer; None of no values."""
    return whole(values.median()) if len(values) else None


def _moment(value: Any) -> Any:
    """A time as pandas reads it; manifests hold ISO text or Unix seconds."""
    return (
        pd.Timestamp(value, unit="s", tz="UTC") if isinstance(value, (int, float)) and math.isfinite(value) else value
    )


def _times(values: Sequence[Any]) -> pd.Series[Any]:
    return pd.to_datetime(pd.Series(values, dtype="object"), utc=True, errors="coerce", format="ISO8601").astype(TIME)


def _real(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _text(value: Any) -> str | None:
    return None if value is None or value is pd.NA else str(value)


def _truth(value: Any) -> bool | None:
    return bool(value) if isinstance(value, bool) or (value is not None and value is not pd.NA) else None
