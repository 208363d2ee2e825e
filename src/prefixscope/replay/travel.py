"""Cases that travel: inside a report, as a file of their own, or made from a run directory."""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prefixscope.errors import ReplayError, TraceError
from prefixscope.replay.case import SCHEMA_VERSION, Case, check_schema
from prefixscope.replay.measured import cases
from prefixscope.run_files import read_rows
from prefixscope.sent import sent_rows
from prefixscope.trace import read_trace

NAME = "cases.json"


def of_run(run_dir: Path) -> list[Case]:
    """One case for each traced engine of a run; none where nothing was traced."""
    rows = [row for file in sorted((run_dir / "raw").glob("*.jsonl")) for row in read_rows(file)]
    try:
        trace = read_trace(run_dir / "trace")
    except TraceError:
        return []
    return cases(sent_rows(rows), trace)


def to_text(found: Sequence[Case]) -> str:
    """What a report embeds: geometry, settings, requests and measured hits; no text, no token id."""
    value = {"schema_version": SCHEMA_VERSION, "cases": [case.to_json() for case in found]}
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def load(path: Path) -> list[Case]:
    """The cases of a report (HTML), a cases file (JSON) or a run directory.

    Raises
    ------
    ReplayError
        where there is none in it, saying what it is instead.
    """
    if path.is_dir():
        found = of_run(path)
        if not found:
            raise ReplayError(
                f"{path} has no traced request, so there is nothing to replay",
                cause="its servers ran without the tracer, or nothing was measured yet",
                remedy="run it with prefixscope run, or trace the server: prefixscope trace kit DIR",
            )
        return found
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ReplayError(
            f"{path} can't be read: {error.strerror}", remedy="give a report, a case file or a run"
        ) from None
    if "<html" in text[:2000].lower():
        text = _in_report(text, path)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ReplayError(
            f"{path} is no case: {error}",
            cause="it is neither a report of prefixscope nor JSON",
            remedy="give a report.html, a cases.json or a run directory",
        ) from None
    if isinstance(value, dict):
        check_schema(value)
    rows: Any = value.get("cases", [value]) if isinstance(value, dict) else value
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows) or not rows:
        raise ReplayError(f"{path} holds no case", remedy="give a report.html, a cases.json or a run directory")
    return [Case.from_json(row) for row in rows]


def embedded(text: str, name: str) -> str | None:
    """The file of that name inside a page's text, decompressed; None where the page has none.

    Raises
    ------
    ValueError, OSError, EOFError
        where it is damaged.
    """
    found = re.search(rf'href="data:[a-z/]+;base64,([A-Za-z0-9+/=]+)" download="{re.escape(name)}(\.gz)?"', text)
    if found is None:
        return None
    data = base64.b64decode(found.group(1))
    return (gzip.decompress(data) if found.group(2) else data).decode()


def _in_report(text: str, path: Path) -> str:
    try:
        found = embedded(text, NAME)
    except (ValueError, OSError, EOFError) as error:
        raise ReplayError(f"the case in {path} is damaged: {error}", remedy="download the report again") from None
    if found is None:
        raise ReplayError(
            f"{path} is a page without a replayable case",
            cause="it is no report of prefixscope, its servers were not traced, nothing was sent (a trace that was "
            "brought alone), or the case was too large to embed",
            remedy="ask for the run directory, or for a report of a traced run",
        )
    return found


def worst_series(found: Sequence[Case]) -> Case:
    """The requests of one prompt whose second send falls furthest short of a later one of the same prompt.

    Raises
    ------
    ReplayError
        where no prompt was sent three times with a miss on the second.
    """
    best: tuple[int, Case] | None = None
    for case in found:
        for salt in dict.fromkeys(one.salt for one in case.requests):
            requests = [one for one in case.requests if one.salt == salt]
            same = [one for one in requests if one.segments == requests[0].segments and one.lora == requests[0].lora]
            hits = [case.measured.get(one.id) for one in same[:3]]
            if len(hits) == 3 and hits[1] is not None and hits[2] is not None and hits[1] < hits[2]:
                lost = hits[2] - hits[1]
                if best is None or lost > best[0]:
                    names = {one.id for one in same[:3]}
                    kept = {key: value for key, value in case.measured.items() if key in names}
                    best = (lost, Case(geometry=case.geometry, setting=case.setting, requests=tuple(same[:3]),
                                       release=case.release, name=case.name, measured=kept))  # fmt: skip
    if best is None:
        raise ReplayError(
            "no prompt here hits less on its second send than on its third, so there is no such fault to test for",
            cause="the server reuses what it can, or its requests were not traced",
            remedy="prefixscope report RUN says what was found",
        )
    return best[1]
