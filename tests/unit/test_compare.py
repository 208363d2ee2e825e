"""Runs compared: what is a difference, what is noise, what can't be told, and what must not be compared at all."""

from __future__ import annotations

import html
import json
import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from data.make_pair import Edit, Row, edited, fixed, make_pair, unchanged
from data.make_run import make_run

from prefixscope import charts, cli, comparison, display, frames, noise, paired
from prefixscope.comparison.facts import causes
from prefixscope.comparison.whole import Comparison, Pair
from prefixscope.comparison.words import exact, varied
from prefixscope.errors import RunError
from prefixscope.report import render_report
from prefixscope.setting import Setting

BASELINE = ("baseline",)


def compared(*paths: Path) -> Comparison:
    return comparison.compare([str(path) for path in paths])


def one_pair(before: Path, after: Path) -> Pair:
    return compared(before, after).pairs[0]


def small(folder: Path, change: Edit = unchanged, **options: Any) -> tuple[Path, Path]:
    """A baseline and the same one changed; enough for hit lengths and times."""
    before, after = make_run(folder / "before", stages=BASELINE), make_run(folder / "after", stages=BASELINE)
    return before, edited(after, change, **options)


def rewritten(run: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    manifest = json.loads((run / "run.json").read_text())
    change(manifest)
    (run / "run.json").write_text(json.dumps(manifest))
    return run


def slower(factor: Callable[[Row], float]) -> Edit:
    """Every time to first token so many times as long."""

    def change(row: Row) -> Row:
        ms = row.get("first_token_ms")
        return {**row, "first_token_ms": ms * factor(row)} if ms else row

    return change


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A whole run on 0.29.0, and the same one with the fault fixed."""
    return make_pair(tmp_path_factory.mktemp("pair"), fixed)


@pytest.fixture(scope="module")
def found(pair: tuple[Path, Path]) -> Comparison:
    return compared(*pair)


# --- what changed ----------------------------------------------------------------------------------------------------


def test_one_sentence_says_what_changed_and_what_did_not(found: Comparison) -> None:
    """The sentence names the releases, the send that changed most with both hits, and that times did not change."""
    assert comparison.sentence(found) == (
        "From vLLM 0.29.0 to 0.30.0 the second send of 6,446 tokens with MTP goes from 0 to 6,336 cached tokens; "
        "latencies differ within noise."
    )
    assert found.exit_code == 0
    assert found.pairs[0].code == "better"
    verdicts = {one.config: (one.base, one.other, one.code) for one in found.pairs[0].verdicts}
    assert verdicts["MTP"] == ("none", "reuses", "better")
    assert verdicts["no MTP"] == ("reuses", "reuses", "same")


def test_a_lower_hit_exits_1(pair: tuple[Path, Path]) -> None:
    """The other way round the same hits are lower, the verdict is worse, and both are said."""
    found = compared(*reversed(pair))
    assert (found.exit_code, found.pairs[0].code) == (1, "worse")
    assert "goes from 6,336 to 0 cached tokens" in comparison.sentence(found)
    assert "12 are lower (by at most 6,336 tokens)" in comparison.to_text(found).replace("\n", " ")


def test_one_block_less_is_worse_and_named_beside_a_gain(tmp_path: Path) -> None:
    """A change to the better hides no hit that is one block lower: the sentence counts it, the exit code is 1."""

    def change(row: Row) -> Row:
        row = fixed(row)
        lost = row["kind"] == "send" and row["send"] == "follow_up" and row["cached_tokens"] > 64
        return {**row, "cached_tokens": row["cached_tokens"] - 64} if lost else row

    found = compared(*small(tmp_path, change))
    assert found.pairs[0].code == "better and worse"
    assert found.exit_code == 1
    lost = len(found.pairs[0].lower)
    assert f"; {lost} hit lengths are lower, by at most 64;" in comparison.sentence(found)


def test_equal_runs_exit_0(tmp_path: Path) -> None:
    """Where every hit length is the same it says of how many, and that no setting differs."""
    found = compared(*small(tmp_path, version="0.29.0"))
    assert comparison.sentence(found).startswith("From A to B no hit length changes (120 compared)")
    assert "No setting that A and B tell of differs." in comparison.to_text(found).replace("\n", " ")
    assert (found.exit_code, found.pairs[0].code) == (0, "unchanged")


def test_a_verdict_that_stays_is_told_of_what_was_compared(tmp_path: Path) -> None:
    """It says of how many configurations and lengths; where a hit length changed it is not told as the same."""
    before, after = small(tmp_path, version="0.29.0")
    same = one_pair(before, after)
    configs, lengths = len(same.verdicts), {tokens for one in same.verdicts for tokens in one.lengths}
    said = f"Of {configs} configurations compared, over {len(lengths)} prompt lengths, each verdict stays the same ("
    assert (configs, len(lengths)) == (6, 5)
    assert said in " ".join(exact(same))

    def lost(row: Row) -> Row:
        gone = row["kind"] == "send" and row["send"] == "repeat" and row["index"] == 3
        return {**row, "cached_tokens": 0} if gone else row

    worse = one_pair(before, edited(after, lost, version="0.29.0"))
    assert worse.lower
    assert {one.code for one in worse.verdicts} == {"same"}
    assert "verdict" not in " ".join(exact(worse))


def test_a_report_is_as_good_as_its_run(pair: tuple[Path, Path], tmp_path: Path, found: Comparison) -> None:
    """Reports compare to the same settings, hits, verdicts and rates as their run directories, tokens and all."""
    reports = [render_report(run, out=tmp_path / f"{run.name}.html") for run in pair]
    again = comparison.to_json(compared(*reports), "")["pairs"][0]
    whole = comparison.to_json(found, "")["pairs"][0]
    assert again.pop("answers") is None, "answers stay in the run directory"
    assert whole.pop("answers")
    assert again == whole
    settings = [comparison.to_json(compared(*of), "")["settings"] for of in (reports, pair)]
    assert settings[0] == settings[1]


# --- settings --------------------------------------------------------------------------------------------------------


def test_settings_are_known_unknown_same_or_different(tmp_path: Path) -> None:
    """Flags and facts that differ are rows, what one run does not tell is unknown there, what is the same is a line."""
    before, after = small(tmp_path)

    def change(manifest: dict[str, Any]) -> None:
        for server in manifest["servers"]:
            server["command"] += " --max-num-batched-tokens 2048 --port 4711"
            server["command"] = server["command"].replace("/home/someone/.cache", "some/other/place")
        manifest["facts"].append({"name": "KV cache dtype", "value": "fp8", "source": "/metrics"})
        manifest["environment"] |= {"cpus": 64, "memory_gib": 512.0}

    found = compared(before, rewritten(after, change))
    states = {one.name: (one.state, one.values) for one in found.facts}
    assert states["vLLM version"] == ("differs", ("0.29.0", "0.30.0"))
    assert states["--max-num-batched-tokens"] == ("differs", ("not given", "2048"))
    assert states["KV cache dtype"] == ("unknown", (None, "fp8"))
    assert states["served models"][0] == "same"
    assert not {"--port", "--model"} & set(states)
    assert causes(found.facts) == ["vLLM version", "--max-num-batched-tokens", "machine"]
    text = comparison.to_text(found).replace("\n", " ")
    assert "More than one thing differs between A and B (vLLM version, --max-num-batched-tokens, machine)" in text


def test_what_was_asked_of_different_servers_is_no_setting(tmp_path: Path) -> None:
    """What the first server said of its drafter is left out where the runs' first servers were started differently."""
    before, after = small(tmp_path)
    for run, value in ((before, "off"), (after, "mtp")):
        rewritten(run, lambda m, v=value: m["facts"].append({"name": "speculative decoding", "value": v, "source": ""}))
    assert "speculative decoding" in {one.name for one in compared(before, after).facts}
    rewritten(after, lambda m: m.update(servers=m["servers"][1:]))
    assert "speculative decoding" not in {one.name for one in compared(before, after).facts}


def test_intervals_of_two_single_runs_are_compared(tmp_path: Path) -> None:
    """Two runs of one setting each are compared whatever the setting is, and the setting is what differs."""

    def only(interval: int) -> Edit:
        def change(row: Row) -> Row | None:
            if row.get("setting", {}).get("label") != "MTP":
                return None
            moved = interval == 4096 and row.get("index") == 2 and row["prompt"]["tokens"] == 6446
            hit = 5952 if moved else row.get("cached_tokens")
            return {**row, "setting": Setting(interval=interval).to_json(), "cached_tokens": hit}

        return change

    runs = [
        edited(make_run(tmp_path / str(n), stages=BASELINE), only(n), run_id=f"run-{n}", version="0.29.0")
        for n in (1024, 4096)
    ]
    found = compared(*runs)
    assert found.labels == ("A, MTP, interval 1,024", "B, MTP, interval 4,096")
    assert comparison.sentence(found).startswith(
        "From MTP, interval 1,024 to MTP, interval 4,096 the second send of 6,446 tokens goes from 0 to 5,952 cached"
    )


def test_three_runs_are_held_against_the_first(tmp_path: Path) -> None:
    """Each further run has its own sentence against the base, and one table holds a column for each."""
    before, after = small(tmp_path, fixed)
    third = edited(make_run(tmp_path / "third", stages=BASELINE), unchanged, run_id="third", version="0.32.0")
    found = compared(before, after, third)
    assert [pair.span for pair in found.pairs] == ["From vLLM 0.29.0 to 0.30.0", "From vLLM 0.29.0 to 0.32.0"]
    assert [pair.code for pair in found.pairs] == ["better", "unchanged"]
    assert "| MTP | 6,446 | send 2 | 0 | 6,336 | 0 | B +6,336; C same |" in comparison.to_markdown(found)


def test_a_pair_of_three_is_judged_by_its_own_differences(tmp_path: Path) -> None:
    """A pair names the same differences beside a third run as alone, and the table above has a row for each."""
    before, after = small(tmp_path, fixed)
    other = {"label": "as served", "id": "served", "as_served": True}
    third = edited(make_run(tmp_path / "third", stages=BASELINE), lambda row: {**row, "setting": other}, run_id="third")

    def more(manifest: dict[str, Any]) -> None:
        for server in manifest["servers"]:
            server["command"] += " --max-num-batched-tokens 2048" if server["setting"]["label"] == "MTP" else ""

    rewritten(after, more)
    found, alone = compared(before, after, third), compared(before, after)
    assert causes(found.pairs[0].facts) == causes(alone.pairs[0].facts) == ["vLLM version", "--max-num-batched-tokens"]
    text = comparison.to_text(found)
    assert "B against A: Of 120 hit lengths" in text
    assert "| --max-num-batched-tokens | not given | 2048 | not compared |" in comparison.to_markdown(found)
    assert "\n\n\n" not in text
    assert "only in A" not in text
    assert "in A and B, not in C: MTP, 150, 704, 1,089, 3,008 and 6,446 tokens, 30 sends" in text.replace("\n   ", "")
    assert "only in C: as served" in text


def test_two_servers_that_are_not_ours_are_not_told_as_one(tmp_path: Path) -> None:
    """A verdict that goes from one server's to another's is not said of "this server"."""
    served = {"label": "as served", "id": "served", "as_served": True}

    def only(row: Row | None) -> Row | None:
        return {**row, "setting": served} if row and row["setting"]["label"] == "MTP" else None

    before = edited(make_run(tmp_path / "before", stages=BASELINE), only, run_id="before")
    after = edited(make_run(tmp_path / "after", stages=BASELINE), lambda row: only(fixed(row)), run_id="after")
    found = compared(before, after)
    assert "The verdict goes from none to reuses." in " ".join(comparison.to_text(found).split())
    assert "this server" not in comparison.to_markdown(found).partition("####")[0]


def test_a_flag_that_differs_elsewhere_in_a_third_run_hides_no_difference(tmp_path: Path) -> None:
    """A flag that one run has on the server common to all and another elsewhere has a row for either difference."""
    before, after = small(tmp_path)
    third = edited(
        make_run(tmp_path / "third", stages=BASELINE),
        lambda row: row if row["setting"]["label"] == "no MTP" else None,
        run_id="third",
    )
    for run, label, value in ((after, "MTP", 4096), (third, "no MTP", 2048)):

        def more(manifest: dict[str, Any], label: str = label, value: int = value) -> None:
            for server in manifest["servers"]:
                if server["setting"]["label"] == label:
                    server["command"] += f" --max-num-batched-tokens {value}"

        rewritten(run, more)
    text = comparison.to_markdown(compared(before, after, third))
    assert "| --max-num-batched-tokens | not given | not given | 2048 |" in text
    assert "| --max-num-batched-tokens | not given | 4096 | not compared |" in text


def test_a_report_against_a_directory_differs_in_no_flag(tmp_path: Path) -> None:
    """Long folders in a flag's value, which a report leaves out, are no difference between a report and a run."""
    before, after = small(tmp_path, version="0.29.0")
    folder = "/some/deep/folder" * 9
    for run in (before, after):

        def drafted(manifest: dict[str, Any]) -> None:
            for server in manifest["servers"]:
                server["command"] += f""" --speculative-config '{{"model": "{folder}/drafter", "method": "mtp"}}'"""

        rewritten(run, drafted)
    found = compared(render_report(before, out=tmp_path / "report.html"), after)
    assert causes(found.facts) == []


def test_what_differs_at_the_end_of_a_long_value_is_seen_in_a_terminal(tmp_path: Path) -> None:
    """No cell is cut: a long one goes on below itself, and no line of the settings is wider than the terminal."""
    before, after = small(tmp_path)
    groups = "5 × sliding, window 1,024, 32-token blocks; 1 × full, 64-token blocks"
    for run, value in ((before, groups), (after, f"{groups}, drafter")):
        rewritten(run, lambda m, v=value: m["facts"].append({"name": "groups", "value": v, "source": ""}))
    for width in (100, 60):
        text = comparison.to_text(compared(before, after), width)
        shown = text[text.index("settings that differ") : text.index("Of 120 hit lengths")]
        assert shown.count("drafter") == 1
        assert "…" not in shown
        assert max(map(len, shown.splitlines())) <= width


def test_the_sentence_on_settings_agrees_with_their_table(tmp_path: Path) -> None:
    """Every row that differs is named: the cause, what follows from it, and what is no setting of a server."""
    before, after = small(tmp_path)
    for run, size, label in ((before, 32, "one server"), (after, 64, "another server")):
        block = {"name": "block size reported, tokens", "value": size, "source": "/metrics"}

        def change(manifest: dict[str, Any], block: dict[str, Any] = block, label: str = label) -> None:
            manifest["facts"].append(block)
            manifest["target"]["label"] = label

        rewritten(run, change)
    found = compared(before, after)
    text = comparison.to_markdown(found)
    assert (
        "Of what A and B tell of their settings, only this differs: vLLM version; and what follows from it: block size "
        "reported, tokens. Different too, but not a server setting: target."
    ) in text
    rows = [line for line in text.splitlines() if line.startswith(("| vLLM version", "| block size", "| target"))]
    assert [row.rpartition(" | ")[2] for row in rows] == [
        " |", "worked out by vLLM |", "not a server setting |"
    ]  # fmt: skip
    assert {one.name for one in found.facts if one.state == "differs"} == {
        "vLLM version", "block size reported, tokens", "target"
    }  # fmt: skip


def test_a_target_that_names_its_release_differs_in_nothing_else(tmp_path: Path) -> None:
    """A target's label whose only difference is the version is no difference of its own."""
    before, after = small(tmp_path)
    for run, version in ((before, "0.29.0"), (after, "0.30.0")):
        rewritten(run, lambda m, v=version: m["target"].update(label=f"embedded vLLM {v}"))
    assert [one.name for one in compared(before, after).facts if one.state == "differs"] == ["vLLM version"]


def test_what_one_server_was_asked_is_not_said_of_all(tmp_path: Path) -> None:
    """Facts that depend on a server's start are told of the first one alone where others were started otherwise."""
    before, after = small(tmp_path)
    for run in (before, after):
        rewritten(run, lambda m: m["facts"].append({"name": "speculative decoding", "value": "off", "source": ""}))
    text = comparison.to_markdown(compared(before, after))
    alike = next(line for line in text.splitlines() if line.startswith("The same on all"))
    assert "speculative decoding" not in alike
    assert "served models" not in alike
    first = next(line for line in text.splitlines() if line.startswith("Asked of the first server alone (no MTP)"))
    assert "speculative decoding off" in first
    assert "served models gemma4-tiny" in first
    for run in (before, after):
        rewritten(run, lambda m: m.update(servers=m["servers"][:1]))
    assert "Asked of the first server" not in comparison.to_markdown(compared(before, after))


def test_each_sentence_of_a_comparison_stands_once(pair: tuple[Path, Path]) -> None:
    """What differs in settings is said at the top alone; the table has no column without a heading or a word."""
    text = comparison.to_markdown(compared(*pair))
    assert text.count("Of what A and B tell of their settings") == 1
    assert "| setting | A | B |\n| --- | --- | --- |\n| vLLM version | 0.29.0 | 0.30.0 |\n" in text


# --- what must not be compared ---------------------------------------------------------------------------------------


def test_the_same_run_twice_is_refused(pair: tuple[Path, Path], tmp_path: Path) -> None:
    """A run does not differ from itself, whether it comes as a directory, as its report or without its manifest."""
    report = render_report(pair[0], out=tmp_path / "report.html")
    with pytest.raises(RunError, match="are the same run"):
        compared(pair[0], report)
    bare = tmp_path / "bare"
    shutil.copytree(pair[0], bare)
    (bare / "run.json").unlink()
    with pytest.raises(RunError, match="are the same run"):
        compared(pair[0], bare)


def test_a_changed_copy_of_a_run_is_told_from_the_run(pair: tuple[Path, Path], tmp_path: Path) -> None:
    """Equal ids with other rows are said, with the stage and the count of edited, lost and added rows."""
    copy = tmp_path / "copy"
    shutil.copytree(pair[0], copy)
    path = copy / "raw" / "baseline.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    edited_row = json.dumps({**json.loads(lines[3]), "cached_tokens": 77}) + "\n"
    path.write_text("".join([*lines[:3], edited_row, *lines[4:]]))
    with pytest.raises(RunError, match=r"the same run id \(.+\), but their rows differ: stage baseline: 1 row differs"):
        compared(pair[0], copy)
    path.write_text("".join([*lines, edited_row, edited_row]))
    with pytest.raises(RunError, match=f"stage baseline: 2 rows only in {copy}") as caught:
        compared(pair[0], copy)
    assert "the run went on after it was copied" in str(caught.value)
    report = render_report(pair[0], out=tmp_path / "report.html")
    with pytest.raises(RunError, match=f"stage baseline: 2 rows only in {copy}"):
        compared(report, copy)
    (copy / "run.json").unlink()
    with pytest.raises(RunError, match="have requests in common, but their rows differ: stage baseline: 2 rows only"):
        compared(pair[0], copy)


def test_an_edited_answer_is_an_edit_between_directories(pair: tuple[Path, Path], tmp_path: Path) -> None:
    """What a report would leave behind, such as an answer's text, still tells two directories apart."""
    copy = tmp_path / "copy"
    shutil.copytree(pair[0], copy)
    path = copy / "raw" / "equality.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    place = next(n for n, one in enumerate(rows) if one.get("text"))
    rows[place]["text"] += " and more"
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    with pytest.raises(RunError, match="stage equality: 1 row differs"):
        compared(pair[0], copy)


def test_other_prompt_lengths_are_not_compared(tmp_path: Path) -> None:
    """Runs without a length in common say so with both lists, list what each has, and can't tell."""

    def longer(row: Row) -> Row:
        prompt = {**row["prompt"], "tokens": row["prompt"]["tokens"] + 1}
        return {**row, "prompt": prompt, "prompt_tokens": row["prompt_tokens"] + 1}

    found = compared(*small(tmp_path, longer))
    assert found.exit_code == 3
    assert "they have no prompt length in common (A: 150, 704" in comparison.sentence(found)
    assert {one.letters for one in found.pairs[0].alone} == {("A",), ("B",)}
    assert found.pairs[0].rates == ()


def test_prompts_of_equal_name_and_another_length_are_not_compared(tmp_path: Path) -> None:
    """Where two servers counted other lengths for the same prompt the cell is listed, not compared."""

    def counted(row: Row) -> Row:
        return {**row, "prompt_tokens": row["prompt_tokens"] + (row["prompt"]["tokens"] == 6446)}

    found = compared(*small(tmp_path, counted))
    assert {one.cell.tokens for one in found.pairs[0].hits} == {150, 704, 1089, 3008}
    assert "6,446 tokens on A, 6,447 on B" in comparison.to_markdown(found)


def test_another_model_is_said(tmp_path: Path) -> None:
    """Two models are compared at equal lengths, under the same roles, and the model is named as what differs."""

    def renamed(row: Row) -> Row:
        return {**row, "model": row["model"].replace("gemma4-tiny", "other")}

    before, after = small(tmp_path, renamed, version="0.29.0")
    rewritten(after, lambda m: m["facts"][1].update(value=["other", "other-lora"]))
    found = compared(before, after)
    assert causes(found.facts) == ["served models"]
    assert len(found.pairs[0].hits) == 120
    assert comparison.sentence(found).startswith(
        "From gemma4-tiny, gemma4-tiny-lora to other, other-lora no hit length"
    )


def test_a_run_of_failures_cannot_be_told(tmp_path: Path) -> None:
    """Where every request of a run failed the first failure is named, and nothing is compared."""

    def failed(row: Row) -> Row:
        nothing = dict.fromkeys(("prompt_tokens", "cached_tokens", "first_token_ms", "metrics"))
        return {**row, **nothing, "status": "failed", "error": "the server ended\nlog"}

    found = compared(*small(tmp_path, failed))
    assert found.exit_code == 3
    assert comparison.sentence(found).startswith("From vLLM 0.29.0 to 0.30.0 none of 120 hit lengths can be told")
    assert "the first: the server ended" in comparison.to_text(found)
    assert "log" not in " ".join(found.sides[1].doubts)


def test_a_half_finished_run_is_compared_as_far_as_it_got(tmp_path: Path) -> None:
    """What an interrupted run measured is compared, the rest is listed, and its state is a doubt."""

    def half(row: Row) -> Row | None:
        return row if row["setting"]["label"] == "no MTP" else None

    before, after = small(tmp_path, half)
    rewritten(after, lambda m: m["stages"].update(baseline={"status": "interrupted", "error": "killed"}))
    found = compared(before, after)
    assert len(found.pairs[0].hits) == 20
    assert {one.config for one in found.pairs[0].alone if one.letters == ("A",)} >= {"MTP"}
    text = comparison.to_text(found)
    assert "B: stage baseline was stopped before it was done: killed" in text
    said = "Unfinished: stage baseline was stopped before it was done."
    assert text.startswith(f"B: {said}\n  go on with: prefixscope run -o {after} --resume\n\nFrom ")
    assert text.count("Unfinished") == 1, "the base was measured to its end"
    way = "`prefixscope run -o RUN --resume` goes on with it (RUN is its directory)."
    assert comparison.to_markdown(found).startswith(f"**{found.labels[1]}.** {said} {way}\n\n### ")
    page = comparison.render_comparison(found, tmp_path / "page.html").read_text()
    top = html.unescape(re.sub("<[^>]+>", "", page.partition("<main>")[2].partition("<h1>")[0]))
    assert " ".join(top.split()) == f"can't tell {found.labels[1]}. {said} {way.replace('`', '')}"
    assert [one["unfinished"] for one in comparison.to_json(found, "")["runs"]] == [None, said]
    assert (found.exit_code, found.pairs[0].code) == (3, "can't tell")


def test_what_is_worse_in_an_unfinished_run_is_worse(pair: tuple[Path, Path], tmp_path: Path) -> None:
    """What a killed run measured worse exits 1; what it measured better leaves open what it did not measure."""
    for place, code in ((0, 1), (1, 3)):
        copy = Path(shutil.copytree(pair[place], tmp_path / f"copy{place}"))
        rewritten(copy, lambda m: m["stages"].update(speculation={"status": "interrupted", "error": "killed"}))
        assert compared(pair[1 - place], copy).exit_code == code


def test_a_failed_send_where_the_base_answered_cannot_be_told(tmp_path: Path) -> None:
    """One send that failed on the other side alone makes the exit code 3: what it would have hit is not known."""

    def failed(row: Row) -> Row:
        hurt = row["setting"]["label"] == "no MTP" and row["prompt"]["tokens"] == 704 and row["index"] == 2
        nothing = {"prompt_tokens": None, "cached_tokens": None, "status": "failed", "error": "timeout"}
        return {**row, **nothing} if hurt else row

    found = compared(*small(tmp_path, failed))
    assert (found.pairs[0].code, found.exit_code) == ("can't tell", 3)
    assert [one.code for one in found.pairs[0].untold] == ["failed"]


def test_null_is_not_lower_than_a_hit(tmp_path: Path) -> None:
    """A server that stops reporting cached tokens did not get worse: it can't be told."""
    found = compared(*small(tmp_path, lambda row: {**row, "cached_tokens": None}))
    assert not found.pairs[0].lower
    assert found.exit_code == 3
    assert {one.code for one in found.pairs[0].untold} == {"not reported"}


def test_a_cold_send_that_hits_voids_its_series(tmp_path: Path) -> None:
    """Where a first send hit something the salt was ignored: its repeats are neither better nor worse."""

    def warm(row: Row) -> Row:
        first = row["send"] == "cold" and row["prompt"]["tokens"] == 6446 and row["setting"]["label"] == "MTP"
        return {**fixed(row), **({"cached_tokens": 6400} if first else {})}

    found = compared(*small(tmp_path, warm))
    mine = [one for one in found.pairs[0].hits if one.cell.tokens == 6446 and one.cell.setting == "MTP"]
    assert {one.code for one in mine} == {"not cold"}


def test_repeats_that_overlap_cannot_be_told(tmp_path: Path) -> None:
    """Hit lengths that vary within a run differ only where no repeat of one run overlaps with the other's."""

    def twice(low: int) -> Edit:
        def change(row: Row) -> Row:
            hurt = row["send"] == "repeat" and row["index"] == 2 and row["prompt"]["tokens"] == 6446
            return {**row, "cached_tokens": low} if hurt and row["setting"]["label"] == "no MTP" else row

        return change

    for low, code in ((5952, "varies"), (6336, "lower")):
        folder = tmp_path / code
        before, after = small(folder, twice(6400 if code == "varies" else 5952))
        more = edited(make_run(folder / "more", stages=BASELINE), twice(low if code == "varies" else 6016), run_id="x")
        with (after / "raw" / "baseline.jsonl").open("a") as rows:
            rows.write((more / "raw" / "baseline.jsonl").read_text())
        cells = [
            one for one in one_pair(before, after).hits if one.cell.setting == "no MTP" and one.cell.tokens == 6446
        ]
        assert next(one.code for one in cells if one.cell.index == 2) == code


def test_what_is_no_run_is_refused_in_words(tmp_path: Path, pair: tuple[Path, Path]) -> None:
    """A foreign page, an empty folder, a missing file, a newer schema and a single run each get their own error."""
    (tmp_path / "page.html").write_text("<!DOCTYPE html><html></html>")
    (tmp_path / "empty").mkdir()
    cases = {"page.html": "holds no run", "empty": "not a run directory", "missing.html": "can't be read"}
    for name, words in cases.items():
        with pytest.raises(RunError, match=words):
            compared(pair[0], tmp_path / name)
    newer = rewritten(make_run(tmp_path / "newer", stages=BASELINE), lambda m: m.update(schema_version=2, run_id="n"))
    with pytest.raises(RunError, match="schema 2, this prefixscope compares 1"):
        compared(pair[0], newer)
    older = edited(make_run(tmp_path / "older", stages=BASELINE), lambda row: {**row, "schema": 0})
    with pytest.raises(RunError, match="rows of another schema"):
        compared(pair[0], older)
    with pytest.raises(RunError, match="1 run to compare"):
        compared(pair[0])


# --- noise or change -------------------------------------------------------------------------------------------------


def scattered(share: float, by: float = 1.0) -> Edit:
    """Times that go up and down from prompt to prompt around ``by`` times the base's."""
    seen: dict[str, int] = {}

    def factor(row: Row) -> float:
        place = seen.setdefault(row["series"], len(seen))
        return by * (1 + share if place % 2 else 1 / (1 + share))

    return slower(factor)


@pytest.mark.parametrize(
    ("share", "by", "code"),
    [(0.03, 1.0, "noise"), (0.03, 1.5, "change"), (0.03, 0.7, "change"), (2.0, 1.0, "can't tell")],
)
def test_times_are_noise_a_change_or_neither(tmp_path: Path, share: float, by: float, code: str) -> None:
    """A shift beyond the scatter is a change, none in a small scatter is noise, and a wild scatter tells nothing."""
    pair = one_pair(*small(tmp_path, scattered(share, by)))
    cold = next(one for one in pair.rates if one.what == "first token, cold")
    assert cold.code == code
    assert cold.effect is not None
    assert cold.effect.value == pytest.approx(by, rel=0.25)
    if code == "can't tell":
        assert cold.needed is not None
        assert cold.needed > cold.effect.pairs
        # As many as the one of the two kinds that needs most, and what the other needs.
        assert "can't be told (about 98 to 99 prompts would)" in comparison.sentence(
            compared(tmp_path / "before", tmp_path / "after")
        )
    if code == "change":
        words = comparison.sentence(compared(tmp_path / "before", tmp_path / "after"))
        assert f"the first token of a cold prompt takes {cold.effect.value:.2f} times as long" in words


@pytest.mark.parametrize(("by", "code"), [(1.0, "noise"), (1.15, "can't tell"), (1 / 1.15, "can't tell")])
def test_an_interval_that_reaches_a_quarter_is_not_within_noise(tmp_path: Path, by: float, code: str) -> None:
    """As narrow an interval is noise around none and can't be told where it reaches 1.25 times or 0.8 times."""
    pair = one_pair(*small(tmp_path, scattered(0.55, by)))
    cold = next(one for one in pair.rates if one.what == "first token, cold")
    assert cold.effect is not None
    assert cold.effect.low is not None
    assert cold.effect.high is not None
    assert math.log(cold.effect.high / cold.effect.low) / 2 < math.log(1.25), "narrow enough"
    assert (cold.effect.high > 1.25 or cold.effect.low < 0.8) == (code == "can't tell")
    assert cold.code == code
    if code == "can't tell":
        assert cold.needed is not None
        assert cold.needed > cold.effect.pairs


def test_times_never_change_the_exit_code(tmp_path: Path) -> None:
    """Ten times slower with equal hits exits 0: latency depends on the machine's day."""
    found = compared(*small(tmp_path, slower(lambda row: 10.0)))
    assert found.exit_code == 0
    assert "takes 10.00 times as long" in comparison.sentence(found)


def test_a_time_whose_hit_changed_is_no_noise(found: Comparison) -> None:
    """Times of sends whose hit length changed are shown apart, as what follows the hit."""
    codes = {one.what: one.code for one in found.pairs[0].rates if not one.by_shape}
    assert codes["first token, other hit"] == "follows"
    assert codes["first token, same hit"] == "same"


def test_speed_and_acceptance_are_paired_by_prompt(tmp_path: Path) -> None:
    """Tokens a second and acceptance are held against the same prompt's on the other run, shape by shape."""

    def other(row: Row) -> Row:
        if row["kind"] != "generation":
            return row
        row = {**row, "arrivals_ms": [ms * 2 for ms in row["arrivals_ms"]]}
        return {**row, "prompt": {**row["prompt"], "digest": "another text"}} if row["shape"] == "XML" else row

    before, after = make_pair(tmp_path, other)
    found = {one.name: one for one in one_pair(before, after).rates}
    assert found["tokens a second, MTP"].code == "change"
    assert found["tokens a second, MTP"].effect.value == pytest.approx(0.5)  # type: ignore[union-attr]
    assert found["acceptance, MTP"].code == "same"
    assert found["tokens per step, MTP"].base.median == pytest.approx((3.8 + 8 / 3) / 2)
    assert "tokens a second, MTP, prose" in found
    assert "tokens a second, MTP, XML" not in found, "another text is another prompt"
    said = " ".join(varied(one_pair(before, after)))
    assert "Tokens a second with MTP change: 0.50 times" in said
    assert "Acceptance and tokens per step with MTP stay the same." in said


def test_a_burst_is_no_speed(tmp_path: Path) -> None:
    """Chunks that were held back and came all at once give no tokens a second; it is said, and nothing is compared."""

    def held(row: Row) -> Row:
        if row["kind"] != "generation":
            return row
        last = max(row["arrivals_ms"])
        return {**row, "arrivals_ms": [last + 0.01 * place for place in range(len(row["arrivals_ms"]))]}

    found = compared(*make_pair(tmp_path, held))
    whats = {one.what for one in found.pairs[0].rates}
    assert "tokens a second" not in whats
    assert "acceptance" in whats
    assert "24 of 24 streamed answers came in one burst" in comparison.to_text(found).replace("\n   ", "")


def test_students_t() -> None:
    """The two-sided p is 5 % at every tabled quantile, 1 at zero, and the pairs needed shrink with the scatter."""
    for freedom in (1, 2, 3, 7, 10, 29, 200):
        assert paired.two_sided(paired.t975(freedom), freedom) == pytest.approx(0.05, abs=2e-4)
    assert paired.two_sided(0.0, 5) == 1.0
    assert paired.two_sided(-3.182, 3) == pytest.approx(paired.two_sided(3.182, 3))
    few, many = paired.needed(0.1, math.log(1.25)), paired.needed(1.0, math.log(1.25))
    assert few is not None
    assert many is not None
    assert few < 6 < many
    assert paired.t975(few - 1) * 0.1 / math.sqrt(few) <= math.log(1.25)
    assert paired.needed(1e6, 0.01) is None
    # Of a mean of half the scatter, t is √n / 2: 4.26 at 18 has 2.11 to pass, 2.06 at 17 has 2.12.
    assert paired.shown(1.0, 0.5, 0.05) == 18
    assert paired.shown(1.0, 1e-6, 0.05) is None


# --- answers ---------------------------------------------------------------------------------------------------------


def test_answers_are_held_against_each_runs_own_noise(tmp_path: Path) -> None:
    """Cold answers that differ between runs, where both repeat themselves, are put down to what differs."""

    def says(row: Row) -> Row:
        return {**row, "token_ids": [9, 9, 9]} if row["kind"] == "answer" else row

    for change, code in ((says, "arms"), (unchanged, "same")):
        across = one_pair(*make_pair(tmp_path / code, change)).answers.across
        assert isinstance(across, noise.Judgement)
        assert across.code == code
        assert "A and B" in across.sentence


def test_equality_is_paired_by_document(found: Comparison) -> None:
    """Equal answers are counted over the documents that both runs compared, with the exact test."""
    warm = next(one for one in found.pairs[0].answers.equal if one.what.startswith("warm"))
    assert (warm.base, warm.other, warm.only_base, warm.only_other, warm.p) == ((19, 20), (19, 20), 0, 0, 1.0)


# --- forms -----------------------------------------------------------------------------------------------------------


def test_markdown_is_text_and_fits_an_issue(tmp_path: Path) -> None:
    """Names from outside are text on GitHub: no markup, element or mention; a table's rows are as wide as its head."""
    hostile = "<script>x</script> | **b** @someone #1 ![i](u) `c`"
    before, after = make_pair(tmp_path)
    rewritten(after, lambda m: m["target"].update(label=hostile))
    text = comparison.to_markdown(compared(before, after))
    assert len(text) < 60_000
    assert "<script" not in text
    assert not re.search(r"(?<!\\)\*\*b|@someone|(?<!\\)!\[i\]\(|(?<!\\)#1", text.replace("\\[", "["))
    width = 0
    for line in text.splitlines():
        if not line.startswith("|"):
            width = 0
            continue
        bars = len(re.findall(r"(?<!\\)\|", line))
        assert width in (0, bars), line
        width = bars
    assert text.index("What differs in settings") < text.index("Hit lengths")


def test_no_name_in_a_figure_is_cut() -> None:
    """Names of panels, rows and runs that are too long for a line go on in the next one."""
    server, run = "MTP + LoRA, interval 1,024 · gemma4-small-lora", "A, google/gemma-4-26B-A4B-it-assistant-w4a16"
    what = f"tokens a second, {server}"
    hit = {"panel": f"{server}, 1,600 tokens, send 2", "full": 1600}
    hits = [hit | {"run": run, "hit": 1472}, hit | {"run": "B", "hit": 1536}]
    swept = [
        {"tokens": 1600, "interval": interval, "run": name, "hit": 0} for interval in ("0", "64") for name in (run, "B")
    ]
    times = {"what": what, "run": f"B against {run}, and more", "times": 1.1, "low": 1.0, "high": 1.2, "code": "change"}
    drawn = {
        "hits": (charts.compared_hits(frames.compared_hits(hits), title="x"), (hit["panel"], run)),
        "sweep": (charts.compared_sweep(frames.compared_sweep(swept), title="x"), (run,)),
        "rates": (charts.compared_rates(frames.compared_rates([times]), title="x"), (what, times["run"])),
    }
    for name, (chart, whole) in drawn.items():
        svg = display.to_svg(chart)
        assert "…" not in svg, name
        words = " ".join(re.findall(r">([^<>]+)</t", svg))
        for text in whole:
            assert re.sub(r"\s", "", str(text)) in re.sub(r"\s", "", words), name


def rated(value: float, low: float, high: float, code: str = "can't tell") -> dict[str, Any]:
    return {"what": f"{value} times", "run": "B against A", "times": value, "low": low, "high": high, "code": code}


def test_an_interval_that_goes_on_is_cut_with_an_arrow() -> None:
    """An interval from two prompts squeezes no other row: the axis ends near the values, an arrow says it goes on."""
    rows = [rated(1.58, 1.02, 2.45), rated(0.14, 1e-6, 23771.78, "follows the hit"), rated(0.64, 0.42, 0.97)]
    svg = display.to_svg(charts.compared_rates(frames.compared_rates(rows), title="x"))
    ticks = re.findall(r">([\d.,]+)</text>", svg)
    assert ticks == ["0.1", "0.2", "0.5", "1", "2"]
    whole = display.to_svg(charts.compared_rates(frames.compared_rates([rows[0], rows[2]]), title="x"))
    assert svg.count('aria-roledescription="point"') == whole.count('aria-roledescription="point"') + 3
    assert "Arrow" in svg
    assert "Arrow" not in whole


def test_every_row_of_the_rates_is_drawn() -> None:
    """What is equal in every pair has its point and its words too."""
    same = rated(1.0, 1.0, 1.0, "the same in every pair")
    assert "1.00  the same in every pair" in display.to_svg(
        charts.compared_rates(frames.compared_rates([same]), title="x")
    )


@pytest.mark.parametrize(("low", "high"), [(0.9, 1.1), (0.05, 40), (0.001, 5_000), (1e-9, 1e9)])
def test_no_two_ticks_of_the_rates_read_the_same(low: float, high: float) -> None:
    """From a tenth more to a billion times the ticks are few, different, and 1 is one of them."""
    rows = [rated(low, low, low), rated(high, high, high)]
    svg = display.to_svg(charts.compared_rates(frames.compared_rates(rows), title="x"))
    ticks = re.findall(r">([\d.,]+)</text>", svg)
    assert len(set(ticks)) == len(ticks) <= 10
    assert "1" in ticks


def test_a_page_holds_no_path_host_or_key(tmp_path: Path) -> None:
    """The page and the Markdown hold neither the runs' folders nor the machine's name, and what they embed neither."""
    before, after = make_pair(tmp_path / "private-place")
    page, note = tmp_path / "out.html", tmp_path / "out.md"
    assert cli.main(["compare", str(before), str(after), "-o", str(page)]) == 0
    assert cli.main(["compare", str(before), str(after), "-o", str(note)]) == 0
    for text in (page.read_text(), note.read_text()):
        for private in ("private-place", "build-host-17", "/home/someone"):
            assert private not in text


def test_the_command_prints_settings_before_results(
    pair: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """The terminal gets the sentence, who is who, the settings that differ, then results; JSON has the exit code."""
    before, after = map(str, pair)
    assert cli.main(["compare", before, after]) == 0
    shown = capsys.readouterr().out
    places = [shown.index(text) for text in ("From vLLM", before, "settings that differ", "Of 168 hit lengths")]
    assert places == sorted(places)
    assert "looked at together, by Holm" in " ".join(shown.split())
    assert cli.main(["compare", after, before, "--json"]) == 1
    value = json.loads(capsys.readouterr().out)
    assert value["exit_code"] == 1
    assert value["settings"][0] == {
        "name": "vLLM version", "values": ["0.30.0", "0.29.0"], "state": "differs", "kind": "cause"
    }  # fmt: skip
    assert {one["change"] for one in value["pairs"][0]["hits"]} == {"same", "lower"}


@pytest.mark.parametrize(
    ("out", "says"),
    [
        ("out.pdf", "its name does not end as that of a page (.html) or a Markdown file (.md)"),
        ("missing/out.html", "there is no folder"),
        ("missing/out", "there is no folder"),
        (".", "it is a folder"),
    ],
)
def test_a_file_that_cannot_be_written_exits_2(
    pair: tuple[Path, Path], out: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another ending, or no such folder, is refused before anything is read; 1 is left to what got worse."""
    assert cli.main(["compare", *map(str, pair), "-o", str(tmp_path / out)]) == 2
    assert says in capsys.readouterr().err
    assert cli.main(["compare", str(pair[0]), str(pair[0])]) == 2
