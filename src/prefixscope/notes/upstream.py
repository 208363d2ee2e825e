"""What vLLM's pull requests and issues say of a cause: ``data/upstream.json``, as read on the day that it names."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from functools import cache
from typing import Any

from packaging.version import InvalidVersion, Version

from prefixscope import preflight, resources

_REPOSITORIES = {
    "vllm": "vllm-project/vllm",
    "sglang": "sgl-project/sglang",
    "TensorRT-LLM": "NVIDIA/TensorRT-LLM",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One pull request or issue.

    ``about`` says in our words what it does; ``state`` is open, merged or closed as it was when read; ``opened`` and
    ``closed`` are days (None: not known), ``release`` is the first that has it. ``topics`` are the causes it belongs
    to; ``ends`` says that it ends them.
    """

    ref: str
    kind: str
    about: str
    state: str
    opened: str | None
    closed: str | None
    release: str | None
    topics: tuple[str, ...]
    source: str
    ends: bool = False

    @property
    def status(self) -> str:
        """``merged 8 September 2026, in releases from 0.30.0``."""
        when = f" {day(self.closed)}" if self.closed else ""
        opened = f", opened {day(self.opened)}" if self.opened and not self.closed else ""
        release = f", in releases from {self.release}" if self.release else ""
        return f"{self.state}{when}{opened}{release}"


@cache
def table() -> tuple[Row, ...]:
    """Every row of the shipped table."""
    rows: list[Mapping[str, Any]] = _shipped()["rows"]
    return tuple(Row(**{**row, "topics": tuple(row["topics"])}) for row in rows)


def read_on() -> str:
    """The day on which the states were read."""
    return str(_shipped()["read"])


def of_topics(topics: Iterable[str], refs: Iterable[str] = ()) -> tuple[Row, ...]:
    """The rows that belong to these causes, or are named by ``refs``, in the table's order."""
    wanted, named = set(topics), set(refs)
    return tuple(row for row in table() if wanted & set(row.topics) or row.ref in named)


def fixed_in(rows: Iterable[Row], version: str | None) -> str | None:
    """The first release after ``version`` that has a change that ends it; None where there is none."""
    try:
        now = Version(version or "")
        releases = [Version(row.release) for row in rows if row.ends and row.release]
    except InvalidVersion:
        return None
    later = [one for one in releases if one > now]
    return str(min(later)) if later else None


def link(ref: str) -> str | None:
    """The address of a reference that our own tables name; None for any other, which nobody should be sent to."""
    if ref not in _known():
        return None
    name, _, number = ref.partition("#")
    repository = _REPOSITORIES.get(name)
    return None if repository is None else f"https://github.com/{repository}/issues/{number}"


def refs_in(text: str) -> tuple[str, ...]:
    """The references of our own tables that a text names."""
    return tuple(ref for ref in sorted(_known()) if re.search(rf"(?<![\w-]){re.escape(ref)}(?!\d)", text))


def faults_named(refs: Iterable[str]) -> list[str]:
    """The known faults that cite one of these references."""
    wanted = set(refs)
    return [fault.id for fault in preflight.table() if wanted & set(fault.refs)]


def day(iso: str) -> str:
    """``8 September 2026``; ``May 2026`` where only the month is known."""
    if len(iso) == 7:
        return f"{date.fromisoformat(f'{iso}-01'):%B %Y}"
    found = date.fromisoformat(iso)
    return f"{found.day} {found:%B %Y}"


@cache
def _known() -> frozenset[str]:
    return frozenset((*(row.ref for row in table()), *(ref for fault in preflight.table() for ref in fault.refs)))


@cache
def _shipped() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(resources.data_path("upstream.json").read_text(encoding="utf-8"))
    return found
