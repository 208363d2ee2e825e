"""What lies in a run directory, read leniently: the manifest, raw rows, trace headers."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from prefixscope import impossible, standing
from prefixscope.frames.columns import whole
from prefixscope.quantities import count
from prefixscope.setting import Interval, interval_label

Rows = list[dict[str, Any]]
MOST_NAMED = 5
"""Impossible values of one field that are named one by one."""


def load_run(run_dir: Path) -> dict[str, Any]:
    """The manifest with its stages as they stand, or ``{}`` where there is none or it can't be parsed."""
    try:
        value = json.loads((run_dir / "run.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(value, dict):
        return {}
    shapes: dict[str, type] = {"stages": dict, "parameters": dict, "target": dict, "warnings": list, "servers": list}
    shapes |= {"facts": list, "time": list, "environment": dict, "engine": dict, "plan": list}
    run: dict[str, Any] = {name: part for name, part in value.items() if isinstance(part, shapes.get(name, object))}
    if "stages" in run and "problems" not in run:  # a shared manifest was settled when it was written
        run["stages"] = standing.read(run["stages"], run_dir)
    return run


def doubts(run_dir: Path) -> list[str]:
    """One sentence for each way in which the manifest and the rows don't fit together."""
    run = load_run(run_dir)
    if not run:
        return ["run.json is missing or damaged: what was investigated, and with which settings, is not known"]
    found = []
    measured = {row["stage"] for row in read_rows(run_dir)[0]}
    for name, state in run.get("stages", {}).items():
        done = isinstance(state, Mapping) and state.get("status") == "done"
        # The trace stage may live on the rows of the baseline; the report makes none.
        if done and name not in ("trace", "report", "crosscheck") and name not in measured:
            found.append(f"stage {name} is done, but its rows in raw/{name}.jsonl are gone")
    return found


def problems(run_dir: Path) -> list[str]:
    """One sentence for each thing that is wrong with the manifest, with the rows, or between them."""
    return doubts(run_dir) + read_rows(run_dir)[1]


_REMEDIES = {
    "run.json is missing or damaged": (
        "no-manifest",
        "copy run.json back from another copy of this run; its rows are read without it, their settings are lost",
    ),
    "is done, but its rows": (
        "rows-gone",
        "copy raw/ back from another copy of this run, or measure again in a new one: prefixscope run -o NEW "
        "(--resume takes the stage for done)",
    ),
    "of an unknown schema": ("unknown-schema", "read them with the prefixscope that wrote them"),
    "newer schema": ("unknown-schema", "pip install --upgrade prefixscope"),
    "an impossible value": (
        "impossible-value",
        "nothing to do: such a value is in no number above; to have one, measure again in a new run",
    ),
}


def warning(problem: str) -> dict[str, str]:
    """A sentence of ``problems`` as a warning of the run, with the remedy of its kind."""
    left_out = ("unreadable-rows", "nothing to do: what can't be read is left out, everything else was read")
    code, remedy = next((found for words, found in _REMEDIES.items() if words in problem), left_out)
    return {"stage": "", "code": code, "detail": problem, "remedy": remedy}


def read_rows(run_dir: Path) -> tuple[Rows, list[str]]:
    """Every raw row in file order without impossible values, and a sentence for each kind of thing that is wrong."""
    rows: Rows = []
    wrong: list[str] = []
    for path in sorted((run_dir / "raw").glob("*.jsonl")):
        status = path.stat()
        found, here = _read_file(path, status.st_mtime_ns, status.st_size)
        rows += found
        wrong += here
    return rows, wrong


@lru_cache(maxsize=16)
def _read_file(path: Path, changed_ns: int, size: int) -> tuple[Rows, list[str]]:
    """Rows of one file, and what is wrong with it; read once as long as the file stays as it is."""
    rows: Rows = []
    bad: list[int] = []
    unknown = 0
    odd: dict[str, list[str]] = {}
    with path.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                bad.append(number)
                continue
            if not isinstance(row, dict) or row.get("schema", 1) != 1:
                unknown += 1
                continue
            row, why = impossible.judged(row)
            for field, words in why.items():
                odd.setdefault(field, []).append(f"line {number:,}, {words}")
            rows.append({**row, "stage": row.get("stage") or path.stem})
    return rows, [f"raw/{path.name}: {one}" for one in _wrong(bad, unknown, odd)]


def _wrong(bad: Sequence[int], unknown: int, odd: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """A sentence each for unreadable lines, rows of another schema and, field by field, impossible values."""
    if bad:
        where = ", ".join(f"{number:,}" for number in bad[:MOST_NAMED]) + (" …" if len(bad) > MOST_NAMED else "")
        where = f"line {where}, maybe an interrupted write" if len(bad) == 1 else f"lines {where}"
        yield f"{count(len(bad), 'unreadable line')} left out ({where})"
    if unknown:
        yield f"{count(unknown, 'row')} of an unknown schema left out"
    for field, places in odd.items():
        more = [count(len(places) - MOST_NAMED, "more line")] if len(places) > MOST_NAMED else []
        yield f"{field} has an impossible value, read as not known: {'; '.join([*places[:MOST_NAMED], *more])}"


def forget() -> None:
    """Give up the memory of rows read so far; the files are read again where they are asked for."""
    _read_file.cache_clear()


def of_kind(run_dir: Path, kind: str) -> Rows:
    """Every raw row of one kind, in file order."""
    return [row for row in read_rows(run_dir)[0] if row.get("kind") == kind]


def trace_headers(run_dir: Path, folder: str = "trace") -> Rows:
    """The header event of every traced engine: its groups, blocks, interval. Only a file's first lines are read."""
    found: Rows = []
    for path in sorted((run_dir / folder).glob("*.jsonl")):
        with path.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                try:
                    event = json.loads(line)
                except ValueError:
                    break
                if not isinstance(event, dict) or event.get("event") != "header":
                    break
                found.append(event)
    return found


def scheduler_block(run_dir: Path) -> int | None:
    """The block that hits are rounded down to, from the trace or the run's facts; None where neither knows it."""
    for header in trace_headers(run_dir):
        value = whole(header.get("scheduler_block"))
        if value:
            return value
    for fact in dicts_in(load_run(run_dir), "facts"):
        name = str(fact.get("name", "")).lower().replace("_", " ")
        value = whole(fact.get("value"))
        if "scheduler block" in name and value:
            return value
    return None


def setting_columns(row: Mapping[str, Any]) -> dict[str, Any]:
    """The columns that say how the server of this row was started."""
    setting = dict_in(row, "setting")
    interval: Interval = setting.get("interval")
    order = -1.0 if interval is None else float(interval) if isinstance(interval, int) else math.inf
    unknown = impossible.taken_out(row, "setting", "setting.interval")
    picked = {key: setting.get(key) for key in ("drafter", "lora", "as_served", "dtype")}
    label = setting.get("label") or "unnamed"
    return {
        **picked,
        "setting": label,
        "setting_id": setting.get("id") or label,
        "interval": None if unknown else interval_label(interval),
        "interval_order": math.nan if unknown else order,
    }


def dict_in(row: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The mapping under that name; empty where there is none."""
    value = row.get(name)
    return value if isinstance(value, dict) else {}


def dicts_in(run: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """The mappings in the list under that name; empty where there is none."""
    value = run.get(name)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
