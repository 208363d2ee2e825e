"""Every frame as CSV, and what its columns mean: the two can't part."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pandas as pd
import pytest
from data.make_run import make_run

from prefixscope import notes
from prefixscope.errors import ReportError
from prefixscope.frames.meanings import COLUMNS, IN_FRAME, meaning
from prefixscope.lookups import bring
from prefixscope.notes.frame_files import FRAMES
from prefixscope.runs import Run

SAMPLE = Path(__file__).parents[2] / "data" / "sample" / "run"
TRACE = Path(__file__).parents[1] / "data" / "trace-incident.jsonl"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Runs of several kinds: recorded, whole, half-finished, with odd rows, a trace alone, empty."""
    folder = tmp_path_factory.mktemp("runs")
    whole, half = make_run(folder / "whole"), make_run(folder / "half", stages=("baseline",))
    with (half / "raw" / "baseline.jsonl").open("a") as rows:
        rows.write('{"schema": 1, "kind": "send"}\n{"schema": 1, "kind": "send", "status": "failed", "error": "no"}\n')
    empty, traced = (Run.create(folder / name, target={"kind": "sample"}, parameters={}) for name in ("e", "t"))
    bring(TRACE, traced.path)
    return [SAMPLE, whole, half, empty.path, traced.path]


@pytest.fixture(scope="module")
def written(runs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    places = [tmp_path_factory.mktemp("csv") for _ in runs]
    for run, place in zip(runs, places, strict=True):
        notes.write_csv(run, place)
    return places


def test_every_frame_is_written_and_told(written: list[Path]) -> None:
    """Each frame is a file, with its header even where no row is in it, and columns.md explains each column of it."""
    for place in written:
        told = (place / "columns.md").read_text()
        assert {path.name for path in place.iterdir()} == {f"{name}.csv" for name in FRAMES} | {"columns.md"}
        for name in FRAMES:
            header = next(csv.reader((place / f"{name}.csv").open(encoding="utf-8")))
            part = told.split(f"\n## {name}.csv\n", 1)[1].split("\n## ", 1)[0]
            assert re.findall(r"^\| `(\w+)` \|", part, re.MULTILINE) == header
            rows = len(pd.read_csv(place / f"{name}.csv"))
            assert f"Here: {rows:,} row" in part
            assert part.strip().startswith("One row per")


def test_no_column_is_null_that_is_said_never_to_be(written: list[Path]) -> None:
    """Where a cell is empty in any of these runs, the column says what that means."""
    for place in written:
        for name in FRAMES:
            table = pd.read_csv(place / f"{name}.csv", keep_default_na=False, dtype=str)
            for column in table:
                if (table[column] == "").any():
                    assert meaning(name, column).null, f"{name}.{column} in {place}"


def test_no_meaning_is_left_over(written: list[Path]) -> None:
    """Every explained column is a column of some frame, and every exception is needed."""
    headers = {name: next(csv.reader((written[0] / f"{name}.csv").open(encoding="utf-8"))) for name in FRAMES}
    assert set(COLUMNS) == {column for columns in headers.values() for column in columns if column in COLUMNS}
    for frame, column in IN_FRAME:
        assert column in headers[frame], (frame, column)
        assert COLUMNS.get(column) != IN_FRAME[frame, column]
    with pytest.raises(KeyError):
        meaning("sends", "moon_phase")


def test_a_meaning_stands_by_itself_and_times_are_utc(written: list[Path]) -> None:
    """No text points at the line above it, and a column holds moments exactly where its unit says UTC."""
    assert not [each.text for each in (*COLUMNS.values(), *IN_FRAME.values()) if each.text.startswith("of them")]
    for line in re.findall(r"^\| `\w+` .*", (written[0] / "columns.md").read_text(), re.MULTILINE):
        _, _, dtype, unit, *_ = (cell.strip() for cell in line.split("|"))
        assert dtype.startswith("`datetime64") == (unit == "UTC"), line


@pytest.mark.parametrize(
    ("ending", "unit"), [("_ms", "ms"), ("_tokens", "tokens"), ("_min", "min"), ("_blocks", "blocks")]
)
def test_a_name_with_a_unit_has_that_unit(ending: str, unit: str) -> None:
    """A column whose name ends in a unit is told with it."""
    units = {name: told.unit for name, told in COLUMNS.items() if name.endswith(ending)}
    if ending == "_min":
        units.pop("cached_min")
    units.pop("overlapped_ms", None)
    assert units
    assert {told for name, told in units.items() if name != "distinct_tokens"} <= {unit, "count"}


def test_times_counts_and_truths_keep_their_dtype(written: list[Path], runs: list[Path]) -> None:
    """columns.md gives each column's dtype: counts are whole, truths boolean, times UTC."""
    told = (written[0] / "columns.md").read_text().split("## sends.csv", 1)[1]
    for line in ("| `cached_tokens` | `Int64` | tokens |", "| `overlapped` | `boolean` |",
                 "| `at` | `datetime64[ns, UTC]` | UTC |", "| `first_token_ms` | `float64` | ms |"):  # fmt: skip
        assert line in told, line


def test_a_name_that_a_spreadsheet_would_run_is_quoted(tmp_path: Path) -> None:
    """A served name that begins like a formula is text in every file."""
    folder = make_run(tmp_path / "run", stages=("baseline",))
    rows = [json.loads(line) for line in (folder / "raw" / "baseline.jsonl").read_text().splitlines()]
    lines = [json.dumps({**one, "model": '=HYPERLINK("http://evil.example")'}) + "\n" for one in rows]
    (folder / "raw" / "baseline.jsonl").write_text("".join(lines))
    notes.write_csv(folder, tmp_path / "csv")
    table = pd.read_csv(tmp_path / "csv" / "sends.csv")
    assert set(table["model"]) == {'\'=HYPERLINK("http://host")'}


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path, runs: list[Path]) -> None:
    """Where the folder can't be made the error names it and the option."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ReportError, match="--csv DIR"):
        notes.write_csv(runs[3], tmp_path / "file" / "csv")
