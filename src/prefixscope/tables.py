"""A frame as a notebook shows it: right-aligned numbers with thousands separators, a dash for what is not known."""

from __future__ import annotations

from html import escape
from numbers import Integral, Real
from typing import Any

import numpy as np
import pandas as pd

_TABLE = "border-collapse:collapse;font-variant-numeric:tabular-nums"


class Table:
    """Some columns of a frame, for reading; the frame itself is ``.frame``."""

    def __init__(self, frame: pd.DataFrame, columns: tuple[str, ...] = (), limit: int = 60) -> None:
        self.frame = frame[list(columns)] if columns else frame
        self.limit = limit

    def __repr__(self) -> str:
        return "nothing yet" if self.frame.empty else str(self.frame.to_string(index=False, max_rows=self.limit))

    def _repr_html_(self) -> str:
        if self.frame.empty:
            return "<p>Nothing measured for this table yet.</p>"
        numeric = {
            name: pd.api.types.is_numeric_dtype(dtype) and not pd.api.types.is_bool_dtype(dtype)
            for name, dtype in self.frame.dtypes.items()
        }
        # JupyterLab aligns every cell right and drops style sheets of untrusted notebooks, so each cell says it itself.
        side = {name: f"text-align:{'right' if numeric[name] else 'left'};padding:3px 12px" for name in self.frame}
        head = "".join(f'<th style="{side[name]}">{escape(str(name).replace("_", " "))}</th>' for name in self.frame)
        body = ""
        for row in self.frame.head(self.limit).itertuples(index=False):
            cells = zip(self.frame.columns, row, strict=True)
            body += "<tr>" + "".join(f'<td style="{side[name]}">{escape(text(v))}</td>' for name, v in cells) + "</tr>"
        more = len(self.frame) - self.limit
        note = f"<p>and {more:,} more rows</p>" if more > 0 else ""
        return f'<table style="{_TABLE}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{note}'


def text(value: Any) -> str:
    """One cell: ``6,446``, ``0.25``, ``yes``, ``—`` for unknown."""
    if value is None or value is pd.NA or (isinstance(value, float) and value != value):
        return "—"
    if isinstance(value, (bool, np.bool_)):
        return "yes" if value else "no"
    if isinstance(value, Integral):
        return f"{int(value):,}"
    if isinstance(value, Real):
        return f"{float(value):,.0f}" if abs(float(value)) >= 100 else f"{float(value):,.2f}"
    return str(value)


def table(frame: pd.DataFrame, *columns: str, limit: int = 60) -> Table:
    """The frame, or some of its columns, for reading."""
    return Table(frame, columns, limit)
