"""A report made again from what it embeds, and held against what it shows.

The rows, the manifest and the trace inside the file are laid out as the folder that a report is made from
(:mod:`prefixscope.shared`), rendered, and both pages compared piece by piece. No run directory is needed. That both
agree proves that every figure follows from the rows inside. What was edited in the page or in its data is found, and an
edited row named by the digest that the page keeps of it (:mod:`prefixscope.edits`); who changes rows, digests and page
alike is found by nothing in the file: that it is the same file its digest proves, given by another way.
"""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from prefixscope import edits, pieces, shared
from prefixscope.difference import Difference, in_file
from prefixscope.edits import Edit, unreadable
from prefixscope.errors import ReportError
from prefixscope.geometry import BROUGHT
from prefixscope.pieces import Pieces
from prefixscope.report import FORMATS, HEADERS, render_shared

MOST_PAGE_BYTES = 64 * 2**20
_TOOLS = ("prefixscope", "altair", "vl-convert")
_NEEDS_TRACE = re.compile(
    r"blocks: |environment: (?:caption|heading|paragraph|table “What each of)|figure blocks|warnings: "
    r"|(?:data: )?(?:blocks\.csv|cases\.json|trace)"
)
"""What is told from the lookups of a trace; of a run with rows the verdict is not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """What a report's data say of its page.

    ``edits`` are places of its sources that are not as the page was made from them, ``differences`` what does not
    follow from the sources as they are. ``compared`` is how many places of each kind were held against each other,
    ``unverifiable`` sentences on what the file does not hold, ``identical`` whether the page was made again to the
    byte.
    """

    digest: str
    identical: bool
    compared: Mapping[str, int]
    edits: tuple[Edit, ...]
    differences: tuple[Difference, ...]
    unverifiable: tuple[str, ...] = ()

    @property
    def agrees(self) -> bool:
        return not self.edits and not self.differences


def verify(file: Path) -> Verified:
    """Make a report again from what it embeds and compare.

    Raises
    ------
    ReportError
        where the file is no report, damaged, of another format or schema, or does not embed its rows.
    """
    page = _page(file)
    shown = pieces.read(page)
    made = _made(shown, file)
    left_out = [str(name) for name in made.get("left out") or ()]
    if shared.ROWS in left_out:
        raise ReportError(
            f"{file.name} can't be recomputed: its rows were too many to embed",
            remedy="ask for the run directory, and for the digest that prefixscope report prints of it",
        )
    with tempfile.TemporaryDirectory(prefix="prefixscope-verify-") as folder:
        unverifiable = tuple(_lay_out(shown, made, Path(folder), file))
        again = render_shared(Path(folder), include_text=bool(made.get("text")), form=made["format"])
    recomputed = pieces.read(again)
    own = recomputed.made or {}
    same_fonts = made.get("fonts") == own.get("fonts")
    if not same_fonts:
        unverifiable += ("the layout of figures drawn without scripts: this machine has other fonts (labels compared)",)
    broken = {name: tuple(unreadable(name, text)) for name, text in shown.files.items()}
    found = list(_differences(shown, recomputed, layout=same_fonts, but={name for name in broken if broken[name]}))
    edited = [
        *chain(*broken.values()),
        *edits.found(shown.files, made.get("lines"), (one.shown or "" for one in found)),
    ]
    if shared.TRACE in left_out:
        found = [one for one in found if not _NEEDS_TRACE.match(one.place)]
    apart = [f"{tool} {made.get(tool)} (here {own.get(tool)})" for tool in _TOOLS if made.get(tool) != own.get(tool)]
    if apart and found and edited:
        # Which lines were edited is known whoever made the page; what follows from them is not.
        found = []
        unverifiable += (f"what follows from it: the page was made with {', '.join(apart)}",)
    elif apart and found:
        raise ReportError(
            f"{file.name} was made with {', '.join(apart)}; made again here, {len(found):,} places differ, the first: "
            f"{found[0]}",
            cause="another version words and draws things differently, so an edit can't be told from that",
            remedy=f"pip install prefixscope=={made.get('prefixscope')}, then verify again",
        )
    if (
        not found
        and not edited
        and not apart
        and same_fonts
        and not unverifiable
        and pieces.unpacked(page) != pieces.unpacked(again)
    ):
        found.append(Difference("the page's own markup, style or scripts", "changed", "as this version writes them"))
    compared = {
        "texts and table cells": len(shown.texts),
        "chart values": len(shown.values),
        "drawings": len(shown.drawings),
        "embedded files": len(shown.files),
    }
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    return Verified(
        digest=digest,
        identical=page == again,
        compared=compared,
        edits=tuple(edited),
        differences=tuple(found),
        unverifiable=unverifiable,
    )


def _page(file: Path) -> str:
    try:
        size = file.stat().st_size
        data = file.read_bytes() if size <= MOST_PAGE_BYTES else b""
    except OSError as error:
        raise ReportError(f"{file} can't be read: {error.strerror}", remedy="name a report.html") from error
    text = data.decode("utf-8", "replace")
    if "<html" not in text[:2000].lower():
        raise ReportError(f"{file.name} is no report of prefixscope", remedy="name a report.html")
    if not text.rstrip().endswith("</html>"):
        raise ReportError(f"{file.name} is damaged: its end is missing", remedy="get it again")
    return text


def _made(shown: Pieces, file: Path) -> dict[str, Any]:
    """What the page says it was made with."""
    made = shown.made
    if made is None or "format" not in made:
        raise ReportError(
            f"{file.name} can't be recomputed: it does not say how it was made",
            cause="it is no report of prefixscope, or an early version made it",
            remedy="render the run directory again: prefixscope report RUN",
        )
    if made["format"] not in FORMATS:
        newer = isinstance(made["format"], int) and made["format"] > FORMATS[-1]
        raise ReportError(
            f"{file.name} has format {made['format']!r}, this prefixscope recomputes {' and '.join(map(str, FORMATS))}",
            cause=f"prefixscope {made.get('prefixscope')} made it",
            remedy="pip install --upgrade prefixscope"
            if newer
            else f"pip install prefixscope=={made.get('prefixscope')}",
        )
    return made


def _lay_out(shown: Pieces, made: Mapping[str, Any], folder: Path, file: Path) -> Iterator[str]:
    """Write what the page embeds as the folder that it was made from; gives what is missing in it."""
    try:
        manifest = json.loads(shown.files[shared.MANIFEST])
    except (KeyError, ValueError):
        manifest = None
    if not isinstance(manifest, dict):
        raise ReportError(f"{file.name} is damaged: it embeds no manifest", remedy="get it again")
    shared.check_schema(manifest, file.name)
    (folder / shared.MANIFEST).write_text(shown.files[shared.MANIFEST], encoding="utf-8")
    rows = shown.files.get(shared.ROWS)
    if rows is not None:
        (folder / "raw").mkdir()
        (folder / "raw" / shared.ROWS).write_text(rows, encoding="utf-8")
    left_out = shared.TRACE in (made.get("left out") or ())
    trace = shown.files.get(HEADERS if left_out else shared.TRACE)
    if left_out:
        if made.get("brought"):
            raise ReportError(
                f"{file.name} can't be recomputed: it is about a trace that was too large to embed",
                remedy="ask for the trace",
            )
        yield "the block trace, its figures and the replayable case: the trace was too large to embed"
    if trace is not None:
        place = folder / (BROUGHT if made.get("brought") else "trace")
        place.mkdir()
        (place / shared.TRACE).write_text(trace, encoding="utf-8")


def _differences(shown: Pieces, recomputed: Pieces, *, layout: bool, but: set[str]) -> Iterator[Difference]:
    """Every place that differs: data, but of these files, then what is drawn and told from it."""
    for name in dict.fromkeys((*shown.files, *recomputed.files)):
        if name not in but and shown.files.get(name) != recomputed.files.get(name):
            yield in_file(name, shown.files.get(name), recomputed.files.get(name))
    yield from _apart(shown.texts, recomputed.texts)
    values = (
        {place: value for place, value in one.values.items() if layout or ", beside" not in place}
        for one in (shown, recomputed)
    )
    yield from _apart(*values)
    if layout:
        for place in dict.fromkeys((*shown.drawings, *recomputed.drawings)):
            if shown.drawings.get(place) != recomputed.drawings.get(place):
                yield Difference(place, "another drawing", "the figure of its data")


def _apart(shown: Mapping[str, str], recomputed: Mapping[str, str]) -> Iterator[Difference]:
    for place in dict.fromkeys((*shown, *recomputed)):
        if shown.get(place) != recomputed.get(place):
            yield Difference(place, shown.get(place), recomputed.get(place))
