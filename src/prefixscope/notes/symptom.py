"""Symptom: the hit lengths measured, what they do to waiting times, and what turning the drafter off costs."""

from __future__ import annotations

from typing import Any

import pandas as pd

from prefixscope import charts, frames, streaming, trade
from prefixscope.notes.account import Account
from prefixscope.notes.context import on_gpu
from prefixscope.notes.markdown import Markdown, table
from prefixscope.quantities import count, listing, number
from prefixscope.sections.hits import configurations, new_endings

MOST_ROWS, MOST_NAMES = 24, 4
_SENDS = ("send 1 (cold)", "send 2", "send 3", "new ending", "follow-up turn")


def title(told: Account) -> str:
    """The note's title: who does what, and what brings it back."""
    found = told.verdict
    if found.code == "not asked":
        return found.headline.rstrip(".")
    who = "The server" if found.config in (None, "as served") else str(found.config)
    who += f" on vLLM {told.version}" if told.version else ""
    if told.material.brought:
        who = f"A trace of vLLM {told.version}" if told.version else "A trace"
    what = {
        "reuses": "repeated prompts hit the prefix cache",
        "short": "repeated prompts hit only a part of what they could",
        "none": "repeated prompts hit nothing in the prefix cache",
        "cannot hit": "the prompts sent were too short for a prefix-cache hit",
        "not reported": "cached tokens are not reported",
        "inconclusive": "no verdict on the prefix cache yet",
    }[found.code]
    helped = told.second(found.remedy_config) if found.remedy_config else None
    if helped is None or not len(helped):
        return f"{who}: {what}"
    interval = str(helped.iloc[-1]["interval"])
    return f"{who}: {what}; retention interval {interval} brings the hit back"


def hits(told: Account, *, most: int = MOST_ROWS, longest: bool = False) -> tuple[Markdown, str] | None:
    """Cached tokens by configuration, prompt length and send, and a note on rows left out; None without any.

    Configurations that hit the same everywhere share their rows.
    """
    rows = told.material.hits
    names = configurations(told.material) or list(rows["config"])  # of a sweep alone its own
    rows = rows[rows["config"].isin(names) & rows["send_label"].isin(_SENDS)]
    if not len(rows):
        return None
    note = ""
    if longest or len(rows[["config", "tokens"]].drop_duplicates()) > most:
        note = "Only the longest prompt is listed; the report has the others." * (rows["tokens"].nunique() > 1)
        rows = rows[rows["tokens"] == rows["tokens"].max()]
    present = [name for name in _SENDS if name in set(rows["send_label"])]
    found: dict[str, list[tuple[str, ...]]] = {}
    for (config, tokens), part in rows.groupby(["config", "tokens"], sort=False, dropna=False):
        cells = part.set_index("send_label")
        found.setdefault(str(config), []).append((number(tokens), *(_cell(cells, name) for name in present)))
    alike: dict[tuple[tuple[str, ...], ...], list[str]] = {}
    for config, lines in found.items():
        alike.setdefault(tuple(lines), []).append(config)
    made = [("; ".join(names), *line) for lines, names in alike.items() for line in lines]
    columns = ("configuration", "prompt tokens", *present)
    return table(columns, made[:most], numeric=columns[1:]), note


def _cell(cells: pd.DataFrame, name: str) -> str:
    if name not in cells.index:
        return ""
    row: Any = cells.loc[[name]].iloc[0]
    if row["failed"] and not row["count"]:
        return "failed"
    return "not reported" if pd.isna(row["cached_tokens"]) else number(row["cached_tokens"])


def adapter(told: Account) -> str:
    """Whether a LoRA adapter makes a difference, at the drafter and interval that the verdict is about."""
    mine = told.second(told.verdict.config)
    if not len(mine):
        return ""
    second = told.material.hits
    second = second[(second["send"] == "repeat") & (second["index"] == 2) & second["cached_tokens"].notna()]
    row = mine.iloc[-1]
    same = second["drafter"].eq(row["drafter"]) & second["interval_order"].eq(row["interval_order"])
    others = second[same.fillna(False) & second["lora"].fillna(False) & (second["config"] != row["config"])]
    both = others.merge(mine[["tokens", "cached_tokens"]], on="tokens", suffixes=("", "_base"))
    if not len(both) or bool(row["lora"] if not pd.isna(row["lora"]) else False):
        return ""
    apart = both[both["cached_tokens"] != both["cached_tokens_base"]]
    names = _names(both["config"])
    if not len(apart):
        return (
            f"The adapter: with one loaded nothing changes; {names} hits the same as {row['config']} on the second "
            f"send at {count(both['tokens'].nunique(), 'prompt length')}."
        )
    one = apart.iloc[-1]
    return (
        f"With a LoRA adapter the hits differ: at {number(one['tokens'])} tokens {one['config']} hits "
        f"{number(one['cached_tokens'])} and {row['config']} {number(one['cached_tokens_base'])}."
    )


def elsewhere(told: Account) -> list[str]:
    """What the verdict adds of other sends and configurations; without what the cause says."""
    known = "" if told.diagnosis is None else told.diagnosis.sentence
    return [text for text in told.verdict.sentences if text not in (known, drafter_off(told, briefly=True))]


def waiting(told: Account) -> str:
    """Time to first token of the longest prompt, send by send."""
    table_ = told.material.latency
    rows = table_[table_["config"] == told.verdict.config]
    if not len(rows):
        return ""
    rows = rows[rows["tokens"] == rows["tokens"].max()].sort_values("index", kind="stable")
    parts = [f"{row.send_label} {row.median_ms:,.0f} ms" for row in rows.itertuples() if row.median_ms == row.median_ms]
    if len(parts) < 2:
        return ""
    many = rows.loc[rows["median_ms"].notna(), "count"]
    what = "one send each" if many.max() == 1 else "medians"
    where = {True: "", False: ", on a CPU: compare them, don't quote them", None: ""}[on_gpu(told)]
    return (
        f"Time to first token of {number(rows['tokens'].iloc[0])} tokens "
        f"{charts.with_configs([str(told.verdict.config)])}: {', '.join(parts)} ({what}{where})."
    )


def drafter_off(told: Account, *, briefly: bool = False) -> str:
    """What a drafter gains in generation and loses in prefill, where both were streamed."""
    mix = trade.mix_of(told.material.run)
    found = None if mix is None else trade.weigh(told.material.generations, told.material.resends, mix)
    return "" if found is None else trade.sentence(found, briefly=briefly)


def streamed(told: Account) -> list[str]:
    """How fast answers were streamed and what of the drafts was accepted, without what the verdict says."""
    shapes = frames.by_shape(told.material.generations)
    if not len(shapes):
        return []
    faster = frames.effect(told.material.generations, "tokens_per_s")
    fast = shapes[shapes["tokens_per_s"].notna()]
    found = [f"{charts.speed_title(fast, faster)}."] if len(fast) else []
    known = (told.verdict.headline, *told.verdict.sentences)
    return [text for text in (*found, *streaming.drafted(shapes)) if text not in known]


def traced(told: Account) -> Markdown | None:
    """Of a trace without requests of ours: its lookups by cause."""
    tally = told.material.telling.tally
    if not told.material.brought or not len(tally):
        return None
    rows = [(row.cause, number(row.lookups), number(row.missed_tokens), row.meaning) for row in tally.itertuples()]
    return table(("cause", "lookups", "tokens missed", "what it means"), rows, numeric=("lookups", "tokens missed"))


def new_ending(told: Account) -> str:
    """What a prompt with the same beginning and another end hits, in every configuration that was asked it."""
    rows = told.material.hits
    return " ".join(
        new_endings(rows[rows["config"].isin(configurations(told.material))], whole=not told.verdict.unfinished)
    )


def follow_up(told: Account, config: str | None) -> str:
    """What the next turn of a conversation hits at a configuration's drafter and interval, with the adapter or not."""
    mine = told.second(config) if config else told.material.hits.head(0)
    rows = told.material.hits
    rows = rows[(rows["send"] == "follow_up") & rows["cached_tokens"].notna()]
    if not len(mine) or not len(rows):
        return ""
    one = mine.iloc[-1]
    same = rows["drafter"].eq(one["drafter"]) & rows["interval_order"].eq(one["interval_order"])
    rows = rows[same.fillna(False)]
    if not len(rows):
        return ""
    longest = rows[rows["tokens"] == rows["tokens"].max()]
    low, high = longest["cached_tokens"].min(), longest["cached_tokens"].max()
    return (
        f"The next turn of a conversation of {number(longest['tokens'].iloc[0])} tokens then hits "
        f"{number(low) if low == high else f'{number(low)} to {number(high)}'} of "
        f"{number(longest['prompt_tokens'].median())} tokens, measured with {_names(longest['config'])}."
    )


def _names(configs: pd.Series[Any]) -> str:
    """``MTP + LoRA (asked as base and as adapter)``."""
    asked: dict[str, list[str]] = {}
    for name in configs.drop_duplicates():
        config, _, model = str(name).partition(" · ")
        asked.setdefault(config, []).extend([model] if model else [])
    names = [f"{config} (asked as {' and as '.join(models)})" if models else config for config, models in asked.items()]
    return listing([*names[:MOST_NAMES], *([f"{len(names) - MOST_NAMES:,} more"] if len(names) > MOST_NAMES else [])])
