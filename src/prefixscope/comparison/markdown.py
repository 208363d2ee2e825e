"""A comparison as GitHub-flavoured Markdown, to paste into an issue; names from outside are text there, not markup."""

from __future__ import annotations

import re

from prefixscope.comparison.sheet import sections
from prefixscope.comparison.whole import Comparison
from prefixscope.comparison.words import headline, lead, unfinished
from prefixscope.sections import Section, Table

MOST_CHARACTERS = 60_000
"""GitHub takes 65,536 in an issue or a comment."""
MOST_ROWS = 100
_MARKS = re.compile(r"([\\`*_{}\[\]|#~])")
_CODE = re.compile(r"`([^`\n]+)`")


def to_markdown(found: Comparison) -> str:
    """The whole comparison; of one too long for GitHub the folded tables are shortened, and it says so."""
    for most in (MOST_ROWS, 40, 12, 3):
        text = _text(found, most)
        if len(text) <= MOST_CHARACTERS:
            return text
    return text[: MOST_CHARACTERS - 40].rpartition("\n")[0] + "\n\n(cut: too long for GitHub)\n"


def _text(found: Comparison, most: int) -> str:
    parts = [f"**{_plain(label)}.** {_plain(text)}" for label, text in unfinished(found)]
    for pair in found.pairs:
        parts += [f"### {_plain(headline(pair))}", _plain(" ".join(lead(pair)))]
    parts += [_section(one, most) for one in sections(found)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _section(one: Section, most: int) -> str:
    parts = [f"#### {_plain(one.title)}"]
    # What to look for in a figure is left out with it.
    parts += [_plain(text) for text in one.before if not one.figures]
    parts += [f"**{_plain(label)}.** {_plain(text)}" for label, text in one.findings]
    parts += [_table(table, most) for table in one.tables]
    parts += [_plain(text) for text in one.after]
    return "\n\n".join(parts)


def _table(one: Table, most: int) -> str:
    rule = ["---:" if name in one.numeric else "---" for name in one.columns]
    lines = [_row([_plain(name) for name in one.columns]), _row(rule)]
    lines += [_row([_plain(cell) for cell in row]) for row in one.rows[:most]]
    text = "\n".join(lines)
    if len(one.rows) > most:
        text += f"\n\n{len(one.rows) - most:,} more rows are in the HTML form and in `--json`."
    caption = _plain(one.caption)
    if one.fold or len(one.rows) > 12:
        return f"<details><summary>{caption} ({len(one.rows):,} rows)</summary>\n\n{text}\n\n</details>"
    return f"{caption}\n\n{text}"


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _plain(text: str) -> str:
    """Text that stays text on GitHub: no markup, no element, no mention. What stands between backticks is code."""
    parts = _CODE.split(" ".join(text.split()))
    return "".join(f"`{part.replace('|', ' ')}`" if place % 2 else _escaped(part) for place, part in enumerate(parts))


def _escaped(text: str) -> str:
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _MARKS.sub(r"\\\1", text).replace("@", "@<!-- -->")
