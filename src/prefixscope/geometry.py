"""KV cache groups of the server under investigation, as its own trace header says, and what follows for intervals."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from prefixscope.errors import RunError, TraceError
from prefixscope.investigation import Investigation
from prefixscope.setting import Interval, Setting
from prefixscope.trace import Header, Trace, read_trace

SPARSE_KINDS = ("sliding", "mamba")
"""Groups whose checkpoints a retention interval thins out; the others keep every block."""

BROUGHT = "trace-brought"
"""Folder of a run directory: a copy of a trace of another server, never mixed with the run's own."""


def traced(run_dir: Path) -> Trace:
    """The trace of all servers of a run; an empty one where none was traced."""
    try:
        return read_trace(run_dir / "trace")
    except TraceError:
        return Trace()


def brought(run_dir: Path) -> Trace | None:
    """The trace from elsewhere that was brought to a run; None where there is none."""
    try:
        return read_trace(run_dir / BROUGHT)
    except TraceError:
        return None


def default_header(investigation: Investigation) -> Header | None:
    """The header of a server started without the flag: it says the release's own default, and the block."""
    rows = [r for r in investigation.run.rows() if r.get("kind") == "send" and r.get("status") == "ok"]
    trace, drafter = traced(investigation.path), investigation.target.offers()[0]
    for row in rows:
        setting = Setting.from_json(row["setting"])
        # No other server's header will do: one started with the flag would pass its interval off as the default.
        if setting.interval is None and setting.drafter == drafter:
            lookup = trace.lookup(row["request_id"])
            if lookup is not None:
                return lookup.header
    return None


def has_sparse_groups(header: Header) -> bool:
    """Whether a retention interval does anything on this server; vLLM refuses to start with one where it doesn't."""
    return any(group.kind in SPARSE_KINDS for group in header.groups)


def legal_interval(header: Header | None, wanted: int) -> int | None:
    """The smallest interval not below ``wanted`` that the server takes; None where it takes none.

    Without a header the block is unknown, and ``wanted`` stands.
    """
    if header is None:
        return wanted
    if not has_sparse_groups(header):
        return None
    return -(-wanted // header.scheduler_block) * header.scheduler_block


def check_intervals(intervals: Sequence[Interval], block: int) -> None:
    """Refuse intervals that are no multiple of the scheduler block, naming the legal ones beside them.

    Raises
    ------
    RunError
        for the first such interval.
    """
    for interval in intervals:
        if isinstance(interval, int) and interval % block:
            below, above = interval // block * block, (interval // block + 1) * block
            raise RunError(
                f"retention interval {interval:,} is not a multiple of this server's scheduler block, {block} tokens",
                cause="vLLM would refuse to start with it",
                remedy=f"use {' or '.join(f'{n:,}' for n in (below, above) if n)}",
            )
