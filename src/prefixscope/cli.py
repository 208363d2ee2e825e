"""The command line: parse, one library call, print. The only module that prints or exits."""

from __future__ import annotations

import argparse
import errno
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prefixscope.errors import (
    EngineError,
    NotebookError,
    PrefixscopeError,
    ReportError,
    RunError,
    TargetError,
    TraceError,
)

DONE, FAILED, USAGE, CANNOT_TELL, INTERRUPTED = 0, 1, 2, 3, 130
POLL_S = 0.5


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: 0 done, 1 a stage failed, 2 usage or unreachable, 3 can't tell."""
    parser = _parser()
    words = list(sys.argv[1:] if argv is None else argv)
    options, more = parser.parse_known_args(words)
    if more and getattr(options, "call", None) is not _lab:
        parser.error(f"unrecognized arguments: {' '.join(more)}")
    if words[:1] == ["lab"]:  # options of Jupyter's may take values: only a first word without a dash is our folder
        rest = words[1:]
        options.directory = rest.pop(0) if rest and not rest[0].startswith("-") else "prefixscope-notebooks"
        options.more = rest
    if not hasattr(options, "call"):
        parser.print_help()
        return USAGE
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        return int(options.call(options))
    except (TargetError, RunError, NotebookError, TraceError) as error:
        return _complain(error, USAGE)
    except (EngineError, ReportError, PrefixscopeError) as error:
        return _complain(error, FAILED)
    except KeyboardInterrupt:
        return INTERRUPTED
    except PermissionError as error:
        return _complain(PrefixscopeError(f"{error.filename}: permission denied", remedy="name another place"), USAGE)
    except FileNotFoundError as error:
        return _complain(PrefixscopeError(f"{error.filename}: no such file or folder"), USAGE)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        full = PrefixscopeError(
            f"{error.filename or 'a file of the run'} could not be written: {error.strerror}",
            cause="the disk is full; all measured rows are safe",
            remedy="make room, then run again with --resume",
        )
        return _complain(full, FAILED)


def _complain(error: PrefixscopeError, code: int) -> int:
    print(f"prefixscope: {error}", file=sys.stderr)
    return code


# --- run ---------------------------------------------------------------------------------------------------------


def _run(options: argparse.Namespace) -> int:
    from prefixscope import runner

    going_on = bool(options.resume and options.out)
    if going_on:
        runner.refuse_other_target(options)
    target = runner.target_of(options)
    plan = runner.plan(target, quick=options.quick, only=options.only, assignments=options.parameter)
    if going_on:
        runner.add_stored(plan, Path(options.out))
    if options.dry_run:
        print(json.dumps(plan.to_json(), indent=2) if options.json else plan.text())
        return DONE
    screen = Screen()
    result = runner.run(target, plan, out=options.out, resume=options.resume, screen=screen)
    if options.json:
        print(json.dumps(result.to_json(), indent=2))
    else:
        print(result.text())
    return result.exit_code


class Screen:
    """Progress on stderr: one line that renews itself on a terminal, a line every 20 s elsewhere."""

    def __init__(self) -> None:
        self.live = sys.stderr.isatty()
        self._last = ""
        self._at = 0.0

    def line(self, text: str) -> None:
        """A line that stays."""
        if self.live and self._last:
            print("\r\x1b[2K", end="", file=sys.stderr)
        print(text, file=sys.stderr, flush=True)
        self._last = ""

    def progress(self, snapshot: dict[str, Any]) -> None:
        """Where a stage is."""
        left = snapshot.get("left_s")
        steps = f"{snapshot['step']}/{snapshot['steps']}" if snapshot.get("steps") else ""
        text = f"  {snapshot['stage']:9} {steps:>6}  {snapshot.get('text', '')[:80]}"
        text += f"  ({_duration(snapshot['elapsed_s'])}" + (
            f", about {_duration(left)} left)" if left is not None else ")"
        )
        if self.live:
            print(f"\r\x1b[2K{text[: _columns() - 1]}", end="", file=sys.stderr, flush=True)
            self._last = text
        elif time.monotonic() - self._at > 20 and text != self._last:
            print(text, file=sys.stderr, flush=True)
            self._last, self._at = text, time.monotonic()


def _columns() -> int:
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns
    except OSError:
        return 100


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "?"
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


# --- the small ones ------------------------------------------------------------------------------------------------


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


def _engine(options: argparse.Namespace) -> int:
    from prefixscope import engine

    if options.action == "install":
        installed = engine.ensure(options.version, progress=lambda line: print(line, file=sys.stderr, flush=True))
        print(f"vLLM {installed.version} is ready{'' if installed.can_serve else ', to predict but not to serve'}")
    elif options.action == "remove":
        print(f"removed vLLM {options.version}, {engine.remove(options.version) / 1e6:,.0f} MB freed")
    else:
        entries = engine.installed()
        if options.json:
            print(
                json.dumps(
                    [
                        {
                            "version": e.version,
                            "size_bytes": e.size_bytes,
                            "path": str(e.path),
                            "can_serve": e.can_serve,
                        }
                        for e in entries
                    ],
                    indent=2,
                )
            )
        elif not entries:
            print("no engine is installed; prefixscope engine install puts one in place (about 3.5 GB)")
        for entry in [] if options.json else entries:
            note = "" if entry.can_serve else "  (predicts, can't serve: no CPU build)"
            print(f"{entry.version:10} {entry.size_bytes / 1e6:>8,.0f} MB  {entry.path}{note}")
    return DONE


def _trace_kit(options: argparse.Namespace) -> int:
    from prefixscope import kit

    folder = kit.write_kit(Path(options.directory))
    serve, docker = kit.kit_lines(folder, Path(options.trace_dir))
    print(f"The tracer kit is in {folder}. Start the server with it, on the host:\n  {serve}")
    print(f"or in a container:\n  {docker}")
    return DONE


def _trace_show(options: argparse.Namespace) -> int:
    from prefixscope import terminal, trace

    if options.follow:
        return _trace_follow(options)
    found = terminal.summarise(trace.read_trace(options.paths), request=options.request, limit=options.limit)
    if options.json:
        print(json.dumps(found.to_json(), indent=2))
    else:
        print(found.text(width=shutil.get_terminal_size((100, 24)).columns - 1))
    return DONE if found.decided else CANNOT_TELL


def _trace_follow(options: argparse.Namespace) -> int:
    from prefixscope import terminal

    following = terminal.Following(options.paths, request=options.request, limit=options.limit, as_json=options.json)
    quiet = True
    try:
        while True:
            for line in following.lines():
                print(line, flush=True)
                quiet = False
            if quiet:
                print(f"waiting for the first event in {', '.join(options.paths)}", file=sys.stderr, flush=True)
                quiet = False
            time.sleep(POLL_S)
    except KeyboardInterrupt:
        return DONE


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 on")
    return int(text)


def _notebooks_copy(options: argparse.Namespace) -> int:
    from prefixscope import notebooks

    for copied in notebooks.copy_to(Path(options.directory)):
        print(copied)
    return DONE


def _lab(options: argparse.Namespace) -> int:
    from prefixscope import notebooks

    folder = Path(options.directory)
    if not folder.exists() or not any(folder.iterdir()):
        notebooks.copy_to(folder)
    os.execv(sys.executable, [sys.executable, "-m", "jupyterlab", str(folder), *options.more])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="prefixscope",
        description="Find out why a vLLM server's prefix cache stays cold, block by block, on a real engine.",
        epilog="exit codes: 0 done · 1 a stage failed · 2 usage, unreachable, refused · 3 can't tell · 130 interrupted",
    )
    from prefixscope.runs import package_version

    parser.add_argument("--version", action="version", version=package_version())
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")

    run = commands.add_parser(
        "run",
        help="the whole investigation, into one HTML report",
        description="Run the notebooks headless into a run directory and render the report. With no target named, a "
        "real vLLM on this machine's CPU is investigated (installed into your cache folder first, about 4 GB).",
    )
    run.add_argument("-o", "--out", metavar="RUN", help="run directory (default: a new one here)")
    run.add_argument("--quick", action="store_true", help="fewer lengths, intervals and documents")
    where = run.add_mutually_exclusive_group()
    where.add_argument("--url", help="a running server: nothing is restarted, little is sent")
    where.add_argument(
        "--serve-cmd", metavar="CMD", help="'vllm serve MODEL …' or 'docker run …': we start and stop it"
    )
    run.add_argument("--stop-cmd", metavar="CMD", help="ends what --serve-cmd started (for a container)")
    run.add_argument("--engine", metavar="VERSION", help="vLLM version of the embedded engine (default: 0.29.0)")
    run.add_argument("--model", default="", help="served name to ask (default: the first base model)")
    run.add_argument(
        "--key-env", default="", metavar="NAME", help="name of the environment variable that holds the API key"
    )
    run.add_argument(
        "--start-timeout",
        type=float,
        default=600.0,
        metavar="S",
        help="seconds a managed server may take (default: 600)",
    )
    run.add_argument(
        "--resume", action="store_true", help="go on with the run in -o: done cells are kept, failed ones redone"
    )
    run.add_argument(
        "--only", action="append", default=[], metavar="STAGE", help="only this stage, and the report; may be repeated"
    )
    run.add_argument(
        "-p", "--parameter", action="append", default=[], metavar="STAGE.NAME=VALUE", help="a notebook's parameter"
    )
    run.add_argument("--dry-run", action="store_true", help="list stages and parameters, and do nothing")
    run.add_argument("--json", action="store_true", help="the result as JSON on stdout")
    run.set_defaults(call=_run)

    report = commands.add_parser("report", help="render the report of any run directory, a half-finished one too")
    report.add_argument("run", metavar="RUN")
    report.add_argument("-o", "--out", metavar="FILE", help="HTML file (default: RUN/report.html)")
    report.add_argument("--include-text", action="store_true", help="put answers' text into the report")
    report.set_defaults(call=_report)

    engine = commands.add_parser("engine", help="embedded engines: install, list, remove").add_subparsers(
        title="actions", dest="action", required=True, metavar="ACTION"
    )
    install = engine.add_parser(
        "install", help="put a real vLLM into the user's cache folder; one without a CPU build can only predict"
    )
    install.add_argument("version", nargs="?", default="0.29.0")
    listing = engine.add_parser("list", help="what is installed")
    listing.add_argument("--json", action="store_true")
    remove = engine.add_parser("remove", help="delete one")
    remove.add_argument("version")
    for action in (install, listing, remove):
        action.set_defaults(call=_engine)

    trace = commands.add_parser("trace", help="trace a server of your own, and read what it wrote").add_subparsers(
        title="actions", required=True, metavar="ACTION"
    )
    trace_kit = trace.add_parser("kit", help="write a folder that makes a vLLM server record its prefix-cache lookups")
    trace_kit.add_argument("directory", metavar="DIR")
    trace_kit.add_argument("--trace-dir", default="prefixscope-trace", metavar="DIR", help="where the traces go")
    trace_kit.set_defaults(call=_trace_kit)

    trace_show = trace.add_parser(
        "show",
        help="what a trace says: engines, lookups, and why the worst one missed",
        description="Summarise trace files: each engine's geometry, one line per lookup with its cause, and the blocks "
        "of the worst miss, or of the request you name, with the cause, the remedy and its price.",
        epilog="exit codes: 0 the cause is named · 2 no trace that can be read · 3 can't tell",
    )
    trace_show.add_argument("paths", metavar="FILE_OR_DIR", nargs="+", help="trace files, their folder, or a run")
    trace_show.add_argument(
        "--follow", action="store_true", help="go on with new lookups as they come; end with Ctrl-C"
    )
    trace_show.add_argument("--request", default="", metavar="ID", help="show this request, by the beginning of its id")
    trace_show.add_argument(
        "--limit", type=_count, default=40, metavar="N", help="list the newest N lookups, 0 for all (default: 40)"
    )
    trace_show.add_argument("--json", action="store_true", help="JSON on stdout; with --follow one object per line")
    trace_show.set_defaults(call=_trace_show)

    books = commands.add_parser("notebooks", help="copy the notebooks out, to edit").add_subparsers(
        title="actions", required=True, metavar="ACTION"
    )
    copy = books.add_parser("copy", help="copies into a folder; nothing is overwritten")
    copy.add_argument("directory", metavar="DIR")
    copy.set_defaults(call=_notebooks_copy)

    lab = commands.add_parser(
        "lab",
        help="open the notebooks in JupyterLab, on a copy, with the recorded sample",
        epilog="other options are passed on to jupyter lab: --no-browser, --allow-root …",
    )
    lab.add_argument("directory", nargs="?", default="prefixscope-notebooks", metavar="DIR")
    lab.set_defaults(call=_lab)
    return parser


if __name__ == "__main__":
    sys.exit(main())
