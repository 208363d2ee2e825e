"""What each notebook concludes, from the recorded sample and from runs that lack something."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from prefixscope import conclusions, frames, lookups, material, open_run, resources, verdict
from prefixscope.diagnosis import Diagnosis
from prefixscope.notes import symptom
from prefixscope.notes.account import account
from prefixscope.remedy import of_sweep
from prefixscope.sections import blocks
from prefixscope.sections.hits import hit_lengths
from prefixscope.sections.latency import first_token


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
        "At 6,446 tokens its second send hits 6,336, and it keeps 1,105 blocks of the prompt, which is every block, as "
        "much as dense retention; 64, 512 and dense hit the same and keep the same; 2,048 hits the same there and "
        "keeps 635, but hits less of 1,600 tokens." in text
    )
    assert "Unpressured" in text


def test_a_sweep_of_two_intervals_is_told_in_whole_words(sample: Path) -> None:
    """Where no other interval hits as much there is no “same”."""
    for file in (sample / "raw").glob("sweep.jsonl"):
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        kept = [row for row in rows if row["setting"]["interval"] in (None, 1024) and not row["setting"]["lora"]]
        file.write_text("".join(json.dumps(row) + "\n" for row in kept))
    text = conclusions.sweep(sample).text
    assert "Of 2 intervals, 1,024 leaves" in text
    assert "as much as dense retention. Unpressured" in text


def test_the_trace_names_the_missing_blocks(sample: Path) -> None:
    """The sentence has the needed, stored and missing ranges of the longest prompt that missed."""
    text = conclusions.trace(sample).text
    for part in ("166–198", "168–200", "166–167", "--prefix-cache-retention-interval"):
        assert part in text


def test_the_cause_that_missed_most_is_told_beside_that_of_the_repeat(sample: Path) -> None:
    """New endings missed 29,824 tokens, repeats 23,424: both are told, in the notebook and on the page."""
    other = "no checkpoint at the end of the shared part (8 lookups, 29,824 tokens)"
    text = conclusions.trace(sample).text
    assert text.index("166–167 were never kept") < text.index(other)
    assert "Send another prompt with the same part" in text.partition(other)[2]
    assert other in dict(blocks.block_trace(material.gather(sample)).findings)["Missed most"]


def test_the_cause_that_missed_most_is_not_told_twice(sample: Path) -> None:
    """Where the repeat's own cause leads the table, nothing is added."""
    trace = lookups.of_run(open_run(str(sample), "sample"), []).trace
    tally = frames.causes(trace)
    told = [Diagnosis("shared_part", "", (), "", "")]
    assert conclusions.missed_most(trace, tally, told) == ""
    assert conclusions.missed_most(trace, tally.head(0), []) == ""


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
    assert told == symptom.new_ending(account(sample)), "the note does not blame the drafter for it either"


def test_how_far_short_a_full_hit_may_end_is_what_the_engines_say(sample: Path) -> None:
    """832 of 1,000 tokens is as good as it gets with MTP: up to 192 tokens, three scheduler blocks, are."""
    found = material.gather(sample)
    bound = hit_lengths(found).after[0]
    assert "No more than this below it is a full hit: 64 tokens (1 scheduler block of 64) without a drafter, " in bound
    assert "192 tokens (3 scheduler blocks of 64) with a drafter (mtp)." in bound
    second = found.hits[(found.hits["index"] == 2) & (found.hits["verdict"] == "reuses")]
    for drafter, most in ((False, 64), (True, 192)):
        short = second.loc[second["drafter"] == drafter, "short_tokens"]
        assert most - 64 < short.max() <= most
    shutil.rmtree(sample / "trace")
    assert ": 1 scheduler block without a drafter, 3 with one." in hit_lengths(material.gather(sample)).after[0]


def test_single_sends_have_no_median_and_no_range(sample: Path) -> None:
    """Each time of the sample is one send's: figure, table and rule say so; with equal sends they have a range."""
    once = material.gather(sample)
    section = first_token(once)
    assert section.after[0].startswith("Each time is that of a single send, so how far equal sends scatter was not")
    assert section.tables[0].columns[4:] == ("first token, ms",)
    assert section.tables[0].caption == "Time to first token, of single sends."
    (figure,) = section.figures
    assert "Each point is a single send" in str(figure.chart.to_dict()["title"]["subtitle"])
    again = once.latency.assign(count=once.latency["count"] + (once.latency["index"] == 2))
    section = first_token(replace(once, latency=again))
    assert section.after[0].startswith("Believe differences that are larger than the range of equal sends; a single")
    assert section.tables[0].columns[4:] == ("median, ms", "lowest, ms", "highest, ms", "sends")
    assert "Point: median; bar: lowest to highest." in str(section.figures[0].chart.to_dict()["title"]["subtitle"])
    note = replace(account(sample), material=replace(once, latency=again))
    assert symptom.waiting(note).endswith("(medians, on a CPU: compare them, don't quote them).")


def test_an_interval_that_keeps_every_block_is_said_to(sample: Path) -> None:
    """1,024 keeps as much as dense retention, 2,048 keeps less and lifts less; also where dense was not tried."""
    text = conclusions.sweep(sample).text
    assert (
        "hits 6,336, and it keeps 1,105 blocks of the prompt, which is every block, as much as dense retention" in text
    )
    assert "; 64, 512 and dense hit the same and keep the same; " in text
    assert "; 2,048 hits the same there and keeps 635, but hits less of 1,600 tokens. Unpressured" in text
    assert "every block at each prompt length tried: 1,024 keeps as much as dense" in str(verdict.of_run(sample).price)
    swept = frames.sweep(frames.sends(sample), frames.kept(sample))
    two = swept[swept["interval_order"].isin([0, 1024])]
    assert "That is every block at each prompt length tried: 1,024 keeps" in str(of_sweep(two).price)
    assert [frames.keeps_all(swept, order) for order in (0, 64, 2048, 4096, math.inf)] == [
        False,
        True,
        False,
        False,
        True,
    ]
    short = two[two["tokens"] == 6446]
    assert "That is every block: 1,024 keeps" in str(of_sweep(short).price)
    unknown = two.assign(every_block=pd.NA)
    assert "every block" not in str(of_sweep(unknown).price)
    assert "dense retention" not in str(of_sweep(swept[swept["interval_order"].isin([0, math.inf])]).price)
