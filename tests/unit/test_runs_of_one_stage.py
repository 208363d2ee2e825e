"""Runs that were asked for something else than hit lengths: what their rows hold all the same is not denied."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from data.make_pair import Row, edited, unchanged
from data.make_run import make_run
from data.streamed import resend

from prefixscope import charts, comparison, frames, material, notes, page, report, resources, sections, verdict
from prefixscope.comparison.words import unpaired_words, varied
from prefixscope.display import themed
from prefixscope.notes import for_issue
from prefixscope.notes.account import account
from prefixscope.notes.incident import note
from prefixscope.replay import travel
from prefixscope.replay.workload import read_workload
from prefixscope.sections import Section
from prefixscope.sent import sent_rows

LENGTHS = (100, 1000, 1600, 6446)


def only(folder: Path, *stages: str) -> Path:
    """The recorded run as if it had been asked for these stages alone."""
    run = Path(shutil.copytree(resources.data_path("sample", "run"), folder))
    for file in (run / "raw").glob("*.jsonl"):
        if file.stem not in stages:
            file.unlink()
    manifest = json.loads((run / "run.json").read_text())
    manifest["stages"] = {name: entry for name, entry in manifest["stages"].items() if name in stages}
    manifest["plan"] = [name for name in manifest.get("plan", ()) if name in stages]
    (run / "run.json").write_text(json.dumps(manifest))
    return run


def rewritten(run: Path, stage: str, change: Callable[[Row], Row | None]) -> Path:
    file = run / "raw" / f"{stage}.jsonl"
    rows = [change(json.loads(line)) for line in file.read_text().splitlines()]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows if row is not None))
    return run


def streamed_alone(folder: Path) -> Path:
    """As of one attached server: it was streamed from, and nothing was sent again."""
    return rewritten(only(folder, "speculation"), "speculation", lambda row: None if row["kind"] == "resend" else row)


def section(run: Path, section_id: str) -> Section:
    return next(one for one in sections.sections(material.gather(run)) if one.id == section_id)


# --- which rows are sends --------------------------------------------------------------------------------------------


def test_a_whole_runs_hit_lengths_are_those_that_were_asked_for(tmp_path: Path) -> None:
    """The long prompts of the speculation stage are no part of a run's answer that asked for hit lengths."""
    run = make_run(tmp_path / "run")
    assert set(frames.sends(run)["stage"]) == {"baseline", "sweep"}
    assert len(frames.resends(run)) == 6


def test_they_are_the_runs_sends_where_nothing_else_was_answered(tmp_path: Path) -> None:
    """Without another answered send they count, each under its arm, with what the cache gave; they tell the verdict."""
    run = make_run(tmp_path / "run", stages=("baseline", "speculation"))
    rewritten(run, "baseline", lambda row: {**row, "status": "failed", "cached_tokens": None, "error": "refused"})
    found = frames.hits(frames.sends(run))
    known = found[found["count"] > 0]
    assert dict(zip(known["config"] + ", " + known["send_label"], known["cached_tokens"], strict=True)) == {
        "no MTP, send 1 (cold)": 0, "no MTP, send 2": 6400, "no MTP, send 3": 6400,
        "MTP, send 1 (cold)": 0, "MTP, send 2": 0, "MTP, send 3": 6336,
    }  # fmt: skip
    assert verdict.of_run(run).code == "none"


def test_two_servers_that_ran_already_are_told_apart() -> None:
    """Both are as served: the arm is the configuration, and a series of its own."""
    setting = {"as_served": True, "label": "as served", "id": "s"}
    rows = [
        {**resend(arm, 2, hit, 60.0), "label": f"server {arm}", "side": arm, "setting": setting}
        for arm, hit in (("A", 0), ("B", 6400))
    ]
    found = sent_rows(rows)
    assert [row["setting"]["label"] for row in found] == ["server A", "server B"]
    assert len({row["setting"]["id"] for row in found}) == len({row["series"] for row in found}) == 2


def test_what_was_sent_can_be_replayed(tmp_path: Path) -> None:
    """The traced long prompts are cases for the release's scheduler, and the run's workload."""
    run = only(tmp_path / "run", "speculation")
    found = travel.of_run(run)
    assert sorted(case.name for case in found) == ["MTP", "no MTP"]
    assert sum(len(case.requests) for case in found) == 3 * 2 * len(LENGTHS)
    assert travel.worst_series(found).name == "MTP"
    workload = read_workload(run)
    assert len(workload.requests) == 3 * 2 * len(LENGTHS)
    assert len({request.salt for request in workload.requests}) == 2 * len(LENGTHS)


# --- the page --------------------------------------------------------------------------------------------------------


def test_the_page_tells_hits_that_were_measured(tmp_path: Path) -> None:
    """Hits, times, blocks and predictions of the speculation stage's own sends stand in their sections, by arm."""
    run = only(tmp_path / "run", "speculation", "crosscheck")
    made = {one.id: one for one in sections.sections(material.gather(run))}
    assert [made[name].missing for name in ("hits", "latency", "blocks", "crosscheck", "speculation")] == [""] * 5
    assert made["hits"].before[0].startswith("This run was not asked for hit lengths.")
    assert ("MTP", "6,446", "0", "0", "6,336") in {row[:5] for row in made["hits"].tables[0].rows}
    assert ("no MTP", "6,446", "0", "6,400", "6,400") in {row[:5] for row in made["hits"].tables[0].rows}
    assert "in 24 of 24 sends" in made["crosscheck"].findings[0][1]
    assert any(label.startswith("MTP, send 2") for label, _ in made["blocks"].findings)


def test_one_length_is_drawn_send_by_send(tmp_path: Path) -> None:
    """The hits of one long prompt have a figure too: a bar for each send."""
    made = section(make_run(tmp_path / "run", stages=("speculation",)), "hits")
    assert "reuses nothing with MTP" in themed(made.figures[0].chart)["title"]["text"][0]
    assert made.after[0].startswith("A bar that reaches the dashed line")


def test_what_was_asked_comes_first(tmp_path: Path) -> None:
    """The stage that was run is told before the hits that it found on the way, and its figure is the first one."""
    gathered = material.gather(only(tmp_path / "run", "speculation"))
    assert [one.id for one in sections.sections(gathered)][:2] == ["speculation", "hits"]
    first = sections.headline_figure(gathered)
    assert first is not None
    assert first.shows == "speed"


def test_compared_answers_that_hit_are_not_denied(tmp_path: Path) -> None:
    """A run of equality alone says how much its warm answers took from the cache, where hit lengths would stand."""
    run = only(tmp_path / "run", "equality")
    told = "This run was not asked for hit lengths. Its own requests hit: 20 warm answers took 2,304 of 2,400 prompt"
    assert section(run, "hits").missing.startswith(told)
    assert told in section(run, "crosscheck").missing
    assert "this run made none" in section(run, "blocks").missing


def test_streamed_answers_are_not_denied(tmp_path: Path) -> None:
    """A run that only streamed says so, and where its first tokens stand."""
    run = streamed_alone(tmp_path / "run")
    assert section(run, "hits").missing == (
        "This run was not asked for hit lengths. Its 40 streamed answers had a salt of their own each and hit 0 tokens."
    )
    assert "under “Speculative decoding”" in section(run, "latency").missing


def test_servers_that_were_not_asked_in_turns_are_not_said_to_be(tmp_path: Path) -> None:
    """Where the two did not run at once, the section says that one was streamed from after the other."""
    run = make_run(tmp_path / "run", stages=("speculation",))
    assert "from either server in turns" in section(run, "speculation").before[0]
    rewritten(run, "speculation", lambda row: {**row, "interleaved": False})
    assert "from one server after the other" in section(run, "speculation").before[0]


def test_the_speed_figure_fits_beside_the_evidence(tmp_path: Path) -> None:
    """Its words stand within the plot at the width that the first screen leaves it, so nothing is cut."""
    shapes = frames.by_shape(frames.generations(only(tmp_path / "run", "speculation")))
    chart = charts.speed_by_shape(shapes)
    chart.spec.width = 480
    # Left of the plot stand the names of the servers, right of it nothing.
    assert page.Drawn("speed", themed(chart)).embedded["beside"][0] < 70


# --- the note --------------------------------------------------------------------------------------------------------


def test_the_note_tells_the_hits_and_their_cause(tmp_path: Path) -> None:
    """Hits by arm, how they came to be measured, acceptance and the cause; its first figure's file is named for it."""
    run = only(tmp_path / "run", "speculation")
    text = notes.write_incident(run).read_text()
    assert "(incident-speed.svg)" in text
    assert (run / "incident-speed.svg").is_file()
    assert not (run / "incident-hits.svg").exists()
    assert "no hit length" not in text
    assert "| MTP | 6,446 | 0 | 0 | 6,336 |" in text
    assert "This run was not asked for hit lengths; those told here are of the long prompt" in text
    assert "430 of 624 drafted tokens were accepted" in text
    assert "Stored and needed windows" in text
    assert "hit lengths of other prompts and configurations than those above" in text


def test_a_miss_met_on_the_way_has_its_remedy(tmp_path: Path) -> None:
    """Note and bug report say what brings the hit back, as the page does, below the cause; not without a miss."""
    run = only(tmp_path / "run", "speculation")
    told = account(run)
    assert told.diagnosis is not None
    want, price = "Set --prefix-cache-retention-interval to a multiple of 64", told.diagnosis.price
    assert any(want in text for _, text in section(run, "blocks").findings)
    text = re.sub(r"[`*\\\\]", "", note(told, {})).partition("## Why hits are")[2].partition("## Ruled out")[0]
    assert text.index("Stored and needed windows") < text.index(want)
    assert price in text
    issue = re.sub(r"[`\\\\]", "", for_issue.issue(told))
    assert f"**Workaround:** {want}" in issue
    assert issue.startswith("> This run was not asked whether prefixes are reused; what it met on the way is below.")
    assert "shows no fault" not in issue
    streamed = account(streamed_alone(tmp_path / "other"))
    assert want not in note(streamed, {}).replace("`", "")


@pytest.mark.parametrize(
    ("stage", "said", "file"),
    [
        ("equality", "20 of 20 warm answers equal the cold ones (95 % interval", "answers"),
        ("speculation", "MTP generates 255.2 to 388.2 tokens a second", "speed"),
    ],
)
def test_the_note_says_what_was_measured(tmp_path: Path, stage: str, said: str, file: str) -> None:
    """Under “What was measured” of a run without a hit length stands what it measured instead."""
    run = only(tmp_path / "run", "equality") if stage == "equality" else one_arm(streamed_alone(tmp_path / "run"))
    text = notes.write_incident(run).read_text()
    assert said in text.split("## What was measured")[1].split("\n## ")[0]
    assert "there is no hit length to tell" not in text
    assert "The trace holds no second send" not in text
    assert f"(incident-{file}.svg)" in text


def one_arm(run: Path) -> Path:
    return rewritten(run, "speculation", lambda row: None if row.get("arm") == "B" else row)


def test_a_trace_alone_is_drawn_once(tmp_path: Path) -> None:
    """Of a run that only predicted a sweep the one figure is called for it, and is not drawn a second time."""
    row = {"schema": 1, "kind": "predicted_sweep", "stage": "crosscheck", "release": "0.29.0", "tokens": 6446,
           "blocks": 100, "bytes": None}  # fmt: skip
    rows = [{**row, "interval_asked": str(n), "interval": n, "hits": [0, hit, hit]} for n, hit in ((0, 0), (64, 6336))]
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "crosscheck.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    (tmp_path / "run.json").write_text(json.dumps({"schema_version": 1, "run_id": "r", "stages": {}}))
    notes.write_incident(tmp_path)
    assert [file.name for file in tmp_path.glob("*.svg")] == ["incident-intervals.svg"]
    assert "incident-intervals.svg" in (tmp_path / "incident.md").read_text()
    assert "no hit length to tell" in note(account(tmp_path), {}), "of this one it is so"


# --- two of them compared --------------------------------------------------------------------------------------------


def test_two_runs_of_speculation_are_compared(tmp_path: Path) -> None:
    """Speed and acceptance first, then the hits of the long prompts; equal ones exit 0, by verdicts of their own."""
    before = make_run(tmp_path / "before", stages=("speculation",))
    after = edited(make_run(tmp_path / "after", stages=("speculation",)), unchanged, version="0.29.0")
    found = comparison.compare([str(before), str(after)])
    assert comparison.sentence(found) == (
        "From A to B tokens a second with MTP and no MTP and acceptance and tokens per step with MTP stay the same; "
        "no hit length changes (4 compared); latencies differ within noise."
    )
    assert found.exit_code == 0
    assert {one.name for one in found.pairs[0].rates} >= {
        "tokens a second, MTP",
        "acceptance, MTP",
        "tokens per step, MTP",
    }
    assert [side.verdict.code for side in found.sides] == ["not asked", "not asked"], "as on their pages"
    assert "stay the same" not in " ".join(varied(found.pairs[0])), "the headline has said it"


def test_a_lower_hit_of_a_long_prompt_exits_1(tmp_path: Path) -> None:
    """A hit that the speculation stage alone measured is a hit: one that is lost is worse."""

    def lost(row: Row) -> Row:
        gone = row["kind"] == "resend" and row["arm"] == "B" and row["index"] == 2
        return {**row, "cached_tokens": 0} if gone else row

    before = make_run(tmp_path / "before", stages=("speculation",))
    after = edited(make_run(tmp_path / "after", stages=("speculation",)), lost, version="0.29.0")
    found = comparison.compare([str(before), str(after)])
    assert "the second send of 6,446 tokens with no MTP goes from 6,400 to 0" in comparison.sentence(found)
    assert (found.exit_code, found.pairs[0].code) == (1, "worse")


def test_two_runs_of_equality_are_compared(tmp_path: Path) -> None:
    """Neither was asked for hit lengths: their answers are compared, and it is said; a difference is not unchanged."""

    def differs(row: Row) -> Row:
        other = row["kind"] == "comparison" and row["pair"] == "cold-warm" and row["document"] == "document 1"
        return {**row, "identical": False, "class": "words"} if other else row

    before = only(tmp_path / "before", "equality")
    same = edited(only(tmp_path / "same", "equality"), unchanged, version="0.29.0", run_id="same")
    found = comparison.compare([str(before), str(same)])
    assert "warm answers equal to the cold ones: 20 of 20 on A, 20 of 20 on B" in comparison.sentence(found)
    assert "hit lengths are not compared: neither run was asked for hit lengths" in comparison.sentence(found)
    assert "holds no measured request" not in comparison.to_text(found)
    assert (found.exit_code, found.pairs[0].code) == (0, "unchanged")
    apart = edited(only(tmp_path / "apart", "equality"), differs, version="0.29.0", run_id="apart")
    found = comparison.compare([str(before), str(apart)])
    assert "20 of 20 on A, 18 of 20 on B" in comparison.sentence(found)
    assert (found.exit_code, found.pairs[0].code) == (3, "can't tell")


def test_runs_with_nothing_in_common_are_not_compared(tmp_path: Path) -> None:
    """Answers on one side and speeds on the other leave nothing to compare, and neither holds “no request”."""
    equal, streamed = only(tmp_path / "equal", "equality"), streamed_alone(tmp_path / "streamed")
    edited(streamed, unchanged, version="0.29.0")
    found = comparison.compare([str(equal), str(streamed)])
    assert comparison.sentence(found) == "A and B can't be compared: neither run was asked for hit lengths."
    assert found.exit_code == 3


def test_neither_was_asked_whichever_comes_first(tmp_path: Path) -> None:
    """Long prompts that a speculation stage sent again make it no run that was asked for hit lengths."""
    equal, streamed = only(tmp_path / "equal", "equality"), only(tmp_path / "streamed", "speculation")
    edited(streamed, unchanged, version="0.29.0")
    want = "A and B can't be compared: neither run was asked for hit lengths."
    for two in ((equal, streamed), (streamed, equal)):
        assert comparison.sentence(comparison.compare([str(one) for one in two])) == want


def test_what_an_engine_resolved_is_known_of_answers_alone(tmp_path: Path) -> None:
    """A traced run that was only compared or streamed tells its groups, blocks and interval, its report too."""
    whole = only(tmp_path / "whole", "baseline", "sweep", "equality")
    manifest = (whole / "run.json").read_text()
    (whole / "run.json").write_text(json.dumps(json.loads(manifest) | {"run_id": "another"}))
    equal = only(tmp_path / "equal", "equality")
    page.write(report.render_html(equal), tmp_path / "equal.html")
    for base in (equal, tmp_path / "equal.html"):
        facts = {one.name: one for one in comparison.compare([str(base), str(whole)]).facts}
        for name, value in (
            ("scheduler block, tokens", "64"),
            ("retention interval", "1,024"),
            ("pool, blocks", "8,192"),
        ):
            assert (facts[name].values, facts[name].state) == ((value, value), "same")
        assert facts["KV cache groups"].state == "same"


def test_answers_that_could_not_be_paired_are_listed(tmp_path: Path) -> None:
    """Of a stage that both did it says why not one answer is compared, of one that only one did how many there are."""

    def shorter(row: Row) -> Row:
        if row["kind"] == "generation":
            prompt = {**row["prompt"], "tokens": 256, "digest": f"other {row['prompt']['digest']}"}
            return {**row, "prompt": prompt, "prompt_tokens": 256}
        return row

    before = make_run(tmp_path / "before", stages=("speculation", "equality"))
    after = edited(make_run(tmp_path / "after", stages=("speculation",)), shorter, version="0.29.0")
    found = comparison.compare([str(before), str(after)])
    both = frames.generations(before), frames.generations(after)
    lengths = [" or ".join(f"{n:,}" for n in sorted(set(one["prompt_tokens"]))) for one in both]
    assert lengths[0] != lengths[1] == "256"
    many = len(frames.comparisons(before)["identical"].dropna())
    want = {
        ("not compared", config, "streamed answers", f"prompts of {lengths[0]} tokens on A, of 256 on B")
        for config in ("MTP", "no MTP")
    } | {("only in A", "unnamed", "compared answers", f"{many} comparisons")}
    assert want == set(unpaired_words(found))
    text, pasted = comparison.to_text(found, 300), comparison.to_markdown(found)
    for who, config, what, why in want:
        assert f"  {who}: {config}, {what} ({why})\n" in f"{text}\n"
        assert f"| {who} | {config} | {what} | {why} |" in pasted
    assert comparison.to_json(found, "")["pairs"][0]["unpaired"][0]["runs"] == ["A", "B"]
    same = edited(make_run(tmp_path / "same", stages=("speculation", "equality")), unchanged, run_id="same")
    assert unpaired_words(comparison.compare([str(before), str(same)])) == []


def test_settings_of_runs_without_a_hit_length_are_compared(tmp_path: Path) -> None:
    """Servers that were started otherwise are not said to be alike because no hit length was asked for."""

    def other(row: Row) -> Row:
        return (
            {**row, "setting": {**row["setting"], "label": "MTP + LoRA, interval 2,048"}} if row.get("setting") else row
        )

    before = only(tmp_path / "before", "equality")
    after = edited(only(tmp_path / "after", "equality"), other, version="0.29.0")
    found = comparison.compare([str(before), str(after)])
    assert ("MTP + LoRA, interval 1,024", "MTP + LoRA, interval 2,048") in {one.values for one in found.facts}
