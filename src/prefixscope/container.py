"""What is different where the server runs in a container: its port, its trace, its end."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from prefixscope.errors import ServerError
from prefixscope.flags import Flags

_RUNTIMES = {"docker", "podman", "nerdctl"}
_PUBLISH = re.compile(r"(?:(?P<ip>\[[^\]]+\]|[^:]+):)??(?P<host>\d+):(?P<inside>\d+)(?:/tcp)?")


def run_index(words: list[str]) -> int | None:
    """Where ``run`` stands in a ``docker run …``, a ``sudo`` or path in front or not; None for any other command."""
    for place, word in enumerate(words[:4]):
        if Path(word).name in _RUNTIMES and "run" in words[place : place + 4]:
            return words.index("run", place)
    return None


def foreground(words: list[str], place: int) -> list[str]:
    """The command without ``-d``, so that the client stays and shows log and exit code, and without ``-t``."""
    kept = words[: place + 1]
    for word in words[place + 1 :]:
        if re.fullmatch(r"-[dit]+", word):
            word = "-i" if "i" in word else ""
        elif re.fullmatch(r"--(?:detach|tty)(?:=true)?", word):
            word = ""
        kept += [word] if word else []
    return kept


def options(trace_env: Mapping[str, str]) -> list[str]:
    """Options that carry the trace's variables in, and the folders they name: code read-only, the rest writable."""
    words: list[str] = []
    mounts: dict[str, str] = {}
    for name, value in trace_env.items():
        words += ["-e", f"{name}={value}"]
        if name == "PYTHONPATH":
            mounts |= {path: ":ro" for path in value.split(os.pathsep) if path.startswith("/")}
        elif value.startswith("/"):
            path = Path(value)
            mounts[str(path.parent if path.suffix and not path.is_dir() else path)] = ""
    for folder, mode in mounts.items():
        words += ["-v", f"{folder}:{folder}{mode}"]
    return words


def address(flags: Flags, host_port: Callable[[], int], default_port: int) -> tuple[str, int]:
    """Host and port at which this machine reaches the container.

    Raises
    ------
    ServerError
        where its port is not published.
    """
    if "host" in flags.values("--network") + flags.values("--net"):
        return flags.value("--host") or "", host_port()
    given = flags.value("--port")
    inside = int(given) if given and given.isdigit() else default_port
    published = flags.values("-p") + flags.values("--publish")
    published += [word[2:] for word in flags.words if re.match(r"-p\d", word)]
    for text in published:
        found = _PUBLISH.fullmatch(text)
        if found and int(found["inside"]) == inside:
            return found["ip"] or "", int(found["host"])
    raise ServerError(
        f"the container's port {inside} is not published (-p: {', '.join(published) or 'none'})",
        cause="a container's port is reached only where the runtime forwards it",
        remedy=f"add -p {{port}}:{inside} (a free port is chosen), -p {inside}:{inside}, or --network host",
    )


def stop_words(words: list[str], place: int) -> list[str]:
    """``docker stop NAME`` where the container has a name.

    Raises
    ------
    ServerError
        where nothing tells how to end it: a container outlives its client.
    """
    name = Flags(words).value("--name")
    if name is None:
        raise ServerError(
            "a container without a name, and no --stop-cmd",
            cause="a container goes on when its client ends, so it has to be stopped by name",
            remedy='add --name vllm-prefixscope --rm to the command, or give --stop-cmd "docker stop NAME"',
        )
    runtime = next(number for number, word in enumerate(words) if Path(word).name in _RUNTIMES)
    return [*words[: runtime + 1], "stop", name]
