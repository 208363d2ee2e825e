"""``prefixscope trace``: the tracer alone, and what it wrote."""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

from prefixscope.cli.exits import CANNOT_TELL, DONE
from prefixscope.cli.screen import say

if TYPE_CHECKING:
    from prefixscope.cli.exits import Commands

POLL_S = 0.5


def _trace_kit(options: argparse.Namespace) -> int:
    from prefixscope import kit

    folder = kit.write_kit(Path(options.directory))
    serve, docker = kit.kit_lines(folder, Path(options.trace_dir))
    print(f"The tracer kit is in {folder}. Start the server with it, on the host:\n  {serve}")
    print(f"or in a container:\n  {docker}")
    print(f"then read what it wrote:\n  prefixscope trace show {shlex.quote(options.trace_dir)}")
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
                say(f"waiting for the first event in {', '.join(options.paths)}")
                quiet = False
            time.sleep(POLL_S)
    except KeyboardInterrupt:
        return DONE


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 on")
    return int(text)


def add(commands: Commands) -> None:
    """Its options and its help."""
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
        epilog="exit codes: 0 the cause is named · 2 no trace that can be read, or no such request · 3 can't tell",
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
