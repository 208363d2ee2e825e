"""Predicted beside measured: what the release's own scheduler says of the same requests, and where the two part."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd

from prefixscope import frames
from prefixscope.material import Material
from prefixscope.quantities import count, number
from prefixscope.sections.section import GONE, Section, Table, attached, command, empty


def predicted(material: Material) -> Section:
    """The section; a send in which the two differ is a row of its own, marked."""
    title, section_id = "Predicted beside measured", "crosscheck"
    sent = material.sent[material.sent["status"] == "ok"]
    known = sent[sent["predicted_agrees"].notna()]
    if not len(known):
        missing = "No hit has been predicted with the engine's own scheduler."
        found = empty(material, section_id, title, missing, "crosscheck")
        if found.fills == GONE:
            return found
        if len(material.sweep) and not material.sweep["measured"].any() and not len(sent):
            return replace(found, missing="Nothing was measured: the retention sweep is predicted alone.", command="")
        if material.unasked:
            asked = replace(found, missing=f"{missing} {material.unasked}")
            return asked if attached(material) else replace(asked, command=command("baseline"))
        if material.brought:
            return replace(found, command="prefixscope predict --trace FILE --intervals default,1024")
        # Not a notebook of its own: every notebook that measures predicts, and the report makes up what is missing.
        return replace(found, command=command(None)) if found.command == command("crosscheck") else found
    wrong = known[~known["predicted_agrees"].astype(bool)]
    tables = [_by_configuration(sent)]
    if len(wrong):
        tables.insert(0, _differences(wrong))
    return Section(
        id=section_id,
        title=title,
        before=(
            "The scheduler of the same vLLM release was given the KV cache groups that the server's trace names and "
            "the same requests, without a model or weights. What it would hit must be what the server hit.",
        ),
        findings=(("Found", agreement(material)),),
        after=(
            "The case is in this file: `prefixscope predict --trace report.html` replays it, on any machine and under "
            "any other release or interval; `prefixscope export-test report.html` writes it as a test for vLLM.",
        ),
        tables=tuple(tables),
    )


def agreement(material: Material) -> str:
    """One sentence: in how many sends prediction and measurement are the same; empty where nothing was predicted."""
    found = frames.agreed(material.sent, "predicted_agrees")
    if not found.compared:
        return ""
    release = ", ".join(material.sent["predicted_by"].dropna().unique())
    text = (
        f"the scheduler of vLLM {release} gives the measured hit, to the token, in {found.same:,} of "
        f"{count(found.compared, 'send')}"
    )
    if found.apart:
        text += f"; in {found.apart:,} it does not, and neither number is to be trusted there"
    if found.untold:
        text += f" ({count(found.untold, 'send')} could not be compared)"
    return text[:1].upper() + text[1:] + "."


def _differences(wrong: pd.DataFrame) -> Table:
    rows = tuple(
        (
            str(row.config),
            str(row.prompt),
            str(row.send_label),
            number(row.cached_tokens),
            number(row.predicted_tokens),
            str(row.request_id),
        )
        for row in wrong.itertuples()
    )
    return Table(
        caption="Sends in which prediction and measurement differ.",
        columns=("configuration", "prompt", "send", "measured", "predicted", "request in the trace"),
        rows=rows,
        numeric=frozenset({"measured", "predicted"}),
        bad=frozenset(range(len(rows))),
    )


def _by_configuration(sent: pd.DataFrame) -> Table:
    table = frames.crosscheck(sent)
    return Table(
        caption="Sends by configuration: predicted, the same as measured, different.",
        columns=("configuration", "predicted by", "sends", "predicted", "agree", "differ"),
        rows=tuple(
            (
                str(row.config),
                "—" if pd.isna(row.predicted_by) else f"vLLM {row.predicted_by}",
                *map(number, (row.sends, row.predicted, row.agree, row.differ)),
            )
            for row in table.itertuples()
        ),
        numeric=frozenset({"sends", "predicted", "agree", "differ"}),
    )
