"""One server that prefixscope started: start it, wait for it, stop all of it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from prefixscope import supervisor
from prefixscope.command import ServerCommand, printable
from prefixscope.errors import Exited, ServerError, StartTimeout
from prefixscope.processes import end_processes, healthy, is_alive, listeners, members, port_taken, start_time
from prefixscope.server_log import Cause, explain, latest_step, tail
from prefixscope.setting import Setting

Progress = Callable[[float, str], None]
"""Called about once a second while a server starts: seconds so far, and the last telling line of its log."""

GRACE_S = 20.0


@dataclass(slots=True)
class Server:
    """One server of ours.

    ``start_s`` is measured by its supervisor, so that it is right for a server nobody waited for. ``command`` is
    for reading, secrets masked. ``use``: ``held``, ``idle`` or ``prefetched``. ``state``: ``starting``, ``ready``,
    ``failed`` or ``stopped``. ``holder`` and ``owner``: (pid, start time) of the process that uses it, and of the one
    that it ends with. ``started_at`` and ``ready_at`` are Unix times. ``reused``: it ran already when it was acquired.
    """

    id: str
    setting: Setting
    url: str
    port: int
    log: Path
    state_file: Path
    command: str
    program: str
    token: str
    alone: bool
    container: bool
    start_timeout_s: float
    started_at: float
    supervisor: tuple[int, int] = (0, 0)
    process: tuple[int, int] = (0, 0)
    owner: tuple[int, int] = (0, 0)
    holder: tuple[int, int] = (0, 0)
    use: str = "held"
    state: str = "starting"
    ready_at: float | None = None
    start_s: float | None = None
    reused: bool = False

    @property
    def alive(self) -> bool:
        """Whether both the server's first process and its supervisor still run."""
        return is_alive(*self.supervisor) and is_alive(*self.process)

    @property
    def healthy(self) -> bool:
        """Whether it runs and says it is ready."""
        return self.alive and healthy(self.url, timeout_s=5.0)

    def wait(self, *, timeout_s: float | None = None, progress: Progress | None = None) -> None:
        """Return once it is ready.

        Raises
        ------
        Exited
            where it ended, with its last lines and the likely cause.
        StartTimeout
            where it runs and is not ready in time; it is stopped.
        """
        limit_s = self.start_timeout_s if timeout_s is None else timeout_s
        told = 0.0
        while True:
            elapsed_s = time.time() - self.started_at
            noted = self.noted()
            if noted.get("state") == "ready" and self.alive:
                self.state, self.ready_at = "ready", float(noted["ready_at"])
                self.start_s = round(self.ready_at - self.started_at, 3)
                return
            if noted.get("state") == "ended" or not is_alive(*self.supervisor):
                raise self._failed(elapsed_s)
            if elapsed_s > limit_s:
                with contextlib.suppress(ServerError):
                    self.stop()
                self.state = "failed"
                raise StartTimeout(
                    f"server {self.id} ({self.setting.label}) is not ready after {limit_s:.0f} s: {self.command}",
                    cause=latest_step(self.log) and f"it was still at: {latest_step(self.log)}",
                    remedy=f"see {self.log}; give it more time with a larger start timeout",
                    detail=_last_lines(self.log),
                )
            if progress and time.monotonic() - told >= 1.0:
                told = time.monotonic()
                progress(elapsed_s, latest_step(self.log))
            time.sleep(0.05)

    def ensure_alive(self) -> None:
        """Nothing where it runs; else Exited, saying why: call it when a request fails."""
        if not self.alive:
            raise self._failed(time.time() - self.started_at)

    def noted(self) -> dict[str, Any]:
        """What the supervisor last wrote; empty before its first word."""
        try:
            value = json.loads(self.state_file.read_text())
        except (OSError, ValueError):
            return {}
        return value if isinstance(value, dict) else {}

    def ask_to_stop(self) -> None:
        """Ask its supervisor to end it, and return at once."""
        if is_alive(*self.supervisor):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.supervisor[0], signal.SIGTERM)

    def stop(self) -> None:
        """End every process of it, and return when none is left.

        Raises
        ------
        ServerError
            where some process can't be ended.
        """
        self.ask_to_stop()
        deadline = time.monotonic() + GRACE_S + 15 + (supervisor.STOP_COMMAND_S if self.container else 0)
        while is_alive(*self.supervisor) and time.monotonic() < deadline:
            time.sleep(0.02)
        left = set(self.noted().get("left") or ())
        if is_alive(*self.supervisor) or is_alive(*self.process):
            left = self._end_without_supervisor()
        if self.state != "failed":
            self.state = "stopped"
        if left:
            raise ServerError(
                f"processes of server {self.id} can't be ended: {', '.join(map(str, sorted(left)))}",
                cause="they belong to another user",
                remedy="end them by hand; a server started through sudo needs --stop-cmd",
            )

    def _end_without_supervisor(self) -> set[int]:
        """The supervisor was killed or hangs: do its work from here."""
        if is_alive(*self.supervisor):
            os.kill(self.supervisor[0], signal.SIGKILL)
        # The pid names the server's group only while the server or one of its group is there; else it may be another's.
        own = [self.process[0]] if is_alive(*self.process) else []
        return end_processes(lambda: members(self.token, roots=own, groups=own), grace_s=GRACE_S / 2)

    def _failed(self, elapsed_s: float) -> Exited:
        """Clean up, and the error that says why it ended."""
        with contextlib.suppress(ServerError):
            self.stop()
        self.state = "failed"
        noted = self.noted()  # only now has the supervisor had its last word
        reason, code = noted.get("reason"), noted.get("returncode")
        if reason == "not ours":
            found = Cause(f"another process answers on port {self.port}", "end it, or give another --port")
        elif reason in ("stopped", "owner gone"):
            found = Cause(f"its supervisor ended it: {reason}", "start again with --resume")
        elif noted.get("state") != "ended":
            found = Cause("its supervisor was killed", "start again with --resume")
        else:
            found = explain(self.log, code, [self.program])
        when = "before it was ready" if self.ready_at is None else "while it was needed"
        return Exited(
            f"server {self.id} ({self.setting.label}) ended {when}, after {elapsed_s:.0f} s, {_ending(code)}: "
            + self.command,
            cause=found.cause, remedy=f"{found.remedy} (log: {self.log})", detail=_last_lines(self.log),
        )  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        value = {**asdict(self), "setting": self.setting.to_json(), "log": str(self.log)}
        return {**value, "state_file": str(self.state_file)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Server:
        known = {name: value[name] for name in cls.__slots__ if name in value}
        known |= {name: tuple(known[name]) for name in ("supervisor", "process", "owner", "holder")}
        known |= {name: Path(known[name]) for name in ("log", "state_file")}
        return cls(**{**known, "setting": Setting.from_json(value["setting"])})


def launch(command: ServerCommand, setting: Setting, *, server_id: str, folder: Path, owner_pid: int) -> Server:
    """A server that has begun to start, under a supervisor that ends it when the process ``owner_pid`` is gone.

    ``folder`` is the run directory: the log goes to ``logs/``, the supervisor's notes to ``servers/``.

    Raises
    ------
    ServerError
        where its port is taken.
    Exited
        where the command can't be run at all.
    """
    _refuse_taken(command)
    log, state_file = folder / "logs" / f"{server_id}.log", folder / "servers" / f"{server_id}.state.json"
    log.parent.mkdir(parents=True, exist_ok=True)
    state_file.parent.mkdir(parents=True, exist_ok=True)
    shown = printable(command)
    with log.open("a", encoding="utf-8") as file:
        file.write(f"# prefixscope {_iso(time.time())} {setting.label}\n# {shown}\n")
    server = Server(
        id=server_id, setting=setting, url=command.url, port=command.port, log=log, state_file=state_file,
        command=shown, program=command.argv[0], token=uuid.uuid4().hex, alone=command.alone,
        container=command.container, start_timeout_s=command.start_timeout_s, started_at=time.time(),
        owner=(owner_pid, start_time(owner_pid)),
        holder=(os.getpid(), start_time(os.getpid())),
    )  # fmt: skip
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(command.drops)}
    spec = {
        "argv": command.argv, "env": {**inherited, **command.env}, "cwd": os.getcwd(), "log": str(log),  # noqa: PTH109
        "state_file": str(state_file), "url": command.url, "port": command.port, "container": command.container,
        "token": server.token, "owner_pid": server.owner[0], "owner_start": server.owner[1],
        "stop_argv": command.stop_argv, "grace_s": GRACE_S,
    }  # fmt: skip
    started = _start_supervisor(spec)
    if "error" in started:
        server.state = "failed"
        found = explain(log, started["returncode"], [server.program])
        raise Exited(
            f"server {server_id} ({setting.label}) can't be started: {started['error']}: {shown}",
            cause=found.cause, remedy=found.remedy,
        )  # fmt: skip
    server.supervisor = (started["supervisor_pid"], started["supervisor_start"])
    server.process = (started["server_pid"], started["server_start"])
    return server


def _start_supervisor(spec: dict[str, Any]) -> dict[str, Any]:
    """Run it isolated from site packages and from the folder we are in: it starts in a tenth of a second."""
    package_parent = str(Path(supervisor.__file__).parent.parent)
    code = f"import sys; sys.path.append({package_parent!r}); from prefixscope.supervisor import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, spec["log"]],  # the log: for whoever reads a process list
        input=json.dumps(spec), capture_output=True, text=True,
        start_new_session=True, timeout=60, check=False,
    )  # fmt: skip
    try:
        return dict(json.loads(done.stdout))
    except ValueError:
        raise ServerError(
            f"the server's supervisor did not start (exit code {done.returncode})", detail=done.stderr[-2000:]
        ) from None


def _refuse_taken(command: ServerCommand) -> None:
    if not port_taken(command.port):
        return
    holders = listeners(command.port) or set()
    named = [f"pid {pid} ({_command_line(pid)})" for pid in sorted(holders)]
    raise ServerError(
        f"port {command.port} is taken{' by ' + ', '.join(named) if named else ''}; nothing was started",
        cause="another server, or one of an earlier run, listens there",
        remedy="end it, or write {port} in --serve-cmd to have a free one chosen; to investigate it as it is: --url "
        + command.url,
    )


def _command_line(pid: int) -> str:
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        return b" ".join(words).decode("utf-8", "replace").strip()[:120]
    return "?"


def _ending(code: int | None) -> str:
    if code is None:
        return "exit code unknown"
    if code >= 0:
        return f"exit code {code}"
    with contextlib.suppress(ValueError):
        return f"ended by {signal.Signals(-code).name}"
    return f"ended by signal {-code}"


def _last_lines(log: Path) -> str:
    text = tail(log)
    return f"Last lines of {log}:\n{text}" if text else f"{log} is empty"


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, tz=timezone.utc).isoformat(timespec="seconds")
