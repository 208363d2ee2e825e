"""What a figure's title is made of: lines that fit the page, names as people list them."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

import altair as alt

from prefixscope.quantities import listing


def wrapped_title(text: str, subtitle: str = "") -> Any:
    """A title whose lines fit the page, with a smaller one below it."""
    # Measured for the widest font that a browser may draw a notebook's SVG in.
    lines = textwrap.wrap(text, 72) or [""]
    return alt.TitleParams(text=lines, subtitle=textwrap.wrap(subtitle, 88) if subtitle else [])


def with_configs(names: Sequence[str]) -> str:
    """``with MTP and no MTP``; of a server that is not ours ``on this server as it is served``."""
    own = [name.partition(" · ")[2] for name in names if name.startswith("as served")]
    others = [name for name in names if not name.startswith("as served")]
    served = [name for name in own if name]
    parts = ["on this server as it is served" + (f" ({listing(served)})" if served else "")] if own else []
    return " and ".join([*parts, *([f"with {listing(others)}"] if others else [])])


def as_subject(name: str) -> str:
    """A configuration as a sentence begins with it; one that is not ours is ``This server``."""
    return name.replace("as served", "This server", 1) if name.startswith("as served") else name


def spans(names: Sequence[str], order: Sequence[str]) -> str:
    """Three neighbours in ``order`` or more as a span: ``64 to 1,024 and dense``, ``0, 512 and 1,024``."""
    runs: list[list[str]] = []
    for place, name in enumerate(order):
        if name not in names:
            continue
        numeric = name[0].isdigit()
        if runs and numeric and runs[-1][-1][0].isdigit() and order[place - 1] == runs[-1][-1]:
            runs[-1].append(name)
        else:
            runs.append([name])
    told = [[f"{run[0]} to {run[-1]}"] if len(run) > 2 else run for run in runs]
    return listing([name for run in told for name in run])
