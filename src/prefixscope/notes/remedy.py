"""Workaround: which flag or release brings the hit back, how far, and what that keeps in the cache."""

from __future__ import annotations

import math
import shlex
from typing import Any

import pandas as pd

from prefixscope.command import INTERVAL_FLAG
from prefixscope.notes import upstream
from prefixscope.notes.account import Account
from prefixscope.notes.markdown import Markdown, table
from prefixscope.quantities import count, number
from prefixscope.sections.retention import SWEEP_COLUMNS
from prefixscope.sections.section import mebibytes, milliseconds
from prefixscope.setting import interval_label

MOST_ROWS = 24


def sentence(told: Account) -> str:
    """What brings the hit back, measured where it was; else what the cause's own remedy is."""
    if not told.faulty:
        return ""
    own = "" if told.diagnosis is None else told.diagnosis.remedy
    return told.verdict.remedy or own or "No remedy was measured, and no cause was traced that would name one."


def price(told: Account) -> str:
    """What the remedy costs in cache blocks; empty where nothing measured it."""
    if not told.faulty:
        return ""
    return told.verdict.price or ("" if told.diagnosis is None or told.verdict.remedy else told.diagnosis.price)


def size(told: Account) -> str:
    """The price in MiB beside the pool, of the longest prompt swept; empty where no block's size is known."""
    rows = _of_length(told)
    helped = _chosen(told, rows)
    base = rows[(rows["interval_order"] <= 0) & rows["bytes"].notna()]
    if helped is None or not len(base) or pd.isna(helped["bytes"]):
        return ""
    least = base["bytes"].min()
    pool = told.main.header.pool_blocks if told.main is not None else 0
    share = "" if pd.isna(helped["blocks"]) or not pool else f"; the pool here holds {pool:,} blocks"
    return (
        f"That is {mebibytes(helped['bytes'])} MiB instead of {mebibytes(least)} MiB of one prompt of "
        f"{number(helped['tokens'])} tokens on this model{share}."
    )


def short(told: Account) -> str:
    """How far before a prompt's end its second send stops with the remedy, over all lengths that can hit."""
    rows = told.second(told.verdict.remedy_config) if told.faulty and told.verdict.remedy_config else None
    if rows is None or not len(rows):
        return ""
    able = rows[(rows["cached_tokens"] > 0) & rows["short_tokens"].notna()]
    if not len(able):
        return ""
    low, high = int(able["short_tokens"].min()), int(able["short_tokens"].max())
    block = told.main.header.scheduler_block if told.main is not None else 0
    under = f" (under {count(math.floor(high / block) + 1, 'scheduler block')} of {block:,})" if block else ""
    span = f"{low:,} to {high:,}" if high > low else f"{low:,}"
    at = f"at {count(able['tokens'].nunique(), 'prompt length')}"
    return (
        f"An identical prompt's second send then stops {span} tokens short of its end{under}, {at}, as long as the "
        "checkpoints have not been evicted."
    )


def intervals(told: Account) -> tuple[Markdown, str] | None:
    """Hits, tokens short of full and blocks kept by interval, and a note on what is left out; None of no sweep."""
    rows, note = told.material.sweep, ""
    if not len(rows):
        return None
    if len(rows) > MOST_ROWS:
        rows, note = rows[rows["tokens"] == rows["tokens"].max()], "Only the longest prompt is listed."
    made = [
        (
            str(row.interval),
            number(row.tokens),
            number(row.hit_2),
            number(row.hit_3),
            number(row.short_2),
            milliseconds(row.first_2_ms),
            number(row.blocks),
            mebibytes(row.bytes),
        )
        for row in rows.head(MOST_ROWS).itertuples()
    ]
    if not rows["measured"].any():
        note = f"Predicted by vLLM's own scheduler from the trace; the server was not restarted. {note}".strip()
    return table(SWEEP_COLUMNS, made, numeric=SWEEP_COLUMNS), note


def rule(told: Account) -> str:
    """What the flag does, on this server; empty where the remedy is another one."""
    if INTERVAL_FLAG not in sentence(told):
        return ""
    block = told.main.header.scheduler_block if told.main is not None else None
    here = f", {block:,} here" if block else ""
    sparse = _kinds(told) or "sliding-window and Mamba"
    return (
        f"`{INTERVAL_FLAG}` says which checkpoints of {sparse} layers stay in the cache: 0 keeps those where the "
        f"engine expects a prompt to resume; N keeps one more every N tokens, and must be a multiple of the scheduler "
        f"block{here}; None keeps every block.{_resolved(told)}"
    )


def flags(told: Account) -> list[str]:
    """The flags that were added to the server, as one would type them; empty where no interval helped."""
    helped = told.second(told.verdict.remedy_config) if told.faulty and told.verdict.remedy_config else None
    if helped is None or not len(helped):
        return []
    order = float(helped.iloc[-1]["interval_order"])
    value = "None" if math.isinf(order) else f"{int(order)}"
    return ["--enable-prefix-caching", "--enable-prompt-tokens-details", shlex.join([INTERVAL_FLAG, value])]


def releases(told: Account, rows: tuple[upstream.Row, ...]) -> str:
    """Which release has the changes that belong to the cause, and that it was not measured here."""
    later = upstream.fixed_in(rows, told.version)
    if later is None or not told.faulty:
        return ""
    known = told.verdict.upgrade or f"vLLM {later} and later have a change against it (below)."
    return (
        f"{known} This run measured {told.version} alone: before an "
        f"upgrade ask the later release's scheduler with this server's groups (`prefixscope predict --trace RUN/trace "
        f"--vllm {told.version},{later}`), and after it run the check below."
    )


def pressure(told: Account) -> str:
    """What the price leaves out."""
    if not price(told):
        return ""
    evictions = told.material.telling.evictions
    calm = "Nothing was evicted while it was measured" if not len(evictions) else "Blocks were evicted meanwhile"
    return (
        f"Kept blocks are evictable cache: they take no memory from running requests. {calm}, and a busy, small cache "
        "is another matter: there an interval that fixes the resend can lower the hit rate of other traffic "
        "(`prefixscope predict --workload` replays yours)."
    )


def _resolved(told: Account) -> str:
    interval = told.main.header.interval if told.main is not None else None
    if interval is None:
        return ""
    return f" The engine of the lookup above worked with {interval_label(interval)}."


def _of_length(told: Account) -> pd.DataFrame:
    rows = told.material.sweep
    return rows[rows["tokens"] == rows["tokens"].max()] if len(rows) else rows


def _chosen(told: Account, rows: pd.DataFrame) -> Any:
    """The swept row of the interval that the verdict recommends; None where it recommends none."""
    helped = rows[rows["config"] == told.verdict.remedy_config] if told.verdict.remedy_config else rows.head(0)
    return helped.iloc[0] if len(helped) else None


def _kinds(told: Account) -> str:
    if told.main is None:
        return ""
    words = {"sliding": "sliding-window", "mamba": "Mamba"}
    kinds = dict.fromkeys(words[group.kind] for group in told.main.header.groups if group.kind in words)
    return " and ".join(kinds)
