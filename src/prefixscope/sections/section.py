"""What a section is: words, figures and tables, or what is missing and the command that fills it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from prefixscope import redact
from prefixscope.material import Material
from prefixscope.standing import GO_ON


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A chart, what to look for in it, and its numbers; ``chart`` is an Altair chart.

    ``shows`` says in a word what the chart is of, where its ``id`` says where it stands.
    """

    id: str
    chart: Any
    before: str = ""
    table: Table | None = None
    shows: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Text cells under text headings. ``numeric`` columns align right, ``fold`` closes it, ``bad`` rows stand out."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: frozenset[str] = frozenset()
    fold: bool = False
    bad: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One question of the report.

    ``findings`` are (about what, what was found); ``missing`` says what would fill the section, ``command`` how, and
    ``fills`` what its lines do; ``glossary`` holds (term, meaning).
    """

    id: str
    title: str
    before: tuple[str, ...] = ()
    figures: tuple[Figure, ...] = ()
    findings: tuple[tuple[str, str], ...] = ()
    after: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    missing: str = ""
    command: str = ""
    fills: str = "This fills the section"
    glossary: tuple[tuple[str, str], ...] = ()


def figures(section_id: str, chart: Any) -> tuple[Figure, ...]:
    """The section's one figure; none where there was nothing to draw."""
    return () if chart is None else (Figure(id=section_id, chart=chart),)


def command(stage: str | None) -> str:
    """The command that fills a stage of this run; RUN stands for its directory."""
    return GO_ON + (f" --only {stage}" if stage else "")


_TRACED = (
    "These lines fill the section, in a run of its own",
    "prefixscope trace kit KIT                   # prints what the server's next start needs\n"
    "prefixscope run --url URL -o NEW\n"
    "cp TRACE_DIR/*.jsonl NEW/trace/             # what the server wrote meanwhile\n"
    "prefixscope run -o NEW --resume --only report",
)
UNRESTARTED = {
    "trace": _TRACED,
    "crosscheck": _TRACED,
    "sweep": (
        "Either line fills the section",
        "prefixscope run -o RUN --resume --only sweep -p sweep.trace=FILE   # predicted from a trace of the server\n"
        "prefixscope run --serve-cmd 'vllm serve MODEL …'                   # measured, on a server of its own",
    ),
}
"""What fills a section about a server that is not ours to restart: what the lines do, and the lines."""


GONE = (
    "Rows of a stage that is done are gone, and going on takes it for done. Copy raw/ back from another copy of this "
    "run, or measure again in a new one"
)
AGAIN = "prefixscope run -o NEW"
"""What measures again where rows are gone."""
_RESTS_ON = {"trace": "baseline", "crosscheck": "baseline"}
"""Stages that look at what another one sent."""


def gone(material: Material, stage: str | None = None) -> bool:
    """Whether this stage is done and its rows are gone; without a stage, whether any is."""
    about = f"stage {stage} is done, but its rows" if stage else ""
    return any(
        one.get("code") == "rows-gone" and str(one.get("detail")).startswith(about) for one in material.run["warnings"]
    )


def begin(material: Material, stage: str) -> str:
    """The command that fills a stage of this run, or the first of several, as a sentence names it."""
    if stage in UNRESTARTED and attached(material) and not material.brought:
        return UNRESTARTED[stage][1].splitlines()[0].partition("#")[0].strip()
    return command(stage)


def empty(material: Material, section_id: str, title: str, missing: str, stage: str | None) -> Section:
    """A section without data: why, and the command that fills it."""
    entry = (material.run.get("stages") or {}).get(stage)
    entry = entry if isinstance(entry, Mapping) else {}
    why = redact.clean(entry.get("note") or entry.get("error") or "").strip()
    if why:
        missing = f"{missing} {why[:1].upper()}{sentence(why)[1:]}"
    fill = command(stage)
    if stage and gone(material, _RESTS_ON.get(stage, stage)):
        return Section(id=section_id, title=title, missing=missing, command=AGAIN, fills=GONE)
    if stage in UNRESTARTED and attached(material) and not material.brought:
        fills, fill = UNRESTARTED[stage]
        return Section(id=section_id, title=title, missing=missing, command=fill, fills=fills)
    if material.brought:
        # A trace from elsewhere has no server to go on with.
        fill = "prefixscope run --url http://HOST:8000"
    elif entry.get("status") == "skipped":
        # The stage can't run on this target at all; its warning says on which it can.
        warned = [
            item
            for item in material.run.get("warnings", [])
            if isinstance(item, Mapping) and item.get("stage") == stage
        ]
        fill = next((redact.clean(item["remedy"]) for item in warned if item.get("remedy")), fill)
    elif entry.get("status") == "left out":
        fill = "prefixscope run --serve-cmd 'vllm serve MODEL …'"
    return Section(id=section_id, title=title, missing=missing, command=fill)


def attached(material: Material) -> bool:
    """Whether the run's server ran already, and is not ours to restart."""
    target = material.run.get("target")
    return isinstance(target, Mapping) and target.get("kind") == "attached"


def sentence(value: Any) -> str:
    """The text, fit to leave the run directory, with a full stop."""
    text = redact.clean(value).strip() if value else ""
    return text if not text or text[-1] in ".!?" else text + "."


def milliseconds(value: Any) -> str:
    """``1,234``; an em dash where nothing was measured."""
    return "—" if pd.isna(value) else f"{value:,.0f}"


def mebibytes(value: Any) -> str:
    """Bytes as ``12.3`` MiB; an em dash where they are not known."""
    return "—" if value is None or pd.isna(value) else f"{value / 2**20:,.1f}"
