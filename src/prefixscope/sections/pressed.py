"""Under pressure: what each interval hits of a workload when the pool evicts."""

from __future__ import annotations

from typing import Any

import pandas as pd

from prefixscope import charts
from prefixscope.frames import TIE
from prefixscope.quantities import count, number
from prefixscope.replay import WARM_SHARE, Pressure
from prefixscope.sections.section import Section, Table, figures

_COLUMNS = (
    "release",
    "pool, blocks",
    "interval",
    "hit rate",
    "cached tokens",
    "warm follow-ups",
    "retained blocks",
    "evicted blocks",
    "note",
)


def pressed(table: pd.DataFrame, asked: Pressure) -> Section:
    """The chart, the table and the sentences of one workload; ``table`` is ``frames.pressed``."""
    workload = asked.workload
    together = "one after another" if asked.concurrency == 1 else f"{asked.concurrency} in flight together"
    return Section(
        id="pressure",
        title="Under pressure",
        before=(
            f"{workload.name[:1].upper()}{workload.name[1:]}: {count(len(workload.requests), 'request')}, "
            f"{workload.tokens:,} prompt tokens, {together}, through vLLM's own scheduler from an empty cache. "
            "Predicted, not measured. Look for the ring on the line of your own pool.",
            *workload.warnings,
        ),
        figures=figures("pressure", charts.hit_rate_under_pressure(table, workload=workload.name)),
        after=(*advice(table), *costs(table)),
        tables=(
            Table(
                caption="One row per release, pool and interval. A follow-up is warm where its hit covers at least "
                f"{WARM_SHARE:.0%} of the earlier turn that it repeats.",
                columns=_COLUMNS,
                rows=tuple(_row(row) for row in table.itertuples()),
                numeric=frozenset(_COLUMNS[1:-1]),
            ),
        ),
    )


def _row(row: Any) -> tuple[str, ...]:
    known = not pd.isna(row.hit_rate)
    notes = ["best"] if row.best else []
    notes += ["the default"] if not pd.isna(row.default) and row.default else []
    notes += ["your server's pool"] if row.own else []
    notes += [f"refused: {row.refused}"] if not pd.isna(row.refused) else []
    return (
        str(row.release),
        "endless" if pd.isna(row.pool_blocks) else number(row.pool_blocks),
        str(row.interval),
        f"{row.hit_rate:.1%}" if known else "—",
        number(row.cached_tokens),
        f"{row.warm:,} of {row.follow_ups:,}" if known else "—",
        number(row.retained_blocks),
        number(row.evicted_blocks),
        ", ".join(notes),
    )


def advice(table: pd.DataFrame) -> tuple[str, ...]:
    """The interval to take under this workload, a sentence per release: for the user's own pool where it is known."""
    found = []
    known = table[table["hit_rate"].notna()]
    for release, rows in known.groupby("release", sort=False):
        part = rows[rows["own"]] if rows["own"].any() else rows
        for _, pool in part.groupby("pool", sort=False):
            best, sparse = pool[pool["best"]].iloc[0], _sparsest(pool)
            where = f"vLLM {release}, {_named(best)}{', your server' if best['own'] else ''}"
            text = f"{where}: interval {best['interval']} hits {best['hit_rate']:.1%} of this workload's prompt tokens"
            if best["interval"] == sparse["interval"]:
                other = pool.loc[pool["hit_rate"].idxmax()]
                gain = other["hit_rate"] - best["hit_rate"]
                text += (
                    ", and no other interval hits more"
                    if gain <= 0
                    else f"; no interval hits more than {TIE:.1%} above that"
                )
            else:
                text += f", interval {sparse['interval']} hits {sparse['hit_rate']:.1%}"
            if best["follow_ups"]:
                text += f"; {best['warm']:,} of {count(int(best['follow_ups']), 'follow-up')} stay warm"
            found.append(text + ".")
    return tuple(found)


def costs(table: pd.DataFrame) -> tuple[str, ...]:
    """Where retaining everything, the usual workaround, lowers the hit rate: a sentence per release; none where not."""
    found = []
    known = table[table["hit_rate"].notna()]
    for release, rows in known.groupby("release", sort=False):
        places, gains = [], []
        for _, pool in rows.groupby("pool", sort=False):
            sparse, dense = _sparsest(pool), _densest(pool)
            change = dense["hit_rate"] - sparse["hit_rate"]
            words = f"from {sparse['hit_rate']:.1%} to {dense['hit_rate']:.1%} on {_named(dense)}"
            if change < -TIE:
                places.append(words)
            elif change > TIE:
                gains.append(words)
        if places:
            dense, sparse = _densest(rows)["interval"], _sparsest(rows)["interval"]
            text = (
                f"vLLM {release}: interval {dense} instead of {sparse}, which brings the second send of one prompt "
                f"back, lowers the hit rate of this workload {', '.join(places)}"
            )
            found.append(text + (f"; it raises it {', '.join(gains)}." if gains else "."))
    return tuple(found)


def _named(row: Any) -> str:
    return "an endless pool" if pd.isna(row["pool_blocks"]) else str(row["pool"])


def _sparsest(rows: pd.DataFrame) -> Any:
    """The row of the interval that retains least: 0, else the coarsest."""
    order = rows["interval_order"]
    return rows.loc[order.idxmin() if (order == 0).any() else order.replace(float("inf"), 0).idxmax()]


def _densest(rows: pd.DataFrame) -> Any:
    """The row of the interval that retains most: dense, else the finest above 0."""
    order = rows["interval_order"]
    if (order == float("inf")).any() or not (order > 0).any():
        return rows.loc[order.idxmax()]
    return rows.loc[order[order > 0].idxmin()]
