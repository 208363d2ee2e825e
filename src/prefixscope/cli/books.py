"""``prefixscope notebooks`` and ``prefixscope lab``: the notebooks as files."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from prefixscope.cli.exits import DONE

if TYPE_CHECKING:
    from prefixscope.cli.exits import Commands


def _notebooks_copy(options: argparse.Namespace) -> int:
    from prefixscope import notebooks

    for copied in notebooks.copy_to(Path(options.directory)):
        print(copied)
    return DONE


def lab(options: argparse.Namespace) -> int:
    """Copy the notebooks where none are, and become JupyterLab."""
    from prefixscope import notebooks

    folder = Path(options.directory)
    if not folder.exists() or not any(folder.iterdir()):
        notebooks.copy_to(folder)
    os.execv(sys.executable, [sys.executable, "-m", "jupyterlab", str(folder), *options.more])


def add(commands: Commands) -> None:
    """Its options and its help."""
    books = commands.add_parser("notebooks", help="copy the notebooks out, to edit").add_subparsers(
        title="actions", required=True, metavar="ACTION"
    )
    copy = books.add_parser("copy", help="copies into a folder; nothing is overwritten")
    copy.add_argument("directory", metavar="DIR")
    copy.set_defaults(call=_notebooks_copy)

    opened = commands.add_parser(
        "lab",
        help="open the notebooks in JupyterLab, on a copy, with the recorded sample",
        epilog="other options are passed on to jupyter lab: --no-browser, --allow-root …",
    )
    opened.add_argument("directory", nargs="?", default="prefixscope-notebooks", metavar="DIR")
    opened.set_defaults(call=lab)
