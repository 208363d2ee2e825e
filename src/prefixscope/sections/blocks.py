"""The block trace: which group ended the hit, and which of its blocks were missing."""

from __future__ import annotations

import pandas as pd

from prefixscope import charts
from prefixscope.material import Material
from prefixscope.quantities import number
from prefixscope.sections.section import Section, Table, empty, figures, sentence


def block_trace(material: Material) -> Section:
    title, section_id = "Block trace", "blocks"
    chart = charts.block_ruler(material.blocks)
    if chart is None:
        what = (
            "The tracer ran, but none of its lookups belongs to a repeated send."
            if material.traced
            else "No engine was traced in this run."
        )
        return empty(material, section_id, title, what, "trace")
    rows = tuple(
        (
            str(row.send_label),
            str(row.gid),
            str(row.group).replace(" · ", ", "),
            str(row.state),
            charts.block_range(row.start, row.stop),
            number(row.start_token),
            number(row.stop_token),
        )
        for row in material.blocks.itertuples()
        if not pd.isna(row.start)
    )
    columns = ("lookup", "group", "kind", "state", "blocks", "from token", "to token")
    causes, said = [], set()
    for label, cause in material.causes:
        help_text = tuple(filter(None, map(sentence, (cause.remedy, cause.price))))
        causes.append((label, " ".join([sentence(cause.sentence), *([] if help_text in said else help_text)])))
        said.add(help_text)
    return Section(
        id=section_id,
        title=title,
        before=(
            "A request hits only as far as every KV cache group can back it. For each group the ruler shows what was "
            "stored when the lookup came and what it needed. Look for an outline that is not filled from end to end.",
        ),
        figures=figures(section_id, chart),
        findings=tuple(causes),
        after=(
            "One missing block is enough: a sliding-window group backs a hit only with its whole window, without gaps.",
        ),
        tables=(
            Table(
                caption="Block ranges per lookup and group; block numbers are the group's own.",
                columns=columns,
                rows=rows,
                numeric=frozenset({"group", "from token", "to token"}),
            ),
        ),
    )
