"""What each notebook concludes, from the recorded sample and from runs that lack something."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from prefixscope import conclusions, material, resources, verdict
from prefixscope.sections.hits import hit_lengths


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
    assert (
        "At 6,446 tokens its second send hits 6,336, as with 64, 512, 2,048 and dense; it keeps 1,105 blocks of the "
        "prompt, as 64, 512 and dense do: every block; 2,048 keeps 635, but leaves more short at other lengths." in text
    )
    assert "Unpressured" in text


def test_a_sweep_of_two_intervals_is_told_in_whole_words(sample: Path) -> None:
    """Where no other interval hits as much there is no “same”, and what only dense would show is not said."""
    for file in (sample / "raw").glob("sweep.jsonl"):
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        kept = [row for row in rows if row["setting"]["interval"] in (None, 1024) and not row["setting"]["lora"]]
        file.write_text("".join(json.dumps(row) + "\n" for row in kept))
    text = conclusions.sweep(sample).text
    assert "Of 2 intervals, 1,024 leaves" in text
    assert "At 6,446 tokens its second send hits 6,336; it keeps 1,105 blocks of the prompt. Unpressured" in text
    assert "(every block" not in (verdict.of_run(sample).price or "")


def test_the_price_says_that_the_interval_is_dense_here(sample: Path) -> None:
    """Where the recommended interval keeps as much as dense, its price says that this is every block."""
    assert "1,105 (every block, as dense keeps) instead of 265" in (verdict.of_run(sample).price or "")


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


@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("baseline", "10-block-trace"),
        ("trace", "20-retention-sweep"),
        ("sweep", "30-output-equality"),
        ("equality", "40-speculation"),
        ("speculation", "90-report"),
    ],
)
def test_each_conclusion_names_the_notebook_to_open_next(name: str, where: str, sample: Path) -> None:
    """What was found decides where to go; on the recorded incident the notebooks follow each other."""
    assert f"[{where}]({where}.ipynb)" in getattr(conclusions, name)(sample)._repr_markdown_()


def test_the_report_names_what_it_lacks(sample: Path) -> None:
    """A run without some stages sends the reader to their notebooks, a whole one to sharing it."""
    assert "read or send the report" in conclusions.report(sample).next
    assert f"`prefixscope export-test {sample}/report.html` makes" in conclusions.report(sample).next
    assert "`prefixscope export-test '/a b/x.html'` makes" in conclusions.report(sample, Path("/a b/x.html")).next
    manifest = json.loads((sample / "run.json").read_text())
    del manifest["stages"]["sweep"]
    manifest["stages"]["equality"]["status"] = "failed"
    (sample / "run.json").write_text(json.dumps(manifest))
    where = conclusions.report(sample).next
    assert "20-retention-sweep" in where
    assert "30-output-equality" in where
    assert "00-baseline" not in where


def test_a_miss_of_a_server_that_is_not_ours_leads_to_the_tracer_kit(sample: Path) -> None:
    """No notebook can trace an attached server: the way to a trace of it is named."""
    manifest = json.loads((sample / "run.json").read_text())
    manifest["target"] = {"kind": "attached", "url": "http://127.0.0.1:9"}
    (sample / "run.json").write_text(json.dumps(manifest))
    assert "prefixscope trace kit" in conclusions.baseline(sample).next


def test_a_servers_words_are_inert_in_a_verdict() -> None:
    """A name that is Markdown or HTML shows to the letter: no picture is fetched, nothing is emphasised."""
    shown = conclusions.Conclusion("![x](http://evil/p.png) <img src=x> **hits** nothing. More.")._repr_markdown_()
    assert shown.startswith("**\\!\\[x\\](http://evil/p.png) \\<img src=x\\> \\*\\*hits")


def test_a_predicted_sweep_is_concluded_as_predicted(sample: Path) -> None:
    """Without a measured interval the predictions from a trace decide, and the sentence says that they are that."""
    (sample / "raw" / "sweep.jsonl").unlink()
    (sample / "raw" / "baseline.jsonl").unlink()
    rows = [
        {"kind": "predicted_sweep", "release": "0.29.0", "interval_asked": label, "interval": value, "tokens": 6446,
         "hits": [0, hit, 6336], "blocks": blocks, "bytes": None}
        for label, value, hit, blocks in (("0", 0, 0, 300), ("1,024", 1024, 6336, 1105))
    ]  # fmt: skip
    with (sample / "raw" / "crosscheck.jsonl").open("a") as out:
        out.writelines(json.dumps(row) + "\n" for row in rows)
    text = conclusions.sweep(sample).text
    assert text.startswith("Predicted by the release's own scheduler")
    assert "1,024 leaves the fewest tokens short" in text


def test_new_endings_are_told_by_what_they_reuse(sample: Path) -> None:
    """What most configurations share is said once; a configuration of its own is named."""
    (told,) = [text for text in hit_lengths(material.gather(sample)).after if "ends differently" in text]
    assert "reuses 6,016 with MTP + LoRA, interval 1,024 · gemma4-small; and MTP" in told
    assert ", and 0 in every other configuration." in told
