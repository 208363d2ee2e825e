"""The run directory: the contract between stages, people and versions.

::

    RUN/run.json          what was investigated, with which parameters, how far it got   (atomic writes)
        raw/STAGE.jsonl   one line per observation, flushed as it happens, never edited
        trace/*.jsonl     engine-side events
        logs/*.log        one per managed server
        notebooks/*.ipynb executed copies

Everything that outlives a process goes through here. ``Run`` opens a directory, ``Run.stage`` is the scope in which one
stage may write to it.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import secrets
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prefixscope.errors import PrefixscopeError, RunError, mask
from prefixscope.progress import Progress
from prefixscope.provenance import environment, package_version
from prefixscope.run_files import RowFile, hold, is_ours, now, open_lock, read_rows, write_json
from prefixscope.standing import BY_HAND, LOCK, settled

SCHEMA_VERSION = 1
OWNER_ENV = "PREFIXSCOPE_OWNER_PID"


class Run:
    """One run directory, open.

    Parameters
    ----------
    path : the directory; it must hold a ``run.json`` (``Run.create`` makes one).

    Raises
    ------
    RunError
        where there is no run, or a newer prefixscope wrote it.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path).expanduser().resolve()
        manifest = self.manifest
        if manifest.get("schema_version") != SCHEMA_VERSION:
            raise RunError(
                f"{self.path}: schema {manifest.get('schema_version')!r}, this prefixscope reads {SCHEMA_VERSION}",
                cause="another version of prefixscope wrote it",
                remedy="pip install --upgrade prefixscope",
            )

    @staticmethod
    def free(path: Path | str) -> Path:
        """The absolute path of a directory that a new run may be made in.

        Raises
        ------
        RunError
            where something is there already.
        """
        path = Path(path).expanduser().resolve()
        if path.exists() and not path.is_dir():
            raise RunError(f"{path} is a file", remedy="name a directory: -o DIR")
        if path.is_dir() and any(path.iterdir()):
            raise RunError(
                f"{path} is not empty",
                cause="an earlier run is there" if (path / "run.json").exists() else "it holds other files",
                remedy=f"prefixscope run -o {shlex.quote(str(path))} --resume, or another -o"
                if (path / "run.json").exists()
                else "name another directory: -o DIR",
            )
        return path

    @classmethod
    def create(cls, path: Path | str, *, target: Mapping[str, Any], parameters: Mapping[str, Any]) -> Run:
        """A new run in an empty or missing directory."""
        path = cls.free(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
            for name in ("raw", "trace", "logs", "notebooks"):
                (path / name).mkdir(exist_ok=True)
        except OSError as error:
            raise RunError(
                f"can't make the run directory {path}: {error.strerror}", remedy="name another: -o DIR"
            ) from error
        manifest = {
            "schema_version": SCHEMA_VERSION,
            "run_id": secrets.token_hex(6),
            "created_at": now(),
            "prefixscope_version": package_version(),
            "target": dict(target),
            "parameters": dict(parameters),
            "engine": {},
            "environment": environment(),
            "stages": {},
            "facts": [],
            "warnings": [],
            "servers": [],
            "time": [],
        }
        write_json(path / "run.json", manifest)
        return cls(path)

    # --- the manifest ------------------------------------------------------------------------------------------

    @property
    def manifest(self) -> dict[str, Any]:
        file = self.path / "run.json"
        try:
            value = json.loads(file.read_text("utf-8"))
        except FileNotFoundError:
            raise RunError(
                f"{self.path} is not a run directory: it has no run.json", remedy="prefixscope run -o DIR"
            ) from None
        except (OSError, ValueError) as error:
            raise RunError(f"{file} can't be read: {error}", remedy="restore it from a copy") from error
        if not isinstance(value, dict):
            raise RunError(f"{file} does not hold a run", remedy="restore it from a copy")
        return value

    def update(self, change: Callable[[dict[str, Any]], None]) -> None:
        """Change the manifest under a lock; readers see the old or the new one, never half of it."""
        with open_lock(self.path / ".manifest.lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            manifest = self.manifest
            change(manifest)
            write_json(self.path / "run.json", manifest)

    def warn(self, code: str, detail: str, *, stage: str = "", remedy: str = "") -> None:
        """A doubtful measurement, for the report; the same one twice is kept once."""
        entry = {"code": code, "stage": stage, "detail": mask(detail), "remedy": mask(remedy)}
        self.update(lambda m: None if entry in m["warnings"] else m["warnings"].append(entry))

    def fact(self, name: str, value: object, source: str) -> None:
        """Something known about the target, and where from; a later value of the same name replaces an earlier."""

        def change(manifest: dict[str, Any]) -> None:
            manifest["facts"] = [f for f in manifest["facts"] if f["name"] != name]
            manifest["facts"].append({"name": name, "value": value, "source": source})

        self.update(change)

    def get_fact(self, name: str) -> Any:
        return next((f["value"] for f in self.manifest["facts"] if f["name"] == name), None)

    # --- rows --------------------------------------------------------------------------------------------------

    def rows(self, stage: str | None = None) -> list[dict[str, Any]]:
        """The observations of one stage or of all, in the order they were made. A truncated last line is left out."""
        files = [self.path / "raw" / f"{stage}.jsonl"] if stage else sorted((self.path / "raw").glob("*.jsonl"))
        return [row for file in files for row in read_rows(file)]

    def answered(self) -> bool:
        """Whether any request of this run was ever answered."""
        return any(row.get("status") == "ok" or row.get("kind") == "discarded" for row in self.rows())

    @contextmanager
    def stage(self, name: str, parameters: Mapping[str, Any] | None = None) -> Iterator[Stage]:
        """The scope in which a stage may write: locked, its status kept in the manifest whatever happens."""
        with self.locked():
            started, before = time.monotonic(), self.manifest["stages"].get(name, {})
            stage = Stage(self, name)
            self._set_stage(
                name, status="running", started_at=now(), error=None, note="", parameters=dict(parameters or {})
            )
            try:
                yield stage
            except BaseException as error:
                stopped = isinstance(error, (KeyboardInterrupt, SystemExit))
                stage.outcome = "interrupted" if stopped else "failed"
                self._set_stage(
                    name,
                    status=stage.outcome,
                    finished_at=now(),
                    seconds=round(time.monotonic() - started, 2),
                    error=_ended_by(error),
                )
                raise
            finally:
                stage.close()
            if not stage.written and not stage.note and stage.outcome == before.get("status") == "done":
                # Nothing was left to do: what the stage took when it did it is not forgotten.
                self._set_stage(name, **before)
                return
            self._set_stage(
                name,
                status=stage.outcome,
                note=stage.note,
                finished_at=now(),
                seconds=round(time.monotonic() - started, 2),
            )

    def _set_stage(self, name: str, **values: Any) -> None:
        self.update(lambda m: m["stages"].setdefault(name, {}).update(values))

    # --- the lock ----------------------------------------------------------------------------------------------

    @contextmanager
    def locked(self) -> Iterator[str]:
        """Hold the run for writing. Kernels that the holder starts write under its token.

        What a killed holder left running is put down as stopped.

        Raises
        ------
        RunError
            where another process holds it.
        """
        ours = is_ours(self.path / LOCK)
        with hold(self.path / LOCK) as token:
            if not ours:
                stages = self.manifest["stages"]
                if (known := settled(stages, held=False)) != stages:
                    self.update(lambda m: m.update({"stages": known}))
            yield token


class Stage:
    """A stage at work: it appends rows, warns, and says how far it is."""

    def __init__(self, run: Run, name: str) -> None:
        self.run, self.name = run, name
        self.outcome, self.note = "done", ""
        self.failure: PrefixscopeError | None = None
        paced = (run.manifest.get("target") or {}).get("kind") == "embedded"
        self.progress = Progress(run.path / "progress.json", name, paced=paced)
        self.written = 0
        self._rows = RowFile(run.path / "raw" / f"{name}.jsonl")

    def append(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Write one observation and flush it to the disk; it is on disk, whole, or an error says it is not.

        Raises
        ------
        RunError
            where the disk is full, or the run's owner is gone (then nothing else may be written).
        """
        _check_owner()
        full = {"schema": SCHEMA_VERSION, "stage": self.name, "at": now(), **row}
        try:
            self._rows.append(full)
        except OSError as error:
            raise RunError(
                f"the row could not be written to {self._rows.path}: {error.strerror}",
                cause="the disk is full; all earlier rows are safe" if error.errno == errno.ENOSPC else "",
                remedy=f"make room, then prefixscope run -o {shlex.quote(str(self.run.path))} --resume",
            ) from error
        self.written += 1
        return full

    def warn(self, code: str, detail: str, remedy: str = "") -> None:
        self.run.warn(code, detail, stage=self.name, remedy=remedy)

    def spent(self, what: str, seconds: float) -> None:
        """Where the time went, for the report's last section."""
        entry = {"stage": self.name, "what": what, "seconds": round(seconds, 3), "at": now()}
        self.run.update(lambda m: m["time"].append(entry))

    def close(self) -> None:
        self.progress.close(self.outcome, self.note)
        self._rows.close()


def _ended_by(error: BaseException) -> str:
    """Why a stage ended, in words."""
    if isinstance(error, KeyboardInterrupt):
        return BY_HAND
    if isinstance(error, SystemExit):
        return f"ended from outside (exit code {error.code})"
    said = mask(str(error))
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def copy_run(source: Path, to: Path) -> Run:
    """A writable copy of a recorded run."""
    shutil.copytree(source, to, dirs_exist_ok=True, ignore=shutil.ignore_patterns(LOCK, ".manifest.lock", "servers"))
    for name in ("raw", "trace", "logs", "notebooks"):
        (to / name).mkdir(exist_ok=True)
    return Run(to)


def _check_owner() -> None:
    owner = os.environ.get(OWNER_ENV)
    if owner and not Path(f"/proc/{owner}").exists() and sys.platform == "linux":
        raise RunError(f"the runner (process {owner}) is gone", remedy="prefixscope run -o RUN --resume")
