"""How far a run got: which of its stages are done, which were stopped, failed or have not begun, and the way on.

A process that is killed leaves its stage in state ``running``. The run's lock tells: where nobody holds it, the stage
was stopped. ``settled`` says so in the manifest as it is read; everything else goes by the manifest alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefixscope.quantities import listing
from prefixscope.run_files import is_held

LOCK = ".lock"
BY_HAND = "interrupted by Ctrl-C"
KILLED = "killed, or its machine went down: no reason was recorded"
GO_ON = "prefixscope run -o RUN --resume"
"""RUN stands for the run's directory: what is told of a run travels."""

STATES: Mapping[str, tuple[str, str]] = {
    "failed": ("failed", "failed"),
    "partial": ("is not complete", "are not complete"),
    "interrupted": ("was stopped before it was done", "were stopped before they were done"),
    "running": ("had not ended", "had not ended"),
    "not begun": ("has not begun", "have not begun"),
}
"""Status of a stage that is not done → what is said of one such stage, and of several."""


@dataclass(frozen=True, slots=True)
class Standing:
    """The stages by status, in the order of the plan: done, and those of ``STATES`` that some stage has."""

    stages: Mapping[str, tuple[str, ...]]

    @property
    def unfinished(self) -> str:
        """What is not done, in a sentence; empty where nothing is left."""
        parts = []
        for status, (one, several) in STATES.items():
            if names := self.stages.get(status):
                parts.append(f"{listed(names)} {one if len(names) == 1 else several}")
        return f"Unfinished: {'; '.join(parts)}." if parts else ""

    @property
    def at_work(self) -> bool:
        """Whether a process was still measuring when this was read."""
        return "running" in self.stages

    @property
    def command(self) -> str:
        """What goes on with the run; empty where nothing is left, or the run is still at it."""
        return GO_ON if self.unfinished and not self.at_work else ""

    @property
    def markdown(self) -> str:
        """What is not done, and the command that goes on; empty where nothing is left."""
        way = f"`{GO_ON}` goes on with it (RUN is its directory)." if self.command else "It was still at work."
        return f"{self.unfinished} {way}" if self.unfinished else ""

    def line(self, go_on: str) -> str:
        """All of it in one line for a terminal; ``go_on`` is the command with the run's own directory, empty where
        a process is at it."""
        if not self.unfinished:
            return ""
        words = {"partial": "not complete", "interrupted": "stopped", "running": "still running"}
        told = "; ".join(f"{', '.join(names)} {words.get(status, status)}" for status, names in self.stages.items())
        return f"unfinished: {told}; " + (f"go on with: {go_on}" if go_on else "it is still at work")


def listed(names: Sequence[str]) -> str:
    """``stage sweep``, ``stages equality and sweep``."""
    return f"stage{'s' if len(names) > 1 else ''} {listing(names)}"


def of_run(run: Mapping[str, Any]) -> Standing:
    """The standing of a run by its settled manifest. The report is no part of it: it can be made at any time."""
    stages = run.get("stages")
    known = {str(name): state for name, state in stages.items()} if isinstance(stages, Mapping) else {}
    plan = [str(name) for name in run.get("plan") or ()] if isinstance(run.get("plan"), list) else []
    found: dict[str, list[str]] = {status: [] for status in ("done", *STATES)}
    for name in dict.fromkeys((*plan, *known)):
        if name == "report" or not name.isidentifier():
            continue
        state = known.get(name)
        # A stage that only draws keeps no status.
        status = "not begun" if state is None else "done"
        if isinstance(state, Mapping):
            status = str(state.get("status", status))
        if status in found:
            found[status].append(name)
    return Standing({status: tuple(names) for status, names in found.items() if names})


def settled(stages: Mapping[str, Any], *, held: bool) -> dict[str, Any]:
    """The stages of a manifest as they stand: one in state running was stopped where nobody holds the run."""
    found = dict(stages)
    for name, stage in stages.items():
        if not isinstance(stage, Mapping):
            continue
        if stage.get("status") == "running" and not held:
            found[name] = {**stage, "status": "interrupted", "error": KILLED}
        elif str(stage.get("error")).startswith("KeyboardInterrupt"):  # as earlier versions wrote it
            found[name] = {**stage, "error": BY_HAND}
    return found


def read(stages: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """``settled`` for the stages of a run directory."""
    running = any(isinstance(stage, Mapping) and stage.get("status") == "running" for stage in stages.values())
    return settled(stages, held=running and is_held(folder / LOCK))
