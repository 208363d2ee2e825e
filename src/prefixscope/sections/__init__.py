"""The report's sections: what to look for, a figure, a table, how to decide. Every number in them is computed."""

from __future__ import annotations

from dataclasses import replace

from prefixscope.material import Material
from prefixscope.sections.blocks import block_trace, worst_figure
from prefixscope.sections.crosscheck import predicted
from prefixscope.sections.hits import hit_lengths, sends_figure
from prefixscope.sections.latency import first_token
from prefixscope.sections.outputs import equality
from prefixscope.sections.pressed import pressed
from prefixscope.sections.record import engines, time_spent, warnings
from prefixscope.sections.retention import cost, sweep
from prefixscope.sections.section import Figure, Section, Table, command
from prefixscope.sections.speculation import speculation

__all__ = ["Figure", "Section", "Table", "command", "engines", "headline_figure", "pressed", "sections"]


def headline_figure(material: Material) -> Figure | None:
    """The one figure that shows the verdict."""
    found = sends_figure(material) or worst_figure(material)
    if found is None and material.verdict.code == "not asked":
        sections = (sweep(material), speculation(material), equality(material, include_text=False))
        found = next((replace(one.figures[0], id="verdict") for one in sections if one.figures), None)
    return found


def sections(material: Material, *, include_text: bool = False) -> list[Section]:
    """All sections after the verdict, in reading order; what a run that asked something else measured stands first."""
    made = [hit_lengths(material), first_token(material), block_trace(material), sweep(material), cost(material)]
    made += [predicted(material), equality(material, include_text=include_text), speculation(material)]
    if material.verdict.code == "not asked":
        made.sort(key=lambda section: bool(section.missing))
    return [*made, warnings(material), time_spent(material)]
