"""``prefixscope engine``: embedded engines."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from prefixscope.cli.exits import DONE
from prefixscope.cli.screen import say

if TYPE_CHECKING:
    from prefixscope.cli.exits import Commands


def _engine(options: argparse.Namespace) -> int:
    from prefixscope import engine

    if options.action == "install":
        installed = engine.ensure(options.version, progress=say)
        print(f"vLLM {installed.version} is ready{'' if installed.can_serve else ', to predict but not to serve'}")
    elif options.action == "remove":
        print(f"removed vLLM {options.version}, {engine.remove(options.version) / 1e6:,.0f} MB freed")
    else:
        entries = engine.installed()
        if options.json:
            rows = [
                {
                    "version": e.version,
                    "size_bytes": e.size_bytes,
                    "path": str(e.path),
                    "can_serve": e.can_serve,
                    "base": str(e.base),
                    "base_bytes": e.base_bytes,
                }
                for e in entries
            ]
            print(json.dumps(rows, indent=2))
        elif not entries:
            print("no engine is installed; prefixscope engine install puts one in place (about 4 GB)")
        for entry in [] if options.json else entries:
            note = "" if entry.can_serve else "  (predicts, can't serve: no CPU build)"
            print(_line(entry.version, entry.size_bytes, entry.path) + note)
        if not options.json:
            for path, size in dict.fromkeys((entry.base, entry.base_bytes) for entry in entries):
                print(_line("shared", size, path) + "  (PyTorch and what else they need)")
    return DONE


def _line(name: str, size_bytes: int, path: Path) -> str:
    return f"{name:10} {size_bytes / 1e6:>8,.0f} MB  {path}"


def _version(text: str) -> str:
    from prefixscope import engine
    from prefixscope.errors import EngineError

    try:
        engine.check_version(text)
    except EngineError as error:
        raise argparse.ArgumentTypeError(f"{error.what}; {error.remedy}") from None
    return text


def add(commands: Commands) -> None:
    """Its options and its help."""
    engine = commands.add_parser("engine", help="embedded engines: install, list, remove").add_subparsers(
        title="actions", dest="action", required=True, metavar="ACTION"
    )
    install = engine.add_parser(
        "install", help="put a real vLLM into the user's cache folder; one without a CPU build can only predict"
    )
    install.add_argument("version", nargs="?", default="0.29.0", type=_version)
    listing = engine.add_parser("list", help="what is installed")
    listing.add_argument("--json", action="store_true")
    remove = engine.add_parser("remove", help="delete one")
    remove.add_argument("version")
    for action in (install, listing, remove):
        action.set_defaults(call=_engine)
