"""What each notebook concludes, from the recorded sample and from runs that lack something."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from prefixscope import conclusions, resources


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    """A copy of the recorded run."""
    return Path(shutil.copytree(resources.data_path("sample", "run"), tmp_path / "run"))


def rewrite(file: Path, change: object) -> None:
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    file.write_text("".join(json.dumps(change(row)) + "\n" for row in rows))  # type: ignore[operator]


def test_the_sweep_recommends_what_lifts_every_length(sample: Path) -> None:
    """1,024 is the coarsest of the cheapest intervals that lift both lengths; 2,048 leaves one on the floor."""
    text = conclusions.sweep(sample).text
    assert "1,024 leaves the fewest tokens short over all 2 prompt lengths" in text
    assert "1,105 blocks" in text
    assert "Unpressured" in text


def test_the_trace_names_the_missing_blocks(sample: Path) -> None:
    """The sentence has the needed, stored and missing ranges of the longest prompt that missed."""
    text = conclusions.trace(sample).text
    for part in ("166–198", "168–200", "166–167", "--prefix-cache-retention-interval"):
        assert part in text


def test_equality_has_its_interval_and_its_control(sample: Path) -> None:
    """20 of 20 is 84 % to 100 %, beside a control of 20 of 20."""
    text = conclusions.equality(sample).text
    assert "20 of 20 warm answers equal the cold ones (95 % interval 84% to 100%)" in text
    assert "between two cold sends 20 of 20 are equal" in text


def test_one_difference_is_not_blamed_on_the_cache_where_the_control_differs_too(sample: Path) -> None:
    """With a warm and a control answer that differ, the conclusion names the server's own noise."""

    def change(row: dict[str, object]) -> dict[str, object]:
        differs = row["kind"] == "comparison" and row["document"] == "document 1"
        return {**row, "identical": False, "class": "words"} if differs else row

    rewrite(sample / "raw" / "equality.jsonl", change)
    assert "the cache is not to blame on this evidence" in conclusions.equality(sample).text


def test_without_a_hit_equality_is_void(sample: Path) -> None:
    """Warm answers that took nothing from the cache prove nothing."""

    def change(row: dict[str, object]) -> dict[str, object]:
        void = row["kind"] == "comparison" and row["pair"] == "cold-warm"
        return {**row, "identical": None, "class": "void"} if void else row

    rewrite(sample / "raw" / "equality.jsonl", change)
    assert conclusions.equality(sample).text.startswith("Void")


@pytest.mark.parametrize("name", ["baseline", "trace", "sweep", "equality"])
def test_an_empty_run_is_said_to_be_empty(name: str, sample: Path) -> None:
    """Without rows and traces each conclusion says what is missing instead of failing."""
    for folder in ("raw", "trace"):
        shutil.rmtree(sample / folder)
        (sample / folder).mkdir()
    assert getattr(conclusions, name)(sample).text
