"""Workaround: which flag or release brings the hit back, how far, and what that keeps in the cache."""

from __future__ import annotations

import math
import re
import shlex
from typing import Any

import pandas as pd

from prefixscope import frames
from prefixscope.command import INTERVAL_FLAG
from prefixscope.notes import upstream
from prefixscope.notes.account import Account
from prefixscope.notes.markdown import Markdown, table
from prefixscope.quantities import count, listing, number
from prefixscope.sections.retention import SWEEP_COLUMNS
from prefixscope.sections.section import mebibytes, milliseconds
from prefixscope.setting import interval_label

MOST_ROWS = 24
MOST_NAMED = 3


def sentence(told: Account) -> str:
    """What brings the hit back, measured where it was; else what the cause's own remedy is."""
    if not told.faulty:
        return ""
    own = "" if told.diagnosis is None else told.diagnosis.remedy
    return told.verdict.remedy or own or "No remedy was measured, and no cause was traced that would name one."


def unmeasured(told: Account) -> str:
    """What the cause's own remedy is, where none was measured."""
    if told.verdict.remedy_config:
        return ""
    _, what = known_fault(told)
    return what or sentence(told)


def of_cause(told: Account) -> list[str]:
    """What brings a miss back that a run met on the way to something else, and its price; empty of any other run."""
    if told.verdict.code != "not asked" or told.diagnosis is None or told.main is None or not told.main.missed_tokens:
        return []
    return [text for text in (told.diagnosis.remedy, told.diagnosis.price) if text]


def known_fault(told: Account) -> tuple[str, str]:
    """Why and what to do, as the table of known faults says of an untraced server; two empty texts of any other."""
    if not told.faulty or told.diagnosis is not None or told.verdict.remedy_config:
        return "", ""
    why, colon, what = (told.verdict.remedy or "").rpartition(": ")
    return (f"{why}.", f"{what[:1].upper()}{what[1:]}") if colon else ("", "")


def price(told: Account) -> str:
    """What the remedy costs in cache blocks; empty where nothing measured it."""
    if not told.faulty:
        return ""
    return told.verdict.price or ("" if told.diagnosis is None or told.verdict.remedy else told.diagnosis.price)


def choice(told: Account) -> str:
    """Why the interval was chosen, and what each other one gives for what; empty where none was."""
    rows = _of_length(told)
    helped = _chosen(told, rows)
    tried = told.material.sweep[told.material.sweep["interval_order"] > 0]
    if helped is None or pd.isna(helped["blocks"]):
        return ""
    totals = frames.interval_totals(tried).set_index("interval_order")
    mine = totals.loc[helped["interval_order"]]
    others = totals.drop(index=helped["interval_order"]).sort_index()
    alike = others[(others["short"] == mine["short"]) & (others["blocks"] == mine["blocks"])]
    dearer = others[(others["short"] == mine["short"]) & (others["blocks"] > mine["blocks"])]
    cheaper = others[others["blocks"] < mine["blocks"]].sort_values("blocks", ascending=False).head(MOST_NAMED)
    lengths = count(tried["tokens"].nunique(), "prompt length")
    parts = [
        f"{helped['interval']} was chosen: of the intervals tried it leaves the fewest tokens to compute over "
        f"{lengths}, and of those that leave as few none keeps fewer blocks."
    ]
    if len(alike):
        dense = math.inf in alike.index and mine.name != math.inf
        every = ", which is every block of the prompt" if dense else ""
        coarse = f"; {helped['interval']} is the coarsest of them" if mine.name > max(_finite(alike)) else ""
        parts.append(
            f"{listing([str(name) for name in alike['interval']])} {'hits' if len(alike) == 1 else 'hit'} the same and "
            f"{'keeps' if len(alike) == 1 else 'keep'} the same blocks{every}{coarse}."
        )
    if len(dearer):
        names = [
            f"{one.interval} ({number(_blocks(rows, order))})"
            for order, one in zip(dearer.index, dearer.itertuples(), strict=True)
        ]
        parts.append(f"{listing(names)} {'hits' if len(dearer) == 1 else 'hit'} no more for more blocks.")
    for order, one in zip(cheaper.index, cheaper.itertuples(), strict=True):
        parts.append(
            f"{one.interval} keeps fewer ({number(_blocks(rows, order))} of {number(helped['blocks'])}), but "
            f"{_loss(tried, order, mine.name)}."
        )
    return " ".join(parts)


def _finite(rows: pd.DataFrame) -> list[float]:
    return [float(order) for order in rows.index if not math.isinf(order)] or [0.0]


def _blocks(rows: pd.DataFrame, order: float) -> Any:
    """What an interval keeps of the prompt that is told of."""
    return rows.loc[rows["interval_order"] == order, "blocks"].iloc[0]


def _loss(tried: pd.DataFrame, order: float, chosen: float) -> str:
    """Where an interval hits less than the one chosen, the worst lengths first."""
    mine, other = (tried[tried["interval_order"] == one].set_index("tokens")["hit_2"] for one in (order, chosen))
    lost = (other - mine)[lambda less: less > 0].sort_values(ascending=False, kind="stable").head(MOST_NAMED)
    named = [f"{number(mine[at])} instead of {number(other[at])} of {number(at)} tokens" for at in lost.index]
    return f"hits {listing(named)}" if len(named) else "leaves more to compute in sum"


def cost(told: Account) -> str:
    """What the chosen interval keeps of the longest prompt swept beside the default; else what the trace says of it."""
    rows = _of_length(told)
    helped = _chosen(told, rows)
    base = rows[(rows["interval_order"] <= 0) & rows["blocks"].notna()]
    evictable = "They are evictable cache and take no memory from running requests."
    if helped is None or not len(base) or pd.isna(helped["blocks"]):
        return price(told)
    least = base.sort_values("blocks", kind="stable").iloc[0]
    times = f"{helped['blocks'] / least['blocks']:.1f} times, " if least["blocks"] else ""
    known = not pd.isna(helped["bytes"]) and not pd.isna(least["bytes"])
    size = f"{mebibytes(helped['bytes'])} MiB instead of {mebibytes(least['bytes'])} MiB" if known else "sizes unknown"
    pool = told.main.header.pool_blocks if told.main is not None else 0
    share = f", in a pool of {pool:,}" if pool else ""
    return (
        f"The price is cache space: {number(helped['blocks'])} blocks of a prompt of {number(helped['tokens'])} tokens "
        f"stay instead of {number(least['blocks'])} ({times}{size}){share}. {evictable}"
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
    most = f", at most {count(math.ceil(high / block), 'scheduler block')} of {block:,}" if block else ""
    span = f"{low:,} to {high:,}" if high > low else f"{low:,}"
    lengths = able["tokens"].nunique()
    over = f" over {count(lengths, 'prompt length')}" if lengths > 1 else ""
    return (
        f"With it an identical prompt's second send stops {span} tokens short of its end{most}{over}, as long as the "
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
        f"block{here}; None (dense) keeps every block.{_resolved(told)}"
    )


def flags(told: Account) -> list[str]:
    """The flags that were added to the server, as one would type them; empty where no interval helped."""
    helped = told.second(told.verdict.remedy_config) if told.faulty and told.verdict.remedy_config else None
    if helped is None or not len(helped):
        return []
    value = _value(float(helped.iloc[-1]["interval_order"]))
    return ["--enable-prefix-caching", "--enable-prompt-tokens-details", shlex.join([INTERVAL_FLAG, value])]


def upgrade(told: Account) -> str:
    """Which release mends it by itself, and how to try; empty where none is known to."""
    later = upstream.fixed_in(topics(told), told.version)
    if not told.faulty or not (told.verdict.upgrade or later):
        return ""
    known = told.verdict.upgrade or f"vLLM {later} and later have a change against it."
    return f"{known} If you can upgrade, try it without the flag and run the check below."


def briefly(told: Account) -> list[str]:
    """What helps and what it costs in a sentence, and the release that mends it in another."""
    if not told.faulty:
        return []
    rows = _of_length(told)
    helped, later = _chosen(told, rows), upstream.fixed_in(topics(told), told.version)
    if helped is None:
        made = [re.split(r"(?<=[.!?]) (?=[A-Z`])", unmeasured(told) or sentence(told), maxsplit=1)[0]]
    else:
        base = rows.loc[(rows["interval_order"] <= 0) & (rows["blocks"] > 0), "blocks"]
        known = len(base) > 0 and not pd.isna(helped["blocks"])
        times = f", for {helped['blocks'] / base.min():.1f} times the cache blocks of that prompt" if known else ""
        flag = shlex.join([INTERVAL_FLAG, _value(float(helped["interval_order"]))])
        made = [f"With {flag} it reuses {number(helped['hit_2'])} of {number(helped['tokens'])}{times}."]
    return [*made, *([f"vLLM {later} and later have a change against it."] if later and later not in made[0] else [])]


def topics(told: Account) -> tuple[upstream.Row, ...]:
    """Upstream's rows for the cause that the trace names, or for a known fault that the verdict names."""
    found: list[str] = []
    if told.diagnosis is not None and told.main is not None:
        code = told.diagnosis.cause
        mamba = any(group.kind == "mamba" for group in told.main.header.groups)
        found = [code, f"{code}:{'drop' if told.main.header.drop_groups else 'plain'}", *([f"{code}:mamba"] * mamba)]
    named = upstream.refs_in(f"{told.verdict.sentence} {'' if told.diagnosis is None else told.diagnosis.remedy}")
    if told.faulty and not found:
        found = upstream.faults_named(named)
    return upstream.of_topics(found, named if told.faulty else ())


def _value(order: float) -> str:
    """An interval as one types it."""
    return "None" if math.isinf(order) else f"{int(order)}"


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
