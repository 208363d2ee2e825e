"""What a command's exit code means, and how an error is shown."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from prefixscope import finished
from prefixscope.errors import PrefixscopeError

if TYPE_CHECKING:
    import argparse

    Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

DONE, FAILED, USAGE, CANNOT_TELL, INTERRUPTED = 0, 1, 2, 3, 130


def complain(error: PrefixscopeError, code: int) -> int:
    """Show the error, without what a server's words could do to a terminal; gives the code back."""
    print("".join(one if one.isprintable() or one == "\n" else "�" for one in f"prefixscope: {error}"), file=sys.stderr)
    return code


def file_to_write(name: str) -> Path:
    """The file that ``-o`` names.

    Raises
    ------
    Unwritable
        where it is a folder, in none, or no regular file: said before anything is computed for it.
    """
    file = Path(name).expanduser()
    finished.place(file)
    return file
