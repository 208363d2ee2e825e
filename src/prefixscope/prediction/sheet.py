"""A prediction as one HTML file that opens offline."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from prefixscope import charts, frames, page
from prefixscope.charts.titles import spans
from prefixscope.display import themed
from prefixscope.glossary import used
from prefixscope.prediction.advice import upgrade
from prefixscope.prediction.answer import Prediction, columns_about, describe, table_rows
from prefixscope.quantities import number
from prefixscope.sections import Figure, Section, Table

_NUMERIC_FROM = 2


def render_prediction(prediction: Prediction, target: Path) -> Path:
    """Write the page and give its path.

    Raises
    ------
    ReportError
        where it can't be written.
    """
    cases = prediction.cases()
    advice = prediction.advice(cases)
    after = "" if advice is None else upgrade(cases, advice)
    said = [prediction.answer(cases), prediction.heading(), after, "" if advice is None else advice.sentence]
    made = _sections(prediction, cases)
    drawn = {one.id: page.Drawn(one.id, themed(one.chart)) for section in made for one in section.figures}
    rows = json.dumps(prediction.to_json(), sort_keys=True)
    text = page.render(
        "prediction.html.j2",
        drawn,
        title="What a server would hit: " + describe(prediction.geometry),
        heading=prediction.heading(),
        answer=prediction.answer(cases),
        advice=advice,
        upgrade=after,
        found=(),
        words=tuple(used(said).items()),
        notes=prediction.notes(),
        sections=made,
        downloads=[page.download("prediction.json", "every row and the geometry", rows)],
        pressure=prediction.pressure(cases),
    )
    return page.write(text, target)


def _sections(prediction: Prediction, cases: pd.DataFrame) -> Sequence[Section]:
    head, rows = table_rows(cases)
    block = prediction.geometry.scheduler_block
    found = [
        Section(
            id="hits",
            title="What each release hits, and what it keeps",
            before=("Intervals that come to the same share a row. Look for the rows whose second send is not short.",),
            tables=(
                Table(
                    caption=columns_about(cases),
                    columns=tuple(_unique(head)),
                    rows=tuple(tuple(row) for row in rows),
                    numeric=frozenset(_unique(head)[_NUMERIC_FROM:]),
                ),
            ),
        )
    ]
    advice = prediction.advice(cases)
    if advice is not None:
        totals, prompts = prediction.totals(cases, advice.release)
        pressure = prediction.pressure(cases)
        chart = charts.interval_front(totals, release=advice.release, prompts=prompts, pressure=pressure)
        found.append(
            Section(
                id="price",
                title="What it costs",
                before=("Lower left is better. What is not on the dashed line is beaten by something that is.",),
                figures=_figures("price", chart),
                tables=(_totals_table(totals, prompts, advice.release),),
            )
        )
    versions = frames.predicted_versions(prediction.survey.probes)
    found.append(
        Section(
            id="versions",
            title="What changed between releases",
            before=("The same prompts, asked of each release's own scheduler.",),
            figures=_figures("versions", charts.version_matrix(versions, block=block), _versions_table(versions)),
            findings=tuple(prediction.found()),
        )
    )
    heat = frames.predicted(prediction.survey.heat)
    found.append(
        Section(
            id="heat",
            title="Every length, every interval",
            before=("Look for dark rows at the intervals that you could set, over the lengths that you serve.",),
            figures=_figures("heat", charts.short_heat(heat, block=block), _heat_table(heat, block))
            if len(heat)
            else (),
        )
    )
    return found


def _totals_table(totals: pd.DataFrame, prompts: float, release: str) -> Table:
    columns = ("interval", "tokens short, average prompt", "blocks kept, average prompt", "on the front")
    return Table(
        caption=f"One row per interval on vLLM {release}, the recommended one first.",
        columns=columns,
        rows=tuple(
            (
                str(row.interval),
                f"{row.short / prompts:,.0f}",
                "—" if pd.isna(row.blocks) else f"{row.blocks / prompts:,.0f}",
                "yes" if row.front else "",
            )
            for row in totals.itertuples()
        ),
        numeric=frozenset(columns[1:3]),
    )


def _versions_table(versions: pd.DataFrame) -> Table:
    columns = ("vLLM", "asked", "interval", "prompt tokens", "hit, send 2", "hit, send 3")
    names = {"default": "its default", "sparse": "interval 0", "multiple": "whole blocks", "plain": "no drafter"}
    rows = tuple(
        (str(row.release), names.get(row.probe, "lookahead hashes off"), str(row.interval),
         *map(number, (row.tokens, row.hit_2, row.hit_3)))
        for row in versions.itertuples()
    )  # fmt: skip
    caption = "What was asked of each release, and what it hits."
    return Table(caption=caption, columns=columns, rows=rows, numeric=frozenset(columns[3:]), fold=True)


def _heat_table(heat: pd.DataFrame, block: int) -> Table:
    """A row per interval for releases that agree in it: how many lengths come within two blocks of full."""
    second = heat[heat["send"] == 2]
    releases = second["release"].drop_duplicates().tolist()
    same: dict[tuple[str, ...], list[str]] = {}
    for (_, release), part in second.groupby(["interval_order", "release"], sort=True):
        name = str(part["interval"].iloc[0]).removesuffix(" (default)")
        near = int((part["short_tokens"] <= 2 * block).sum())
        cells = (name, number(len(part)), number(near), number(part["short_tokens"].max()))
        same.setdefault(cells, []).append(str(release))
    columns = ("interval", "vLLM", "lengths", "within two blocks of full", "most tokens short")
    rows = tuple((cells[0], spans(who, releases), *cells[1:]) for cells, who in same.items())
    caption = "Send 2 over all lengths of the figure."
    return Table(caption=caption, columns=columns, rows=rows, numeric=frozenset(columns[2:]), fold=True)


def _figures(name: str, chart: Any, table: Table | None = None) -> tuple[Figure, ...]:
    return () if chart is None else (Figure(id=name, chart=chart, table=table),)


def _unique(head: Sequence[str]) -> list[str]:
    """Headings that name their length, since ``send 3`` stands under each."""
    found: list[str] = []
    tokens = ""
    for name in head:
        if name.endswith(" send 2"):
            tokens = name.removesuffix(" send 2")
            found.append(f"{tokens} tokens, send 2")
        else:
            found.append(f"{tokens} tokens, send 3" if name == "send 3" else name)
    return found
