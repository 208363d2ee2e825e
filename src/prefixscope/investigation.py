"""A run, its target and its servers, as one thing that a notebook holds."""

from __future__ import annotations

import atexit
import json
import math
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prefixscope import command, kit, preflight, resources
from prefixscope.client import Client
from prefixscope.errors import RunError, Unreachable, Unsupported
from prefixscope.pool import Pool
from prefixscope.preflight.fact import ADAPTERS
from prefixscope.redact import inert
from prefixscope.run_files import iso, now
from prefixscope.runs import OWNER_ENV, Run, Stage, copy_run
from prefixscope.server import Server
from prefixscope.setting import Setting
from prefixscope.target import Target

EMBEDDED_START_S = 240.0
EMBEDDED_IDLE = 3
"""Embedded servers that may wait unused: what the comparison of drafter on and off needs, and one more."""
EMBEDDED_BYTES = 1_500_000_000
"""Memory that one embedded server may come to need; at rest it has 0.65 GB."""


class Investigation:
    """What a stage works with.

    Attributes
    ----------
    run : the run directory.
    target : what is investigated.
    passing : the directory is gone when this process ends.
    """

    def __init__(self, run: Run, target: Target, *, passing: bool = False) -> None:
        self.run, self.target, self.passing = run, target, passing
        timeout_s = target.start_timeout_s if target.kind == "managed" else EMBEDDED_START_S
        owner = int(os.environ.get(OWNER_ENV) or os.getpid())
        idle = EMBEDDED_IDLE if target.kind == "embedded" else 1
        self.pool = Pool(run.path, owner, max_idle=idle, start_timeout_s=timeout_s)

    @property
    def path(self) -> Path:
        return self.run.path

    def _repr_markdown_(self) -> str:
        """What a notebook says of it: where rows go, what is there already, and how to ask something else."""
        manifest, rows = self.run.manifest, self.run.rows()
        if self.target.kind == "sample":
            when, version = str(manifest["created_at"])[:10], manifest["engine"].get("version")
            return (
                f"**A copy of the recorded sample**: {len(rows):,} rows of vLLM {version}, recorded on {when}. "
                "Nothing is sent. To investigate a server of yours, change `target` in the parameters cell."
            )
        known = f"{len(rows):,} rows are there" if rows else "it is new"
        return (
            f"**Run directory** `{beside(self.path)}`, of the {inert(self.target.label)}: {known}. Notebooks beside "
            "this one with the same `target` go on with it, and nothing is measured twice; to measure anew, name "
            "another `run_dir`."
        )

    @contextmanager
    def stage(self, name: str, **parameters: Any) -> Iterator[Stage]:
        """As ``Run.stage``. Where no server ever answered in this run, the stage's last failure is raised once its rows
        are written: a notebook that measured nothing does not end well.
        """
        with self.run.stage(name, parameters) as stage:
            yield stage
        if stage.failure is not None and not self.run.answered():
            raise stage.failure

    @property
    def side_by_side(self) -> bool:
        """Whether two servers of this target can run at once."""
        if self.target.kind == "embedded":
            return available_bytes() > 2 * EMBEDDED_BYTES
        return self.target.kind == "attached"

    @property
    def serves_adapter(self) -> bool:
        """Whether a server of this target can have an adapter; one that runs already may, until it said it has none."""
        if self.target.kind != "attached":
            return self.target.offers()[1]
        told = [fact["value"] for fact in self.run.manifest["facts"] if fact["name"] == ADAPTERS]
        return not told or told[-1] is not None

    def compared_later(self, setting: Setting) -> bool:
        """Whether a planned comparison of drafter on and off wants a server with this setting left running."""
        planned = "speculation" in self.run.manifest.get("plan", ()) and self.target.kind == "embedded"
        return planned and not setting.lora and setting.interval is None and self.side_by_side

    # --- servers -----------------------------------------------------------------------------------------------

    def trace_environment(self) -> dict[str, str]:
        """What makes a server of ours write its lookups into the run directory."""
        folder = kit.write_kit(self.path / "kit") if not (self.path / "kit").is_dir() else self.path / "kit"
        return kit.kit_environment(folder, self.path / "trace")

    def start_ahead(self, setting: Setting) -> None:
        """Begin to start a server that is needed next, without waiting for it."""
        if self.target.restarts:
            self.pool.prefetch(setting, self._factory(setting))

    @contextmanager
    def server(self, setting: Setting, stage: Stage, *, keep: bool = False) -> Iterator[tuple[Client, str]]:
        """A client of a server with these settings, and that server's id. ``keep`` leaves it for a later stage.

        Raises
        ------
        ServerError
            where it doesn't start.
        """
        if self.target.kind == "sample":
            raise Unsupported(
                "the recorded sample does not hold these cells",
                cause="a parameter was changed, and there is no server to ask",
                remedy="set target = 'embedded' (or a URL, or a serve command) in the parameters cell",
            )
        if self.target.kind == "attached":
            with Client(self.target.url, key_env=self.target.key_env, told=stage.progress.say) as client:
                self.note_target(client, None)
                yield client, "attached"
            return
        server = self._acquire(setting, stage)
        try:
            with Client(server.url, key_env=self.target.key_env) as client:
                self.note_target(client, server)
                yield client, server.id
        except Unreachable:
            server.ensure_alive()  # raises, with the log's last lines and the cause, where the server has died
            raise
        finally:
            self.pool.release(server, keep=keep)
            if not keep:
                self._note_server(server, stopped=True)

    def _acquire(self, setting: Setting, stage: Stage) -> Server:
        stage.progress.say(f"starting {setting.label}")
        started = time.monotonic()
        server = self.pool.acquire(
            setting,
            self._factory(setting),
            progress=lambda seconds, line: stage.progress.say(
                f"starting {setting.label}, {seconds:.0f} s{line and f': {line}'}"
            ),
        )
        stage.spent(f"waiting for {setting.label} to start", time.monotonic() - started)
        self._note_server(server)
        return server

    def _factory(self, setting: Setting) -> Callable[[], Any]:
        return lambda: self.target.command(setting, self.trace_environment())

    def _note_server(self, server: Server, *, stopped: bool = False) -> None:
        entry: dict[str, Any] = {
            "id": server.id,
            "setting": server.setting.to_json(),
            "command": server.command,
            "start_s": server.start_s,
            "started_at": iso(server.started_at),
            "ready_at": iso(server.ready_at) if server.ready_at else None,
        }

        def change(manifest: dict[str, Any]) -> None:
            known = next((s for s in manifest["servers"] if s["id"] == server.id), None)
            if known is None:
                manifest["servers"].append(known := {"stopped_at": None, **entry})
            if stopped:
                known["stopped_at"] = now()

        self.run.update(change)

    def note_target(self, client: Client, server: Server | None) -> None:
        """Keep what the server says of itself."""
        if server is not None and self.run.get_fact("vllm version") is not None:
            return
        environment, flags = command.given(self.target.serve_cmd) if self.target.kind == "managed" else ({}, {})
        header = self._header_of(server) if server is not None else {}
        seen = preflight.look(client, environment=environment, flags=flags, header=header)
        for fact in preflight.facts(seen):
            self.run.fact(fact.name, fact.value, fact.source)
        version = self.run.get_fact("vllm version")
        before = self.run.manifest["engine"].get("version")
        if before is not None and version is not None and before != version:
            self.run.warn(
                "several-releases",
                f"the server answered as vLLM {before} first and as {version} later: rows of both are in this run",
                remedy="investigate each release in a run of its own: another -o",
            )
        self.run.update(lambda m: m["engine"].update({"version": version}))
        for finding in preflight.findings(seen):
            self.run.warn(finding.code, finding.detail, remedy=finding.remedy)

    def _header_of(self, server: Server) -> dict[str, Any]:
        """What this server's engine traced first: its geometry and settings, as it resolved them itself.

        Another server may have started meanwhile. In a container process numbers say nothing: there it is the newest.
        """
        found = []
        files = sorted((self.path / "trace").glob("*.jsonl"), key=lambda file: file.stat().st_mtime)
        for file in reversed(files):
            with file.open(encoding="utf-8", errors="replace") as lines:
                try:
                    event = json.loads(next(lines, ""))
                except ValueError:
                    continue
            if isinstance(event, dict) and event.get("event") == "header":
                found.append(event)
        group = _process_group(server.process[0])
        own = [event for event in found if group is not None and _process_group(event.get("pid")) == group]
        return next(iter(own or found), {})

    def stop_servers(self) -> None:
        self.pool.stop_all()


def open_run(run_dir: str = "", target: str = "sample", **options: Any) -> Investigation:
    """The investigation in ``run_dir``, made if there is none.

    Parameters
    ----------
    run_dir : a run directory. Empty takes a copy of the recorded sample, where that is the target; else the newest
        run of this target in the working directory, so that a notebook run again, and the next one, go on with it;
        else a new one.
    target : ``sample``, ``embedded``, a URL or a serve command; what an existing run already names wins.

    Raises
    ------
    RunError
        where either is not text or names nothing, and where ``run_dir`` names no run and the sample is the target.
    """
    for name, value in (("run_dir", run_dir), ("target", target)):
        if not isinstance(value, str):
            raise RunError(f"{name}={value!r}: {type(value).__name__}, not text", remedy=f"{name} = {str(value)!r}")
    if run_dir and (Path(run_dir).expanduser() / "run.json").exists():
        run = Run(run_dir)
        return Investigation(run, Target.from_json(run.manifest["target"]))
    wanted = Target.parse(target, **options)
    wanted.check_environment()
    if wanted.kind == "sample" and run_dir:
        there = "it has no run.json" if Path(run_dir).expanduser().exists() else "there is no such directory"
        raise RunError(
            f"run_dir={run_dir!r} is no run: {there}",
            remedy="the path of a run directory; or an empty run_dir, for a copy of the recorded sample",
        )
    if wanted.kind == "sample":
        return _sample()
    if not run_dir and (known := _newest(wanted, options)) is not None:
        return known
    place = Path(run_dir) if run_dir else Path.cwd() / time.strftime("prefixscope-run-%Y%m%d-%H%M%S")
    return Investigation(Run.create(place, target=wanted.to_json(), parameters={}), wanted)


def _sample() -> Investigation:
    """A copy of the recorded sample, which is gone when this process ends."""
    sample = resources.data_path("sample", "run")
    if not (sample / "run.json").exists():
        raise RunError(
            f"the recorded sample is missing from the installation ({sample})", remedy="reinstall prefixscope"
        )
    place = Path(tempfile.mkdtemp(prefix="prefixscope-sample-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    run = copy_run(sample, place)
    run.update(lambda m: m["target"].update({"kind": "sample"}))
    return Investigation(run, Target.from_json(run.manifest["target"]), passing=True)


def _newest(wanted: Target, options: Mapping[str, Any]) -> Investigation | None:
    """The newest run in the working directory that is of this target."""
    alike = ("kind", "url", "serve_cmd", "engine", *options)
    for file in sorted(Path.cwd().glob("prefixscope-run-*/run.json"), reverse=True):
        try:
            run = Run(file.parent)
        except RunError:
            continue  # of another version, or damaged: not ours to go on with
        known = Target.from_json(run.manifest["target"])
        if all(getattr(known, name) == getattr(wanted, name) for name in alike):
            return Investigation(run, known)
    return None


def beside(path: Path) -> Path:
    """The path as seen from the working directory, where it lies below that."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def available_bytes() -> float:
    """Memory that can be had without swapping, as Linux estimates it; infinite where nobody says."""
    try:
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
    except OSError:
        return math.inf
    return next((int(line.split()[1]) * 1024.0 for line in lines if line.startswith("MemAvailable:")), math.inf)


def free_space_warning(path: Path, need_bytes: int = 200_000_000) -> str | None:
    """A sentence where the disk of a run directory is nearly full."""
    free = shutil.disk_usage(path if path.exists() else path.parent).free
    return f"only {free / 1e6:,.0f} MB are free where the run is kept" if free < need_bytes else None


def _process_group(pid: Any) -> int | None:
    """The group that a living process is in; None for any other."""
    try:
        return os.getpgid(int(pid)) if pid else None
    except (OSError, TypeError, ValueError):
        return None
