"""Charts in notebooks and files without a network: SVG and PNG, drawn here, not in the browser.

JupyterLab 4 draws no Vega-Lite 6 by itself, and shows an untrusted notebook's SVG as text; a bundle of SVG and PNG
shows in every case.
"""

from __future__ import annotations

import re
import struct
from typing import Any

import vl_convert

from prefixscope.theme import vega_config

Bundle = dict[str, Any]
ROOMY = {"left": 18, "right": 30, "top": 5, "bottom": 5}
"""Padding in px: a browser draws an SVG's text in a font of its own, wider than the one measured here at times."""

_NOT_XML = re.compile("[^\\t\\n\\r\\x20-\\ud7ff\\ue000-\\ufffd\\U00010000-\\U0010ffff]")


def themed(chart: Any, scheme: str = "light") -> dict[str, Any]:
    """A chart's Vega-Lite specification with our look and no other."""
    spec: dict[str, Any] = _drawable(chart.to_dict(validate=False))
    return {**spec, "config": vega_config(scheme)}


def _drawable(value: Any) -> Any:
    """The specification without characters that no SVG may hold: vl-convert ends the process on one."""
    if isinstance(value, str):
        return _NOT_XML.sub("", value)
    if isinstance(value, dict):
        return {_drawable(key): _drawable(item) for key, item in value.items()}
    return [_drawable(item) for item in value] if isinstance(value, list) else value


def _padded(chart: Any) -> dict[str, Any]:
    return {**themed(chart), "padding": ROOMY}


def to_svg(chart: Any) -> str:
    """The chart as SVG text, with room for a wider font."""
    return str(vl_convert.vegalite_to_svg(_padded(chart)))


def to_png(chart: Any, *, scale: float = 2) -> bytes:
    """The chart as PNG bytes, ``scale`` times its size in px."""
    return bytes(vl_convert.vegalite_to_png(_padded(chart), scale=scale))


def mimebundle(chart: Any, *, scale: float = 2) -> tuple[Bundle, Bundle]:
    """Data and metadata of one chart for Jupyter: SVG, and PNG at screen size, and its title as text."""
    png = to_png(chart, scale=scale)
    width, height = struct.unpack(">II", png[16:24])
    data = {"image/svg+xml": to_svg(chart), "image/png": png, "text/plain": title_of(chart)}
    return data, {"image/png": {"width": round(width / scale), "height": round(height / scale)}}


def title_of(chart: Any) -> str:
    """The finding that a chart states, in one line."""
    title = themed(chart).get("title", "")
    text = title.get("text", "") if isinstance(title, dict) else title
    return " ".join(text) if isinstance(text, list) else str(text)


class Figure:
    """A chart that shows itself in any notebook, or a note where there is nothing to draw.

    Parameters
    ----------
    chart : an Altair chart, or None.
    missing : what to say for None: what would fill the figure.
    """

    def __init__(self, chart: Any, *, missing: str = "Nothing measured for this figure yet.") -> None:
        self.chart, self.missing = chart, missing

    def __repr__(self) -> str:
        return self.missing if self.chart is None else title_of(self.chart)

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> Any:
        return {"text/plain": self.missing} if self.chart is None else mimebundle(self.chart)


def show(chart: Any, *, missing: str = "Nothing measured for this figure yet.") -> Figure:
    """The chart as a notebook shows it; as a cell's last line it draws."""
    return Figure(chart, missing=missing)
