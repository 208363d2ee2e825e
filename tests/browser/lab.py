"""A JupyterLab of its own: ``prefixscope lab`` on loopback with a token, and nothing of the user's settings."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

import requests

OPTIONS = (
    "--no-browser", "--allow-root", "--expose-app-in-browser", "--ServerApp.ip=127.0.0.1", "--ServerApp.port_retries=0",
    # Lab itself asks the network for news and newer versions; that is the user's choice, not a notebook's.
    "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate", "--LabApp.news_url=",
)  # fmt: skip


class Lab:
    """``prefixscope lab FOLDER`` as a process, ready; a context manager.

    No signature is known to it, so every notebook with outputs that it opens is untrusted until ``trust`` signs it.
    """

    def __init__(self, folder: Path, home: Path) -> None:
        self.folder, self.token = folder, secrets.token_hex(16)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        places = ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "JUPYTERLAB_SETTINGS_DIR",
                  "JUPYTERLAB_WORKSPACES_DIR", "IPYTHONDIR")  # fmt: skip
        self.environment = {
            **os.environ,
            **{name: str(home / name.lower()) for name in places},
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "JUPYTER_TOKEN": self.token,
        }
        home.mkdir(parents=True, exist_ok=True)
        self.log = home / "lab.log"
        self._command = [sys.executable, "-m", "prefixscope.cli", "lab", str(folder), *OPTIONS, f"--port={self.port}"]

    def __enter__(self) -> Lab:
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(self._command, stdout=log, stderr=log, env=self.environment)
        until = time.monotonic() + 120
        while time.monotonic() < until and self.process.poll() is None:
            try:
                if requests.get(f"{self.origin}/api/status?token={self.token}", timeout=5).ok:
                    return self
            except requests.ConnectionError:
                pass
            time.sleep(0.2)
        self.__exit__(None, None, None)
        raise RuntimeError(f"JupyterLab did not get ready:\n{self.log.read_text()[-3000:]}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.send_signal(signal.SIGTERM)  # ends the kernels too
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def url(self, notebook: str) -> str:
        """Where a notebook opens, in a workspace of its own."""
        return f"{self.origin}/lab/workspaces/{Path(notebook).stem}/tree/{notebook}?token={self.token}"

    def trust(self, notebook: str) -> None:
        """Sign a notebook, as a user does who trusts it."""
        command = [sys.executable, "-m", "jupyter", "trust", str(self.folder / notebook)]
        subprocess.run(command, env=self.environment, check=True, capture_output=True)
