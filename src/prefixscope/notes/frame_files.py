"""Each frame of a run as CSV, and beside them what every column means."""

from __future__ import annotations

from collections.abc import Callable
from inspect import getdoc
from pathlib import Path
from typing import Any

import pandas as pd

from prefixscope import frames, page, redact
from prefixscope.errors import Unwritable
from prefixscope.frames.columns import TEXT
from prefixscope.frames.meanings import meaning
from prefixscope.material import Material, shareable
from prefixscope.notes.account import shared_account
from prefixscope.notes.markdown import Markdown, code, table
from prefixscope.quantities import count
from prefixscope.trace import Trace

COLUMNS = "columns.md"
_ACTIVE = ("=", "+", "-", "@", "\t", "\r")
"""First characters that a spreadsheet takes for a formula."""

_Made = Callable[[Path, Material, Trace], pd.DataFrame]
FRAMES: dict[str, tuple[Callable[..., Any], _Made]] = {
    "sends": (frames.sends, lambda _, m, t: m.sent),
    "hits": (frames.hits, lambda _, m, t: frames.hits(m.sent)),
    "latency": (frames.latency, lambda _, m, t: frames.latency(m.sent)),
    "kept": (frames.kept, lambda _, m, t: m.kept),
    "sweep": (frames.sweep, lambda _, m, t: m.sweep),
    "agreement": (frames.agreement, lambda _, m, t: frames.agreement(m.sent)),
    "crosscheck": (frames.crosscheck, lambda _, m, t: frames.crosscheck(m.sent)),
    "answers": (frames.answers, lambda _, m, t: m.answers.drop(columns="text")),
    "comparisons": (frames.comparisons, lambda _, m, t: m.comparisons),
    "equality": (frames.equality, lambda _, m, t: frames.equality(m.comparisons)),
    "generations": (frames.generations, lambda _, m, t: m.generations),
    "by_shape": (frames.by_shape, lambda _, m, t: frames.by_shape(m.generations)),
    "record": (frames.record, lambda _, m, t: frames.record(m.generations, m.headrooms)),
    "positions": (frames.positions, lambda _, m, t: m.positions),
    "output_pairs": (frames.output_pairs, lambda _, m, t: m.output_pairs),
    "resends": (frames.resends, lambda _, m, t: m.resends),
    "headrooms": (frames.headrooms, lambda _, m, t: m.headrooms),
    "groups": (frames.groups, lambda _, m, t: frames.groups(t.headers)),
    "lookups": (frames.lookups_over_time, lambda _, m, t: m.telling.over_time),
    "blocks": (frames.blocks, lambda _, m, t: m.telling.beside),
    "stores": (frames.stores, lambda _, m, t: m.telling.stores),
    "causes": (frames.causes, lambda _, m, t: m.telling.tally),
    "evictions": (frames.evictions_over_time, lambda _, m, t: m.telling.evictions),
    "servers": (frames.servers, lambda _, m, t: frames.servers(m.run)),
    "timeline": (frames.timeline, lambda _, m, t: m.timeline),
    "facts": (frames.facts, lambda run, m, t: frames.facts(run)),
}
"""Name → the function that explains the frame, and how a run's material gives it."""


def write_csv(run_dir: Path | str, folder: Path | str) -> list[Path]:
    """Write every frame of a run as ``NAME.csv`` and what the columns mean as ``columns.md``; give the paths.

    A frame without a row is written too: its header says what could be in it. No prompt and no answer is in any of
    them; names of servers and models, paths and hosts are shortened as in a report.

    Raises
    ------
    ReportError
        where there is no such directory, its schema is another, a file would hold a secret, or can't be written.
    """
    folder = Path(folder)
    with shared_account(Path(run_dir)) as told:
        tables = {name: _safe(made(told.run_dir, told.material, told.trace)) for name, (_, made) in FRAMES.items()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Unwritable(
            f"the folder {folder} can't be made: {error.strerror}",
            remedy="name a folder to write to: --csv DIR",
        ) from error
    paths = [page.write(one.to_csv(index=False), folder / f"{name}.csv") for name, one in tables.items()]
    return [*paths, page.write(columns_text(tables), folder / COLUMNS)]


def columns_text(tables: dict[str, pd.DataFrame]) -> str:
    """What the files hold: frame by frame, column by column."""
    parts = [
        "# Columns",
        "One CSV file for each frame of a prefixscope run: UTF-8, comma, a header line. An empty cell is null and "
        "null is not zero: the last column says what it means. Times are UTC. Text that a spreadsheet would take for "
        "a formula begins with `'`.",
    ]
    for name, one in tables.items():
        about = (getdoc(FRAMES[name][0]) or "").splitlines()[0].replace("``", "`")
        parts += [f"## {name}.csv", f"{about} Here: {count(len(one), 'row')}.", _columns(name, one)]
    return "\n\n".join(parts) + "\n"


def _columns(name: str, one: pd.DataFrame) -> Markdown:
    rows = []
    for column, dtype in one.dtypes.items():
        told = meaning(name, str(column))
        rows.append((code(column), code(str(dtype)), told.unit, told.text, told.null or "never"))
    return table(("column", "dtype", "unit", "meaning", "null means"), rows)


def _safe(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame fit to leave the run directory, and without what a spreadsheet would run."""
    out = shareable(frame)
    for column in out.columns[out.dtypes == TEXT]:
        texts = {text: _quiet(redact.clean(text, limit=4_000)) for text in out[column].dropna().unique()}
        out[column] = out[column].map(texts).astype(TEXT)
    return out


def _quiet(text: str) -> str:
    return f"'{text}" if text.startswith(_ACTIVE) else text
