"""``prefixscope report``: a run directory as one page, and such a page made again from what it embeds."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from prefixscope.cli.exits import DONE, FAILED, USAGE, complain, file_to_write
from prefixscope.cli.screen import say
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
        raise RunError(
            "name a run directory, or a report to verify",
            remedy="prefixscope report RUN, with the folder that prefixscope run wrote, or prefixscope report "
            "--verify FILE",
        )
    from prefixscope import frames, redact
    from prefixscope.report import render_report

    folder = Path(options.run)
    if not _is_run(folder):
        raise _no_run(folder)
    out = file_to_write(options.out) if options.out else None
    _tell_unfinished(folder)
    if options.incident or options.for_issue or options.csv:
        return _note(folder, out, options)
    out = render_report(folder, out=out, include_text=options.include_text)
    print(out)
    print(_digest(out))
    for problem in frames.problems(folder):
        print(f"warning: {redact.clean(problem)}", file=sys.stderr)
    if options.include_text:
        print("answers are in it; prompts are not: a run keeps their seed, length and digest, never their text")
    return DONE


def _tell_unfinished(folder: Path) -> None:
    """Which stages are not done, and the command that goes on, before the page that lacks them."""
    from prefixscope import frames, standing
    from prefixscope.run_files import is_held

    go_on = "" if is_held(folder / standing.LOCK) else f"prefixscope run -o {shlex.quote(str(folder))} --resume"
    if line := standing.of_run(frames.load_run(folder)).line(go_on):
        say(line)


def _is_run(folder: Path) -> bool:
    return (folder / "run.json").exists() or (folder / "raw").is_dir()


def _no_run(folder: Path) -> RunError:
    """What a path that is no run directory is instead, and the command that goes on from there."""
    here = shlex.quote(str(folder))
    new = f"measure one: prefixscope run -o {here}"
    if not folder.exists():
        return RunError(f"{folder}: no such file or folder", remedy=f"check the path, or {new}")
    if not folder.is_dir():
        html = folder.suffix in (".html", ".htm")
        remedy = f"of a report: prefixscope report --verify {here}" if html else "name the folder that a run wrote"
        return RunError(f"{folder} is not a run directory: it is a file", remedy=remedy)
    what = f"{folder} is not a run directory: it has neither run.json nor raw/"
    if not any(folder.iterdir()):
        return RunError(what, cause="the folder is empty: nothing was measured into it yet", remedy=new)
    inside = sorted(one for one in folder.iterdir() if _is_run(one))
    if inside:
        cause = f"runs are in it: {', '.join(one.name for one in inside[:MOST_SHOWN])}"
        return RunError(what, cause=cause, remedy=f"prefixscope report {shlex.quote(str(inside[-1]))}")
    if any(folder.glob("*.jsonl")):
        cause = "it holds .jsonl files, as a folder of traces does"
        return RunError(what, cause=cause, remedy=f"prefixscope trace show {here}")
    return RunError(what, cause="it holds other files", remedy="name the folder that prefixscope run wrote")


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
        print(
            "that shows that what is drawn and told follows from these rows; that they are the rows that were measured "
            "only the sha256 above shows, if who made the file gives you the same one"
        )
    else:
        places = f"{count(len(found.differences), 'place')} of {compared}"
        if found.edits:
            print(f"differs: {count(len(found.edits), 'place')} of what the page was made from, edited since:")
            _listed(found.edits)
        if found.differences:
            print(f"so these no longer follow: {places}" if found.edits else f"differs: {places}")
            _listed(found.differences)
    for what in found.unverifiable:
        print(f"not verifiable from this file: {what}")
    return DONE if found.agrees else FAILED


def _listed(places: Sequence[object]) -> None:
    for one in places[:MOST_SHOWN]:
        print(f"  {one}")
    if len(places) > MOST_SHOWN:
        print(f"  … and {len(places) - MOST_SHOWN:,} more")


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
