"""Known releases with known faults: ``data/known-faults.json``, and which of them the facts at hand match.

A row holds for an engine's releases from ``since`` (inclusive) to ``before`` (exclusive), under every condition that it
names, and explains one thing that can be seen. A condition whose fact is unknown leaves the match undecided: the fault
may apply, and is said so.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from packaging.version import InvalidVersion, Version

from prefixscope import resources
from prefixscope.preflight import fact as f


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One row: what happens, since when, until when, why we say so, and what to do.

    ``upgrade`` says which release mends it by itself and what that costs; empty where the table does not know.
    ``flag`` is the remedy without an upgrade.
    """

    id: str
    explains: str
    effect: str
    remedy: str
    refs: tuple[str, ...]
    checked: str
    engine: str = "vLLM"
    since: str | None = None
    before: str | None = None
    condition: Mapping[str, Any] = field(default_factory=dict)
    upgrade: str = ""
    certain: bool = True

    @property
    def flag(self) -> str:
        return self.remedy.partition(", or upgrade to ")[0]

    @property
    def sentence(self) -> str:
        """Effect and sources, as one sentence."""
        may = "" if self.certain else "may apply: "
        return f"{may}{self.effect} ({', '.join(self.refs)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What is known of a server; None where it is not."""

    engine: str | None = None
    version: str | None = None
    speculation: bool | None = None
    interval: str | None = None
    sparse_groups: bool | None = None
    mamba: bool | None = None
    variable: bool | None = None
    models: str = ""
    batch: int | None = None
    block: int | None = None


@cache
def table() -> tuple[Fault, ...]:
    """Every row of the shipped table."""
    rows = json.loads(resources.data_path("known-faults.json").read_text(encoding="utf-8"))["faults"]
    return tuple(Fault(**{**row, "refs": tuple(row["refs"])}) for row in rows)


def situation(known: Iterable[f.Fact], *, variable: bool | None = None) -> Situation:
    """What the facts say of the conditions that the table names."""
    known = tuple(known)
    drafter, mamba = f.value(known, f.SPECULATION), f.number(known, f.MAMBA_BLOCK)
    version = f.value(known, f.VERSION) or f.value(known, "server version")
    return Situation(
        engine=f.value(known, f.ENGINE) or ("vLLM" if f.value(known, f.VERSION) else None),
        version=str(version) if version else None,
        speculation=None if drafter is None else drafter != "off",
        interval=None if f.value(known, f.INTERVAL) is None else str(f.value(known, f.INTERVAL)),
        mamba=True if mamba else None,
        sparse_groups=True if mamba else None,
        variable=variable,
        models=str(f.value(known, f.MODELS) or ""),
        batch=f.number(known, f.BATCH),
        block=f.number(known, f.MAMBA_BLOCK) or f.number(known, f.BLOCK),
    )


def matching(at: Situation, explains: str) -> tuple[Fault, ...]:
    """The rows that explain what was seen and that this server matches; the certain ones first."""
    found = []
    for fault in table():
        if fault.explains != explains or fault.engine != at.engine:
            continue
        holds = [_in_range(fault, at.version), *(_condition(name, want, at) for name, want in fault.condition.items())]
        if False not in holds:
            found.append(replace(fault, certain=None not in holds))
    return tuple(sorted(found, key=lambda fault: not fault.certain))


def _in_range(fault: Fault, version: str | None) -> bool | None:
    """Whether the release is one of the row's; a build between two releases leaves it open."""
    if fault.since is None and fault.before is None:
        return True
    try:
        at = Version(version or "")
    except InvalidVersion:
        return False  # nothing is known about a release that can't be read
    base = Version(at.base_version)
    inside = (not fault.since or base >= Version(fault.since)) and (not fault.before or base < Version(fault.before))
    return None if inside and at.is_prerelease else inside


def _condition(name: str, want: Any, at: Situation) -> bool | None:
    if name == "model":
        return want in at.models.lower() if at.models else None
    if name == "batch_below":
        return None if at.batch is None else at.batch < want
    if name == "block_above_batch":
        return None if at.batch is None or at.block is None else at.block > at.batch
    known = getattr(at, name)
    return None if known is None else known == want
