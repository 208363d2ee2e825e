"""A frame as a notebook shows it: right-aligned numbers with thousands separators, a dash for what is not known."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from numbers import Integral, Real
from typing import Any

import numpy as np
import pandas as pd

_TABLE = "border-collapse:collapse;font-variant-numeric:tabular-nums"

_HEADS: Mapping[str, str] = {
    "config": "configuration", "tokens": "prompt tokens", "short_tokens": "tokens short of full",
    "send_1": "send 1 (cold)", "short_2": "send 2, tokens short of full",
    "hit_2": "send 2, tokens hit", "hit_3": "send 3, tokens hit", "first_2_ms": "send 2, first token, ms",
    "predicted_2": "send 2, predicted", "predicted_3": "send 3, predicted", "first_token_ms": "first token, ms",
    "blocks": "blocks kept", "bytes": "kept, MiB", "bytes_per_block": "block, KiB", "block_tokens": "block, tokens",
    "window_tokens": "window, tokens", "scheduler_block_tokens": "scheduler block, tokens", "vllm": "vLLM",
    "layers_each": "layers in each", "missed_tokens": "tokens missed", "request_id": "for example, request",
    "hit_tokens": "tokens hit", "ends_the_hit": "ends the hit", "stored_blocks": "blocks stored",
    "needed_blocks": "blocks needed", "missing_blocks": "blocks missing", "label": "server", "index": "send no.",
    "tokens_per_s_p10": "tokens/s, 10 %", "tokens_per_s": "tokens/s, median", "tokens_per_s_p90": "tokens/s, 90 %",
    "chunks_per_s": "chunks/s, median", "drafted": "tokens drafted", "accepted": "tokens accepted",
    "acceptance_p10": "accepted, 10 %", "acceptance": "accepted, median", "acceptance_p90": "accepted, 90 %",
    "tokens_per_step": "tokens a step", "metric": "what", "low": "95 % from", "high": "95 % to",
    "share_low": "95 % from", "share_high": "95 % to", "p_holm": "p, with the others counted in",
}  # fmt: skip
"""Column → its heading, with the unit that its values are shown in; other columns are named as they are."""

_DIVIDED = {"bytes": 2**20, "bytes_per_block": 2**10}
_SHORT = 20
"""A text of so few characters stays on one line."""
_SHARES = frozenset({"acceptance", "acceptance_p10", "acceptance_p90", "share_low", "share_high"})


class Table:
    """Some columns of a frame, for reading; the frame itself is ``.frame``."""

    def __init__(
        self, frame: pd.DataFrame, columns: tuple[str, ...], limit: int, missing: str, arms: tuple[str, str] | None
    ) -> None:
        self.frame = frame[list(columns)] if columns else frame
        self.limit, self.missing, self.arms = limit, missing, arms

    def __repr__(self) -> str:
        return self.missing if self.frame.empty else str(self.frame.to_string(index=False, max_rows=self.limit))

    def _repr_html_(self) -> str:
        if self.frame.empty:
            return f"<p>{escape(self.missing)}</p>"
        numeric = {
            name: pd.api.types.is_numeric_dtype(dtype) and not pd.api.types.is_bool_dtype(dtype)
            for name, dtype in self.frame.dtypes.items()
        }
        # JupyterLab aligns every cell right and drops style sheets of untrusted notebooks, so each cell says it itself.
        side = {name: f"text-align:{'right' if numeric[name] else 'left'};padding:3px 12px" for name in self.frame}
        head = "".join(
            f'<th style="{side[name]};vertical-align:bottom">{escape(heading(name, self.arms))}</th>' for name in side
        )
        body = ""
        for row in self.frame.head(self.limit).itertuples(index=False):
            cells = zip(self.frame.columns, row, strict=True)
            body += f"<tr>{''.join(_td(side[name], cell(name, value)) for name, value in cells)}</tr>"
        more = len(self.frame) - self.limit
        note = f"<p>and {more:,} more rows</p>" if more > 0 else ""
        return f'<table style="{_TABLE}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{note}'


def _td(style: str, shown: str) -> str:
    return f'<td style="{style}{";white-space:nowrap" if len(shown) <= _SHORT else ""}">{escape(shown)}</td>'


def heading(name: Any, arms: tuple[str, str] | None = None) -> str:
    """What stands over a column; of a comparison's columns with what its arms are called."""
    words = _HEADS.get(str(name), str(name).replace("_", " "))
    if arms is not None:
        first, second = arms
        named = {"a": first, "a_p10": f"{first}, 10 %", "a_p90": f"{first}, 90 %", "times": f"{first} ÷ {second}"}
        named |= {"b": second, "b_p10": f"{second}, 10 %", "b_p90": f"{second}, 90 %"}
        words = named.get(str(name), words)
    return words.replace(" %", "\u00a0%")


def cell(name: Any, value: Any) -> str:
    """A value in the unit that its column's heading names."""
    known = isinstance(value, Real) and not isinstance(value, (bool, np.bool_)) and value == value
    if known and name in _SHARES:
        return f"{float(value):.0%}".replace("%", "\u00a0%")
    if known and not isinstance(value, Integral) and str(name).endswith(("_ms", "_per_s", "_per_s_p10", "_per_s_p90")):
        return f"{float(value):,.{0 if str(name).endswith('_ms') else 1}f}"
    if known and name in _DIVIDED:
        return f"{float(value) / _DIVIDED[name]:,.1f}"
    return text(value)


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


def table(
    frame: pd.DataFrame,
    *columns: str,
    limit: int = 60,
    missing: str = "Nothing measured for this table yet.",
    arms: tuple[str, str] | None = None,
) -> Table:
    """The frame, or some of its columns, for reading.

    ``missing`` is what to say of one without rows, ``arms`` what a comparison's columns ``a`` and ``b`` are called.
    """
    return Table(frame, columns, limit, missing, arms)
