"""What a command's exit code means, and how an error is shown."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TypeAlias

from prefixscope.errors import PrefixscopeError

if TYPE_CHECKING:
    import argparse

    Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

DONE, FAILED, USAGE, CANNOT_TELL, INTERRUPTED = 0, 1, 2, 3, 130


def complain(error: PrefixscopeError, code: int) -> int:
    """Show the error, without what a server's words could do to a terminal; gives the code back."""
    print("".join(one if one.isprintable() or one == "\n" else "�" for one in f"prefixscope: {error}"), file=sys.stderr)
    return code
