"""The lease in the run directory, through which stages that run one after another share servers.

``RUN/servers/<setting id>.json`` holds one lease: the server that runs with this setting, whose it is, who uses it.
``RUN/servers/journal.jsonl`` keeps one line per event (started, ready, reused, idle, failed, stopped), for the report.
A server ends with its *owner*, the process that runs the whole investigation; a *holder*, one stage, only uses it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from prefixscope.command import ServerCommand
from prefixscope.errors import Exited, ServerError, StartTimeout
from prefixscope.processes import is_alive, port_taken, start_time
from prefixscope.server import Progress, Server, launch
from prefixscope.setting import Setting
from prefixscope.supervisor import write_state

CommandFactory = Callable[[], ServerCommand]


class Pool:
    """Servers of one run directory.

    Parameters
    ----------
    run_dir : the run directory.
    owner_pid : the process whose end ends every server; this one by default.
    max_idle : how many servers may wait unused for a later stage.
    start_timeout_s : replaces the commands' own limit for a start.
    """

    def __init__(
        self, run_dir: Path, owner_pid: int | None = None, *, max_idle: int = 1, start_timeout_s: float | None = None
    ) -> None:
        # Absolute: a stage may change its working directory, and the supervisor does not follow.
        self.run_dir = Path(run_dir).absolute()
        self.folder = self.run_dir / "servers"
        self.owner_pid = os.getpid() if owner_pid is None else owner_pid
        self.max_idle = max_idle
        self.start_timeout_s = start_timeout_s
        self._held: dict[str, Server] = {}

    def __enter__(self) -> Pool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """The owner stops every server; a stage those that it holds and did not release."""
        if os.getpid() == self.owner_pid:
            self.stop_all()
        else:
            self._stop(list(self._held.values()))

    def acquire(
        self,
        setting: Setting,
        command_factory: CommandFactory,
        *,
        progress: Progress | None = None,
        timeout_s: float | None = None,
    ) -> Server:
        """A ready server with this setting: the leased one where it is well, else a new one.

        ``timeout_s`` replaces the pool's and the command's own limit for a start.

        Raises
        ------
        Exited, StartTimeout
            where it does not start, now or in a prefetch; the lease says ``failed``, and the next call tries again.
        ServerError
            where its port is taken, or a server that this pool still holds leaves no room.
        """
        with self._locked():
            server = self._take(setting, command_factory)
        waiting = server.state == "starting"
        try:
            server.wait(timeout_s=timeout_s or self.start_timeout_s, progress=progress)
        except (Exited, StartTimeout):
            self._held.pop(setting.id, None)
            self._write(server)
            self._journal("failed", server)
            raise
        self._write(server)
        self._journal("ready" if waiting else "reused", server)
        return server

    def prefetch(self, setting: Setting, command_factory: CommandFactory) -> bool:
        """Whether a server with this setting now runs or starts, without waiting for it.

        False where there is no room: the command wants its machine or its port for itself. A failure shows in
        ``acquire``.
        """
        with self._locked():
            if self._usable(setting) is not None:
                return True
            command = command_factory()
            if port_taken(command.port) or (command.alone and any(self._running())):
                return False
            with contextlib.suppress(ServerError):
                self._start(setting, command, use="prefetched")
                return True
        return False

    def release(self, server: Server, *, keep: bool = False) -> None:
        """Give it up: stopped, or kept for a later stage; beyond ``max_idle`` kept ones the oldest are stopped."""
        self._held.pop(server.setting.id, None)
        if not (keep and server.alive):
            self._stop([server])
            return
        server.use, server.holder = "idle", (0, 0)
        with self._locked():
            self._write(server)
            self._journal("idle", server)
            self._stop_idle(newest=server)

    def stop_all(self) -> None:
        """Stop every server of this run directory, those of an earlier owner too."""
        self._stop(self.servers())

    def servers(self) -> list[Server]:
        """Every leased server, by age; running or not."""
        found = [self._read(path) for path in sorted(self.folder.glob("*.json")) if ".state" not in path.name]
        return sorted((each for each in found if each), key=lambda each: each.started_at)

    def _take(self, setting: Setting, command_factory: CommandFactory) -> Server:
        """The leased server or one that begins to start, held by this process from now on."""
        server = self._usable(setting)
        if server is None:
            server = self._start(setting, command_factory(), use="held")
        else:
            server.reused = server.use != "prefetched"
        server.use, server.holder = "held", (os.getpid(), start_time(os.getpid()))
        self._held[setting.id] = server
        self._write(server)
        return server

    def _usable(self, setting: Setting) -> Server | None:
        """The leased server of this setting, running or starting, or with a failure that nobody has heard of yet."""
        server = self._read(self._lease(setting))
        if server is None or server.state in ("failed", "stopped"):
            return None
        # A server of an ended owner is about to end. One that was prefetched may have failed: waiting for it tells why.
        if is_alive(*server.owner) and (server.state == "starting" or server.healthy):
            return server
        self._stop([server])
        return None

    def _start(self, setting: Setting, command: ServerCommand, *, use: str) -> Server:
        if command.alone:
            self._make_room(setting)
        else:
            self._stop_idle()
        self._wait_for_port(command.port)
        try:
            server = launch(
                command, setting, server_id=self._new_id(), folder=self.run_dir, owner_pid=self.owner_pid
            )  # fmt: skip
        except Exited as error:
            self._append({"event": "failed", "setting": setting.to_json(), "why": error.what})
            raise
        server.use = use
        try:
            self._write(server)
            self._journal("started", server)
        except OSError:
            server.stop()  # a server without a lease would be nobody's
            raise
        return server

    def _make_room(self, setting: Setting) -> None:
        used = [each for each in self._running() if each.use == "held" and is_alive(*each.holder)]
        if used:
            names = ", ".join(f"{each.id} ({each.setting.label}, used by pid {each.holder[0]})" for each in used)
            raise ServerError(
                f"no room for a server with {setting.label}: {names} still in use",
                cause="a server that fills its accelerator runs alone",
                remedy="let that stage end, or release its server",
            )
        self._stop(list(self._running()))

    def _wait_for_port(self, port: int) -> None:
        """A runtime may take a moment to give a stopped server's port back; anyone else's is refused by ``launch``."""
        deadline = time.monotonic() + 3.0
        while port_taken(port) and time.monotonic() < deadline and self._was_ours(port):
            time.sleep(0.1)

    def _was_ours(self, port: int) -> bool:
        with contextlib.suppress(OSError):
            return f'"port": {port},' in (self.folder / "journal.jsonl").read_text()
        return False

    def _stop_idle(self, *, newest: Server | None = None) -> None:
        """Stop the oldest of the servers that nobody uses, those of a stage that ended without a word too."""
        idle = [
            each for each in self._running()
            if each.use == "idle" or (each.use == "held" and not is_alive(*each.holder))
        ]  # fmt: skip
        if newest:
            idle = [each for each in idle if each.id != newest.id] + [newest]
        self._stop(idle[: max(0, len(idle) - self.max_idle)])

    def _running(self) -> Iterator[Server]:
        yield from (each for each in self.servers() if each.alive)

    def _stop(self, servers: list[Server]) -> None:
        """Ask all, then wait for each: a second Ctrl-C in between finds them all ending. The last error is raised."""
        for server in servers:
            server.ask_to_stop()
        failure: ServerError | None = None
        for server in servers:
            ran = server.state in ("starting", "ready")
            try:
                server.stop()
            except ServerError as error:
                failure = error
            self._held.pop(server.setting.id, None)
            if ran:
                self._journal("stopped", server)
            self._forget(server)
        if failure:
            raise failure

    def _forget(self, server: Server) -> None:
        """Drop its lease, unless that names a newer server by now."""
        leased = self._read(self._lease(server.setting))
        if leased and leased.id == server.id:
            self._lease(server.setting).unlink(missing_ok=True)

    def _lease(self, setting: Setting) -> Path:
        return self.folder / f"{setting.id}.json"

    def _read(self, path: Path) -> Server | None:
        """The lease, or None where there is none, or one that can't be read (another version's)."""
        try:
            return Server.from_json(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _write(self, server: Server) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        write_state(self._lease(server.setting), server.to_json())

    def _new_id(self) -> str:
        """``s01``, ``s02``, …: never one that this run directory has seen."""
        logs = self.run_dir / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        numbers = [int(path.stem[1:]) for path in logs.glob("s*.log") if path.stem[1:].isdigit()]
        return f"s{max(numbers, default=0) + 1:02d}"

    def _journal(self, event: str, server: Server) -> None:
        self._append({
            "event": event, "id": server.id, "setting": server.setting.to_json(), "url": server.url,
            "port": server.port, "start_s": server.start_s, "command": server.command, "log": str(server.log),
        })  # fmt: skip

    def _append(self, value: dict[str, Any]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "journal.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps({"at": round(time.time(), 3), **value}) + "\n")

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """One process at a time looks for a lease and writes one; nobody waits here for a server to become ready."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / ".lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
