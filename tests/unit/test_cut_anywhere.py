"""A run that was killed at any moment still has a verdict, conclusions and every section of its report."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from prefixscope import conclusions, frames, material, resources, sections, verdict
from prefixscope.notes import for_issue, incident
from prefixscope.notes.account import account
from prefixscope.run_files import read_rows

SAMPLE = "sample"
Rows = list[tuple[str, dict[str, Any]]]


@pytest.fixture(scope="module")
def rows() -> Rows:
    """All rows of the recorded sample with their file, in the order they were made."""
    folder = resources.data_path(SAMPLE, "run", "raw")
    found = [(file.name, row) for file in sorted(folder.glob("*.jsonl")) for row in read_rows(file)]
    return sorted(found, key=lambda pair: pair[1]["at"])


def told(run: Path) -> str:
    """Everything that is said about a run, short of drawing it."""
    said = [verdict.of_run(run).text]
    said += [getattr(conclusions, name)(run).text for name in ("baseline", "trace", "sweep", "equality")]
    said += [section.title for section in sections.sections(material.gather(run))]
    return "\n".join(said)


def noted(run: Path) -> str:
    """The notes of a run, short of drawing their figures."""
    made = account(run)
    return incident.note(made, {}) + for_issue.issue(made)


def write(run: Path, kept: Rows) -> None:
    shutil.rmtree(run / "raw", ignore_errors=True)
    (run / "raw").mkdir()
    for name, row in kept:
        with (run / "raw" / name).open("a") as file:
            file.write(json.dumps(row) + "\n")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return Path(shutil.copytree(resources.data_path(SAMPLE, "run"), tmp_path / "run"))


def test_after_each_fortieth_row(run: Path, rows: Rows) -> None:
    """Whatever the row after which the run was killed, everything that can be said is said."""
    for stop in range(0, len(rows), 40):
        write(run, rows[:stop])
        assert told(run)
        if stop % 120 == 0:
            assert "## Check your server" in noted(run)


def test_with_any_rows_missing_or_failed(run: Path, rows: Rows) -> None:
    """Rows missing at random, failed at random, or without a reported hit never break the telling."""
    draw = random.Random(7)
    for _ in range(8):
        kept = []
        for name, row in rows:
            fate = draw.random()
            if fate < 0.5:
                kept.append((name, row))
            elif fate < 0.65 and row["kind"] == "send":
                kept.append(
                    (
                        name,
                        {**row, "status": "failed", "error": "it ended", "cached_tokens": None, "prompt_tokens": None},
                    )
                )
            elif fate < 0.8:
                kept.append((name, {**row, "cached_tokens": None}))
        write(run, kept)
        assert told(run)
    assert "## Check your server" in noted(run)


@pytest.mark.parametrize(
    "field", ["prompt_tokens", "cached_tokens", "first_token_ms", "index", "send", "series", "model", "prompt"]
)
def test_without_any_one_field(run: Path, rows: Rows, field: str) -> None:
    """A second send whose row lacks a field, as an edit by hand may leave it, breaks nothing."""
    second = [(name, row) for name, row in rows if row["kind"] == "send" and row.get("index") == 2]
    lacking = {id(row) for _, row in second[:: max(1, len(second) // 12)]} | {id(row) for _, row in second[-3:]}
    write(run, [(name, {**row, field: None} if id(row) in lacking else row) for name, row in rows])
    assert told(run)


ODD = ("many", "12", -5, True, [1], {"a": 1}, 10**400, 3.7, float("nan"), float("inf"))


@pytest.mark.parametrize("seed", range(3))
def test_with_any_value_impossible(run: Path, rows: Rows, seed: int) -> None:
    """Whatever stands in any field of any row, also inside a field, everything is told, and hits stay hits."""
    draw = random.Random(seed)

    def odd() -> Any:
        value = draw.choice(ODD)
        return value.copy() if isinstance(value, (list, dict)) else value

    kept = []
    for name, row in rows:
        row = json.loads(json.dumps(row))
        if draw.random() < 0.3:
            outer = draw.choice([row, *(value for value in row.values() if isinstance(value, dict) and value)])
            outer[draw.choice([field for field in outer if field not in ("schema", "kind")])] = odd()
        kept.append((name, row))
    write(run, kept)
    assert told(run)
    assert "## Check your server" in noted(run)
    sent = frames.sends(run)
    known = sent[sent["cached_tokens"].notna()]
    assert len(known) > 50
    assert known["cached_tokens"].between(0, known["prompt_tokens"]).all()
    assert not (sent["first_token_ms"] < 0).any()
