"""Figures and words → one HTML file that opens offline, today and in ten years.

Vega is inlined once and draws without eval; a content security policy forbids every connection and every script but
the three written here. Without scripts the file shows the same figures as SVG.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
import vl_convert
from markupsafe import Markup, escape

from prefixscope import finished, leaks
from prefixscope.display import ROOMY, themed
from prefixscope.errors import ReportError
from prefixscope.quantities import number
from prefixscope.theme import DARK, vega_config

FLAG = re.compile(r"`([^`\n]+)`|(?<![\w-])(--[a-z][a-z-]+(?: (?:[\d,]+|None)(?![\w,]))?)")


PLAIN_BYTES, MOST_BYTES = 250_000, 600_000
"""A download up to the first is embedded as it is, up to the second compressed, above it only named."""

_NARROWEST_PX, _NARROWEST_PANEL_PX = 460, 240
"""The least width of a plot, and of one among others, where its chart says nothing else (``charts.narrowest``)."""

MOST_FIGURE_BYTES = 150_000
"""Of one figure's specification, its data included; a drawing without scripts is about as large."""

MOST_ROWS = 400
"""Rows of one table, where the data to download holds the others."""


def render(template: str, drawn: Mapping[str, Drawn], **values: Any) -> str:
    """The page's text; the template gets ``drawn`` and the values."""
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
    script = resource("report.js")
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(resource),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"flags": _flags, "whole": _whole}
    environment.globals["most_rows"] = MOST_ROWS
    return environment.get_template(template).render(
        policy=_policy([library, script]),
        style=Markup(resource("report.css")),
        library=Markup(library),
        script=Markup(script),
        data=Markup(script_json(data)),
        drawn=drawn,
        **values,
    )


def write(text: str, target: Path) -> Path:
    """Write a page, whole or not at all, and give its path; a link is followed, and stays.

    Raises
    ------
    ReportError
        where it holds the value of a secret-looking variable, or (Unwritable) the file can't be written.
    """
    leaks.refuse(text, target.name)
    return finished.write(text, target)


def script_json(value: Any) -> str:
    """JSON that can stand in a script element: nothing in it can end the element or start a comment."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


@dataclass(frozen=True, slots=True, kw_only=True)
class Download:
    """One file inside the report; ``href`` is empty where it was too large, ``note`` says so.

    ``lines`` are the digests of its lines, of a file that the report is made from.
    """

    name: str
    what: str
    href: str
    note: str
    lines: Mapping[str, Any] | None = None


def download(name: str, what: str, text: str, *, always: bool = False) -> Download:
    """The text as a link that needs no network; ``always`` embeds it whatever its size."""
    data, kind = text.encode(), "application/json" if name.endswith("json") else "text/plain"
    # Of what is in it, not of how it is packed: that depends on the compressor's version.
    note = f"{number(max(round(len(data) / 1024), 1))} KiB, sha256 {hashlib.sha256(data).hexdigest()[:16]}…"
    if len(data) > PLAIN_BYTES:
        # A fixed time stamp: equal rows give equal bytes.
        data, kind, name = gzip.compress(data, 9, mtime=0), "application/gzip", f"{name}.gz"
    if len(data) > MOST_BYTES and not always:
        size = number(len(data) / 2**20)
        return Download(name=name.removesuffix(".gz"), what=what, href="",
                        note=f"{size} MiB compressed: left in the run directory")  # fmt: skip
    href = f"data:{kind};base64,{base64.b64encode(data).decode()}"
    return Download(name=name, what=what, href=href, note=note)


@lru_cache(maxsize=1)
def fonts() -> str:
    """Which fonts figures are measured in here, as a digest: other fonts give the same figure another layout."""
    spec = {
        "data": {"values": [{"name": "0123456789 Hit lengths of MTP, 1,024 tokens"}]},
        "mark": {"type": "bar"},
        "encoding": {"y": {"field": "name", "type": "nominal"}},
        "config": vega_config(),
    }
    return hashlib.sha256(str(vl_convert.vegalite_to_svg(spec)).encode()).hexdigest()[:12]


def draw(name: str, chart: Any) -> Drawn | None:
    """The figure ready for the page; None where it has too many marks for one."""
    spec = themed(chart)
    return Drawn(name, spec) if len(script_json(spec)) <= MOST_FIGURE_BYTES else None


class Drawn:
    """A figure ready for the page: title as text, a specification for Vega, an SVG for readers without scripts."""

    def __init__(self, name: str, spec: dict[str, Any]) -> None:
        title = spec.pop("title", {})
        self.id = name
        self.title = _joined(title.get("text"))
        self.subtitle = _joined(title.get("subtitle"))
        svg = str(vl_convert.vegalite_to_svg({**spec, "padding": ROOMY}))
        self.svg = Markup(own_ids(svg, name).replace("<svg ", '<svg aria-hidden="true" ', 1))
        config = {"config": spec.pop("config")}
        plot, columns = _plot_width(spec)
        least = spec.pop("usermeta", {}).get("narrowest_px", _NARROWEST_PANEL_PX if columns > 1 else _NARROWEST_PX)
        # What the drawing takes beside its plots is known here; the page gives the plots whatever room is left.
        beside = [round(_svg_width(str(vl_convert.vegalite_to_svg(config | spec))) - plot * columns, 1)]
        for fewer in range(columns - 1, 0, -1):
            narrow = str(vl_convert.vegalite_to_svg({**spec, "columns": fewer, **config}))
            beside.append(round(_svg_width(narrow) - plot * fewer, 1))
        self.embedded = {"spec": spec, "plot": plot, "columns": columns, "beside": beside, "least": least}


def _svg_width(svg: str) -> float:
    return float(svg.split('width="', 1)[1].split('"', 1)[0])


def own_ids(svg: str, prefix: str) -> str:
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


def _flags(text: str) -> Markup:
    """Escaped text in which command-line flags, and what stands between backticks, are set as code."""
    return Markup(FLAG.sub(lambda found: f"<code>{_words_whole(found[1] or found[2])}</code>", str(escape(text))))


def _whole(command: str) -> Markup:
    """An escaped command whose words with a hyphen stay in one line where they fit into one."""
    return Markup(_words_whole(str(escape(command))))


def _words_whole(escaped: str) -> str:
    return re.sub(r"[^\s-]*-\S*", lambda word: f'<span class="whole">{word[0]}</span>', escaped)


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


def resource(name: str) -> str:
    return files("prefixscope").joinpath(f"templates/{name}").read_text(encoding="utf-8")
