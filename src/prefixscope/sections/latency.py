"""Time to first token: what a hit is worth to the person who waits."""

from __future__ import annotations

from prefixscope import charts
from prefixscope.material import Material
from prefixscope.quantities import number
from prefixscope.sections.hits import configurations
from prefixscope.sections.section import Section, Table, empty, figures, milliseconds


def first_token(material: Material) -> Section:
    title, section_id = "Time to first token", "latency"
    table = material.latency
    if not len(table):
        streamed = "Those of the streamed answers stand under “Speculative decoding”; no prompt was sent again."
        missing = streamed if len(material.generations) else "No latency has been measured yet."
        return empty(material, section_id, title, missing, "baseline")
    names = configurations(material)
    chart = charts.first_token(table, configs=names)
    shown = table[table["config"].isin(names)].rename(columns={"count": "rows"})
    repeated = bool((shown["rows"] > 1).any())
    times = ("median_ms", "min_ms", "max_ms", "rows") if repeated else ("median_ms",)
    rows = tuple(
        (
            str(row.config),
            number(row.tokens),
            str(row.send_label),
            number(row.cached_tokens),
            *((number if name == "rows" else milliseconds)(getattr(row, name)) for name in times),
        )
        for row in shown.itertuples()
    )
    heads = ("median, ms", "lowest, ms", "highest, ms", "sends") if repeated else ("first token, ms",)
    columns = ("configuration", "prompt tokens", "send", "cached tokens", *heads)
    believe = (
        "Believe differences that are larger than the range of equal sends; a single send has no range."
        if repeated
        else "Each time is that of a single send, so how far equal sends scatter was not measured: a small difference "
        "may be noise."
    )
    return Section(
        id=section_id,
        title=title,
        before=(
            "What a hit is worth to the person who waits. Compare a configuration's coloured points with its grey one.",
        ),
        figures=figures(section_id, chart),
        after=(
            f"{believe} The first request of each server and adapter pays for warming up; it was sent and discarded.",
        ),
        tables=(
            Table(
                caption=f"Time to first token, {'median and range' if repeated else 'of single sends'}.",
                columns=columns,
                rows=rows,
                numeric=frozenset(columns[1:2] + columns[3:]),
            ),
        ),
    )
