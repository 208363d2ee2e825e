"""Which retention interval to recommend, and its price."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd

from prefixscope.frames import cheaper_interval, interval_totals
from prefixscope.quantities import number


@dataclass(frozen=True, slots=True, kw_only=True)
class Help:
    """What helps, what it costs, and the configuration in which it was measured; None where nothing is known to."""

    sentence: str | None = None
    price: str | None = None
    config: str | None = None


def choose_interval(table: pd.DataFrame) -> pd.Series[Any] | None:
    """The row of ``frames.sweep`` to recommend, at its longest prompt; None where no interval was measured.

    The first of ``frames.interval_totals``.
    """
    measured = table[table["hit_2"].notna()]
    if not len(measured):
        return None
    best = interval_totals(measured).iloc[0]
    rows = measured[measured["interval_order"] == best["interval_order"]]
    return rows.sort_values("tokens", kind="stable").iloc[-1]


def of_sweep(table: pd.DataFrame) -> Help:
    """What ``frames.sweep``, or ``frames.predicted_sweep``, says helps against the release's own interval."""
    base, tried = table[table["interval_order"] <= 0], table[table["interval_order"] > 0]
    top = choose_interval(tried)
    if top is None or not len(base):
        return Help()
    tokens = top["tokens"]
    base = base[(base["tokens"] == tokens) & base["hit_2"].notna()]
    if not len(base):  # a killed run may have sent the default's first prompt only
        return Help()
    if top["hit_2"] <= base["hit_2"].min():
        return Help(sentence="No retention interval that was tried brings the hit back.")
    flag = "None" if top["interval"] == "dense" else str(top["interval"]).replace(",", "")
    reuses = "reuses" if top["measured"] else "would reuse"
    sentence = (
        f"With --prefix-cache-retention-interval {flag} the second send {reuses} {number(top['hit_2'])} of "
        f"{number(tokens)} ({number(top['short_2'])} tokens short of full)."
    )
    stored = base["blocks"].dropna()
    if not len(stored) or pd.isna(top["blocks"]) or not stored.min():
        return Help(sentence=sentence, config=top["config"])
    ratio = f"{top['blocks'] / stored.min():.1f}"
    dense = tried.loc[(tried["interval"] == "dense") & (tried["tokens"] == tokens), "blocks"]
    every = " (every block, as dense keeps)" if dense.eq(top["blocks"]).any() and top["interval"] != "dense" else ""
    price = (
        f"Its price is {ratio} times the cache blocks: {number(top['blocks'])}{every} instead of "
        f"{number(stored.min())} for one prompt of {number(tokens)} tokens, evictable at any time."
    )
    cheaper = _cheaper(tried, top, float(stored.min()))
    return Help(sentence=sentence, price=f"{price} {cheaper}".strip(), config=top["config"])


def _cheaper(tried: pd.DataFrame, top: pd.Series[Any], least: float) -> str:
    """A sentence on an interval that keeps less and does as well on the longest prompt, but not on all."""
    found = cheaper_interval(tried, top)
    if found is None or not found.worse:
        return ""
    return (
        f"Interval {found.interval} keeps {number(found.blocks)} ({found.blocks / least:.1f} times), but reuses less "
        f"of prompts of {', '.join(number(length) for length in found.worse)} tokens."
    )
