"""``prefixscope compare``: two or more runs, what changed between them, one exit code."""

from __future__ import annotations

import argparse
import json
import shutil
from typing import TYPE_CHECKING

from prefixscope.cli.exits import file_to_write
from prefixscope.cli.screen import say
from prefixscope.errors import ReportError, RunError, mask

if TYPE_CHECKING:
    from prefixscope.cli.exits import Commands

_PAGES, _TEXTS = (".html", ".htm"), (".md", ".markdown")


def _compare(options: argparse.Namespace) -> int:
    from prefixscope import comparison, page

    out = file_to_write(options.out) if options.out else None
    if out is not None and out.suffix.lower() not in (*_PAGES, *_TEXTS):
        raise RunError(
            f"-o {options.out}: its name does not end as that of a page (.html) or a Markdown file (.md) does",
            remedy="name a file that ends in .html or .md",
        )
    found = comparison.compare(options.runs)
    if out is not None:
        try:
            written = (
                comparison.render_comparison(found, out)
                if out.suffix.lower() in _PAGES
                else page.write(comparison.to_markdown(found), out)
            )
        except ReportError as error:
            raise RunError(error.what, cause=error.cause, remedy=error.remedy) from error
        say(f"wrote {written}")
    if options.json:
        print(mask(json.dumps(comparison.to_json(found, comparison.sentence(found)), indent=2)))
    else:
        print(mask(_shown(comparison.to_text(found, min(shutil.get_terminal_size((100, 24)).columns, 120)))))
    return found.exit_code


def _shown(text: str) -> str:
    """Without what a name of a server's could do to a terminal."""
    return "".join(one if one.isprintable() or one == "\n" else "�" for one in text)


def add(commands: Commands) -> None:
    """Its options and its help."""
    command = commands.add_parser(
        "compare",
        help="two or more runs: what changed in settings, what in results, and what is noise",
        description="Compare runs with the first of them: before and after, machine against machine, release against "
        "release, interval against interval. Only what was asked alike is compared; the rest is listed.",
        epilog="exit codes: 0 nothing worse · 1 a hit length is lower or a verdict worse · 2 usage, unreadable, the "
        "same run twice (a changed copy of it too) · 3 can't tell (nothing in common, unfinished, failed, not "
        "reported, repeats that overlap). Times and rates change no exit code, but of runs that were asked for no hit "
        "length: 0 where all else is the same or within noise, else 3.",
    )
    command.add_argument(
        "runs",
        metavar="RUN",
        nargs="+",
        help="run directory or report.html; the first is what the others are held against",
    )
    command.add_argument(
        "-o", "--out", metavar="FILE", help="write it as a page (.html) or as Markdown for GitHub (.md)"
    )
    command.add_argument("--json", action="store_true", help="every number as JSON on stdout")
    command.set_defaults(call=_compare)
