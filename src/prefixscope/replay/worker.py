"""A process in an engine's Python that answers with what that vLLM's own scheduler hits; see `inside/replayer`."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from prefixscope import engine as engines
from prefixscope.engine import Engine
from prefixscope.errors import ReplayError
from prefixscope.kit import PACKAGE, kit_environment, write_kit
from prefixscope.replay.case import Case, Request, ServerSetting
from prefixscope.replay.geometry import Geometry
from prefixscope.replay.outcome import Outcome, Predicted
from prefixscope.replay.refused import refused

Progress = Callable[[int], None]
"""Takes how many more requests are done."""

START_S = 180.0  # importing vLLM takes 6 s, much longer on a busy machine with cold files
SILENCE_S = 300.0  # a worker tells its rows every quarter of a second; one request may take this long


class Replayer:
    """One release's scheduler, kept warm; a context manager.

    Parameters
    ----------
    engine : an installed vLLM, also one that can't serve here.
    trace_dir : where the tracer writes what the scheduler did; None leaves it off.
    """

    def __init__(self, engine: Engine, *, trace_dir: Path | None = None) -> None:
        self.engine, self.trace_dir = engine, trace_dir
        self._scratch = tempfile.TemporaryDirectory(prefix="prefixscope-replay-")
        self._process: subprocess.Popen[str] | None = None
        self._errors: IO[str] | None = None
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._number = 0
        self._closed = False

    @property
    def release(self) -> str:
        return self.engine.version

    def __enter__(self) -> Replayer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the process and delete its folder, for good."""
        self._closed = True
        self._stop()
        with contextlib.suppress(OSError):
            self._scratch.cleanup()

    def start(self) -> None:
        """Start the process, and return when vLLM is imported; done anyway by the first replay.

        Raises
        ------
        ReplayError
            where it does not start, or does not know this release.
        """
        if self._process is not None:
            return
        if self._closed:
            raise ReplayError(f"the replay of vLLM {self.release} was given up")
        kit = write_kit(Path(self._scratch.name) / "kit")
        environment = {**os.environ, **self.engine.environment()}
        environment |= kit_environment(kit, self.trace_dir) if self.trace_dir is not None else {"PYTHONPATH": str(kit)}
        self._errors = (Path(self._scratch.name) / "stderr.txt").open("w+", encoding="utf-8", errors="replace")
        command = [str(self.engine.python), "-m", f"{PACKAGE}.replayer", str(self.engine.model.target.parent)]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                text=True,
                env=environment,
                cwd=self._scratch.name,
                start_new_session=True,
            )
        except OSError as error:
            raise ReplayError(
                f"the replay of vLLM {self.release} can't be started: {error}",
                remedy=f"prefixscope engine install {self.release}",
            ) from error
        self._lines = queue.Queue()
        threading.Thread(target=_read, args=(self._process.stdout, self._lines), daemon=True).start()
        first = self._line(START_S)
        if first is None:
            raise self._died("it ended while importing vLLM")
        if "refused" in first:
            self._stop()
            raise ReplayError(
                f"vLLM {self.release} can't be replayed: {first['refused']}",
                cause="its scheduler was not read and run with this prefixscope",
                remedy="choose a release from 0.28.0 to 0.33.0 with --vllm",
            )

    def replay(
        self,
        geometry: Geometry,
        setting: ServerSetting,
        requests: Sequence[Request],
        *,
        concurrency: int = 1,
        progress: Progress | None = None,
    ) -> Outcome:
        """What the requests hit, one after another (or ``concurrency`` at once) from an empty cache.

        Raises
        ------
        ReplayError
            where the release refuses the geometry or the interval, in its own words; or the worker died twice.
        """
        if not requests:
            raise ReplayError("there is no request to replay", remedy="give prompt lengths or a workload")
        asked = {
            "op": "replay",
            "geometry": geometry.to_json(),
            "setting": setting.to_json(),
            "requests": [one.to_json() for one in requests],
            "concurrency": concurrency,
        }
        try:
            rows, done = self._ask(asked, progress)
        except _Ended:
            # Once more, in a new process: whatever ended the first one, this request is named if it ends the second.
            try:
                rows, done = self._ask(asked, progress)
            except _Ended as error:
                names = requests[0].id if len(requests) == 1 else f"{requests[0].id} … {requests[-1].id}"
                raise self._died(f"it ended twice, over the requests {names} ({len(requests):,})") from error
        return Outcome(
            release=self.release,
            rows=tuple(
                Predicted(
                    str(row["id"]), row["prompt_tokens"], row["hit"], row["preempted"], row["evicted"],
                    row["cached_blocks"], tuple(row["kept"]) if "kept" in row else None,
                )
                for row in rows
            ),
            pool_blocks=done["pool_blocks"],
            interval=done["interval"],
            drop_groups=tuple(done["drop_groups"]),
            kept_blocks=(kept := tuple(done["cached_blocks"][str(gid)] for gid in range(len(done["cached_blocks"])))),
            kept_bytes=tuple(
                None if each is None else each * blocks
                for each, blocks in zip(done["bytes_per_block"], kept, strict=True)
            ),
            left_out=tuple(done["left_out"]),
            seconds=done["seconds"],
            block_bytes=tuple(done["bytes_per_block"]),
            lookahead_tokens=done["lookahead_tokens"],
            regrouped=done["regrouped"],
        )  # fmt: skip

    def case(self, case: Case, *, progress: Progress | None = None) -> Outcome:
        """Replay a whole case."""
        return self.replay(case.geometry, case.setting, case.requests, progress=progress)

    def group(self, model: Mapping[str, Any]) -> Geometry:
        """The KV cache groups that this release makes of a model on a GPU; see `inside/grouping` for the fields.

        Raises
        ------
        ReplayError
            where the release can't build the model from its config, in its own words.
        """
        try:
            _, done = self._ask({"op": "group", "model": dict(model)}, None)
        except _Ended as error:
            raise self._died("it ended while it grouped a model's layers") from error
        return Geometry.from_json({**done, "origin": f"a model's config, grouped by vLLM {self.release}"})

    # ---- the process

    def _ask(self, asked: Mapping[str, Any], progress: Progress | None) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        self.start()
        self._number += 1
        try:
            self._write(json.dumps({"id": self._number, **asked}) + "\n")
        except OSError as error:
            self._stop()
            raise _Ended from error
        rows: list[dict[str, Any]] = []
        while True:
            answer = self._line(SILENCE_S)
            if answer is None:
                self._stop()
                raise _Ended
            if answer.get("id") != self._number:
                continue  # of a request that was given up
            if "error" in answer:
                raise refused(self.release, asked, answer["error"])
            if "done" in answer:
                return rows, answer["done"]
            rows += answer["rows"]
            if progress is not None:
                progress(len(answer["rows"]))

    def _write(self, text: str) -> None:
        if self._process is None or self._process.stdin is None:
            raise OSError("no process")
        self._process.stdin.write(text)
        self._process.stdin.flush()

    def _line(self, timeout_s: float) -> dict[str, Any] | None:
        """The next answer; None where the process has ended. One that stays silent is ended."""
        try:
            line = self._lines.get(timeout=timeout_s)
        except queue.Empty:
            return None
        if line is None:
            return None
        found: dict[str, Any] = json.loads(line)
        return found

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()  # the worker ends with its input
        try:
            process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _died(self, what: str) -> ReplayError:
        self._stop()
        last = ""
        if self._errors is not None:
            self._errors.flush()
            self._errors.seek(0)
            last = "\n".join(self._errors.read().splitlines()[-12:])
        return ReplayError(
            f"the replay of vLLM {self.release} failed: {what}",
            cause="too little memory, or an engine that was changed or removed" if "Error" not in last else "",
            remedy=f"prefixscope engine remove {self.release}, then prefixscope engine install {self.release}",
            detail=last,
        )


class _Ended(Exception):
    """The worker's process is gone."""


def _read(stream: IO[str] | None, lines: queue.Queue[str | None]) -> None:
    """Moves lines from a pipe into a queue; None at its end."""
    if stream is not None:
        for line in stream:
            lines.put(line)
    lines.put(None)


def open_release(version: str, *, trace_dir: Path | None = None) -> Replayer:
    """A replayer for an installed release.

    Raises
    ------
    ReplayError
        where it is not installed: the message has the command that installs it.
    """
    found = engines.find(version)
    if found is None:
        have = ", ".join(one.version for one in engines.installed()) or "none"
        raise ReplayError(
            f"vLLM {version} is not installed here (installed: {have}), so its scheduler can't be asked",
            remedy=f"prefixscope engine install {version}",
        )
    return Replayer(found, trace_dir=trace_dir)
