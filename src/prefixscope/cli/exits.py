"""What a command's exit code means, and how an error is shown."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from prefixscope.errors import PrefixscopeError, RunError

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
    RunError
        where it is a folder, or in none: said before anything is computed for it.
    """
    file = Path(name).expanduser()
    if file.is_dir() or not file.absolute().parent.is_dir():
        why = "it is a folder" if file.is_dir() else f"there is no folder {file.parent}"
        raise RunError(f"-o {name} can't be written: {why}", remedy="name a file in a folder that exists: --out FILE")
    return file
