"""``prefixscope report``: a run directory as one page."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from prefixscope.cli.exits import DONE
from prefixscope.errors import RunError

if TYPE_CHECKING:
    from prefixscope.cli.exits import Commands


def _report(options: argparse.Namespace) -> int:
    from prefixscope import notes
    from prefixscope.report import render_report

    folder = Path(options.run)
    if not (folder / "run.json").exists() and not (folder / "raw").is_dir():
        raise RunError(
            f"{folder} is not a run directory: it has neither run.json nor raw/", remedy="prefixscope report RUN"
        )
    out = Path(options.out) if options.out else None
    if options.csv:
        notes.write_csv(folder, options.csv)
        print(options.csv)
    elif options.incident or options.for_issue:
        print((notes.write_incident if options.incident else notes.write_issue)(folder, out=out))
    else:
        print(render_report(folder, out=out, include_text=options.include_text))
    return DONE


def add(commands: Commands) -> None:
    """Its options and its help."""
    report = commands.add_parser("report", help="render the report of any run directory, a half-finished one too")
    report.add_argument("run", metavar="RUN")
    report.add_argument("-o", "--out", metavar="FILE", help="where to write it (default: RUN/report.html)")
    form = report.add_mutually_exclusive_group()
    form.add_argument("--incident", action="store_true", help="an incident note instead: RUN/incident.md, with figures")
    form.add_argument("--for-issue", action="store_true", help="a bug report in the shape of vLLM's form: RUN/issue.md")
    form.add_argument("--csv", metavar="DIR", help="every frame as CSV, and what its columns mean")
    report.add_argument("--include-text", action="store_true", help="put answers' text into the report")
    report.set_defaults(call=_report)
