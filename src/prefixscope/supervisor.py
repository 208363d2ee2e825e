"""The small process that owns one server and never leaves it behind.

It starts the server in a session of its own, notes when it is ready, and ends every process of it when asked to, when
the server itself ends, or when the owner is gone, even where the owner was killed with a signal that nobody can catch.
Standard library only. The specification comes as JSON on standard input, so that no secret shows in a process list.

The state file says what it knows, replaced whole each time:

========== ======================================================================================
key        meaning
========== ======================================================================================
state      ``starting``, ``ready``, ``ended``
ready_at   Unix time of the first healthy answer; null before
reason     why it ended: ``exited``, ``stopped``, ``owner gone``, ``not ours``; null before
returncode the server's own; negative for a signal; null where it is not known
left       process ids that could not be ended (another user's)
========== ======================================================================================
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from prefixscope.processes import (
    TOKEN_NAME,
    end_processes,
    healthy,
    is_alive,
    listeners,
    members,
    process,
)

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
STOP_COMMAND_S = 60.0
_WATCHED = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD}


def _prctl(option: int, value: int) -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def write_state(path: Path, value: dict[str, Any]) -> None:
    """Replace the file whole, so that a reader never sees half of it."""
    draft = path.with_name(path.name + ".new")
    draft.write_text(json.dumps(value))
    draft.replace(path)


class Supervisor:
    """One server, from its start to its last process.

    ``spec``: argv, env (whole), cwd, log, state_file, url, port, container, token, owner_pid, owner_start,
    stop_argv, grace_s.
    """

    def __init__(self, spec: dict[str, Any]) -> None:
        self.spec = spec
        self.state: dict[str, Any] = {
            "state": "starting", "ready_at": None, "reason": None, "returncode": None, "left": []
        }  # fmt: skip
        self.pid = 0
        self.ended = False

    def start(self) -> dict[str, Any]:
        """What the starter needs to know: pids with their start times, or why the command can't be run."""
        _prctl(PR_SET_CHILD_SUBREAPER, 1)
        signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
        self._note()
        me = process(os.getpid())
        try:
            with Path(self.spec["log"]).open("ab") as log:
                child = subprocess.Popen(
                    self.spec["argv"], env={**self.spec["env"], TOKEN_NAME: self.spec["token"]}, cwd=self.spec["cwd"],
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, preexec_fn=_before_exec,
                )  # fmt: skip
        except (OSError, subprocess.SubprocessError) as error:
            number = getattr(error, "errno", None)
            return {"error": str(error), "returncode": 127 if number == 2 else 126}
        self.pid = child.pid
        child.returncode = 0  # _reap() waits for every child, this one too: Popen must not warn about it
        server = process(self.pid)
        return {
            "supervisor_pid": os.getpid(),
            "supervisor_start": me.start if me else 0,
            "server_pid": self.pid,
            "server_start": server.start if server else 0,
        }

    def run(self) -> None:
        """Watch, then end everything; whatever goes wrong, the server does not outlive this."""
        reason = "stopped"
        try:
            reason = self._watch()
        finally:
            self._end(reason)

    def _watch(self) -> str:
        while True:
            self._reap()
            if self.ended:
                return "exited"
            if not is_alive(self.spec["owner_pid"], self.spec["owner_start"]):
                return "owner gone"
            if self.state["state"] == "starting" and healthy(self.spec["url"]):
                if not self._ours():
                    return "not ours"
                self.state |= {"state": "ready", "ready_at": time.time()}
                self._note()
            received = signal.sigtimedwait(_WATCHED, 0.1 if self.state["state"] == "starting" else 0.5)
            if received and received.si_signo == signal.SIGTERM:
                self._reap()
                return "exited" if self.ended else "stopped"

    def _ours(self) -> bool:
        """Whether the answer came from our server. A container's port belongs to its runtime: nothing to compare."""
        self._reap()
        if self.ended:
            return False
        found = listeners(self.spec["port"])
        return self.spec["container"] or not found or bool(found & self._members())

    def _members(self) -> set[int]:
        self._reap()
        return members(self.spec["token"], roots=[os.getpid()], groups=[self.pid])

    def _reap(self) -> None:
        """Collect ended children, orphans of the server too; keep the server's own exit status."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                if pid == self.pid:
                    self.ended = True
                    self.state["returncode"] = os.waitstatus_to_exitcode(status)

    def _end(self, reason: str) -> None:
        if self.spec["stop_argv"]:
            self._run_stop_command()
        left = end_processes(self._members, grace_s=self.spec["grace_s"])
        self._reap()
        self.state |= {"state": "ended", "reason": reason, "left": sorted(left)}
        self._note()

    def _run_stop_command(self) -> None:
        """A container outlives its client: only this command ends it. Its output goes into the server's log."""
        with Path(self.spec["log"]).open("ab") as log:
            try:
                # Its own session: nothing that is sent to us may cut it short.
                stop = subprocess.Popen(
                    self.spec["stop_argv"], env=self.spec["env"], cwd=self.spec["cwd"], stdin=subprocess.DEVNULL,
                    stdout=log, stderr=log, start_new_session=True, preexec_fn=_unblock,
                )  # fmt: skip
                code = stop.wait(STOP_COMMAND_S)
                if code:
                    log.write(f"prefixscope: the stop command ended with exit code {code}\n".encode())
            except (OSError, subprocess.SubprocessError) as error:
                log.write(f"prefixscope: the stop command failed: {error}\n".encode())

    def _note(self) -> None:
        # A full disk must not keep us from ending the server.
        with contextlib.suppress(OSError):
            write_state(Path(self.spec["state_file"]), self.state)


def _unblock() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, set())


def _before_exec() -> None:
    _unblock()
    # If even this supervisor is killed, the server is at least asked to end.
    _prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def main() -> int:
    """Fork: the parent prints what was started, as JSON, and ends; the child is the supervisor."""
    spec = json.load(sys.stdin)
    reading, writing = os.pipe()
    if os.fork():
        os.close(writing)
        with os.fdopen(reading) as pipe:
            print(pipe.read())
        return 0
    os.close(reading)
    os.setsid()
    _detach(spec["log"])
    supervisor = Supervisor(spec)
    started = supervisor.start()
    # The starter may be gone already; then the owner probably is too, and watching is all the more needed.
    with contextlib.suppress(OSError), os.fdopen(writing, "w") as pipe:
        pipe.write(json.dumps(started))
    if "error" not in started:
        supervisor.run()
    return 0


def _detach(log: str) -> None:
    """Let go of the starter's streams, or it would wait for us; our own last words go to the server's log."""
    nothing = os.open(os.devnull, os.O_RDWR)
    target = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    for stream, source in ((0, nothing), (1, nothing), (2, target)):
        os.dup2(source, stream)
    os.close(nothing)
    os.close(target)


if __name__ == "__main__":
    sys.exit(main())
