"""What a run that asked something else says, and one that stopped before it was done."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from prefixscope import frames, material, planned, resources, sections, verdict
from prefixscope.frames.rows import read_rows
from prefixscope.notes import incident
from prefixscope.notes.account import account
from prefixscope.notes.ruled_out import ruled_out
from prefixscope.report import render_html
from prefixscope.run_files import read_rows as rows_in
from prefixscope.runner import Result
from prefixscope.sections.crosscheck import agreement
from prefixscope.sections.hits import hit_lengths


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    """A copy of the recorded run."""
    return Path(shutil.copytree(resources.data_path("sample", "run"), tmp_path / "run"))


def only(run: Path, *stages: str) -> Path:
    """The run as if it had been asked for these stages alone."""
    for file in (run / "raw").glob("*.jsonl"):
        if file.stem not in stages:
            file.unlink()
    manifest = json.loads((run / "run.json").read_text())
    manifest["stages"] = {name: entry for name, entry in manifest["stages"].items() if name in stages}
    manifest["plan"] = [*stages, "report"]
    (run / "run.json").write_text(json.dumps(manifest))
    return run


def exit_code(found: verdict.Verdict) -> int:
    return Result(Path(), None, found.sentence, found.code, (), 0.0).exit_code


def test_a_run_that_streamed_alone_is_about_the_speed(sample: Path) -> None:
    """Its headline is what speculation found, it is done (exit 0), and its figure is on the first screen."""
    run = only(sample, "speculation")
    found = verdict.of_run(run)
    assert found.code == "not asked"
    assert found.headline.startswith("MTP generates ")
    assert "10 prompts" in found.headline
    assert "On balance MTP" in found.sentence
    assert "sent twice" not in found.text
    assert exit_code(found) == 0
    gathered = material.gather(run)
    figure = sections.headline_figure(gathered)
    assert figure is not None
    assert figure.id == "verdict"
    titles = [one.title for one in sections.sections(gathered)]
    assert titles[0] == "Speculative decoding", "what was measured comes before what was not"
    page = render_html(run)
    assert "reuse not asked" in page
    assert "No request was traced" not in page


def test_a_run_that_compared_answers_alone_is_about_them(sample: Path) -> None:
    """Equality without a baseline says how many answers are equal."""
    found = verdict.of_run(only(sample, "equality"))
    assert (found.code, found.headline) == ("not asked", "20 of 20 warm answers equal the cold ones.")


def test_a_sweep_that_was_predicted_alone_says_so(tmp_path: Path) -> None:
    """Hits, remedy and price are the scheduler's, and nothing on the page says that the sweep was not made."""
    run = tmp_path / "run"
    (run / "raw").mkdir(parents=True)
    rows = [
        {"schema": 1, "kind": "predicted_sweep", "stage": "crosscheck", "release": "0.29.0", "interval_asked": label,
         "interval": value, "tokens": 3770, "hits": [0, hit, 3648], "blocks": blocks, "bytes": blocks * 2**17}
        for label, value, hit, blocks in (("0", 0, 0, 223), ("1,024", 1024, 3648, 643))
    ]  # fmt: skip
    (run / "raw" / "crosscheck.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    target = {"kind": "attached", "url": "http://127.0.0.1:1", "label": "attached server"}
    (run / "run.json").write_text(json.dumps({"schema_version": 1, "target": target, "stages": {}, "warnings": []}))
    found = verdict.of_run(run)
    assert found.headline == (
        "Predicted by the scheduler of vLLM 0.29.0 from a trace: the second send of 3,770 tokens reuses 3,648 at "
        "interval 1,024, and 0 at interval 0."
    )
    assert found.remedy is not None
    assert "would reuse 3,648 of 3,770" in found.remedy
    assert found.price is not None
    assert "2.9 times the cache blocks: 643 instead of 223" in found.price
    assert exit_code(found) == 0
    page = render_html(run)
    assert "What one prompt of 3,770 tokens leaves in the cache" in page
    assert "of — tokens" not in page
    assert "the retention sweep is predicted alone" in page


def stopped(run: Path, lengths: set[int], status: str = "running") -> Path:
    """The run as a kill left it in its baseline: without MTP all, with it these lengths, and nothing else."""
    file = run / "raw" / "baseline.jsonl"
    settings = {"no MTP": {100, 1000, 1600, 6446}, "MTP": lengths}
    kept = [
        row
        for row in rows_in(file)
        if row["kind"] == "send" and row["prompt"]["tokens"] in settings.get(row["setting"]["label"], ())
    ]
    only(run, "baseline")
    file.write_text("".join(json.dumps(row) + "\n" for row in kept))
    manifest = json.loads((run / "run.json").read_text())
    manifest["stages"]["baseline"]["status"] = status
    (run / "run.json").write_text(json.dumps(manifest))
    return run


@pytest.mark.parametrize("status", ["running", "interrupted"])
def test_a_run_that_was_stopped_gives_no_all_clear(sample: Path, status: str) -> None:
    """Hits so far are told, but what was not sent may be what misses: inconclusive, and unfinished in words."""
    run = stopped(sample, {1000}, status)
    found = verdict.of_run(run)
    assert found.code == "inconclusive"
    assert "832 of 1,000 tokens" in found.headline
    assert "as far as it was asked" in found.headline
    assert found.unfinished == "Unfinished: stage baseline was stopped before it was done."
    assert found.sentence.startswith(f"{found.headline} {found.unfinished}")
    assert found.unfinished in render_html(run)
    assert exit_code(found) == 3


def test_a_fault_that_was_found_stands_though_the_run_was_stopped(sample: Path) -> None:
    """A miss is a miss whatever was to come."""
    found = verdict.of_run(stopped(sample, {1000, 1600}))
    assert found.code == "none"
    assert found.unfinished.startswith("Unfinished")


def test_a_sweep_that_was_stopped_leaves_the_verdict(sample: Path) -> None:
    """What was asked about reuse was asked whole: it reuses, and the sweep is said to be unfinished."""
    run = stopped(sample, set(), "done")
    manifest = json.loads((run / "run.json").read_text())
    manifest["stages"]["sweep"] = {"status": "interrupted"}
    (run / "run.json").write_text(json.dumps(manifest))
    found = verdict.of_run(run)
    assert found.code == "reuses"
    assert found.unfinished == "Unfinished: stage sweep was stopped before it was done."


def test_lengths_that_cannot_hit_are_not_all_lengths(sample: Path) -> None:
    """“Over all lengths” is said where all of them hit; else how many could."""
    file = sample / "raw" / "baseline.jsonl"
    rows = [row for row in rows_in(file) if row.get("setting", {}).get("label", "").endswith("interval 1,024")]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for other in ("sweep", "crosscheck"):
        (sample / "raw" / f"{other}.jsonl").unlink()
    found = verdict.of_run(sample)
    assert found.code == "reuses"
    assert "over the 3 of 4 lengths that can hit" in found.headline
    assert len(read_rows(sample)[0]) > len(rows) - 1
    assert f"hit lengths were read from {len(frames.sends(sample))} requests" in found.basis


def test_a_run_goes_on_with_what_it_was_asked_for(sample: Path) -> None:
    """--resume adds no stage of its own accord; a parameter that is given now names its stage."""
    run = only(sample, "baseline")
    assert planned.stages_of(run) == ["baseline", "report"]
    assert planned.going_on(run, []) == ["baseline", "report"]
    assert planned.going_on(run, ["sweep.lengths=[100]"]) == ["baseline", "report", "sweep"]
    manifest: dict[str, Any] = json.loads((run / "run.json").read_text())
    del manifest["plan"]
    (run / "run.json").write_text(json.dumps(manifest))
    assert planned.going_on(run, ["sweep.lengths=[100]"]) == [], "an older run names no plan: all stages"


def test_the_note_of_a_run_that_streamed_alone(sample: Path) -> None:
    """Its title is what was found, the trade stands there once, and both servers' commands with what they lack."""
    text = incident.note(account(only(sample, "speculation")), {})
    assert text.startswith("# MTP generates ")
    assert text.count("On balance MTP") == 1
    assert text.count("The prefill times are not those of the streamed answers") == 1
    assert "this run started none" not in text
    assert "The server no MTP" in text
    assert "# without --speculative-config" in text or "--speculative-config" in text.partition("where it differs")[2]


def test_an_upgrade_says_for_which_sends_the_interval_is_still_needed(sample: Path) -> None:
    """What mends the repeat does not mend a new ending: both measured numbers, and none where they do not differ."""
    sent = frames.sends(sample)
    found = verdict.of_run(sample)
    assert found.upgrade is not None
    assert found.upgrade.endswith(
        " That is for the same prompt again: a new ending of 6,446 tokens, which reuses 6,016 at interval 1,024 and 0 "
        "without, still needs the interval."
    )
    alike = sent.copy()
    alike.loc[alike["send"] == "new_ending", "cached_tokens"] = 0
    same = verdict.of_frames(sample, alike, frames.kept(sample), None)
    assert same.upgrade == found.upgrade.partition(" That is for")[0]


def test_the_upgrade_is_told_once(sample: Path) -> None:
    """Where the remedy is the known fault's and the release that mends it has its own sentence, the flag is left."""
    known = {
        "engine": "vLLM",
        "vllm version": "0.29.0",
        "speculative decoding": "on",
        "retention interval reported": "0",
    }
    facts = [{"name": name, "value": value, "source": "x"} for name, value in known.items()]
    manifest = json.loads((only(sample, "baseline") / "run.json").read_text())
    (sample / "run.json").write_text(json.dumps({**manifest, "facts": facts}))
    sent = frames.sends(sample)
    served = sent[sent["config"] == "MTP"].assign(as_served=True, config="as served", interval_order=-1.0)
    found = verdict.of_frames(sample, served, frames.kept(sample), None)
    assert (found.remedy or "").endswith(
        "start it with --prefix-cache-retention-interval N, a multiple of the scheduler block (for example 1024)."
    )
    assert (found.upgrade or "").startswith("Upgrading to vLLM 0.30.0 or later mends it")
    assert found.sentence.count("0.30.0 or later") == 1


def test_one_count_of_what_agrees(sample: Path) -> None:
    """Top, sections and note count the same sends; what has no usable hit is in the count, and said."""
    file = sample / "raw" / "baseline.jsonl"
    rows = [row | {"cached_tokens": -1} if place < 3 else row for place, row in enumerate(rows_in(file), -1)]
    rows[-1]["status"] = None
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    total = len(frames.sends(sample))
    known = int(frames.sends(sample)["cached_tokens"].notna().sum())
    assert total - known == 3
    found = account(sample)
    basis, hits = found.verdict.basis, " ".join(hit_lengths(found.material).after)
    assert f"counters agree with {known} of {total} hit lengths (3 could not be compared)" in basis
    assert f"predicts {known} of {known} to the token" in basis
    assert f"in {known} of {known} sends (3 sends could not be compared)" in agreement(found.material)
    assert f"the same hit length in {known} of {total} requests; 3 requests could not be compared." in hits
    assert f"in {known} of {total} requests; 3 could not be compared." in " ".join(ruled_out(found))
