"""The files of a run directory: JSON written whole or not at all, rows line by line, and the lock of whoever writes."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import secrets
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TextIO

from prefixscope import impossible
from prefixscope.errors import RunError

TOKEN_ENV = "PREFIXSCOPE_RUN_TOKEN"


def now() -> str:
    """UTC, to the millisecond, ISO 8601."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def iso(seconds: float) -> str:
    """A time.time() as ``now`` writes it."""
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def read_json(file: Path) -> dict[str, Any]:
    """The object in a JSON file; empty where there is none that can be read."""
    try:
        value = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def write_json(file: Path, value: object) -> None:
    """Replace a JSON file; readers see the old or the new one.

    Raises
    ------
    RunError
        where it can't be written; the old one is left.
    """
    temporary = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as out:
            json.dump(value, out, ensure_ascii=False, indent=1)
            out.flush()
            os.fsync(out.fileno())
        temporary.replace(file)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise RunError(
            f"{file} could not be written: {error.strerror}", remedy="make room, then run again with --resume"
        ) from error


def read_rows(file: Path) -> Iterator[dict[str, Any]]:
    """The rows of one JSONL file, without impossible values; a truncated or foreign line is passed over."""
    if not file.exists():
        return
    with file.open("rb") as lines:
        for line in lines:
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(row, dict):
                yield impossible.judged(row)[0]


class RowFile:
    """A JSONL file that rows are added to; it is made with the first one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None

    def append(self, row: Mapping[str, Any]) -> None:
        """Write one row and flush it to the disk.

        Raises
        ------
        OSError
            where it can't be written whole; a part of it is taken back.
        """
        line = json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
        if self._fd is None:
            self.path.parent.mkdir(exist_ok=True)
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            _end_line(self._fd)
        size = os.fstat(self._fd).st_size
        written = os.write(self._fd, line)
        if written != len(line):
            os.ftruncate(self._fd, size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(self._fd)

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _end_line(fd: int) -> None:
    """Close a line that a killed writer left open, so that the next row starts on its own."""
    size = os.fstat(fd).st_size
    if size and os.pread(fd, 1, size - 1) != b"\n":
        os.write(fd, b"\n")


def open_lock(file: Path) -> TextIO:
    try:
        return file.open("a+")
    except OSError as error:
        raise RunError(
            f"the lock {file} can't be opened: {error.strerror}", remedy="make the run directory writable"
        ) from error


def is_held(file: Path) -> bool:
    """Whether a process holds this lock file now."""
    try:
        with file.open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False  # there is none, or it can't be opened: who writes here could not hold it either
    return False


def is_ours(file: Path) -> bool:
    """Whether this process was started by the holder of this lock file, and has its token."""
    inherited = os.environ.get(TOKEN_ENV)
    return bool(inherited) and read_json(file).get("token") == inherited


@contextmanager
def hold(file: Path) -> Iterator[str]:
    """Hold a run for writing by its lock file, under a token; who has the holder's token already, holds it too.

    Raises
    ------
    RunError
        where another process holds it.
    """
    if is_ours(file):
        yield os.environ[TOKEN_ENV]
        return
    with open_lock(file) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            holder = read_json(file)
            raise RunError(
                f"{file.parent} is in use by process {holder.get('pid', '?')} since {holder.get('since', '?')}",
                cause="another prefixscope or notebook is writing to it",
                remedy="wait for it, end it, or use another directory: -o DIR",
            ) from None
        token = secrets.token_hex(8)
        holder = {"pid": os.getpid(), "host": socket.gethostname(), "since": now(), "token": token}
        try:
            lock.truncate(0)
            lock.write(json.dumps(holder))
            lock.flush()
        except OSError as error:
            raise RunError(
                f"{file} could not be written: {error.strerror}", remedy="make room, then run again with --resume"
            ) from error
        try:
            yield token
        finally:
            lock.truncate(0)
