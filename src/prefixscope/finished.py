"""A finished file on the disk: whole or not at all, and never in the place of a device, a pipe or a link."""

from __future__ import annotations

from pathlib import Path

from prefixscope.errors import Unwritable


def place(target: Path) -> Path:
    """The regular file that ``target`` stands for, there or not: links are followed, and stay.

    Raises
    ------
    Unwritable
        where it is a folder, in none, or something else than a regular file.
    """
    ring = "its links lead round in a ring"
    try:
        real = target.resolve()
        if real.is_symlink():
            why = ring
        elif _is_stream(target):
            why = "it is an open stream, and a file takes its place by a rename"
        elif not target.exists():
            why = "" if real.parent.is_dir() else f"there is no folder {real.parent}"
        elif target.is_dir():
            why = "it is a folder"
        else:
            why = "" if target.is_file() else "it is no regular file (a device, a pipe or a socket)"
    except (OSError, RuntimeError) as error:  # a RuntimeError is a ring too, on some versions of Python
        why = getattr(error, "strerror", None) or ring
    if why:
        raise Unwritable(f"{target} can't be written: {why}", remedy="name a file in a folder that exists: --out FILE")
    return real


def _is_stream(target: Path) -> bool:
    """Whether it leads through a process's open files, as ``/dev/stdout`` does, wherever they were redirected to."""
    while True:
        folder = target.parent.resolve()
        if folder.name == "fd" and folder.parts[:2] == ("/", "proc"):
            return True
        if not target.is_symlink():
            return False
        target = folder / target.readlink()


def write(text: str, target: Path) -> Path:
    """Write the file, whole or not at all, and give its path.

    Raises
    ------
    Unwritable
        as ``place`` does, and where the disk refuses.
    """
    real = place(target)
    partial = real.with_name(f".{real.name}.tmp")
    try:
        try:
            partial.write_text(text, encoding="utf-8")
            partial.replace(real)  # a full disk leaves the earlier file whole
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise Unwritable(
            f"{target} can't be written: {error.strerror}", remedy="name a file in a writable folder: --out FILE"
        ) from error
    return target
