"""A real Chromium, driven over its DevTools protocol, that can reach no network."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import requests
from websocket import WebSocketTimeoutException, create_connection

INSTALL = "apt-get update && apt-get install -y chromium"
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--disable-quic",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions",
    "--disable-dev-shm-usage", "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1", "--remote-debugging-port=0",
)  # fmt: skip


class NoChromium(Exception):
    """There is no Chromium; the message names the command that installs one."""


class Chromium:
    """One browser process; ``page()`` opens a tab. Use as a context manager."""

    def __init__(self) -> None:
        binary = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
        if binary is None:
            raise NoChromium(f"no Chromium on PATH; install it: {INSTALL}")
        self._profile = tempfile.mkdtemp(prefix="chromium-")
        self._log = Path(self._profile, "stderr.log").open("wb")  # noqa: SIM115 (closed with the browser)
        self.process = subprocess.Popen(
            [binary, *FLAGS, f"--user-data-dir={self._profile}"], stdout=subprocess.DEVNULL, stderr=self._log
        )
        self.port = self._wait_for_port()

    def _wait_for_port(self) -> int:
        file, until = Path(self._profile, "DevToolsActivePort"), time.monotonic() + 60
        while time.monotonic() < until and self.process.poll() is None:
            if file.exists() and file.read_text().strip():
                return int(file.read_text().split()[0])
            time.sleep(0.05)
        self.close()
        raise RuntimeError("Chromium did not open its DevTools port within 60 s")

    def page(self, *, width: int = 1440, height: int = 1200, scheme: str = "light", scripts: bool = True) -> Page:
        """A new tab of the given size and colour scheme."""
        found = requests.put(f"http://127.0.0.1:{self.port}/json/new?about:blank", timeout=30).json()
        return Page(found["webSocketDebuggerUrl"], width=width, height=height, scheme=scheme, scripts=scripts)

    def close(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)
        self._log.close()
        shutil.rmtree(self._profile, ignore_errors=True)

    def __enter__(self) -> Chromium:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Page:
    """A tab: what it asked for over the network, what it logged, and what an expression gives in it."""

    def __init__(self, url: str, *, width: int, height: int, scheme: str, scripts: bool) -> None:
        self._socket = create_connection(url, timeout=60, suppress_origin=True)
        self._last = 0
        self.requests: list[str] = []
        self.console: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        if not scripts:
            self.call("Emulation.setScriptExecutionDisabled", value=True)

    def call(self, method: str, **parameters: Any) -> Any:
        """One protocol call; events that arrive meanwhile are noted."""
        self._last += 1
        self._socket.send(json.dumps({"id": self._last, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._socket.recv())
            if message.get("id") == self._last:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]
            self._note(message)

    def open(
        self,
        url: str,
        *,
        until: str = "document.readyState === 'complete' && location.href !== 'about:blank'",
        timeout_s: float = 60,
    ) -> None:
        """Go to a page and wait until an expression is true in it.

        Raises
        ------
        TimeoutError
            with what the page logged.
        """
        self.call("Page.navigate", url=url)
        self.wait(until, timeout_s=timeout_s)

    def wait(self, until: str, *, timeout_s: float = 60) -> None:
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            if self.value(f"Boolean({until})"):
                return
            time.sleep(0.1)
        raise TimeoutError(f"{until} was not true within {timeout_s:g} s; console: {self.console[:5]}")

    def value(self, expression: str) -> Any:
        """What an expression gives, as JSON."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression[:200]}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def settle(self, seconds: float = 0.3) -> None:
        """Note what still arrives for a while."""
        self._socket.settimeout(seconds)
        with suppress(WebSocketTimeoutException):
            while True:
                self._note(json.loads(self._socket.recv()))
        self._socket.settimeout(60)

    def _note(self, message: dict[str, Any]) -> None:
        event, values = message.get("method"), message.get("params", {})
        if event == "Network.requestWillBeSent":
            self.requests.append(values["request"]["url"])
        elif event == "Network.webSocketCreated":
            self.requests.append(values["url"])
        elif event == "Runtime.consoleAPICalled":
            self.console.append(
                f"{values['type']}: "
                + " ".join(str(item.get("value", item.get("description"))) for item in values["args"])
            )
        elif event == "Runtime.exceptionThrown":
            self.console.append(
                f"exception: {values['exceptionDetails'].get('exception', {}).get('description', values)}"
            )
        elif event == "Log.entryAdded":
            self.console.append(f"{values['entry']['level']}: {values['entry']['text']}")
