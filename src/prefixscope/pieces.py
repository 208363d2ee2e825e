"""A report's page in pieces: each text, table cell, chart value and embedded file under the name of its place."""

from __future__ import annotations

import base64
import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

from prefixscope.errors import ReportError

MOST_BYTES = 300_000_000
"""Of one embedded file, unpacked: what claims to be more is not unpacked."""

_TEXTS = {"title", "h1", "h2", "h3", "p", "li", "dt", "dd", "td", "th", "caption", "summary", "pre", "figcaption",
          "time", "footer", "span", "text"}  # fmt: skip
_CALLED = {"td": "cell", "th": "heading", "p": "paragraph", "li": "item", "dt": "term", "dd": "value",
           "pre": "command", "h1": "headline", "h2": "heading", "h3": "finding", "text": "label"}  # fmt: skip
_VOID = {"meta", "br", "img", "input", "link", "hr", "col", "wbr"}
_PACKED = re.compile(r"data:[a-z/]+;base64,([A-Za-z0-9+/=]*)")


@dataclass(slots=True)
class Pieces:
    """Place → text, in reading order; ``drawings`` are the figures without scripts, ``files`` what is embedded."""

    made: dict[str, Any] | None = None
    texts: dict[str, str] = field(default_factory=dict)
    values: dict[str, str] = field(default_factory=dict)
    drawings: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)


def read(page: str) -> Pieces:
    """The pieces of a page.

    Raises
    ------
    ReportError
        where an embedded file or the charts' data are damaged.
    """
    reader = _Reader()
    try:
        reader.feed(page)
        reader.close()
        return reader.found
    except (ValueError, RecursionError, OSError, EOFError, zlib.error) as error:
        raise ReportError(
            f"the report is damaged: {type(error).__name__}: {str(error)[:200]}",
            cause="it was cut off or changed on its way",
            remedy="get it again",
        ) from error


def unpacked(page: str) -> str:
    """The page with each embedded file as it reads: how it was compressed depends on the compressor."""
    return _PACKED.sub(lambda match: _text_of(match[1]), page)


def _text_of(packed: str) -> str:
    data = base64.b64decode(packed, validate=True)
    if data[:2] == b"\x1f\x8b":
        with gzip.open(io.BytesIO(data)) as file:
            data = file.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise ValueError(f"an embedded file unpacks to more than {MOST_BYTES:,} bytes")
    return data.decode()


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.found = Pieces()
        self.section, self.figure, self.script = "page", "", ""
        self.open: list[tuple[str, list[str]]] = []
        self.counts: dict[str, int] = {}
        self.caption, self.columns, self.row = "", [""], 0
        self.svg: list[str] | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if self.svg is not None:
            self.svg.append(self.get_starttag_text() or "")
        if tag == "meta" and given.get("name") == "generator":
            self._made(given.get("content", ""))
        elif tag == "section" or given.get("id") == "verdict":
            self.section = given.get("id", "page")
        elif tag == "table":
            self.caption, self.columns, self.row = "", [], 0
        elif tag == "tr":
            self.row += 1
            self.place = 0
        elif tag == "script":
            self.script = given.get("id", "code")
        elif tag == "svg":
            self.svg = [self.get_starttag_text() or ""]
        elif tag == "a" and "download" in given:
            match = _PACKED.fullmatch(given.get("href", ""))
            if match is None:
                raise ValueError(f"the link {given['download'][:60]} holds no file")
            self.found.files[given["download"].removesuffix(".gz")] = _text_of(match[1])
        if "data-chart" in given:
            self.figure = given["data-chart"]
        if tag in _TEXTS and tag not in _VOID:
            self.open.append((tag, []))

    def handle_data(self, data: str) -> None:
        if self.script:
            if self.script == "specs":
                self._charts(data)
        elif self.open:
            self.open[-1][1].append(data)
        if self.svg is not None:
            self.svg.append(data)

    def handle_endtag(self, tag: str) -> None:
        if self.svg is not None:
            self.svg.append(f"</{tag}>")
        if tag == "script":
            self.script = ""
        elif tag == "svg" and self.svg is not None:
            self.found.drawings[self._once(f"figure {self.figure}, drawn without scripts")] = "".join(self.svg)
            self.svg = None
        elif self.open and self.open[-1][0] == tag:
            _, parts = self.open.pop()
            self._text(tag, " ".join("".join(parts).split()))

    def _text(self, tag: str, text: str) -> None:
        if tag == "caption":
            self.caption = text[:60]
        if tag == "th":
            self.columns.append(text)
        if tag == "td":
            column = self.columns[self.place] if self.place < len(self.columns) else str(self.place)
            self.place += 1
            place = f"{self.section}: table “{self.caption}”, row {self.row - 1}, {column}"
        elif tag == "li" and self.section == "data":
            place = f"data: {text.partition(':')[0].removesuffix('.gz')}"
        elif self.svg is not None:
            place = f"figure {self.figure}, drawn without scripts: label"
        else:
            place = f"{self.section}: {_CALLED.get(tag, tag)}"
        if text:
            self.found.texts[self._once(place)] = text

    def _once(self, place: str) -> str:
        """The place, numbered from its second time on."""
        self.counts[place] = count = self.counts.get(place, 0) + 1
        return place if count == 1 else f"{place} {count}"

    def _made(self, text: str) -> None:
        try:
            made = json.loads(text)
        except ValueError:
            return
        self.found.made = made if isinstance(made, dict) else None

    def _charts(self, text: str) -> None:
        for name, chart in sorted(json.loads(text)["charts"].items()):
            self.found.values.update(_flat(chart, f"figure {name}"))


def _flat(value: Any, place: str) -> Iterator[tuple[str, str]]:
    """Every leaf of a chart under its path; rows of data under their number."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            if name == "datasets":
                # They are named after their content, which may be what differs.
                for number, rows in enumerate(item.values(), 1):
                    yield from _flat(rows, f"{place}, data {number}")
            elif not (name == "name" and place.endswith(", data")):
                yield from _flat(item, f"{place}, {name}")
    elif isinstance(value, list):
        for number, item in enumerate(value, 1):
            yield from _flat(item, f"{place}, row {number}" if isinstance(item, Mapping) else f"{place}[{number}]")
    else:
        yield place, json.dumps(value)
