"""One look for every chart and page: the same colour for the same thing everywhere.

The hues are Okabe and Ito's, which stay apart for colour-blind readers; every figure also differs in shape,
position or text, so that it can be read in grey. White text on any of them has a contrast of at least 4 to 1;
on dark paper ``DARK`` gives each a lighter twin, so that labels in these colours stay readable there.

| thing | colour | second sign |
|---|---|---|
| cold | grey | first row of its group |
| send 2 | blue | label |
| send 3 | green | label, hollow ring |
| stored, kept | blue | filled bar |
| needed | grey | outline |
| dropped | grey | dashed outline |
| missing | vermilion | light with a strong edge, crossed, and named in text |
| evicted | purple | thin, and named in text |
| hit, miss, nothing to hit | blue, vermilion, grey | point, cross, ring |
| measured | blue | filled |
| predicted | ochre | hollow diamond |
| recommended | green | ring, and named in text |
| arm A, arm B | blue, grey | label |
"""

from __future__ import annotations

from typing import Any

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Liberation Sans', Arial, sans-serif"

GREY, BLUE, GREEN, VERMILION, ORANGE, PURPLE, SKY = (
    "#717882",
    "#0b78b5",
    "#08805f",
    "#c24d05",
    "#9f6a00",
    "#96527f",
    "#3a8fc4",
)

SEND_COLOURS = {"send 1 (cold)": GREY, "send 2": BLUE, "send 3": GREEN}
BLOCK_COLOURS = {
    "stored": BLUE,
    "kept": BLUE,
    "needed": GREY,
    "dropped": GREY,
    "missing": VERMILION,
    "evicted": PURPLE,
}
MEASURED, PREDICTED, RECOMMENDED = BLUE, ORANGE, GREEN
LOOKUP_COLOURS = {"nothing to hit": GREY, "hit": BLUE, "miss": VERMILION}
ARM_COLOURS = {"A": BLUE, "B": GREY}
CLASS_COLOURS = {
    "identical": BLUE,
    "whitespace": PURPLE,
    "markup": ORANGE,
    "words": VERMILION,
    "void": GREY,
    "not compared": GREY,
}
SERIES = (BLUE, PURPLE, GREEN, ORANGE, SKY, GREY, VERMILION)
"""Colours for things with no meaning of their own (prompt lengths), in order."""

DARK = {
    GREY: "#8a929c",
    BLUE: "#2a8fca",
    GREEN: "#1f9a76",
    VERMILION: "#e0702a",
    ORANGE: "#b98114",
    PURPLE: "#b56f9e",
    SKY: "#58a9da",
}
"""What a colour becomes in the dark scheme."""

INK = {"light": "#1c2024", "dark": "#e8eaed"}
QUIET = {"light": "#667079", "dark": "#a0a8b2"}
LINE = {"light": "#dfe3e8", "dark": "#3a4048"}
PAPER = {"light": "#ffffff", "dark": "#15181c"}


def vega_config(scheme: str = "light") -> dict[str, Any]:
    """The Vega-Lite ``config`` of one colour scheme: thin axes, quiet grid, left-aligned titles.

    Charts never name the ink colour themselves, so a page can switch schemes by switching this config.
    """
    ink, quiet, line = INK[scheme], QUIET[scheme], LINE[scheme]
    return {
        "background": "transparent" if scheme == "dark" else PAPER["light"],
        "font": FONT,
        "view": {"stroke": None},
        "padding": {"left": 4, "right": 12, "top": 4, "bottom": 4},
        "title": {
            "anchor": "start",
            "frame": "group",
            "color": ink,
            "subtitleColor": quiet,
            "fontSize": 14,
            "fontWeight": 600,
            "subtitleFontSize": 12,
            "subtitlePadding": 4,
            "offset": 12,
        },
        "axis": {
            "domainColor": line,
            "tickColor": line,
            "gridColor": line,
            "gridOpacity": 0.7,
            "labelColor": quiet,
            "titleColor": quiet,
            "labelFontSize": 11,
            "titleFontSize": 11,
            "titleFontWeight": "normal",
            "titlePadding": 8,
            "labelLimit": 260,
            "tickSize": 4,
        },
        "axisY": {"domain": False, "ticks": False, "labelPadding": 8},
        "axisBand": {"grid": False},
        "header": {
            "labelColor": ink,
            "labelFontSize": 12,
            "labelFontWeight": 600,
            "labelAnchor": "start",
            "labelLimit": 420,
            "title": None,
        },
        "legend": {"labelColor": quiet, "titleColor": quiet, "labelFontSize": 11, "titleFontSize": 11, "orient": "top"},
        "text": {"color": ink, "fontSize": 11},
        "rule": {"color": quiet},
        "tick": {"color": ink},
        "rect": {"stroke": None},
        "line": {"strokeWidth": 2},
        "point": {"size": 55, "filled": True, "opacity": 1},
    }
