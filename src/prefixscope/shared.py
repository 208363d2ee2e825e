"""What of a run directory may leave it, as a run directory of its own.

A report is made from this and from nothing else, and embeds its files: so nothing else can be in a report, and a
report can be made again from what it embeds. ::

    raw/rows.jsonl       every raw row, redacted
    run.json             the manifest, redacted; ``problems`` are sentences on what could not be read
    trace/trace.jsonl    the events of all engines, redacted, their headers first (``trace-brought``: from elsewhere)
"""

from __future__ import annotations

import json
import re
import shutil
import socket
import tempfile
from collections.abc import Iterator
from functools import lru_cache, partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from prefixscope import frames, redact
from prefixscope.errors import ReportError
from prefixscope.geometry import BROUGHT
from prefixscope.quantities import count
from prefixscope.runs import SCHEMA_VERSION
from prefixscope.trace.files import lines_of
from prefixscope.trace.reader import SCHEMA as TRACE_SCHEMA

ROWS, MANIFEST, TRACE = "rows.jsonl", "run.json", "trace.jsonl"
_REMEMBERED = 65_536


def share(run_dir: Path, to: Path, *, include_text: bool = False) -> None:
    """Write into the empty folder ``to`` what of a run directory may leave it.

    Raises
    ------
    ReportError
        where the run is of another schema.
    """
    run = frames.load_run(run_dir)
    check_schema(run, run_dir.name)
    rows, problems = frames.read_rows(run_dir)[0], frames.problems(run_dir)
    # Names repeat over rows: each is cleaned once.
    say = lru_cache(_REMEMBERED)(partial(redact.clean, hosts=_hosts(run)))
    if rows:
        (to / "raw").mkdir()
        with (to / "raw" / ROWS).open("w", encoding="utf-8") as out:
            for row in rows:
                out.write(as_line(redact.row(row, include_text=include_text, say=say)))
    for folder in ("trace", BROUGHT):
        problems += _share_trace(run_dir / folder, to / folder, say)
    manifest = redact.manifest({**run, "problems": problems}, say=say)
    (to / MANIFEST).write_text(json.dumps(manifest, indent=1, ensure_ascii=False, sort_keys=True), encoding="utf-8")


def as_line(value: Any) -> str:
    """One JSON line; equal values give equal text."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":")) + "\n"


def check_schema(run: dict[str, Any], name: str) -> None:
    """Refuse a run of another schema.

    Raises
    ------
    ReportError
        naming both schemas.
    """
    found = run.get("schema_version", SCHEMA_VERSION)
    if found != SCHEMA_VERSION:
        newer = isinstance(found, int) and found > SCHEMA_VERSION
        raise ReportError(
            f"{name} has schema {redact.clean(found, limit=40)}, this prefixscope reads {SCHEMA_VERSION}",
            cause=f"{'a newer' if newer else 'another'} prefixscope wrote it",
            remedy="pip install --upgrade prefixscope"
            if newer
            else f"install the one that wrote it: {redact.clean(run.get('prefixscope_version', 'unknown'), limit=40)}",
        )


def _hosts(run: dict[str, Any]) -> tuple[str, ...]:
    """Names of machines that no pattern would find: the server's, and this one's."""
    target = run.get("target", {})
    try:
        asked = urlsplit(str(target.get("url") or "")).hostname or ""
    except ValueError:
        asked = ""
    names = {
        name for name in (asked, socket.gethostname()) if len(name) >= 4 and name not in ("localhost", "127.0.0.1")
    }
    # A plain word may mean something else in the text.
    return tuple(sorted(name for name in names if re.search(r"[^A-Za-z]", name)))


def _share_trace(source: Path, to: Path, say: redact.Clean) -> Iterator[str]:
    """Write one trace file out of all in a folder; gives what of it could not be read."""
    files = sorted(source.glob("*.jsonl"))
    if not files:
        return
    to.mkdir()
    headers: list[str] = []
    with tempfile.TemporaryFile("w+", encoding="utf-8") as rest:
        for file in files:
            unread = newer = 0
            with file.open("rb") as lines:
                for line in lines_of(lines):
                    try:
                        event = json.loads(line) if line.strip() else {}
                        schema = int(event.get("schema", 0))
                    except (ValueError, TypeError, AttributeError, RecursionError):
                        unread += 1
                        continue
                    newer += schema > TRACE_SCHEMA
                    found = redact.event(event, say=say) if 0 < schema <= TRACE_SCHEMA else None
                    if found is None:
                        unread += bool(event) and not schema > 0
                        continue
                    if found["event"] == "header":
                        headers.append(as_line(found))
                    else:
                        rest.write(as_line(found))
            if unread:
                yield f"trace, unreadable: {file.name}: left out: {count(unread, 'line')}, cut off or no event"
            if newer:
                yield f"trace, newer_schema: {file.name}: {count(newer, 'line')} of a newer schema left out; update"
        with (to / TRACE).open("w", encoding="utf-8") as out:
            out.writelines(headers)
            rest.seek(0)
            shutil.copyfileobj(rest, out)
