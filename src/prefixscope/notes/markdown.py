"""Markdown in which nobody's text can do anything: it ends no fence, opens no tag, pings nobody, links nowhere.

Whatever goes into a template is made inert unless it is :class:`Markdown` already. Inside code GitHub looks for no
mention and no reference; in running text a zero-width space keeps ``@name`` and ``#1`` from being one.
"""

from __future__ import annotations

import html
import re
import shlex
from collections.abc import Iterable, Sequence
from typing import Any

import jinja2

from prefixscope import page, redact
from prefixscope.notes import upstream

MOST_CHARACTERS = 2_000
"""Of one sentence: what is longer was not meant to be read."""

_APART = "\u200b"
_SPECIAL = re.compile(r"[\\`*\[\]<>|~$]|(?<!\w)_|_(?!\w)|!(?=\[)")
_ALIVE = re.compile(r"(?<=@)(?=\w)|(?<=#)(?=\d)|(?<=GH)(?=-\d)|(?<=www)(?=\.)|(?<=:)(?=//)", re.IGNORECASE)
_STARTS = re.compile(r"^(?:([+-](?=\s|$)|#(?=#*(?:\s|$))|[-=](?=[-=\s]*$))|(\d+)([.)](?=\s|$)))")
"""A paragraph's beginning that would make it a list, a heading or a rule."""
_SAFE = re.compile(r"[\w@%+=:,./…-]+")
_REFERENCE = re.compile(r"\b[A-Za-z][\w-]*#\d+\b")


class Markdown(str):
    """Text that is Markdown already."""


def render(template: str, **values: Any) -> str:
    """A template's text; what it prints is made inert."""
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(page.resource),
        finalize=lambda value: value if isinstance(value, Markdown) else inert(value),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,  # Markdown, not HTML: ``finalize`` does it
    )
    return _tidy(environment.get_template(template).render(**values))


def _tidy(text: str) -> str:
    """The text without a second empty line in a row; what stands in a fence stays as it is."""
    lines: list[str] = []
    ticks = ""
    for line in text.split("\n"):
        fenced = re.match("`{3,}", line)
        if fenced is not None and (not ticks or line.rstrip() == ticks):
            ticks = "" if ticks else fenced[0]
        line = line if ticks else line.rstrip()
        if line or ticks or (lines and lines[-1]):
            lines.append(line)
    return "\n".join(lines).strip("\n") + "\n"


def inert(value: object) -> Markdown:
    """One line of text without any effect; flags are set as code, and references that we know ourselves are links."""
    text = " ".join(redact.clean(value, limit=MOST_CHARACTERS).split())
    out, at = [], 0
    for found in page.FLAG.finditer(text):
        out += [_prose(text[at : found.start()]), code(found[1] or found[2])]
        at = found.end()
    whole = "".join((*out, _prose(text[at:])))
    return Markdown(_STARTS.sub(lambda start: f"{start[2] or ''}\\{start[1] or start[3]}", whole))


def _prose(text: str) -> str:
    out, at = [], 0
    for found in _REFERENCE.finditer(text):
        if (known := upstream.link(found[0])) is not None:
            out += [_plain(text[at : found.start()]), f"[{found[0]}]({known})"]
            at = found.end()
    return "".join((*out, _plain(text[at:])))


def _plain(text: str) -> str:
    return _SPECIAL.sub(r"\\\g<0>", _ALIVE.sub(_APART, text).replace("&", "&amp;"))


def code(value: object) -> Markdown:
    """Text as inline code, whatever backticks it holds."""
    text = " ".join(str(value).split())
    ticks = "`" * (_longest(text) + 1)
    space = " " if text.startswith("`") or text.endswith("`") else ""
    return Markdown(f"{ticks}{space}{text}{space}{ticks}") if text else Markdown("")


def fence(value: object, language: str = "text") -> Markdown:
    """Text in a fence that nothing in it ends."""
    text = str(value).rstrip("\n")
    ticks = "`" * max(_longest(text) + 1, 3)
    return Markdown(f"{ticks}{language}\n{text}\n{ticks}")


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, numeric: Iterable[str] = ()) -> Markdown:
    """A table; ``numeric`` columns align right."""
    right = set(numeric)
    lines = [_line(columns), _line([Markdown("---:" if name in right else "---") for name in columns])]
    return Markdown("\n".join([*lines, *map(_line, rows)]))


def _line(cells: Iterable[object]) -> str:
    made = (cell if isinstance(cell, Markdown) else inert(cell) for cell in cells)
    return "| " + " | ".join(re.sub(r"(?<!\\)\|", r"\\|", cell) for cell in made) + " |"


def folded(summary: str, body: Markdown) -> Markdown:
    """A part that GitHub shows closed."""
    title = _ALIVE.sub(_APART, html.escape(redact.clean(summary, limit=200)))
    return Markdown(f"<details>\n<summary>{title}</summary>\n\n{body}\n\n</details>")


def bullets(items: Iterable[object]) -> Markdown:
    """A list."""
    return Markdown("\n".join(f"- {item if isinstance(item, Markdown) else inert(item)}" for item in items))


def command_lines(command: str) -> str:
    """A command with each flag on a line of its own; as it is where it can't be split."""
    try:
        words = shlex.split(command)
    except ValueError:
        return command
    lines: list[list[str]] = [[]]
    for word in words:
        if word.startswith("--") and lines[-1]:
            lines.append([])
        lines[-1].append(word)
    return " \\\n  ".join(" ".join(map(_quoted, line)) for line in lines)


def _quoted(word: str) -> str:
    # As shlex.quote does, but a folder that was shortened to … needs no quotes to be read.
    return word if _SAFE.fullmatch(word) else shlex.quote(word)


def without_variables(command: str) -> tuple[list[str], str]:
    """The variables that stand before a command, and the command."""
    found, rest = [], command
    while (one := re.match(r"[A-Za-z_]\w*=(?:'[^']*'|[^\s'])*\s+", rest)) is not None:
        found.append(one[0].strip())
        rest = rest[one.end() :]
    return found, rest


def _longest(text: str) -> int:
    return max((len(run) for run in re.findall("`+", text)), default=0)
