"""``prefixscope notebooks`` and ``prefixscope lab``: the notebooks as files."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from prefixscope.cli.exits import DONE
from prefixscope.errors import NotebookError

if TYPE_CHECKING:
    from prefixscope.cli.exits import Commands

LAB = """\
Copy the notebooks into a folder and open them in JupyterLab. Each runs from top to bottom in seconds on a recorded
sample run, with no server and no network; its last cell says what was found and which one to open next. To
investigate a server of yours, change `target` in the parameters cell to its URL or to a serve command: the notebooks
of one folder then share one run directory there, so that nothing is measured twice."""
LAB_EXAMPLES = """\
examples:
  prefixscope lab                                  ./prefixscope-notebooks, made where it is missing
  prefixscope lab incident-42                      a folder of its own for an investigation
  prefixscope lab --no-browser --port 8889         on a machine without a screen; open the URL that it prints
  prefixscope lab incident-42 --allow-root         in a container

Options after DIR are passed on to jupyter lab."""


def _notebooks_copy(options: argparse.Namespace) -> int:
    from prefixscope import notebooks

    for copied in notebooks.copy_to(Path(options.directory)):
        print(copied)
    return DONE


def lab(options: argparse.Namespace) -> int:
    """Copy the notebooks where none are, and become JupyterLab with the first one open."""
    from prefixscope import notebooks

    if os.geteuid() == 0 and not any("allow" in option and "root" in option for option in options.more):
        # Jupyter refuses to run as root; better before a folder is made.
        raise NotebookError(
            "JupyterLab does not run as root unless it is told to",
            remedy=f"{shlex.join(['prefixscope', 'lab', options.directory, *options.more])} --allow-root",
        )
    folder, first = Path(options.directory), f"{notebooks.FILES['baseline']}.ipynb"
    if not folder.exists() or not any(folder.iterdir()):
        notebooks.copy_to(folder)
    begin = [f"--LabApp.default_url=/lab/tree/{first}"] if (folder / first).is_file() else []
    os.execv(sys.executable, [sys.executable, "-m", "jupyterlab", str(folder), *begin, *options.more])


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
        description=LAB,
        epilog=LAB_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    opened.add_argument(
        "directory",
        nargs="?",
        default="prefixscope-notebooks",
        metavar="DIR",
        help="where the copies are, or are made; what is there is never overwritten (default: ./prefixscope-notebooks)",
    )
    opened.set_defaults(call=lab)
