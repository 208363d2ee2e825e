"""What Linux says about processes and ports, from ``/proc`` alone. Standard library only: the supervisor runs on it."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import signal
import socket
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

PROC = Path("/proc")
TOKEN_NAME = "PREFIXSCOPE_SERVER"
"""The environment variable that marks every process of one server."""


class Process(NamedTuple):
    """One line of ``/proc/<pid>/stat``: what is needed to tell whose it is."""

    pid: int
    state: str
    parent: int
    group: int
    session: int
    start: int


def process(pid: int) -> Process | None:
    """The process, or None where there is none. A zombie is a process in state ``Z``."""
    try:
        text = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The name, in parentheses, may itself hold spaces and parentheses.
    fields = text.rpartition(")")[2].split()
    return Process(pid, fields[0], int(fields[1]), int(fields[2]), int(fields[3]), int(fields[19]))


def start_time(pid: int) -> int:
    """When it started, in ticks since boot; 0 where it doesn't run. With the pid it names one process for good."""
    found = process(pid)
    return found.start if found and found.state not in "ZX" else 0


def is_alive(pid: int, start: int) -> bool:
    """Whether this very process still runs: neither ended, nor a zombie, nor another one under a recycled pid."""
    return pid > 0 and start > 0 and start_time(pid) == start


def processes() -> dict[int, Process]:
    """Every process that can be seen, by pid; zombies left out."""
    found = (process(int(entry.name)) for entry in PROC.iterdir() if entry.name.isdigit())
    return {each.pid: each for each in found if each and each.state not in "ZX"}


def members(token: str, *, roots: Iterable[int] = (), groups: Iterable[int] = ()) -> set[int]:
    """The pids that belong to one server: below ``roots``, in ``groups`` (process group or session), or marked.

    No single sign is enough: a worker may change its session, be orphaned, or overwrite its environment with a title.
    """
    table = processes()
    wanted, mark = set(groups), f"{TOKEN_NAME}={token}".encode()
    below: set[int] = set(roots)
    grown = True
    while grown:
        more = {each.pid for each in table.values() if each.parent in below and each.pid not in below}
        below |= more
        grown = bool(more)
    found = below & table.keys()
    found |= {each.pid for each in table.values() if {each.group, each.session} & wanted}
    for pid in table.keys() - found:
        with contextlib.suppress(OSError):
            if mark in (PROC / str(pid) / "environ").read_bytes().split(b"\0"):
                found.add(pid)
    return found - {os.getpid()}


def end_processes(find: Callable[[], set[int]], *, grace_s: float, kill_s: float = 10.0) -> set[int]:
    """The pids still there after SIGTERM, ``grace_s`` of patience and SIGKILL: empty unless they are another user's."""
    left = find()
    _signal_all(left, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while left and time.monotonic() < deadline:
        time.sleep(0.03)
        left = find()
    deadline = time.monotonic() + kill_s
    while left and time.monotonic() < deadline:
        # Again each round: a process may have been forked between looking and killing.
        _signal_all(left, signal.SIGKILL)
        time.sleep(0.03)
        left = find()
    return left


def _signal_all(pids: set[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def free_port() -> int:
    """A TCP port that nothing listens on, outside the range that outgoing connections draw from."""
    for _ in range(200):
        port = random.randint(18_000, 30_000)
        if not port_taken(port):
            return port
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def port_taken(port: int) -> bool:
    """Whether a server could not listen on this port now. A connection that is only lingering does not take it."""
    for family, host in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
        try:
            probe = socket.socket(family)
        except OSError:
            continue  # no IPv6 here
        with probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            try:
                probe.bind((host, port))
            except OSError as error:
                if error.errno in (errno.EADDRINUSE, errno.EACCES):
                    return True
    return False


def listeners(port: int, among: Iterable[int] | None = None) -> set[int] | None:
    """The pids that listen on this port, of those we may look into; None where nobody listens on it at all."""
    inodes = _listening_inodes(port)
    if not inodes:
        return None
    found = set()
    for pid in processes() if among is None else among:
        with contextlib.suppress(OSError):
            for handle in (PROC / str(pid) / "fd").iterdir():
                if str(handle.readlink()) in inodes:
                    found.add(pid)
                    break
    return found


def _listening_inodes(port: int) -> set[str]:
    wanted, inodes = f":{port:04X}", set()
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in (PROC / "net" / name).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[1].endswith(wanted) and fields[3] == "0A":  # 0A: listening
                    inodes.add(f"socket:[{fields[9]}]")
    return inodes


def answer(url: str, path: str, *, timeout_s: float = 1.0) -> int | None:
    """The HTTP status of a GET, or None where no whole status line came back in time."""
    parts = urlsplit(url)
    host, secure = parts.hostname or "127.0.0.1", parts.scheme == "https"
    request = f"GET {path} HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: close\r\n\r\n".encode()
    try:
        with socket.create_connection((host, parts.port or (443 if secure else 80)), timeout=timeout_s) as plain:
            return _status(_secured(plain, host) if secure else plain, request)
    except (OSError, ValueError):
        return None


def _status(connection: socket.socket, request: bytes) -> int:
    connection.sendall(request)
    head = b""
    while b"\r\n" not in head and (piece := connection.recv(4096)):
        head += piece
    fields = head.split(b"\r\n", 1)[0].split()
    if len(fields) < 2 or not fields[0].startswith(b"HTTP/"):
        raise ValueError("not an HTTP answer")
    return int(fields[1])


def _secured(plain: socket.socket, host: str) -> socket.socket:
    import ssl  # slow to import, and rarely needed

    # Only "does it answer yet?" is asked, of our own child, and nothing secret is sent: any certificate will do.
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context.wrap_socket(plain, server_hostname=host)


def healthy(url: str, *, timeout_s: float = 1.0) -> bool:
    """Whether the server says it is ready: ``/health``, or ``/v1/models`` where there is no such page."""
    status = answer(url, "/health", timeout_s=timeout_s)
    if status in (404, 405):
        # A server that asks for a key is up all the same.
        return answer(url, "/v1/models", timeout_s=timeout_s) in (200, 401, 403)
    return status == 200
