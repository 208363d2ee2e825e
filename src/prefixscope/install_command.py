"""The commands of an install: their output kept aside, a sign of life, and what a failure most likely means."""

from __future__ import annotations

import os
import platform
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from prefixscope.errors import EngineError

NO_SUCH_RELEASE = "there is no such release"
HEARTBEAT_S = 10.0


class Commands:
    """The commands that install one version, in a scratch folder that the caller makes and removes."""

    def __init__(self, version: str, scratch: Path, progress: Callable[[str], None]) -> None:
        self.version, self.scratch, self.progress = version, scratch, progress

    def pip(self, python: Path, command: str, *arguments: str, retries: int = 2) -> None:
        """Runs that Python's pip; raises as ``run`` does."""
        options = ["--disable-pip-version-check", "--no-input", "--progress-bar", "off", "--retries", str(retries)]
        if command == "install":
            # Bytecode of everything takes longer than the whole install; the first import makes what is used.
            options += ["--no-compile", "--no-warn-script-location"]
        self.run([str(python), "-m", "pip", command, *options, *arguments], f"pip {command} failed")

    def run(self, command: Sequence[str], failure: str, environment: Mapping[str, str] | None = None) -> None:
        """Runs a command, its output kept aside; raises with its last lines, or says every ten seconds where it is."""
        # PIP_USER and PYTHONPATH would install or look somewhere else; a small /tmp would not hold PyTorch.
        inherited = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
        variables = {**inherited, "PIP_USER": "0", "TMPDIR": str(self.scratch), **(environment or {})}
        output = self.scratch / "output.txt"
        began = told = time.monotonic()
        with output.open("wb") as file:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=variables,
                cwd=self.scratch,
                start_new_session=True,
            )
            try:
                while process.poll() is None:
                    time.sleep(0.05)
                    if time.monotonic() - told >= HEARTBEAT_S:
                        told = time.monotonic()
                        self.progress(f"  {told - began:.0f} s: {_doing(output) or 'working'}")
            finally:
                if process.poll() is None:  # Ctrl-C, or progress failed
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        if process.returncode:
            raise self._explain(failure, command, output.read_text(encoding="utf-8", errors="replace"))

    def _explain(self, failure: str, command: Sequence[str], text: str) -> EngineError:
        """The error for a failed command, its likely cause read from what it printed."""
        # "Looking in indexes" may hold a password; "is ignored" is about folders that only some machines have.
        noise = re.compile(r"^\s*$|is ignored: it is|^Looking in ")
        lines = [line[:400] for line in text.splitlines() if not noise.search(line)]
        here = f"Python {python_version()} on {platform.system()} {platform.machine()}"
        cause, remedy = "", "run the command above by hand to see all of it"
        if "No space left on device" in text:
            cause, remedy = "the disk is full", "free some space, or set PREFIXSCOPE_CACHE to another folder"
        elif re.search(r"(?i)connection|timed out|name resolution|Max retries|ProxyError|SSLError", text):
            cause = "the package index is out of reach"
            remedy = "check the network, proxy and pip's configuration (pip config list), then run it again"
        elif found := re.search(r"from versions: ([^)]*)\)", text):
            offered = [each for each in found[1].split(", ") if each != "none"]
            cause = f"{NO_SUCH_RELEASE} for {here}" + (f"; there are {', '.join(offered[-8:])}" if offered else "")
            remedy = "choose another version, or use --url or --serve-cmd with a server of your own"
        elif "ensurepip" in text:
            cause, remedy = (
                "this Python comes without venv",
                "install it (Debian, Ubuntu: apt-get install python3-venv)",
            )
        elif "requires a different Python" in text or "not a supported wheel" in text:
            cause, remedy = f"no build for {here}", "use Python 3.11 or 3.12, or --url with a server of your own"
        shown = " ".join(command if len(command) < 16 else [*command[:3], "…"])
        if "-c" in command:
            shown = f"{command[0]} -c …"
        return EngineError(
            f"vLLM {self.version}: {failure} (exit code from: {shown})",
            cause=cause,
            remedy=remedy,
            detail="\n".join(lines[-12:]),
        )


def python_version() -> str:
    return f"{sys.version_info[0]}.{sys.version_info[1]}"


def _doing(output: Path) -> str:
    """The last thing pip said it was doing."""
    lines = output.read_text(encoding="utf-8", errors="replace").splitlines()
    telling = [
        line.strip() for line in lines if re.match(r"\s*(Collecting|Downloading|Installing|Building|Using)", line)
    ]
    return telling[-1][:90] if telling else ""
