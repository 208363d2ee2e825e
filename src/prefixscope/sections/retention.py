"""The retention sweep: what each interval brings back, and what it keeps in the cache."""

from __future__ import annotations

from typing import Any

import pandas as pd

from prefixscope import charts
from prefixscope.material import Material
from prefixscope.quantities import number
from prefixscope.sections.section import Section, Table, empty, figures, mebibytes, milliseconds

SWEEP_COLUMNS = (
    "interval",
    "prompt tokens",
    "hit, send 2",
    "hit, send 3",
    "short at send 2",
    "first token, send 2, ms",
    "blocks kept",
    "MiB kept",
)
"""Heads of a table with one row per interval and prompt length."""


def sweep(material: Material) -> Section:
    title, section_id = "Retention sweep", "sweep"
    table = material.sweep
    if not len(table):
        return empty(material, section_id, title, "No retention interval has been swept yet.", "sweep")
    chart = charts.hit_against_interval(table)
    wrong = frozenset(
        place
        for place, row in enumerate(table.itertuples())
        if _differ(row.hit_2, row.predicted_2) or _differ(row.hit_3, row.predicted_3)
    )
    rows = tuple(
        (
            str(row.interval),
            number(row.tokens),
            *(_beside(hit, expected) for hit, expected in ((row.hit_2, row.predicted_2), (row.hit_3, row.predicted_3))),
            number(row.short_2),
            milliseconds(row.first_2_ms),
            number(row.blocks),
            mebibytes(row.bytes),
            "failed" if row.failed else "" if row.measured else "predicted",
        )
        for row in table.itertuples()
    )
    alone = not table["measured"].any()
    return Section(
        id=section_id,
        title=title,
        before=(
            "Nothing here was measured: the attached server was not restarted. vLLM's own scheduler says what it would "
            "hit at each --prefix-cache-retention-interval, with the KV cache groups of the server's trace.",
        )
        if alone
        else (
            "The server was restarted for each --prefix-cache-retention-interval. Look for the intervals at which "
            "the prompt lengths that you serve have a bar.",
        ),
        figures=figures(section_id, chart),
        after=(
            "Choose among the intervals that lift every length you serve. A coarse interval can lift long prompts and "
            "leave short ones at 0; the next section says what each one keeps.",
        ),
        tables=(
            Table(
                caption="One row per interval and prompt length."
                + (" Hits: measured / predicted by the release's own scheduler." if not alone else ""),
                columns=(*SWEEP_COLUMNS, "note"),
                rows=rows,
                numeric=frozenset(SWEEP_COLUMNS[1:]),
                bad=wrong,
            ),
        ),
    )


def _differ(hit: Any, expected: Any) -> bool:
    return not pd.isna(hit) and not pd.isna(expected) and bool(hit != expected)


def _beside(hit: Any, expected: Any) -> str:
    """``6,336 / 6,336``: measured and predicted; one number where the other is missing or the row is a prediction."""
    found = number(hit)
    return found if pd.isna(expected) else f"{found} / {number(expected)}"


def cost(material: Material) -> Section:
    title, section_id = "What it costs", "cost"
    chart = charts.cost_against_shortfall(material.sweep)
    if chart is None:
        return empty(material, section_id, title, "Blocks kept are counted by the sweep, on a traced engine.", "sweep")
    stored = material.kept
    tokens = stored["tokens"].max() if len(stored) else material.sweep["tokens"].max()
    kept = stored[stored["tokens"] == tokens].drop_duplicates(["series", "gid"])
    named = kept["interval"].where(kept["interval"] != "default", kept["resolved"].fillna("release's") + " (default)")
    kinds = kept.assign(interval=named).groupby(["interval", "interval_order", "group_kind", "block_size"], sort=False)
    rows = tuple(
        (
            str(interval),
            str(kind),
            number(len(part)),
            number(size),
            number(part["blocks"].sum()),
            mebibytes(part["bytes"].sum() if part["bytes"].notna().all() else None),
        )
        for (interval, _, kind, size), part in sorted(kinds, key=lambda item: item[0][1])
    )
    columns = ("interval", "group kind", "groups", "block, tokens", "blocks kept", "MiB kept")
    return Section(
        id=section_id,
        title=title,
        before=(
            f"What one prompt of {number(tokens)} tokens leaves in the cache, against what its second send still "
            "has to compute.",
        ),
        figures=figures(section_id, chart),
        after=(
            # The figure is about one length; the recommendation is about all of them.
            *((f"{material.verdict.remedy} {material.verdict.price}",) if material.verdict.price else ()),
            "Kept blocks are evictable: they take nothing from running requests. But on a small cache they push out "
            "other prompts, and an interval that fixes the resend can lower the hit rate of mixed traffic. This figure "
            "is unpressured: one prompt in an otherwise idle cache.",
        ),
        tables=(
            Table(
                caption=f"Blocks kept after one send of {number(tokens)} tokens, by kind of group.",
                columns=columns,
                rows=rows,
                numeric=frozenset(columns[2:]),
            ),
        )
        if rows
        else (),
    )
