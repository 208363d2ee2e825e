"""The whole investigation: notebooks in order, into one run directory, one report at the end whatever happened."""

from __future__ import annotations

import argparse
import shlex
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from prefixscope import collect_env, engine, notebooks, planned, preflight
from prefixscope.client import Client
from prefixscope.errors import NotebookError, PrefixscopeError, RunError
from prefixscope.investigation import Investigation, free_space_warning
from prefixscope.planned import Plan
from prefixscope.runs import Run
from prefixscope.target import Target


class Screen(Protocol):
    """Where progress goes."""

    def line(self, text: str) -> None: ...
    def progress(self, snapshot: dict[str, Any]) -> None: ...


@dataclass(frozen=True, slots=True)
class Result:
    """What a run came to."""

    path: Path
    report: Path | None
    verdict: str
    code: str
    failed: tuple[str, ...]
    seconds: float
    note: Path | None = None

    @property
    def exit_code(self) -> int:
        if self.failed:
            return 1
        return 3 if self.code in ("cannot hit", "not reported", "inconclusive") else 0

    def to_json(self) -> dict[str, Any]:
        return {
            "run": str(self.path),
            "report": str(self.report) if self.report else None,
            "incident": str(self.note) if self.note else None,
            "verdict": self.verdict,
            "verdict_code": self.code,
            "failed_stages": list(self.failed),
            "seconds": round(self.seconds, 1),
        }

    def text(self) -> str:
        lines = [self.verdict, f"report: {self.report}" if self.report else "no report could be rendered"]
        if self.note:
            lines.append(f"note to send on: {self.note}")
        if self.failed:
            again = f"prefixscope run -o {shlex.quote(str(self.path))} --resume"
            lines.append(f"failed: {', '.join(self.failed)}; go on with: {again}")
        return "\n".join(lines)


def target_of(options: argparse.Namespace) -> Target:
    """The target that the command line names; the embedded engine where it names none."""
    common = {"model": options.model or "", "key_env": options.key_env, "start_timeout_s": options.start_timeout}
    if options.stop_cmd and not options.serve_cmd:
        raise RunError("--stop-cmd goes with --serve-cmd")
    if options.engine and (options.url or options.serve_cmd):
        raise RunError("--engine names the embedded engine; it does not go with --url or --serve-cmd")
    if options.resume and options.out and options.url is None and options.serve_cmd is None:
        return Target.from_json(Run(options.out).manifest["target"])
    if options.url is not None:
        return Target(kind="attached", url=options.url, **common)
    if options.serve_cmd is not None:
        return Target(kind="managed", serve_cmd=options.serve_cmd, stop_cmd=options.stop_cmd or "", **common)
    return Target(kind="embedded", engine=options.engine or engine.DEFAULT_VERSION, **common)


def refuse_other_target(options: argparse.Namespace) -> None:
    """A run goes on with the target it began with; only the name of the key's variable may be given anew.

    Raises
    ------
    RunError
        where the command line names another target.
    """
    run = Run(options.out)
    known = Target.from_json(run.manifest["target"])
    for name in ("url", "serve_cmd", "stop_cmd", "engine"):
        given = getattr(options, name)
        if given and given != getattr(known, name):
            raise RunError(
                f"--resume goes on with {known.label}, not with --{name.replace('_', '-')} {given}",
                remedy="start a new run for another target: another -o, without --resume",
            )
    if options.key_env:
        with run.locked():
            run.update(lambda m: m["target"].update({"key_env": options.key_env}))


def run(target: Target, plan: Plan, *, out: str | None, resume: bool, screen: Screen, collect: bool = True) -> Result:
    """Carry out a plan.

    A stage that fails does not stop the others; the report is rendered in any case, and the servers are stopped.
    ``collect`` asks the engine's Python for vLLM's ``collect-env`` once nothing is measured any more.

    Raises
    ------
    TargetError, RunError, EngineError
        before anything is written, where the target can't be reached or the directory can't be used.
    """
    started = time.monotonic()
    if resume and not out:
        raise RunError("--resume needs the run directory", remedy="prefixscope run -o RUN --resume")
    place = Path(out) if out else Path.cwd() / time.strftime("prefixscope-run-%Y%m%d-%H%M%S")
    if not resume:
        Run.free(place)  # before anything is installed
    if plan.asks:
        prepare(target, screen)
    directory = open_directory(target, plan, place, resume=resume)
    with directory.locked() as token, notebooks.owned_by(token):
        screen.line(f"run directory: {directory.path}")
        warning = free_space_warning(directory.path)
        if warning:
            screen.line(f"  warning: {warning}")
        for stage, why in plan.left_out.items():
            screen.line(f"  {stage:9} left out: {why}")
        left_out = {stage: {"status": "left out", "note": why} for stage, why in plan.left_out.items()}
        directory.update(lambda m: m["stages"].update(left_out))
        asked_for = {*plan.stages, *(planned.stages_of(place) if resume else ())}
        directory.update(lambda m: m.update({"plan": [stage for stage in notebooks.ORDER if stage in asked_for]}))
        failed: list[str] = []
        try:
            for stage in plan.stages:
                if failed and stage != "report" and not directory.answered():
                    screen.line(f"  {stage:9} left out: no server of this run has answered")
                    continue
                if stage == "report" and collect and plan.asks:
                    collect_env.keep(directory, target)
                if not run_stage(directory, stage, plan.parameters.get(stage, {}), resume=resume, screen=screen):
                    failed.append(stage)
        except KeyboardInterrupt:
            screen.line(f"interrupted; go on with: prefixscope run -o {shlex.quote(str(directory.path))} --resume")
            raise
        finally:
            Investigation(directory, target).stop_servers()
    from prefixscope import verdict

    found = verdict.of_run(directory.path)
    report = directory.path / "report.html"
    return Result(
        directory.path,
        report if report.exists() else None,
        found.sentence,
        found.code,
        tuple(failed),
        time.monotonic() - started,
        note=_write_note(directory.path, screen),
    )


def _write_note(place: Path, screen: Screen) -> Path | None:
    """The incident note beside the report; None, and said why, where it can't be written."""
    from prefixscope import notes

    try:
        return notes.write_incident(place)
    except PrefixscopeError as error:
        screen.line(f"  no incident note: {error}")
        return None


def open_directory(target: Target, plan: Plan, place: Path, *, resume: bool) -> Run:
    """The run directory: a new one, or the one to go on with."""
    if not resume:
        return Run.create(place, target=target.to_json(), parameters=plan.parameters)
    run = Run(place)
    with run.locked():  # a run in use keeps its own parameters
        run.update(
            lambda m: m["parameters"].update(
                {k: {**m["parameters"].get(k, {}), **v} for k, v in plan.parameters.items()}
            )
        )
    plan.parameters.update({stage: dict(v) for stage, v in run.manifest["parameters"].items()})
    return run


def prepare(target: Target, screen: Screen) -> None:
    """What must be there before the first notebook: the key, the server, the engine."""
    target.check_environment()
    if target.kind == "embedded":
        engine.ensure(target.engine, progress=screen.line, to_serve=True)
    elif target.kind == "attached":
        reach(target)
    elif target.kind == "managed":
        target.offers()  # a command that can't be read is refused here


def reach(target: Target) -> None:
    """Raise where an attached server does not answer, refuses, or does not serve the wanted name."""
    target.check_environment()
    with Client(target.url, key_env=target.key_env) as client:
        preflight.choose_model(client, target.model)


def run_stage(run: Run, stage: str, parameters: Mapping[str, Any], *, resume: bool, screen: Screen) -> bool:
    """Run one notebook unless it is done already; False where it failed."""
    known = run.manifest["stages"].get(stage, {})
    if resume and stage != "report" and known.get("status") == "done" and known.get("given") == dict(parameters):
        screen.line(f"  {stage:9} done already")
        return True
    started = time.monotonic()
    try:
        notebooks.execute(run, stage, parameters, watch=screen.progress)
    except NotebookError as error:
        reason = str(error)
        run.update(lambda m: m["stages"].setdefault(stage, {}).update({"status": "failed", "error": reason}))
        screen.line(f"  {stage:9} FAILED after {time.monotonic() - started:.0f} s\n{error}")
        return False
    except PrefixscopeError as error:
        screen.line(f"  {stage:9} FAILED: {error}")
        return False
    # The report's notebook writes no rows, so it opens no stage that would keep its status.
    own = {"status": "done", "error": None} if stage == "report" else {}
    run.update(lambda m: m["stages"].setdefault(stage, {}).update({"given": dict(parameters), **own}))
    state = run.manifest["stages"].get(stage, {})
    note = f" ({state['note']})" if state.get("note") else ""
    screen.line(f"  {stage:9} {state.get('status', 'done')} in {time.monotonic() - started:.0f} s{note}")
    return bool(state.get("status") != "partial")
