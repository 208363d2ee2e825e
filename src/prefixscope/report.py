"""A run directory → one HTML file. The same run gives the same bytes."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from prefixscope import asked, digests, frames, page, redact, shared, standing
from prefixscope.errors import ReportError
from prefixscope.geometry import BROUGHT
from prefixscope.glossary import used
from prefixscope.investigation import Investigation, beside
from prefixscope.material import Material, facts, gather, label, servers
from prefixscope.provenance import package_version
from prefixscope.quantities import count, number
from prefixscope.replay import travel
from prefixscope.sections import Figure, Section, command, engines, headline_figure, sections
from prefixscope.sections.section import AGAIN, GONE, gone

FORMATS = (1, 2)
"""Of what a report embeds and says of itself, for whoever recomputes it: the last one is written, all can be made
again. From 2 on it keeps digests of its sources' lines."""
MOST_RAW_ROWS = 20_000
"""Raw rows above which they are only named."""
MOST_TRACE_BYTES = 25_000_000
"""Of a trace, unpacked; it compresses ten- to twentyfold."""
HEADERS = "trace-headers.jsonl"
"""What is embedded of a trace that is too large: the first event of each engine."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """A report on disk, as a notebook links to it."""

    path: Path

    def _repr_markdown_(self) -> str:
        here, size = beside(self.path), f"{self.path.stat().st_size / 1e6:.2f} MB"
        link = f"`{here}`" if here.is_absolute() else f"[{here}](<{here.as_posix()}>)"
        return f"**The report** {link}, {size}: one file that opens offline in any browser, to read or to send."


def in_notebook(investigation: Investigation, *, include_text: bool = False) -> Rendered:
    """Render the report of a notebook's run; that of a passing copy of the sample stays beside the notebook."""
    asked.check("report", {"include_text": include_text})
    out = Path.cwd() / "prefixscope-sample.html" if investigation.passing else None
    return Rendered(render_report(investigation.path, out=out, include_text=include_text))


def render_report(run_dir: Path | str, *, out: Path | str | None = None, include_text: bool = False) -> Path:
    """Write the report of a run directory, half-finished ones too, and return its path.

    Parameters
    ----------
    out : the HTML file; ``RUN/report.html`` where not given.
    include_text : put the answers' text in; by default no answer leaves the run directory. A prompt's text never does:
        a run keeps its seed, length and digest.

    Raises
    ------
    ReportError
        where there is no such directory, its schema is another, the page would hold a secret, or the file can't be
        written.
    """
    run_dir = Path(run_dir)
    if not run_dir.is_dir():
        raise ReportError(f"{run_dir} is not a directory", remedy="prefixscope run -o DIR")
    target = Path(out) if out is not None else run_dir / "report.html"
    return page.write(render_html(run_dir, include_text=include_text), target)


def render_html(run_dir: Path, *, include_text: bool = False) -> str:
    """The report's text."""
    with tempfile.TemporaryDirectory(prefix="prefixscope-report-") as folder:
        shared.share(run_dir, Path(folder), include_text=include_text)
        frames.forget()  # a huge run is in memory once only
        page_text = render_shared(Path(folder), include_text=include_text)
        frames.forget()
        return page_text


def render_shared(folder: Path, *, include_text: bool = False, form: int = FORMATS[-1]) -> str:
    """The report of what :func:`prefixscope.shared.share` wrote: nothing else of the run is looked at."""
    material = gather(folder)
    headline = headline_figure(material)
    made = sections(material, include_text=include_text)
    tried = {figure.id: page.draw(figure.id, figure.chart) for figure in _figures(headline, made)}
    drawn = {name: figure for name, figure in tried.items() if figure is not None}
    made = [_without_undrawn(section, drawn) for section in made]
    held = downloads(folder, material)
    return page.render(
        "report.html.j2",
        drawn,
        made=json.dumps(_made(held, material, form, include_text=include_text), sort_keys=True),
        verdict=material.verdict,
        headline=headline if headline is not None and headline.id in drawn else None,
        words=tuple(used([material.verdict.sentence]).items()),
        sections=made,
        facts=facts(material),
        servers=servers(material),
        engines=engines(material),
        label=label(material),
        downloads=held,
        run=redact.manifest(material.run),
        go_on=standing.of_run(material.run).command,
        include_text=include_text,
        fill=AGAIN if gone(material) else command(None),
        fills=GONE if gone(material) else "To measure it",
    )


def downloads(folder: Path, material: Material) -> list[page.Download]:
    """What the page is made from, the case to replay and the frames, as links that need no network."""
    rows, _ = frames.read_rows(folder)
    made = []
    if rows:
        what = f"every raw row ({number(len(rows))})"
        if len(rows) > MOST_RAW_ROWS:
            note = "too many to embed: left in the run directory"
            made.append(page.Download(name=shared.ROWS, what=what, href="", note=note))
        else:
            made.append(_source(shared.ROWS, what, (folder / "raw" / shared.ROWS).read_text(encoding="utf-8")))
    manifest = (folder / shared.MANIFEST).read_text(encoding="utf-8")
    made.append(_source(shared.MANIFEST, "the run's manifest, shortened for sharing", manifest, always=True))
    trace = folder / (BROUGHT if material.brought else "trace") / shared.TRACE
    if trace.is_file():
        made += _trace(trace, material.headers)
    if replayable := travel.of_run(folder):
        made.append(page.download(travel.NAME, "what vLLM's own scheduler can replay", travel.to_text(replayable)))
    tables = {
        "hits.csv": ("hit lengths by configuration, prompt length and send", material.hits),
        "latency.csv": ("time to first token", material.latency),
        "sweep.csv": ("retention sweep", material.sweep),
        "blocks.csv": ("block ranges of the lookups shown", material.telling.blocks),
        "comparisons.csv": ("compared answers", material.comparisons),
        "generations.csv": ("streamed answers", material.generations),
    }
    return made + [
        page.download(name, what, table.to_csv(index=False)) for name, (what, table) in tables.items() if len(table)
    ]


def _source(name: str, what: str, text: str, *, always: bool = False) -> page.Download:
    """A file that the page is made from, with digests of its lines."""
    return replace(page.download(name, what, text, always=always), lines=digests.of_lines(text))


def _trace(file: Path, headers: Sequence[dict[str, Any]]) -> list[page.Download]:
    """The trace, or where it is too large what its engines said first: verdict and geometry rest on that."""
    what = "the engines' own events, for prefixscope trace show"
    if file.stat().st_size > MOST_TRACE_BYTES:
        whole = page.Download(name=shared.TRACE, what=what, href="", note="too large: left in the run directory")
    else:
        whole = _source(shared.TRACE, what, file.read_text(encoding="utf-8"))
    if whole.href:
        return [whole]
    first = "".join(map(shared.as_line, headers))
    return [whole, _source(HEADERS, "the first event of each traced engine", first, always=True)]


def _made(held: Sequence[page.Download], material: Material, form: int, *, include_text: bool) -> dict[str, Any]:
    """What made this page, for whoever makes it again."""
    lines = {one.name.removesuffix(".gz"): one.lines for one in held if one.href and one.lines is not None}
    return {
        **({"lines": lines} if form > 1 else {}),
        "format": form,
        "prefixscope": package_version(),
        "altair": version("altair"),
        "vl-convert": version("vl-convert-python"),
        "fonts": page.fonts(),
        "text": include_text,
        "brought": material.brought,
        "left out": [one.name for one in held if not one.href],
    }


def _without_undrawn(section: Section, drawn: Mapping[str, page.Drawn]) -> Section:
    """The section without figures that have too many marks for a page, which it says; their tables stay."""
    left_out = [figure for figure in section.figures if figure.id not in drawn]
    if not left_out:
        return section
    return replace(
        section,
        figures=tuple(figure for figure in section.figures if figure.id in drawn),
        after=(f"{count(len(left_out), 'figure')} left out: too many marks for a page. The data below holds them all.",
               *section.after),
        tables=(*section.tables, *(figure.table for figure in left_out if figure.table is not None)),
    )  # fmt: skip


def _figures(headline: Figure | None, made: Sequence[Section]) -> Iterable[Figure]:
    if headline is not None:
        yield headline
    for section in made:
        yield from section.figures
