"""A frame as a notebook shows it: right-aligned numbers with thousands separators, a dash for what is not known."""

from __future__ import annotations

from html import escape
from numbers import Integral, Real
from typing import Any

import numpy as np
import pandas as pd

_STYLE = (
    "<style>.ps-table{border-collapse:collapse;font-variant-numeric:tabular-nums}"
    ".ps-table th{text-align:left;font-weight:600;border-bottom:1px solid #8886}"
    ".ps-table td,.ps-table th{padding:3px 16px 3px 0;text-align:left!important}"
    ".ps-table .n{text-align:right!important}</style>"
)


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
        head = "".join(
            f'<th class="{"n" if numeric[name] else ""}">{escape(str(name).replace("_", " "))}</th>'
            for name in self.frame
        )
        body = ""
        for row in self.frame.head(self.limit).itertuples(index=False):
            cells = zip(self.frame.columns, row, strict=True)
            body += (
                "<tr>"
                + "".join(
                    f'<td class="{"n" if numeric[name] else ""}">{escape(text(value))}</td>' for name, value in cells
                )
                + "</tr>"
            )
        more = len(self.frame) - self.limit
        note = f"<p>and {more:,} more rows</p>" if more > 0 else ""
        return f'{_STYLE}<table class="ps-table"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{note}'


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
