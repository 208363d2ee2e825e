"""``prefixscope report``: a run directory as one page, and such a page made again from what it embeds."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from prefixscope.cli.exits import DONE, FAILED, USAGE, complain
from prefixscope.errors import ReportError, RunError

if TYPE_CHECKING:
    from prefixscope.cli.exits import Commands

MOST_SHOWN = 10


def _report(options: argparse.Namespace) -> int:
    if options.verify:
        others = (options.run, options.out, options.include_text, options.incident, options.for_issue, options.csv)
        if any(others):
            raise RunError("--verify takes a report alone", remedy="prefixscope report --verify FILE")
        return _verify(Path(options.verify))
    if not options.run:
        raise RunError("name a run directory, or a report to verify", remedy="prefixscope report RUN")
    from prefixscope.report import render_report

    folder = Path(options.run)
    if not (folder / "run.json").exists() and not (folder / "raw").is_dir():
        raise RunError(
            f"{folder} is not a run directory: it has neither run.json nor raw/", remedy="prefixscope report RUN"
        )
    out = Path(options.out) if options.out else None
    if options.incident or options.for_issue or options.csv:
        return _note(folder, out, options)
    out = render_report(folder, out=out, include_text=options.include_text)
    print(out)
    print(_digest(out))
    if options.include_text:
        print("answers are in it; prompts are not: a run keeps their seed, length and digest, never their text")
    return DONE


def _note(folder: Path, out: Path | None, options: argparse.Namespace) -> int:
    from prefixscope import notes

    if options.include_text:
        raise RunError("--include-text goes with the HTML report: no other form holds answers")
    if options.csv:
        if out is not None:
            raise RunError("--csv names its folder itself", remedy="leave -o out")
        notes.write_csv(folder, options.csv)
        print(options.csv)
    else:
        print((notes.write_incident if options.incident else notes.write_issue)(folder, out=out))
    return DONE


def _digest(file: Path) -> str:
    import hashlib

    data = file.read_bytes()
    return f"sha256 {hashlib.sha256(data).hexdigest()}, {len(data):,} bytes"


def _verify(file: Path) -> int:
    from prefixscope.quantities import count
    from prefixscope.verify import verify

    try:
        found = verify(file)
    except ReportError as error:
        return complain(error, USAGE)
    print(f"{file}: sha256 {found.digest}")
    compared = ", ".join(f"{number:,} {what}" for what, number in found.compared.items())
    if found.agrees:
        how = "the same to the byte" if found.identical else "the same in every place compared"
        print(f"agrees: made again from the rows it embeds, it is {how} ({compared})")
    else:
        print(f"differs: {count(len(found.differences), 'place')} of {compared}")
        for one in found.differences[:MOST_SHOWN]:
            print(f"  {one}")
        if len(found.differences) > MOST_SHOWN:
            print(f"  … and {len(found.differences) - MOST_SHOWN:,} more")
    for what in found.unverifiable:
        print(f"not verifiable from this file: {what}")
    return DONE if found.agrees else FAILED


def add(commands: Commands) -> None:
    """Its options and its help."""
    report = commands.add_parser("report", help="render the report of any run directory, a half-finished one too")
    report.add_argument("run", metavar="RUN", nargs="?")
    report.add_argument("-o", "--out", metavar="FILE", help="where to write it (default: RUN/report.html)")
    form = report.add_mutually_exclusive_group()
    form.add_argument("--incident", action="store_true", help="an incident note instead: RUN/incident.md, with figures")
    form.add_argument("--for-issue", action="store_true", help="a bug report in the shape of vLLM's form: RUN/issue.md")
    form.add_argument("--csv", metavar="DIR", help="every frame as CSV, and what its columns mean")
    report.add_argument("--include-text", action="store_true", help="put answers' text into the report")
    report.add_argument(
        "--verify",
        metavar="FILE",
        help="make a report again from the rows it embeds and say what differs (exit 0 agrees, 1 differs, 2 can't)",
    )
    report.set_defaults(call=_report)
