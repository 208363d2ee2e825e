"""The incident note: what a person's note holds, ours holds from a run; and any run has one."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from data.make_run import make_run
from stub import StubServer

from prefixscope import charts, cli, frames, notes, preflight, resources, streaming, verdict
from prefixscope.lookups import bring
from prefixscope.notes import checking, incident, upstream
from prefixscope.notes.account import account
from prefixscope.quantities import number
from prefixscope.replay import travel
from prefixscope.resources import data_path
from prefixscope.runs import Run
from prefixscope.telling import tell
from prefixscope.trace import ranges_text

SAMPLE = Path(__file__).parents[2] / "data" / "sample" / "run"
TRACE = Path(__file__).parents[1] / "data" / "trace-incident.jsonl"
HEADINGS = ["In short", "Context", "Symptom", "Cause", "Workaround and its cost", "Ruled out", "Upstream status",
            "Check your server", "Open, and not measured"]  # fmt: skip


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the recorded run, with its note."""
    folder = tmp_path_factory.mktemp("sample") / "run"
    shutil.copytree(SAMPLE, folder)
    notes.write_incident(folder)
    return folder


@pytest.fixture(scope="module")
def note(sample: Path) -> str:
    return plain((sample / "incident.md").read_text())


def plain(text: str) -> str:
    """The note as a reader sees it: without escapes."""
    return re.sub(r"\\([\\`*_\[\]<>|~$#+=.)-])", r"\1", text).replace("\u200b", "").replace("`", "")


def section(text: str, heading: str) -> str:
    """What stands under one heading."""
    return text.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]


def sentences(text: str) -> list[str]:
    """The sentences of running text: without tables, figures, commands, headings and list marks."""
    prose = re.sub(r"```.*?```", "", text.split("\n## Upstream status\n")[0], flags=re.DOTALL)
    lines = [one.removeprefix("- ") for one in prose.splitlines() if not one.startswith(("|", "!", "#"))]
    return [one.strip() for line in lines for one in re.split(r"(?<=[.!?]) (?=[A-Z\d*-])", line) if one.strip()]


def row(**changes: Any) -> dict[str, Any]:
    """One send of an attached server, as its row."""
    setting = {"drafter": None, "lora": None, "interval": None, "as_served": True, "label": "as served", "id": "s"}
    return {"schema": 1, "kind": "send", "stage": "baseline", "series": "s", "setting": setting, "model": "m",
            "prompt": {"name": "p", "tokens": 4000}, "send": "repeat", "index": 2, "request_id": "ps-1", "status": "ok",
            "prompt_tokens": 4000, "cached_tokens": 0, **changes}  # fmt: skip


def attached(folder: Path, *rows: dict[str, Any], **manifest: Any) -> str:
    """The note of a run of an attached server with these rows."""
    (folder / "raw").mkdir(parents=True)
    (folder / "raw" / "baseline.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    value = {"schema_version": 1, "run_id": "r", "created_at": "2026-11-30T02:00:00Z", **manifest}
    value = {"target": {"kind": "attached", "label": "http://host:8000"}, "stages": {}, **value}
    (folder / "run.json").write_text(json.dumps(value))
    return plain(notes.write_incident(folder).read_text())


# --- what a person's note holds --------------------------------------------------------------------------------------


def test_every_section_of_the_first_reports_note_is_there(note: str) -> None:
    """A short answer, then context, symptom, cause, workaround, cost, upstream and check in the order of a person's."""
    assert re.findall(r"^## (.+)$", note, re.MULTILINE) == HEADINGS


def test_the_title_names_configuration_release_fault_and_remedy(note: str) -> None:
    """The title says who does what, and what brings it back."""
    assert note.startswith(
        "# MTP on vLLM 0.29.0: repeated prompts hit nothing in the prefix cache; retention interval 1,024 brings the "
        "hit back\n"
    )


def test_context(note: str, sample: Path) -> None:
    """Model, drafter, release, cache settings, machine, configurations, prompts and start commands are told."""
    told = section(note, "Context")
    for text in ("gemma4-small served by vLLM 0.29.0.",
                 "Speculative decoding: mtp with the drafter gemma4-small/drafter, 3 tokens a draft.",
                 "Prefix caching is on: KV cache dtype auto, a pool of 8,192 blocks, a scheduler block of 64 tokens, "
                 "retention interval 0.", "Measured on 2 CPUs, Linux x86_64, no GPU seen.", "greedy decoding",
                 "one-token answers", "each sent up to 3 times"):  # fmt: skip
        assert text in told, text
    sent = frames.sends(sample)
    assert f"{number(len(sent))} requests" in told
    assert f"{number(sent['tokens'].min())} to {number(sent['tokens'].max())} tokens" in told
    for config in sent["config"].drop_duplicates():
        assert f"| {config} |" in told
    assert told.count("api_server") == 1
    assert "22 environment variables before it are in the report" in told
    assert "--speculative-config" in told
    assert "--prefix-cache-retention-interval 1024" in told


def test_symptom(note: str, sample: Path) -> None:
    """Hits of each send by configuration, the adapter, the waiting time and what the drafter is worth are measured."""
    told, hits = section(note, "Symptom"), frames.hits(frames.sends(sample))
    for one in hits[(hits["send"] == "repeat") & (hits["index"] == 2) & ~hits["interval"].isin(["64"])].itertuples():
        if one.config.startswith(("MTP + LoRA", "no MTP")) or one.config == "MTP":
            # Configurations that hit the same everywhere share their rows.
            name = rf"\| (?:[^|]+; )?{re.escape(one.config)}(?:; [^|]+)? \|"
            assert re.search(rf"{name} {number(one.tokens)} \| 0 \| {number(one.cached_tokens)} \|", told), one
    assert told.count("| 6,446 |") == 3
    assert "The third send reuses 6,336" in told
    assert "Without MTP the second send reuses 6,400." in told
    assert re.search(r"Time to first token of 6,446 tokens with MTP: send 1 \(cold\) [\d,]+ ms, send 2 [\d,]+ ms", told)
    assert re.search(
        r"MTP gains [\d.]+ s .+ of generation a request against no MTP \([\d.]+ against [\d.]+ tokens/s", told
    )
    assert (
        "of prefill, where the second send hits 0 with MTP and 6,400 with no MTP. The prefill times are not those"
        in told
    )


def test_cause(note: str, sample: Path) -> None:
    """How it was found, the groups, the drop, and needed, stored and missing blocks, first and last counted in."""
    told, main = section(note, "Cause"), account(sample).main
    assert main is not None
    view = next(one for one in main.groups if one.limiting)
    kept = {one.group.gid: one for one in account(sample).stored}[view.group.gid]
    assert view.needed is not None
    assert "prefixscope's tracer recorded inside vLLM" in told
    assert "a 6,446-token prompt" in told
    assert "6 KV cache groups: 5 sliding-window (32-token blocks, window 1,024); 1 full-attention (64-token" in told
    assert "A hit is a length that every group can back, in multiples of the scheduler block, 64 tokens" in told
    assert "Without a drafter: " in told
    assert "Hit: 6,400 of 6,446 tokens." in told
    assert "gives up the last cached block at lookup" in told
    assert "in 6 of 6 groups: no group is the drafter's own, so the drop applies to all of them" in told
    assert "A sliding-window group then has to back 33 blocks: the 32 of its window and the one given up." in told
    assert f"needs blocks {ranges_text([view.needed])}" in told
    for ranges in ([view.needed], view.cached, view.missing, kept.kept):
        assert ranges_text(ranges) in told
    assert kept.kept == ((168, 201),), "block 200 holds tokens 6,400 to 6,431: it is kept, and not before the boundary"
    assert "keeps the blocks up to and including 200, the one at the replay boundary 6,400, where it expects" in told
    assert "| 168–200 (33) | 6,400 (in block 200) |" in told
    assert "| 0–99 (100) | 6,400 (in block 100) |" in told
    assert "both sides are recorded, the lookup's and the store's" in told
    assert "With MTP + LoRA, interval 1,024" in told or "With MTP, interval 1,024" in told
    assert re.search(r"gives the measured hit, to the token, in \d+ of \d+ sends", told)


def test_workaround_and_cost(note: str, sample: Path) -> None:
    """Flag, rule, table of intervals, hits, blocks, MiB, tokens short, follow-up turns, equality and caveat."""
    told = section(note, "Workaround and its cost")
    swept = frames.sweep(frames.sends(sample), frames.kept(sample))
    longest = swept[swept["tokens"] == swept["tokens"].max()]
    for one in longest.itertuples():
        cells = [one.interval, number(one.tokens), number(one.hit_2), number(one.hit_3), number(one.short_2)]
        assert f"| {' | '.join(cells)} |" in told
    base, helped = longest.iloc[0], longest[longest["interval"] == "1,024"].iloc[0]
    assert f"({helped['blocks'] / base['blocks']:.1f} times, " in told
    for blocks in (helped["blocks"], base["blocks"]):
        assert f"{number(blocks)}" in told.split("![", 1)[1]
    assert f"{helped['bytes'] / 2**20:,.1f} MiB instead of {base['bytes'] / 2**20:,.1f} MiB" in told
    assert "must be a multiple of the scheduler block, 64 here" in told
    assert "0 keeps those where the engine expects a prompt to resume; N keeps one more every N tokens" in told
    assert "None (dense) keeps every block" in told
    assert "stops 110 to 128 tokens short of its end, at most 2 scheduler blocks of 64 over 2 prompt lengths" in told
    assert "as long as the checkpoints have not been evicted" in told
    assert re.search(
        r"The next turn of a conversation of 6,446 tokens then hits 6,336 of 6,\d+ tokens, measured with MTP", told
    )
    assert re.search(r"\d+ of \d+ warm answers equal the cold ones", told)
    assert "take no memory from running requests" in told
    assert (
        "--enable-prefix-caching \\\n--enable-prompt-tokens-details \\\n--prefix-cache-retention-interval 1024" in told
    )


def test_it_says_why_this_interval_and_what_the_others_would_give(note: str) -> None:
    """Those that hit as much for as many blocks are named, and of those that keep less what they keep and lose."""
    told = section(note, "Workaround and its cost")
    assert "1,024 was chosen: of the intervals tried it leaves the fewest tokens to compute over 2 prompt" in told
    assert (
        "64, 512 and dense hit the same and keep the same blocks, which is every block of the prompt; 1,024 is the "
        "coarsest of them." in told
    )
    assert "2,048 keeps fewer (635 of 1,105), but hits 0 instead of 1,472 of 1,600 tokens." in told
    assert (
        "4,096 keeps fewer (430 of 1,105), but hits 4,096 instead of 6,336 of 6,446 tokens and 0 instead of 1,472 of "
        "1,600 tokens." in told
    )


def test_another_price_gives_another_reason(sample: Path, tmp_path: Path) -> None:
    """Where dense keeps more for the same hits, it is named as the dearer one with its blocks."""
    folder = tmp_path / "run"
    shutil.copytree(sample, folder)
    path = folder / "raw" / "sweep.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for one in rows:
        if one["kind"] == "kept" and one["setting"]["interval"] == "dense":
            one["blocks"] += 1000
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    told = section(plain(notes.write_incident(folder).read_text()), "Workaround and its cost")
    assert "64 and 512 hit the same and keep the same blocks; 1,024 is the coarsest of them." in told
    assert re.search(r"dense \(\d,\d{3}\) hits no more for more blocks\.", told)


def test_each_fact_is_told_once(note: str, sample: Path) -> None:
    """No sentence stands twice, and what belongs to one section is in no other."""
    said = sentences((sample / "incident.md").read_text())
    assert len(said) > 25
    assert len(said) == len(set(said))
    home = {"were never kept": "Cause", "don't meet": "Cause", "evictable cache": "Workaround and its cost",
            "warm answers equal": "Workaround and its cost", "The adapter:": "Ruled out",
            "mends it for next to nothing": "Upstream status", "two sends are not enough": "Symptom",
            "Only vLLM 0.29.0 was measured": "Open, and not measured",
            "138.1 MiB instead": "Workaround and its cost"}  # fmt: skip
    for words, heading in home.items():
        assert note.count(words) == 1, words
        assert words in section(note, heading), words


def test_ruled_out(note: str) -> None:
    """The adapter, another text, the counters and eviction."""
    told = section(note, "Ruled out")
    for text in ("The adapter: with one loaded nothing changes; MTP + LoRA (asked as gemma4-small and as "
                 "gemma4-small-lora) hits the same as MTP", "another text of the same length hits nothing",
                 "the server's own counters", "Eviction: 16,859 blocks left the cache during the run"):  # fmt: skip
        assert text in told, text


def test_the_note_asks_the_later_release_about_the_verdicts_server(note: str, sample: Path) -> None:
    """The command that it names is given the run, whose every server is replayed, not the last one traced."""
    told = section(note, "Open, and not measured")
    assert "with this run's requests (prefixscope predict --trace RUN --vllm 0.29.0,0.30.0)" in told
    assert account(sample).verdict.config in [case.name for case in travel.load(sample)]


def test_a_new_ending_is_told_of_every_configuration(note: str, sample: Path) -> None:
    """What hits nothing with the drafter and nothing without it is not laid at the drafter's door."""
    told = section(note, "Symptom").split("ends differently ")[1].split("\n")[0]
    hits = frames.hits(frames.sends(sample))
    rows = hits[(hits["send"] == "new_ending") & (hits["tokens"] == 6446)]
    assert set(rows.loc[rows["cached_tokens"] == 0, "config"]) >= {"MTP", "no MTP"}
    assert "and 0 in every other configuration. Where it is 0" in told
    assert set(re.findall(r"with (MTP[^;]*1,024)", told)) == {"MTP + LoRA, interval 1,024"}


def test_upstream_status_has_dates_and_numbers(note: str) -> None:
    """Each pull request and issue of the cause is linked, with its state, its day where it is known, and its source."""
    told = section(note, "Upstream status")
    assert "As read on 30 November 2026" in told
    assert "vLLM 0.30.0 or later mends it" in told
    assert "try it without the flag and run the check below" in told
    for text in (
        "[vllm#53945](https://github.com/vllm-project/vllm/issues/53945) (pull request, merged 8 September 2026, in "
        "releases from 0.30.0) moves the retained replay checkpoint to where a lookup lands",
        "vllm#54713",
        "exact multiple of the scheduler block",
        "(pull request, merged 17 October 2026, in releases from 0.33.0) replaces how the drafter's cache groups are",
        "(issue, closed May 2026) reports no hits for Gemma 4 with DFlash",
        "vllm#54360",
        "--prefix-cache-retention-interval, and its default 0",
    ):
        assert text in told, text


def test_check_your_server(note: str) -> None:
    """Flags that are needed, when it is worth it, commands, a script without us, and the tracer with its limits."""
    told = section(note, "Check your server")
    for text in ("--enable-prompt-tokens-details", "mixes sliding-window or Mamba layers with full attention",
                 "prefixscope check http://localhost:8000 ", "prefixscope trace kit", "python3 resend.py",
                 "relies on internal names of vLLM"):  # fmt: skip
        assert text in told, text


def test_short_answers(note: str) -> None:
    """What happens, why, what brings the hits back at what price, and which release: four sentences, no pointer."""
    told = section(note, "In short").strip().split("\n\n")[0]
    assert told == (
        "MTP on vLLM 0.29.0 reuses nothing on the second send of prompts of 1,600 and 6,446 tokens (0 of 6,446 "
        "tokens). The engine kept the blocks beside those that the lookup needs. With "
        "--prefix-cache-retention-interval 1024 it reuses 6,336 of 6,446, for 4.2 times the cache blocks of that "
        "prompt. vLLM 0.30.0 and later have a change against it."
    )


def test_figures_lie_beside_the_note(sample: Path) -> None:
    """Hits, blocks and intervals are SVG files that the note shows, with the finding as their alternative text."""
    shown = re.findall(r"^!\[(.+)\]\((.+)\)$", (sample / "incident.md").read_text(), re.MULTILINE)
    assert [name for _, name in shown] == ["incident-hits.svg", "incident-blocks.svg", "incident-intervals.svg"]
    for text, name in shown:
        svg = (sample / name).read_text()
        assert svg.startswith("<svg ")
        assert text.split()[0] in svg
        assert "<script" not in svg


def test_the_same_run_gives_the_same_note(sample: Path, tmp_path: Path) -> None:
    """Note and figures are the same to the byte when they are written again."""
    before = {path.name: path.read_bytes() for path in sample.glob("incident*")}
    notes.write_incident(sample)
    assert {path.name: path.read_bytes() for path in sample.glob("incident*")} == before


def test_no_number_of_the_note_is_typed(sample: Path, tmp_path: Path) -> None:
    """With other hits in the rows the note has other numbers, and none of the old ones."""
    folder = tmp_path / "run"
    shutil.copytree(sample, folder)
    for path in (folder / "raw").glob("*.jsonl"):
        path.write_text(re.sub(r'(_tokens": ?)6336', r"\g<1>6272", path.read_text()))
    shutil.rmtree(folder / "trace")
    told = plain(notes.write_incident(folder).read_text())
    assert "6,272" in told
    assert "6,336" not in told


# --- every kind of run ---------------------------------------------------------------------------------------------


def test_a_server_that_reuses_has_no_workaround(tmp_path: Path) -> None:
    """A healthy server's note says so, explains what is short of full, and offers no remedy."""
    told = attached(
        tmp_path / "run",
        row(send="cold", index=1, request_id="ps-0"),
        row(cached_tokens=3904),
        row(cached_tokens=3904, index=3, request_id="ps-2"),
    )
    assert "repeated prompts hit the prefix cache" in told.splitlines()[0]
    assert "\n## What was measured\n" in told
    assert "## Why hits are as long as they are" in told
    assert "Workaround" not in told
    assert "Nothing to wait for: this run found no fault." in told
    assert "no engine was traced" in told


def test_an_attached_server_without_a_trace_gets_the_known_fault(tmp_path: Path) -> None:
    """Without a trace the release's known fault is the cause, cited, and the missing blocks are said to be unknown."""
    facts = [{"name": name, "value": value, "source": "x"} for name, value in (
        ("vllm version", "0.29.0"), ("engine", "vLLM"), ("speculative decoding", "on"),
        ("retention interval reported", "0"))]  # fmt: skip
    third = row(cached_tokens=3904, index=3, request_id="ps-2")
    told = attached(
        tmp_path / "run", row(send="cold", index=1, request_id="ps-0"), row(), third, facts=facts,
        engine={"version": "0.29.0"},
    )  # fmt: skip
    assert "hit nothing in the prefix cache" in told.splitlines()[0]
    assert "Which blocks were needed and which were there is not known" in told
    assert "vllm#53945" in section(told, "Upstream status")
    assert "merged 8 September 2026" in section(told, "Upstream status")
    assert "Start it with --prefix-cache-retention-interval N" in section(told, "Workaround and its cost")
    assert told.count("0.30.0 or later") == 1
    assert "vLLM 0.29.0 with a drafter keeps one checkpoint" in section(told, "Cause")
    assert told.count("keeps one checkpoint") == 1
    assert "VLLM" not in told
    assert "\nhttp://host:8000, vLLM 0.29.0.\n" in told
    short = section(told, "In short").strip().split("\n\n")[0]
    assert len(re.split(r"(?<=[.!?]) (?=[A-Z-])", short)) <= 4, short
    assert "How the server was started is not known" in told


@pytest.mark.parametrize(
    ("changes", "title", "words"),
    [
        ({"cached_tokens": 2048}, "hit only a part", "reuses only part of the prefix"),
        ({"cached_tokens": None}, "cached tokens are not reported", "--enable-prompt-tokens-details"),
        ({"prompt_tokens": 100, "prompt": {"name": "p", "tokens": 100}}, "too short for", "too short to be reused"),
        ({"status": "failed", "error": "HTTP 500", "cached_tokens": None}, "no verdict", "1 request failed; the first"),
        ({"status": "failed", "error": None, "cached_tokens": None}, "no verdict", "1 request failed; why was not rec"),
    ],
)
def test_each_verdict_has_its_note(tmp_path: Path, changes: dict[str, Any], title: str, words: str) -> None:
    """Short, not reported, cannot hit and failed: each is told in its own words, with nothing that was not measured."""
    told = attached(tmp_path / "run", row(send="cold", index=1, request_id="ps-0"), row(**changes))
    assert title in told.splitlines()[0]
    assert words in told
    for absent in ("None", "nan", "<NA>", "NaT"):
        assert not re.search(
            rf"(?<![\w-]){re.escape(absent)}(?!\w)", told.split("## Check your")[0].replace("None (dense) keeps", "")
        ), absent


def test_a_run_without_a_row_says_what_would_fill_it(tmp_path: Path) -> None:
    """An empty run gives a note that names what has not been measured, and how to measure it."""
    run = Run.create(tmp_path / "run", target={"kind": "attached", "url": "http://127.0.0.1:9"}, parameters={})
    told = plain(notes.write_incident(run.path).read_text())
    assert "no verdict on the prefix cache yet" in told.splitlines()[0]
    assert "No prompt was sent twice" in told
    assert "Not measured: hit lengths by configuration. Stage baseline has not run (prefixscope run -o RUN" in told


def test_a_run_whose_rows_are_gone_started_servers_all_the_same(tmp_path: Path) -> None:
    """The note counts the servers that the page lists; what was sent one time is sent once."""
    folder = Path(shutil.copytree(SAMPLE, tmp_path / "run"))
    for file in (folder / "raw").glob("*.jsonl"):
        first = (
            next(line for line in file.read_text().splitlines() if '"cold"' in line) if file.stem == "baseline" else ""
        )
        file.write_text(f"{first}\n" if first else "")
    told = plain(incident.note(account(folder), {}))
    assert "This run started 10 servers, s01 to s10. No row says which one the verdict is about" in told
    assert "started none" not in told
    assert ", each sent once under a salt of its own" in told


def test_a_run_without_a_manifest_has_a_note(tmp_path: Path) -> None:
    """Rows alone are told, and that the settings are lost is said."""
    folder = make_run(tmp_path / "run", stages=("baseline",))
    (folder / "run.json").unlink()
    told = plain(notes.write_incident(folder).read_text())
    assert "run.json is missing or damaged" in told
    assert re.search(r"\| MTP(; [^|]+)? \| 6,446 \| 0 \| 0 \| 6,336 \|", told)


def test_a_half_finished_run_tells_what_it_has(tmp_path: Path) -> None:
    """Without trace, sweep and answers the note has the symptom, and lists the stages that are open and why."""
    folder = make_run(tmp_path / "run", stages=("baseline",))
    manifest = json.loads((folder / "run.json").read_text())
    manifest["stages"]["sweep"] = {"status": "failed", "error": "the server ended\nwith a long log"}
    manifest["stages"]["equality"] = {"status": "left out", "note": "needs a server that may be restarted"}
    (folder / "run.json").write_text(json.dumps(manifest))
    told = plain(notes.write_incident(folder).read_text())
    open_ = section(told, "Open, and not measured")
    assert "Stage sweep failed: the server ended (prefixscope run -o RUN --resume --only sweep)" in open_
    assert "Stage equality was left out: needs a server that may be restarted" in open_
    assert "with a long log" not in told
    assert "No remedy was measured" in told
    assert "warm answers equal the cold" not in told


def test_a_trace_alone_has_a_note(tmp_path: Path) -> None:
    """A trace brought from elsewhere is told from its worst miss to the remedy, and that nothing was sent is said."""
    run = Run.create(tmp_path / "run", target={"kind": "sample"}, parameters={})
    bring(TRACE, run.path)
    told = plain(notes.write_incident(run.path).read_text())
    assert told.startswith("# A trace of vLLM 0.29.0: repeated prompts hit nothing in the prefix cache\n")
    assert "Nothing was sent: the trace is all that is known" in told
    assert "| stored and needed windows don't meet | 1 |" in told
    assert "166–167 (2)" in section(told, "Cause")
    assert "vllm#53945" in section(told, "Upstream status")
    short = section(told, "In short").strip().split("\n\n")[0]
    assert len(re.split(r"(?<=[.!?]) (?=[A-Z-])", short)) <= 4, short
    assert told.count("166–167 were never kept") == 1
    assert "A trace from elsewhere, of 3 engines, vLLM 0.29.0." in told
    assert "On which machine it was recorded is not known." in told
    assert "Measured on" not in told
    assert "with this server's groups (prefixscope predict --trace RUN/trace-brought --vllm 0.29.0,0.30.0)" in told


def test_times_of_a_machine_without_a_gpu_are_marked(note: str) -> None:
    """A machine on which no GPU was seen has none: its times are those of a CPU, and the note says so twice."""
    assert "(one send each, on a CPU: compare them, don't quote them)" in section(note, "Symptom")
    assert "No GPU was recorded" in section(note, "Open, and not measured")


def test_the_machine_of_an_attached_server_is_not_the_one_that_asked(tmp_path: Path) -> None:
    """What is known of this machine is told as the place that asked, and a machine without a GPU in plain words."""
    machine = {"cpus": 2, "gpu": "no GPU seen"}
    told = attached(tmp_path / "run", row(send="cold", index=1, request_id="ps-0"), row(), environment=machine)
    assert "Asked from a machine with 2 CPUs, no GPU seen; the server's own machine is not known." in told
    assert "Measured on" not in told


def test_a_server_that_is_not_ours_is_told_in_whole_sentences(sample: Path, tmp_path: Path) -> None:
    """“As served” names a table's row; a sentence says that it is this server, of times and of answers too."""
    run = tmp_path / "run"
    shutil.copytree(sample, run, ignore=shutil.ignore_patterns("sweep.jsonl", "crosscheck.jsonl"))
    for file in (run / "raw").glob("*.jsonl"):
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        mine = [one for one in rows if (one.get("setting") or {}).get("label") in ("MTP", "MTP + LoRA, interval 1,024")]
        kept = [one for one in mine if one["setting"]["label"] == "MTP" or file.stem == "equality"]
        served = {"as_served": True, "label": "as served", "drafter": None, "lora": None, "interval": None}
        changed = [{**one, "setting": {**one["setting"], **served}, "label": "as served", "side": "A"} for one in kept]
        file.write_text("".join(json.dumps(one) + "\n" for one in changed))
    told = plain(notes.write_incident(run).read_text())
    assert "| as served | 6,446 |" in told
    assert "Time to first token of 6,446 tokens on this server as it is served: send 1" in told
    assert "The answers on this server as it is served: 20 of 20 warm answers equal the cold ones" in told
    assert not [one for one in sentences(told) if re.search(r"(?<!\()as served", one)]
    generations = frames.generations(run)
    shapes = frames.by_shape(generations)
    assert charts.speed_title(shapes, None).startswith("This server generates ")
    assert streaming.drafted(shapes)[0].startswith("This server: 430 of 624 drafted tokens were accepted")
    told_of = tell(run, frames.sends(run), verdict.of_run(run))
    assert "-token prompt on this server as it is served, the longest" in told_of.why


def test_errors_name_the_folder(tmp_path: Path) -> None:
    """A directory that is not there is an error that names it, whatever form is asked for."""
    for options in (["--incident"], ["--for-issue"], ["--csv", str(tmp_path / "csv")]):
        assert cli.main(["report", str(tmp_path / "nowhere"), *options]) == 2


# --- what it rests on ----------------------------------------------------------------------------------------------


def test_the_script_of_the_note_runs(stub: StubServer, sample: Path, tmp_path: Path) -> None:
    """The script that a reader saves sends a prompt of the run's length, whatever a word's tokens, three times."""
    (tmp_path / "resend.py").write_text(checking.script(account(sample)))
    done = subprocess.run(
        [sys.executable, tmp_path / "resend.py", stub.url, "tiny"], capture_output=True, text=True, check=True
    )
    sent = re.findall(r"^send \d: (\d+) prompt tokens, cached: (\d+)$", done.stdout, re.MULTILINE)
    cached = [int(one) for _, one in sent]
    assert len(cached) == 3
    assert 0.9 * 6446 < int(sent[0][0]) < 1.1 * 6446
    assert cached[0] == 0
    assert cached[1] == cached[2] > 1000


def test_sources_are_named_for_a_stranger() -> None:
    """Nobody else knows which report was the first one: data and remedies say what a source is, and "for example"."""
    for name in ("known-faults.json", "upstream.json"):
        text = data_path(name).read_text(encoding="utf-8")
        assert not re.search(r"first (public )?report", text), name
    assert "a public incident note of October 2026" in data_path("upstream.json").read_text(encoding="utf-8")
    assert "(for example 1024)" in data_path("known-faults.json").read_text(encoding="utf-8")


def test_upstream_rows_are_whole() -> None:
    """Every row has days that are days, a state, a source, and topics that are causes or known faults."""
    faults = {fault.id for fault in preflight.table()}
    from prefixscope.diagnosis.words import WORDS

    for one in upstream.table():
        assert one.state in ("open", "merged", "closed")
        assert one.kind in ("pull request", "issue")
        assert one.status
        assert one.source
        assert (one.closed is None) or one.state != "open"
        assert all(topic in faults or topic.split(":")[0] in WORDS for topic in one.topics), one.ref
        assert upstream.link(one.ref)
    assert json.loads(resources.data_path("upstream.json").read_text())["about"]
    assert upstream.link("vllm#1") is None


def test_a_fix_counts_only_for_an_older_release() -> None:
    """The release that ends a fault is named for servers before it, and for no other."""
    rows = upstream.of_topics(["windows_dont_meet:drop"])
    assert upstream.fixed_in(rows, "0.29.0") == "0.30.0"
    assert upstream.fixed_in(rows, "0.31.0") is None
    assert upstream.fixed_in(rows, None) is None
