"""The block trace: which group ended the hit, which of its blocks were missing, and why."""

from __future__ import annotations

import pandas as pd

from prefixscope import charts, redact
from prefixscope.diagnosis import cause_words
from prefixscope.glossary import used
from prefixscope.material import Material
from prefixscope.quantities import number
from prefixscope.sections.section import Figure, Section, Table, empty, sentence

_RANGES = ("send", "group", "kind", "state", "blocks", "from token", "to token")


def block_trace(material: Material) -> Section:
    title, section_id, told = "Block trace", "blocks", material.telling
    chart = charts.block_ruler(told.blocks)
    if chart is None and not told.causes:
        what = "No engine was traced in this run."
        if material.traced:
            what = "The tracer ran, but none of its lookups belongs to a repeated send."
            if material.unasked:
                what = "The tracer ran. Told here are lookups of sends that ask for hit lengths; this run made none."
        return empty(material, section_id, title, what, "trace")
    figures = []
    if chart is not None:
        # Nothing was stored for a first send, so it lacks nothing.
        lacking = told.blocks[(told.blocks["state"] != "missing") | (told.blocks["shared_tokens"] > 0)]
        figures.append(
            Figure(
                id=section_id,
                chart=chart,
                before="A request hits only as far as every KV cache group can back it. The ruler shows for each group "
                "what was stored when the lookup came and what it needed. Look for an outline that is not filled from "
                "end to end: one missing block is enough.",
                table=_ranges(lacking, "Blocks stored, needed and missing; block numbers are the group's own."),
            )
        )
    store = charts.store_ruler(told.stores, beside=told.beside)
    if store is not None:
        figures.append(
            Figure(
                id=f"{section_id}-store",
                chart=store,
                before="The store side decides what of a finished prompt stays in the cache. A dropped block under a "
                "needed one is a miss that no eviction explains: it was never kept.",
                table=_ranges(told.stores, "Blocks kept and dropped, and the boundaries that the rule aimed at."),
            )
        )
    time = charts.lookups_over_time(told.over_time)
    if time is not None:
        figures.append(
            Figure(
                id=f"{section_id}-time",
                chart=time,
                before="Every lookup of the trace, those of warm-ups and other prompts too. A miss is a lookup that "
                "could have hit what an earlier request in the same engine had brought, and did not.",
                table=_tally(told.tally),
            )
        )
    pressure = charts.evictions_over_time(told.evictions)
    if pressure is not None:
        figures.append(
            Figure(
                id=f"{section_id}-evictions",
                chart=pressure,
                before="What was cached can be evicted for newer blocks, or the whole cache reset. Hits that fall "
                "where evictions begin want a larger cache; those that fall before have another cause.",
                table=_windows(told.evictions),
            )
        )
    findings, said = [], set()
    for label, cause in told.causes:
        findings.append((f"{label}: {cause_words(cause.cause)}", sentence(cause.sentence)))
        help_text = (("Remedy", sentence(cause.remedy)), ("Its price", sentence(cause.price)))
        findings += [] if help_text in said else [row for row in help_text if row[1]]
        said.add(help_text)
    findings += [("Missed most", sentence(told.other))] if told.other else []
    seen = tuple((label, sentence(line)) for label, cause in told.causes for line in cause.evidence)
    texts = [text for _, text in (*findings, *seen)] + [figure.before for figure in figures]
    texts += [*map(str, told.tally["cause"]), *map(str, told.blocks["group"].drop_duplicates())]
    return Section(
        id=section_id,
        title=title,
        before=(told.why,),
        findings=tuple(findings),
        figures=tuple(figures),
        tables=(Table(caption="What was recorded of these lookups.", columns=("send", "seen"), rows=seen, fold=True),),
        glossary=tuple(used([*texts, "replay boundary"] if store is not None else texts).items()),
    )


def worst_figure(material: Material) -> Figure | None:
    """The lookup that is explained, where there is a trace and nothing was sent."""
    labels = [label for label, _ in material.telling.causes]
    blocks = material.telling.blocks
    chart = None if len(material.sent) else charts.block_ruler(blocks[blocks["send_label"].isin(labels)])
    return None if chart is None else Figure(id="verdict", chart=chart, shows="blocks")


def _ranges(frame: pd.DataFrame, caption: str) -> Table:
    """A row per kind of group, state and range: groups that look alike share one."""
    folded: dict[tuple[str, ...], list[int]] = {}
    for row in frame.itertuples():
        blocks = "" if pd.isna(row.start) else charts.block_range(row.start, row.stop)
        if pd.isna(row.start_token):
            continue
        words = (str(row.send_label), str(row.group).replace(" · ", ", "), str(row.state), blocks)
        folded.setdefault((*words, number(row.start_token), number(row.stop_token)), []).append(int(row.gid))
    rows = tuple(
        (send, _numbers(gids), kind, state, blocks, low, high)
        for (send, kind, state, blocks, low, high), gids in folded.items()
    )
    return Table(caption=caption, columns=_RANGES, rows=rows, numeric=frozenset(_RANGES[5:]))


def _numbers(gids: list[int]) -> str:
    """``0–4``, ``0, 2 and 5``: group numbers as people list them."""
    if len(gids) > 1 and gids == list(range(gids[0], gids[-1] + 1)):
        return charts.block_range(gids[0], gids[-1] + 1)
    return ", ".join(map(str, gids[:6])) + (f" and {len(gids) - 6} more" if len(gids) > 6 else "")


def _tally(frame: pd.DataFrame) -> Table:
    columns = ("cause", "lookups", "tokens missed", "for example", "what it means")
    rows = tuple(
        (str(row.cause), number(row.lookups), number(row.missed_tokens), redact.clean(row.request_id, limit=40),
         str(row.meaning))
        for row in frame.itertuples()
    )  # fmt: skip
    part = frame.attrs.get("explained")
    caption = f"Causes of {number(part)} lookups spread evenly over the trace." if part else "Causes of all lookups."
    return Table(caption=caption, columns=columns, rows=rows, numeric=frozenset(columns[1:3]))


def _windows(frame: pd.DataFrame) -> Table:
    columns = ("from, s", "to, s", "lookups", "share that hit", "blocks evicted", "resets")
    rows = tuple(
        (f"{row.start_s:,.1f}", f"{row.stop_s:,.1f}", number(row.lookups),
         "—" if pd.isna(row.share) else f"{row.share:.0%}", number(row.evicted_blocks), number(row.resets))
        for row in frame.itertuples()
        if row.lookups or row.evicted_blocks or row.resets
    )  # fmt: skip
    caption = "Stretches of time in which something was looked up, evicted or reset."
    return Table(caption=caption, columns=columns, rows=rows, numeric=frozenset(columns), fold=True)
