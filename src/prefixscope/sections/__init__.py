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


_SHOWS = {"sweep": "intervals", "speculation": "speed", "equality": "answers"}
_ASKED = ("sweep", "cost", "equality", "speculation")
"""What a run asks that is not about reuse itself."""


def headline_figure(material: Material) -> Figure | None:
    """The one figure that shows the verdict."""
    if material.verdict.code == "not asked":
        sections = (sweep(material), speculation(material), equality(material, include_text=False))
        for one in sections:
            if one.figures:
                return replace(one.figures[0], id="verdict", shows=_SHOWS[one.id])
    return sends_figure(material) or worst_figure(material)


def sections(material: Material, *, include_text: bool = False) -> list[Section]:
    """All sections after the verdict, in reading order; what a run that asked something else measured stands first."""
    made = [hit_lengths(material), first_token(material), block_trace(material), sweep(material), cost(material)]
    made += [predicted(material), equality(material, include_text=include_text), speculation(material)]
    if material.verdict.code == "not asked":
        made.sort(key=lambda section: (bool(section.missing), section.id not in _ASKED))
    return [*made, warnings(material), time_spent(material)]
