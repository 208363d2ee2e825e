"""Which retention interval to choose for these prompts, what it costs, and which release makes it needless."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd

from prefixscope.frames import interval_totals
from prefixscope.inside import versions
from prefixscope.quantities import listing, number

UNPRESSURED = "unpressured"
"""The word that goes with every recommendation made without a workload, in a pool that never evicted."""

OTHERS = {"new_ending": "new ending", "follow_up": "follow-up"}
"""Patterns besides the repeat, and how people read them."""

EACH = "blocks for the average prompt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """A recommendation for one release; tokens and blocks are those of the average prompt.

    ``interval`` is the recommended one as people read it, ``order`` its ``interval_order``, ``setting`` what to start
    the server with (empty: leave it as it is). ``now_*`` are what holds without it.
    """

    release: str
    interval: str
    order: float
    setting: str
    sentence: str
    why: str
    short_tokens: float
    blocks: float | None
    now_interval: str
    now_short_tokens: float
    now_blocks: float | None


def ranked(cases: pd.DataFrame, release: str, now_order: float | None = None) -> tuple[pd.DataFrame, float, float]:
    """``frames.interval_totals`` of one release, the recommended interval first; how many prompts are behind it; the
    interval that the server has now, as ``interval_order``: the release's default where ``now_order`` is None.

    What the server has wins a tie, so that nothing is to be changed for nothing.
    """
    mine = cases[(cases["release"] == release) & (cases["weight"] > 0)]
    order = now_order
    if order is None:
        default = mine.loc[mine["default"], "interval_order"]
        order = float(default.iloc[0] if len(default) else mine["interval_order"].min())
    totals = interval_totals(mine, first=order)
    first = totals["interval_order"].head(1)
    return totals, float(mine[mine["interval_order"].isin(first)]["weight"].sum()), order


def advise(cases: pd.DataFrame, release: str, *, now_order: float | None = None) -> Advice | None:
    """The recommendation for one release of ``frames.predicted_cases``; None where it was not asked.

    ``now_order`` is the interval that the server has now, as ``interval_order``; the release's default where not given.
    The rule is that of the measured sweep, ``frames.interval_totals``.
    """
    mine = cases[(cases["release"] == release) & (cases["weight"] > 0)]
    totals, prompts, order = ranked(cases, release, now_order)
    if not len(totals):
        return None
    here = totals[totals["interval_order"] == order]
    now, best = (here if len(here) else totals.tail(1)).iloc[0], totals.iloc[0]
    short, blocks = _each(best, prompts)
    now_short, now_blocks = _each(now, prompts)
    if short < now_short:
        sentence = (
            f"With {_named(release, best)} on vLLM {release} the next send of these prompts is "
            f"{number(round(short))} tokens short of full on average, not {number(round(now_short))}"
            f"{_price(now_blocks, blocks)}{_cut(mine, best)}."
        )
    elif blocks is not None and now_blocks is not None and blocks < now_blocks:
        sentence = (
            f"With {_named(release, best)} on vLLM {release} the hits of these prompts stay as they are "
            f"({number(round(short))} tokens short of full on average){_price(now_blocks, blocks)}{_cut(mine, best)}."
        )
    else:
        best, short, blocks = now, now_short, now_blocks
        kept = f", and none that does as well keeps less than its {number(round(blocks or 0))} {EACH}{_cut(mine, now)}"
        sentence = (
            f"Leave the interval of vLLM {release} at {_plain(now)}: the next send of these prompts is "
            f"{number(round(short))} tokens short of full on average; no interval that was tried does better"
            f"{'' if blocks is None else kept}."
        )
    changed = best["interval_order"] != now["interval_order"]
    return Advice(
        release=release,
        interval=_plain(best),
        order=float(best["interval_order"]),
        setting=_setting(release, best) if changed else "",
        sentence=f"{'Recommendation' if evicts(cases) else f'{UNPRESSURED.capitalize()} recommendation'}: {sentence}",
        why=_why(mine, totals, best, prompts),
        short_tokens=short,
        blocks=blocks,
        now_interval=_plain(now),
        now_short_tokens=now_short,
        now_blocks=now_blocks,
    )


def upgrade(cases: pd.DataFrame, advice: Advice) -> str:
    """The first later release whose own default does as well with these prompts, and what it loses with others; empty
    where no later one was asked.
    """
    releases = cases["release"].drop_duplicates().tolist()
    later = [name for name in releases if versions.parse(name) > versions.parse(advice.release)]
    for name in later:
        mine = cases[(cases["release"] == name) & cases["default"] & (cases["weight"] > 0)]
        if not len(mine) or mine["hit_2"].isna().any():
            continue
        prompts = float(mine["weight"].sum())
        short = float((mine["short_2"] * mine["weight"]).sum()) / prompts
        if short <= advice.short_tokens and (short < advice.now_short_tokens or not advice.setting):
            kept = (mine["blocks"] * mine["weight"]).sum(skipna=False)
            blocks = "" if pd.isna(kept) else f", keeping {number(round(float(kept) / prompts))} {EACH}"
            better = "as well" if short == advice.short_tokens else "better"
            again = " when the same prompt comes again" if set(mine["pattern"]) == {"repeat"} else " with these prompts"
            return (
                f"After an upgrade: vLLM {name} does {better}{again} at its own default, interval "
                f"{_plain(mine.iloc[0])} ({number(round(short))} tokens short of full on average{blocks}"
                f"{'' if evicts(cases) else f'; {UNPRESSURED}'}).{_lost(cases, advice, name)}"
            )
    return "After an upgrade: no later release asked here does as well at its own default." if later else ""


def _lost(cases: pd.DataFrame, advice: Advice, later: str) -> str:
    """What sends that no prompt stands for hit less at the later release's default than as recommended."""
    columns = ["pattern", "tokens", "interval", "hit_2"]
    other = cases[(cases["weight"] == 0) & cases["pattern"].isin(list(OTHERS)) & cases["hit_2"].notna()]
    here = other.loc[(other["release"] == advice.release) & (other["interval_order"] == advice.order), columns]
    both = other.loc[(other["release"] == later) & other["default"], columns].merge(
        here, on=columns[:2], suffixes=("", "_here")
    )
    both = both[both["tokens"] == both["tokens"].max()]
    lost = [
        f"a {OTHERS[str(row.pattern)]} hits {number(row.hit_2)} instead of {number(row.hit_2_here)}"
        for row in both.itertuples()
        if row.hit_2 < row.hit_2_here
    ]
    where = f"{number(both['tokens'].max())} tokens; vLLM {advice.release} at interval {advice.interval}"
    return f" But {' and '.join(lost)} ({where})." if lost else ""


def _each(row: pd.Series[Any], prompts: float) -> tuple[float, float | None]:
    """Tokens short and blocks kept of the average prompt."""
    blocks = row["blocks"]
    return float(row["short"]) / prompts, None if pd.isna(blocks) else float(blocks) / prompts


def _plain(row: pd.Series[Any]) -> str:
    return str(row["interval"]).removesuffix(" (default)")


def _setting(release: str, row: pd.Series[Any]) -> str:
    """What a server of this release is started with; 0.28 reads a variable, and unset is its dense."""
    value = "None" if row["interval_order"] == float("inf") else f"{row['interval_order']:.0f}"
    if versions.parse(release) >= (0, 29):
        return f"--prefix-cache-retention-interval {value}"
    name = "VLLM_PREFIX_CACHE_RETENTION_INTERVAL"
    return f"{name} unset" if value == "None" else f"{name}={value}"


def _named(release: str, row: pd.Series[Any]) -> str:
    """`_setting` in a sentence, which says what dense is called."""
    if row["interval_order"] != float("inf"):
        return _setting(release, row)
    word = "vLLM's word for dense" if versions.parse(release) >= (0, 29) else "which is dense"
    return f"{_setting(release, row)} ({word})"


def evicts(cases: pd.DataFrame) -> bool:
    """Whether the pool took blocks away while these prompts were sent."""
    return bool(cases["evicted"].any())


def _cut(mine: pd.DataFrame, row: pd.Series[Any]) -> str:
    """That what an interval keeps is cut off by the pool, where it is."""
    cut = mine.loc[mine["interval_order"] == row["interval_order"], "evicted_1"].any()
    return ", cut off by the pool, which evicted blocks meanwhile" if cut else ""


def _price(now: float | None, then: float | None) -> str:
    if now is None or then is None or not now:
        return ""
    ratio = f", {then / now:.1f} times as many" if then > now else ""
    amount = f"{number(round(then))} cache {EACH} instead of {number(round(now))}"
    return f"; its price is {amount}{ratio}, evictable at any time" if then > now else f"; it keeps {amount}"


def _why(mine: pd.DataFrame, totals: pd.DataFrame, best: pd.Series[Any], prompts: float) -> str:
    """What the next cheaper interval on the front would lose, and with which prompts."""
    hitting = mine.loc[mine["short_2"] < mine["tokens"], "interval_order"]
    cheaper = totals[totals["front"] & (totals["blocks"] < best["blocks"]) & totals["interval_order"].isin(hitting)]
    if not len(cheaper):
        return ""
    other = cheaper.iloc[0]
    columns = ["pattern", "tokens", "short_2"]
    beside = mine.loc[mine["interval_order"] == other["interval_order"], columns].merge(
        mine.loc[mine["interval_order"] == best["interval_order"], columns], on=columns[:2], suffixes=("", "_best")
    )
    lost = beside[beside["short_2"] > beside["short_2_best"]]
    lengths = [number(n) for n in sorted(lost["tokens"].unique())]
    several = mine["tokens"].nunique() > 1 and 0 < len(lengths) <= 4
    named = f"; what it hits less of are the prompts of {listing(lengths)} tokens" if several else ""
    return (
        f"Cheaper, but short of more: interval {_plain(other)} keeps {number(round(other['blocks'] / prompts))} "
        f"{EACH} and leaves {number(round(other['short'] / prompts))} tokens short on average{named}."
    )
