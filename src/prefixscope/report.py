"""A run directory → one HTML file. The same run gives the same bytes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from prefixscope import asked, frames, page, redact
from prefixscope.errors import ReportError
from prefixscope.glossary import used
from prefixscope.investigation import Investigation, beside
from prefixscope.material import Material, facts, gather, label, servers
from prefixscope.quantities import number
from prefixscope.replay import travel
from prefixscope.sections import Figure, Section, command, engines, headline_figure, sections

MOST_RAW_ROWS = 20_000
"""Raw rows above which they are only named."""


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
    include_text : put answers' text in; by default no prompt and no answer leaves the run directory.

    Raises
    ------
    ReportError
        where there is no such directory, or the file can't be written.
    """
    run_dir = Path(run_dir)
    if not run_dir.is_dir():
        raise ReportError(f"{run_dir} is not a directory", remedy="prefixscope run -o DIR")
    target = Path(out) if out is not None else run_dir / "report.html"
    return page.write(render_html(run_dir, include_text=include_text), target)


def render_html(run_dir: Path, *, include_text: bool = False) -> str:
    """The report's text."""
    material = gather(run_dir)
    headline = headline_figure(material)
    made = sections(material, include_text=include_text)
    drawn = {figure.id: page.Drawn(figure.id, figure.chart) for figure in _figures(headline, made)}
    return page.render(
        "report.html.j2",
        drawn,
        verdict=material.verdict,
        headline=headline,
        words=tuple(used([material.verdict.sentence]).items()),
        sections=made,
        facts=facts(material),
        servers=servers(material),
        engines=engines(material),
        label=label(material),
        downloads=downloads(run_dir, material, include_text=include_text),
        run=redact.manifest(material.run),
        include_text=include_text,
        fill=command(None),
    )


def downloads(run_dir: Path, material: Material, *, include_text: bool) -> list[page.Download]:
    """The raw rows, the manifest and the frames, as links that need no network."""
    rows, _ = frames.read_rows(run_dir)
    what = f"every raw row ({number(len(rows))})"
    tables = {
        "hits.csv": ("hit lengths by configuration, prompt length and send", material.hits),
        "latency.csv": ("time to first token", material.latency),
        "sweep.csv": ("retention sweep", material.sweep),
        "blocks.csv": ("block ranges of the lookups shown", material.telling.blocks),
        "comparisons.csv": ("compared answers", material.comparisons),
        "generations.csv": ("streamed answers", material.generations),
    }
    if len(rows) > MOST_RAW_ROWS:
        made = [
            page.Download(name="rows.jsonl", what=what, href="", note="too many to embed: left in the run directory")
        ]
    else:
        shared = (redact.row(row, include_text=include_text) for row in rows)
        lines = "".join(json.dumps(row, ensure_ascii=False, sort_keys=True) + "\n" for row in shared)
        made = [page.download("rows.jsonl", what, lines)] if rows else []
    made += [
        page.download(name, what, table.to_csv(index=False)) for name, (what, table) in tables.items() if len(table)
    ]
    if replayable := travel.of_run(run_dir):
        made.append(page.download(travel.NAME, "what vLLM's own scheduler can replay", travel.to_text(replayable)))
    manifest = json.dumps(redact.manifest(material.run), indent=1, ensure_ascii=False, sort_keys=True)
    return [*made, page.download("run.json", "the run's manifest, shortened for sharing", manifest)]


def _figures(headline: Figure | None, made: Sequence[Section]) -> Iterable[Figure]:
    if headline is not None:
        yield headline
    for section in made:
        yield from section.figures
