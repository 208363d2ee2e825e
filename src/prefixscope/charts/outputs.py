"""The figure of output equality: which answers are the same."""

from __future__ import annotations

import math
from typing import Any

import altair as alt
import pandas as pd

from prefixscope.charts.encoding import colour, inline, narrowest
from prefixscope.charts.panels import facet
from prefixscope.charts.titles import wrapped_title
from prefixscope.quantities import count
from prefixscope.theme import CLASS_COLOURS


def equality_matrix(frame: pd.DataFrame) -> Any:
    """Documents × served names × pair of answers, each cell saying in words whether the two were the same."""
    if not len(frame):
        return None
    documents = sorted(frame["document"].dropna().unique().tolist(), key=_natural)
    models = frame["model"].dropna().drop_duplicates().tolist()
    data = [
        {
            "document": row.document,
            "model": row.model,
            "pair": str(row.pair).replace("-", " / "),
            "class": row.kind if row.kind in CLASS_COLOURS else "not compared",
            "text": {"identical": "same", "not compared": "–"}.get(row.kind, row.kind),
        }
        for row in frame.assign(kind=frame["class"].fillna("not compared")).itertuples()
    ]
    base = alt.Chart().encode(
        y=alt.Y("document:N", sort=documents, title=None),
        x=alt.X("pair:N", title=None, axis=alt.Axis(labelAngle=0, domain=False, ticks=False)),
    )
    cells = base.mark_rect(cornerRadius=3, height={"band": 0.86}, width={"band": 0.94}).encode(
        color=colour("class", CLASS_COLOURS)
    )
    words = base.mark_text(color="#fff", fontWeight=600).encode(text="text:N")
    chart = alt.layer(cells, words).properties(width=240, height=24 * len(documents))
    faceted = chart.facet(facet=facet("model", models, width=240), columns=2, data=inline(data), spacing=24)
    warm = frame[frame["pair"] == "cold-warm"]
    equal = int((warm["class"] == "identical").sum())
    judged = int((warm["class"] != "void").sum())
    title = (
        f"{equal} of {count(judged, 'warm answer')} equal their cold ones"
        if judged
        else "No warm answer could be compared"
    )
    words = "cold / control: the same request twice without the cache."
    return narrowest(faceted.properties(title=wrapped_title(title, words)), 220)


def _natural(name: str) -> tuple[Any, ...]:
    digits = "".join(character for character in str(name) if character.isdigit())
    return (int(digits) if digits else math.inf, str(name))
