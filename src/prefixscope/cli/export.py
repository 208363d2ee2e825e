"""``prefixscope export-test``: a fault as a pytest that a maintainer of vLLM can run."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from prefixscope.cli.exits import DONE, file_to_write
from prefixscope.cli.screen import say

if TYPE_CHECKING:
    from prefixscope.cli.exits import Commands


def _export(options: argparse.Namespace) -> int:
    from prefixscope import leaks, page
    from prefixscope.replay.exported import to_test
    from prefixscope.replay.travel import load, worst_series

    out = file_to_write(options.out) if options.out else None
    text = to_test(worst_series(load(Path(options.source).expanduser())))
    if out is not None:
        print(page.write(text, out))
        say(f"in a Python with vLLM and pytest: python -m pytest {shlex.quote(str(out))}")
    else:
        leaks.refuse(text, "the test")
        print(text, end="")
    return DONE


def add(commands: Commands) -> None:
    """Its options and its help."""
    command = commands.add_parser(
        "export-test", help="a self-contained pytest for vLLM's own tree, from a report, a cases.json or a run"
    )
    command.add_argument("source", metavar="FILE|RUN", help="report.html, cases.json or a run directory")
    command.add_argument("-o", "--out", metavar="FILE", help="where to write it (default: standard output)")
    command.set_defaults(call=_export)
