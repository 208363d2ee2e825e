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
    from prefixscope.report import render_report

    folder = Path(options.run)
    if not (folder / "run.json").exists() and not (folder / "raw").is_dir():
        raise RunError(
            f"{folder} is not a run directory: it has neither run.json nor raw/", remedy="prefixscope report RUN"
        )
    out = render_report(folder, out=Path(options.out) if options.out else None, include_text=options.include_text)
    print(out)
    return DONE


def add(commands: Commands) -> None:
    """Its options and its help."""
    report = commands.add_parser("report", help="render the report of any run directory, a half-finished one too")
    report.add_argument("run", metavar="RUN")
    report.add_argument("-o", "--out", metavar="FILE", help="HTML file (default: RUN/report.html)")
    report.add_argument("--include-text", action="store_true", help="put answers' text into the report")
    report.set_defaults(call=_report)
