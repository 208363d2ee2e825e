"""One command: parse, one library call, print."""

from __future__ import annotations

import argparse
import errno
import os
import signal
import sys
from collections.abc import Sequence

from prefixscope.cli import books, check, compare, engine, export, predict, report, run, trace
from prefixscope.cli.exits import DONE, FAILED, INTERRUPTED, USAGE, complain
from prefixscope.errors import (
    EngineError,
    NotebookError,
    PrefixscopeError,
    ReplayError,
    ReportError,
    RunError,
    TargetError,
    TraceError,
    Unwritable,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: 0 done, 1 a stage failed, 2 usage or unreachable, 3 can't tell."""
    parser = build_parser()
    words = list(sys.argv[1:] if argv is None else argv)
    options, more = parser.parse_known_args(words)
    if more and getattr(options, "call", None) is not books.lab:
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
    except (TargetError, RunError, NotebookError, TraceError, ReplayError, Unwritable) as error:
        return complain(error, USAGE)
    except (EngineError, ReportError, PrefixscopeError) as error:
        return complain(error, FAILED)
    except KeyboardInterrupt:
        return INTERRUPTED
    except PermissionError as error:
        return complain(PrefixscopeError(f"{error.filename}: permission denied", remedy="name another place"), USAGE)
    except FileNotFoundError as error:
        return complain(PrefixscopeError(f"{error.filename}: no such file or folder", remedy="check the path"), USAGE)
    except (IsADirectoryError, NotADirectoryError) as error:
        what = "is a folder" if isinstance(error, IsADirectoryError) else "is no folder"
        return complain(
            PrefixscopeError(f"{error.filename}: {what}", remedy="name a file in a folder that exists"), USAGE
        )
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        full = PrefixscopeError(
            f"{error.filename or 'a file of the run'} could not be written: {error.strerror}",
            cause="the disk is full; rows of a run that were measured are safe",
            remedy="make room, then run it again (a run: with --resume)",
        )
        return complain(full, FAILED)


def build_parser() -> argparse.ArgumentParser:
    """Every command with its options."""
    parser = argparse.ArgumentParser(
        prog="prefixscope",
        description="Find out why a vLLM server's prefix cache stays cold, block by block, on a real engine.",
        epilog="exit codes: 0 done · 1 a stage failed · 2 usage, unreachable, refused · 3 can't tell · 130 interrupted",
    )
    from prefixscope.provenance import package_version

    parser.add_argument("--version", action="version", version=package_version())
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for command in (run, check, predict, report, compare, export, engine, trace, books):
        command.add(commands)
    return parser
