"""Hit lengths: does a repeat reuse its prefix, and from which prompt length on does it not?"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pandas as pd

from prefixscope import charts, frames, redact
from prefixscope.material import Material
from prefixscope.quantities import count, number
from prefixscope.sections.crosscheck import agreement
from prefixscope.sections.section import Figure, Section, Table, empty, figures


def configurations(material: Material) -> list[str]:
    """The configurations that figures compare: those of the baseline, without the swept ones."""
    base = material.sent[material.sent["stage"] != "sweep"]
    found = set(base["config"].dropna())
    return [name for name in material.hits["config"].drop_duplicates() if name in found][:8]


def sends_figure(material: Material) -> Figure | None:
    """The sends that show the verdict: without the drafter, with it, with the remedy."""
    second = material.hits[(material.hits["send"] == "repeat") & (material.hits["index"] == 2)]
    plain = second.loc[~second["drafter"].fillna(True) & ~second["as_served"].fillna(False), "config"].head(1).tolist()
    wanted = [*plain, material.verdict.config, material.verdict.remedy_config]
    names = [name for name in dict.fromkeys(wanted) if name]
    rows = material.hits[material.hits["config"].isin(names) & material.hits["send"].isin(["cold", "repeat"])]
    told = second.loc[(second["config"] == material.verdict.config) & second["cached_tokens"].notna(), "tokens"]
    # A run that was stopped may have sent longer prompts elsewhere than to the configuration that it is about.
    rows = rows[rows["tokens"] <= told.max()] if len(told) else rows
    chart = charts.hits_by_send(rows, configs=names) if len(second) else None
    if chart is None:
        return None
    table = _hit_table(rows[rows["tokens"] == rows["tokens"].max()])
    return Figure(id="verdict", chart=chart, table=replace(table, fold=True), shows="hits")


def hit_lengths(material: Material) -> Section:
    table = material.hits
    title, section_id = "Hit lengths", "hits"
    if not len(table):
        return empty(material, section_id, title, material.unasked or "No request has been measured yet.", "baseline")
    names = configurations(material)
    whole = not material.verdict.unfinished
    figure = charts.hits_by_length(table, configs=names, whole=whole)
    if figure is None and material.resent:
        figure = charts.hits_by_send(table, configs=names)
    counters = frames.agreed(material.sent, "metrics_agree")
    what, short = ("bar that reaches", "short of") if material.resent else ("point on", "below")
    after = [
        f"A {what} the dashed line would reuse every token. {_full_hit(material, short)}",
        f"A {what.split()[0]} at 0 is a prefix that is computed again in full. If send 2 is at 0 and send 3 is not, "
        "only the third visitor of a prompt profits from the cache.",
    ]
    if counters.compared:
        rest = f"; {count(counters.untold, 'request')} could not be compared" if counters.untold else ""
        wrong = f"; the {count(counters.apart, 'other')} should be read with care" if counters.apart else ""
        after.append(
            f"The server's own counters (/metrics) gave the same hit length in {counters.same:,} of "
            f"{counters.answered:,} requests{rest}{wrong}."
        )
    if same := agreement(material):
        after.append(same)
    after += new_endings(table[table["config"].isin(names)], whole=whole)
    return Section(
        id=section_id,
        title=title,
        before=(
            _RESENT
            if material.resent
            else "Each prompt was sent under a salt of its own, so its first send is provably cold. Look for the "
            "prompt length from which the second send stops following the dashed line.",
        ),
        figures=figures(section_id, figure),
        after=tuple(after),
        tables=(_hit_table(table[table["config"].isin(names)] if names else table),),
    )


def _full_hit(material: Material, short: str) -> str:
    """How far before the prompt's end a full hit may stop: what the traced engines say, else the most there is."""
    bounds: dict[str, str] = {}
    for header in material.headers:
        least, block = header.get("min_prompt_tokens"), header.get("scheduler_block")
        if isinstance(least, int) and isinstance(block, int) and block:
            # A prompt one token shorter than the shortest that can hit is short by all of itself, and none by more.
            method = header.get("spec_method")
            who = f"with a drafter ({redact.clean(method)})" if method else "without a drafter"
            size = count(math.ceil((least - 1) / block), "scheduler block")
            bounds[who] = f"{count(least - 1, 'token')} ({size} of {block:,}) {who}"
    told = ", ".join(bounds.values()) or (f"1 scheduler block without a drafter, {frames.FULL_HIT_BLOCKS} with one")
    return (
        f"No more than this {short} it is a full hit: {told}. vLLM always computes the last token, rounds hits down "
        "to whole scheduler blocks and, with speculative decoding, gives up the last block, in short prompts one in "
        "the full-attention and one in the windowed layers."
    )


_RESENT = (
    "This run was not asked for hit lengths. To weigh what lost hits cost it sent a prompt to either server, first "
    "cold under a salt of its own and then again: these are the hits of those sends."
)


def new_endings(table: pd.DataFrame, *, whole: bool) -> list[str]:
    """What a prompt that shares most of its beginning reuses, by configuration: what real traffic is made of.

    ``whole`` says that the run is finished: every configuration was asked.
    """
    rows = table[(table["send"] == "new_ending") & table["cached_tokens"].notna()]
    if not len(rows):
        return []
    rows = rows[rows["tokens"] == rows["tokens"].max()]
    by_hit = sorted(rows.groupby("cached_tokens")["config"], key=lambda part: len(part[1]))
    parts = [f"{number(hit)} {charts.with_configs(list(names))}" for hit, names in by_hit]
    if len(rows) > 1:
        other, measured = "other " if len(by_hit) > 1 else "", "" if whole else " measured"
        parts[-1] = f"{number(by_hit[-1][0])} in every {other}configuration{measured}"
    text = (
        f"A prompt that keeps the first 95 % of {number(rows['tokens'].iloc[0])} tokens and ends differently reuses "
        f"{', and '.join(parts)}."
    )
    if (rows["cached_tokens"] == 0).any():
        text += " Where it is 0, only exact repeats and later turns profit: no window was kept inside the prompt."
    return [text]


_SENDS = {
    "different text": "“Different text” has the same length and shares nothing.",
    "new ending": "“New ending” keeps the first 95 %.",
    "follow-up turn": "“Follow-up turn” adds the answer and a question.",
}


def _hit_table(table: pd.DataFrame) -> Table:
    sends = ["send 1 (cold)", "send 2", "send 3", "different text", "new ending", "follow-up turn"]
    present = [name for name in sends if name in set(table["send_label"])]
    rows = []
    for (config, tokens), part in table.groupby(["config", "tokens"], sort=False, dropna=False):
        cells = []
        for name in present:
            cell = part[part["send_label"] == name]
            cells.append(_hit_cell(cell.iloc[0]) if len(cell) else "")
        second = part[part["send_label"] == "send 2"]
        short = number(second.iloc[0]["short_tokens"]) if len(second) else "—"
        found = second.iloc[0]["verdict"] if len(second) else pd.NA
        rows.append((str(config), number(tokens), *cells, short, "—" if pd.isna(found) else str(found)))
    columns = ("configuration", "prompt tokens", *present, "short at send 2", "verdict")
    return Table(
        caption=" ".join(
            [
                "Cached tokens by send. “Short” is prompt tokens minus cached tokens; a dash was not reported.",
                *(_SENDS[name] for name in present if name in _SENDS),
            ]
        ),
        columns=columns,
        rows=tuple(rows),
        numeric=frozenset(columns[1:-1]),
    )


def _hit_cell(row: Any) -> str:
    if row["failed"] and not row["count"]:
        return "failed"
    if pd.isna(row["cached_tokens"]):
        return "—"
    if row["cached_min"] != row["cached_max"]:
        span = f"{number(row['cached_min'])}–{number(row['cached_max'])}"
        return f"{number(row['cached_tokens'])} ({span}, n = {row['count']})"
    return number(row["cached_tokens"])
