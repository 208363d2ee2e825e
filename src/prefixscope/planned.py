"""What a run would do: which notebooks, with which parameters, for how long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prefixscope import asked, notebooks
from prefixscope.errors import NotebookError
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
        left_out |= {s: f"{why}; or a trace of it: -p sweep.trace=FILE" for s, why in left_out.items() if s == "sweep"}
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
