"""The whole investigation: notebooks in order, into one run directory, one report at the end whatever happened."""

from __future__ import annotations

import argparse
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from prefixscope import asked, collect_env, engine, notebooks, preflight
from prefixscope.client import Client
from prefixscope.errors import NotebookError, PrefixscopeError, RunError
from prefixscope.investigation import Investigation, free_space_warning
from prefixscope.runs import Run
from prefixscope.target import Target

QUICK: Mapping[str, Mapping[str, Any]] = {
    "baseline": {"lengths": [1600, 6446], "configurations": ["no_mtp", "mtp", "mtp_lora_interval"]},
    "sweep": {"intervals": [0, 1024], "lengths": [1600, 6446]},
    "equality": {"documents": 3, "tokens": 1600, "answer_tokens": 24},
    "speculation": {"documents": 1, "tokens": 256, "answer_tokens": 16},
}
EXPECTED_S: Mapping[str, tuple[float, float]] = {
    # stage: seconds in a default run and in a quick one, 2 idle cores, embedded engine
    "baseline": (190.0, 100.0),
    "trace": (8.0, 8.0),
    "speculation": (65.0, 20.0),
    "equality": (150.0, 30.0),
    "sweep": (200.0, 40.0),
    "report": (10.0, 10.0),
}
NEEDS_RESTART = ("trace", "sweep")


class Screen(Protocol):
    """Where progress goes."""

    def line(self, text: str) -> None: ...
    def progress(self, snapshot: dict[str, Any]) -> None: ...


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run would do."""

    target: Target
    stages: tuple[str, ...]
    parameters: dict[str, dict[str, Any]]
    left_out: dict[str, str] = field(default_factory=dict)
    quick: bool = False

    @property
    def asks(self) -> bool:
        """Whether anything is sent to a server; a trace from elsewhere is only drawn."""
        drawn = {"trace"} if self.parameters.get("trace", {}).get("trace") else set()
        return bool(set(self.stages) - drawn - {"report"})

    @property
    def expected_s(self) -> float:
        return sum(EXPECTED_S[stage][self.quick] for stage in self.stages)

    def to_json(self) -> dict[str, Any]:
        return {
            "target": self.target.to_json(),
            "stages": list(self.stages),
            "parameters": self.parameters,
            "left_out": self.left_out,
            "expected_s": self.expected_s if self.target.kind == "embedded" else None,
        }

    def text(self) -> str:
        lines = [f"target: {self.target.label}"]
        for stage in self.stages:
            lines.append(f"{notebooks.FILES[stage]}  (stage {stage})")
            given = self.parameters.get(stage, {})
            for parameter in notebooks.parameters(stage).values():
                if parameter.name not in notebooks.OWN:
                    value = given.get(parameter.name, parameter.default)
                    shown = repr(value).replace("'", '"')  # so that the line can be pasted into a shell
                    lines.append(f"  -p '{stage}.{parameter.name}={shown}'  {parameter.help}")
        lines += [f"left out: {stage}: {why}" for stage, why in self.left_out.items()]
        if self.target.kind == "embedded":
            lines.append(f"about {self.expected_s / 60:.0f} minutes on two idle cores, once the engine is installed")
        return "\n".join(lines)


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


def add_stored(plan: Plan, place: Path) -> None:
    """Give a plan that goes on the parameters its run began with, where the command line gives none."""
    for stage, stored in Run(place).manifest["parameters"].items():
        plan.parameters[stage] = {**stored, **plan.parameters.get(stage, {})}


def stages_of(place: Path) -> list[str]:
    """The stages that a run was asked for."""
    return [stage for stage in Run(place).manifest.get("plan") or () if stage in notebooks.ORDER]


def going_on(place: Path, assignments: Sequence[str]) -> list[str]:
    """The stages that a run goes on with: those it was asked for, and those that are given a parameter now.

    A server in production is sent nothing that was not asked for.
    """
    stages = stages_of(place)
    return [*stages, *(notebooks.parse_assignment(one)[0] for one in assignments)] if stages else []


def plan(target: Target, *, quick: bool, only: Sequence[str], assignments: Sequence[str]) -> Plan:
    """Which notebooks run with which parameters; every one of them checked.

    Raises
    ------
    NotebookError
        for an unknown stage or parameter, or a value of another type.
    """
    for stage in only:
        notebooks.path(stage)
    parameters: dict[str, dict[str, Any]] = {s: dict(v) for s, v in QUICK.items()} if quick else {}
    for assignment in assignments:
        stage, name, value = notebooks.parse_assignment(assignment)
        parameters.setdefault(stage, {})[name] = value
    for stage, given in parameters.items():
        defaults = {name: one.default for name, one in notebooks.parameters(stage).items()}
        asked.check(stage, {**defaults, **given})
    stages = [s for s in notebooks.ORDER if not only or s in only or s == "report"]
    left_out = {}
    if target.kind == "attached":
        # A trace of the server stands for the server: it is drawn, and a sweep is predicted from it.
        barred = [s for s in stages if s in NEEDS_RESTART and not parameters.get(s, {}).get("trace")]
        left_out = dict.fromkeys(barred, "needs a server that may be restarted: --serve-cmd 'vllm serve …'")
        stages = [s for s in stages if s not in barred]
    for assignment in assignments:
        stage = notebooks.parse_assignment(assignment)[0]
        if stage not in stages:
            raise NotebookError(
                f"-p {assignment}: stage {stage!r} is not part of this run",
                cause=left_out.get(stage, f"--only {' --only '.join(only)}"),
                remedy=f"its stages: {', '.join(stages)}",
            )
    return Plan(target, tuple(stages), {s: v for s, v in parameters.items() if s in stages}, left_out, quick)


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
        asked_for = {*plan.stages, *(stages_of(place) if resume else ())}
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
