"""A run directory → one HTML file that opens offline, today and in ten years.

Vega is inlined once and draws without eval; a content security policy forbids every connection and every script but
the three written here. Without scripts the file shows the same figures as SVG. The same run gives the same bytes.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
import vl_convert
from markupsafe import Markup, escape

from prefixscope import frames, redact
from prefixscope.display import themed
from prefixscope.errors import ReportError
from prefixscope.material import Material, facts, gather, servers
from prefixscope.quantities import number
from prefixscope.sections import Figure, Section, command, headline_figure, sections
from prefixscope.theme import DARK, vega_config

_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]+(?: (?:[\d,]+|None)(?![\w,]))?")

PLAIN_BYTES, MOST_BYTES = 250_000, 600_000
"""A download up to the first is embedded as it is, up to the second compressed, above it only named."""

MOST_ROWS, MOST_RAW_ROWS = 400, 20_000
"""Rows of one table, where the data to download holds the others; raw rows above which they are only named."""


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
    page = render_html(run_dir, include_text=include_text)
    try:
        partial = target.with_name(f".{target.name}.tmp")
        try:
            partial.write_text(page, encoding="utf-8")
            partial.replace(target)  # a full disk leaves the earlier report whole
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise ReportError(
            f"the report can't be written to {target}: {error.strerror}",
            remedy="name a file in a writable folder: --out FILE",
        ) from error
    return target


def render_html(run_dir: Path, *, include_text: bool = False) -> str:
    """The report's text."""
    material = gather(run_dir)
    headline = headline_figure(material)
    made = sections(material, include_text=include_text)
    drawn = {figure.id: _Drawn(figure) for figure in _figures(headline, made)}
    bundle: Any = vl_convert.javascript_bundle  # its stub asks for arguments that it does not need
    library = str(bundle())
    if "</script" in library.lower() or "<!--" in library:
        raise ReportError(
            "Vega's code can't be inlined: it holds a script end", remedy="pip install --upgrade vl-convert-python"
        )
    data = {
        "charts": {name: figure.embedded for name, figure in drawn.items()},
        "configs": {scheme: {**vega_config(scheme), "background": "transparent"} for scheme in ("light", "dark")},
        "dark": DARK,
    }
    payload, script = script_json(data), _resource("report.js")
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_resource),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["flags"] = _flags
    return environment.get_template("report.html.j2").render(
        policy=_policy([library, script]),
        style=Markup(_resource("report.css")),
        library=Markup(library),
        script=Markup(script),
        data=Markup(payload),
        verdict=material.verdict,
        headline=drawn.get("verdict"),
        sections=made,
        drawn=drawn,
        facts=facts(material),
        servers=servers(material),
        downloads=downloads(run_dir, material, include_text=include_text),
        run=redact.manifest(material.run),
        include_text=include_text,
        most_rows=MOST_ROWS,
        fill=command(None),
    )


def script_json(value: Any) -> str:
    """JSON that can stand in a script element: nothing in it can end the element or start a comment."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


@dataclass(frozen=True, slots=True, kw_only=True)
class Download:
    """One file inside the report; ``href`` is empty where it was too large, ``note`` says so."""

    name: str
    what: str
    href: str
    note: str


def downloads(run_dir: Path, material: Material, *, include_text: bool) -> list[Download]:
    """The raw rows, the manifest and the frames, as links that need no network."""
    rows, _ = frames.read_rows(run_dir)
    what = f"every raw row ({number(len(rows))})"
    tables = {
        "hits.csv": ("hit lengths by configuration, prompt length and send", material.hits),
        "latency.csv": ("time to first token", material.latency),
        "sweep.csv": ("retention sweep", material.sweep),
        "blocks.csv": ("block ranges of the lookups shown", material.blocks),
        "comparisons.csv": ("compared answers", material.comparisons),
        "generations.csv": ("streamed answers", material.generations),
    }
    if len(rows) > MOST_RAW_ROWS:
        made = [Download(name="rows.jsonl", what=what, href="", note="too many to embed: left in the run directory")]
    else:
        shared = (redact.row(row, include_text=include_text) for row in rows)
        lines = "".join(json.dumps(row, ensure_ascii=False, sort_keys=True) + "\n" for row in shared)
        made = [_download("rows.jsonl", what, lines)] if rows else []
    made += [_download(name, what, table.to_csv(index=False)) for name, (what, table) in tables.items() if len(table)]
    manifest = json.dumps(redact.manifest(material.run), indent=1, ensure_ascii=False, sort_keys=True)
    return [*made, _download("run.json", "the run's manifest, shortened for sharing", manifest)]


def _download(name: str, what: str, text: str) -> Download:
    data, kind = text.encode(), "application/json" if name.endswith("json") else "text/plain"
    if len(data) > PLAIN_BYTES:
        # A fixed time stamp: equal rows give equal bytes.
        data, kind, name = gzip.compress(data, 9, mtime=0), "application/gzip", f"{name}.gz"
    if len(data) > MOST_BYTES:
        return Download(
            name=name, what=what, href="", note=f"{number(len(data) / 2**20)} MiB compressed: left in the run directory"
        )
    href = f"data:{kind};base64,{base64.b64encode(data).decode()}"
    return Download(name=name, what=what, href=href, note=f"{number(max(round(len(data) / 1024), 1))} KiB")


class _Drawn:
    """A figure ready for the page: title as text, a specification for Vega, an SVG for readers without scripts."""

    def __init__(self, figure: Figure) -> None:
        spec = themed(figure.chart)
        title = spec.pop("title", {})
        self.id = figure.id
        self.title = _joined(title.get("text"))
        self.subtitle = _joined(title.get("subtitle"))
        svg = str(vl_convert.vegalite_to_svg(spec))
        self.svg = Markup(_own_ids(svg, figure.id).replace("<svg ", '<svg aria-hidden="true" ', 1))
        spec.pop("config")
        plot, columns = _plot_width(spec)
        # What the drawing takes beside its plots is known here; the page gives the plots whatever room is left.
        beside = [round(_svg_width(svg) - plot * columns, 1)]
        if columns > 1:
            narrow = str(vl_convert.vegalite_to_svg({**spec, "columns": 1, "config": vega_config()}))
            beside.append(round(_svg_width(narrow) - plot, 1))
        self.embedded = {"spec": spec, "plot": plot, "columns": columns, "beside": beside}


def _svg_width(svg: str) -> float:
    return float(svg.split('width="', 1)[1].split('"', 1)[0])


def _own_ids(svg: str, prefix: str) -> str:
    """The SVG with ids of its own: Vega counts them over a whole process, and a page needs unique ones."""
    found = dict.fromkeys(re.findall(r'\bid="([a-z]+\d+)"', svg))
    names = {old: f"{prefix}-{place}" for place, old in enumerate(found)}
    return re.sub(
        r'(?<=id=")[a-z]+\d+(?=")|(?<=url\(#)[a-z]+\d+(?=\))',
        lambda match: names.get(match.group(0), match.group(0)),
        svg,
    )


def _plot_width(spec: dict[str, Any]) -> tuple[float, int]:
    if "spec" in spec:
        facet = spec["facet"].get("field")
        values = spec["data"].get("values") or spec["datasets"][spec["data"]["name"]]
        panels = {row.get(facet) for row in values}
        return float(spec["spec"]["width"]), min(int(spec.get("columns", 1)), max(len(panels), 1))
    if "vconcat" in spec:
        return float(spec["vconcat"][0]["width"]), 1
    return float(spec["width"]), 1


def _figures(headline: Figure | None, made: Sequence[Section]) -> Iterable[Figure]:
    if headline is not None:
        yield headline
    for section in made:
        yield from section.figures


def _flags(text: str) -> Markup:
    """Escaped text in which command-line flags are set as code."""
    return Markup(_FLAG.sub(r"<code>\g<0></code>", str(escape(text))))


def _joined(text: Any) -> str:
    return " ".join(text) if isinstance(text, list) else str(text or "")


def _policy(scripts: Sequence[str]) -> str:
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in scripts
    )
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; connect-src 'none'; "
        "base-uri 'none'; form-action 'none'"
    )


def _resource(name: str) -> str:
    return files("prefixscope").joinpath(f"templates/{name}").read_text(encoding="utf-8")
