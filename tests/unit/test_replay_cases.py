"""Cases as plain data: what they hold, how they travel, and what is said where they can't."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from prefixscope import resources
from prefixscope.cli import main
from prefixscope.errors import ReplayError
from prefixscope.prediction.replayed import Replayed, table
from prefixscope.prompts import Prompt, shared_answer
from prefixscope.replay import Case, Geometry, Group, Outcome, Predicted, Request, ServerSetting, repeats
from prefixscope.replay.exported import to_test
from prefixscope.replay.measured import cases
from prefixscope.replay.travel import load, of_run, to_text, worst_series
from prefixscope.report import render_html
from prefixscope.trace import read_trace

SAMPLE = resources.data_path("sample", "run")


@pytest.fixture(scope="module")
def sample_cases() -> list[Case]:
    return of_run(SAMPLE)


def row(**changes: Any) -> dict[str, Any]:
    found = {"kind": "send", "status": "ok", "request_id": "r", "series": "s", "attempt": "a", "role": "base",
             "send": "cold", "model": "m", "prompt_tokens": 1000, "cached_tokens": 0, "shared_tokens": None,
             "setting": {"label": "MTP"}, "at": "1"}  # fmt: skip
    return {**found, **changes}


def test_a_geometry_fills_in_its_block_sizes() -> None:
    """Scheduler and hash block are the least common multiple and the greatest common divisor unless given."""
    found = Geometry.from_json(
        {
            "groups": [
                {"kind": "sliding", "block_size": 32, "window": 1024, "count": 5},
                {"kind": "full", "block_size": 48},
            ]
        }
    )
    assert (len(found.groups), found.scheduler_block, found.hash_block) == (6, 96, 16)


@pytest.mark.parametrize("size", [0, -16, "16", None])
def test_a_block_size_that_is_no_number_is_refused(size: object) -> None:
    """The error names the group and the value."""
    with pytest.raises(ReplayError, match=r"group 0 has the block size"):
        Geometry.from_json({"groups": [{"kind": "full", "block_size": size}]})


def test_a_geometry_without_groups_is_refused() -> None:
    """The error says what is missing and where to start from."""
    with pytest.raises(ReplayError, match="lacks groups"):
        Geometry.from_json({"scheduler_block": 64})


def test_a_case_survives_its_json(sample_cases: list[Case]) -> None:
    """Every case of a real run reads back as it was."""
    assert [Case.from_json(json.loads(json.dumps(case.to_json()))) for case in sample_cases] == sample_cases


def test_a_newer_case_is_refused(sample_cases: list[Case]) -> None:
    """A schema version that this release does not know is an error, not a guess."""
    with pytest.raises(ReplayError, match="schema version 99"):
        Case.from_json({**sample_cases[0].to_json(), "schema_version": 99})


def test_the_sample_is_a_case_for_each_server(sample_cases: list[Case]) -> None:
    """Each server that the sample traced gives one case with its own interval, and every send is in one of them."""
    intervals = sorted({str(case.setting.interval) for case in sample_cases})
    assert intervals == ["0", "1024", "2048", "4096", "512", "64", "dense"]
    assert sum(len(case.measured) for case in sample_cases) == 180


def test_a_case_holds_no_text(sample_cases: list[Case]) -> None:
    """Of a prompt a case has lengths and identities, never a word, and no served name."""
    text = to_text(sample_cases)
    assert "gemma4-tiny" not in text
    assert "Summarise" not in text
    assert "token_ids" not in text


def test_requests_share_what_rows_say() -> None:
    """Segments say how far two prompts of a series are the same, and a follow-up turn has its answer before it."""
    trace = read_trace(SAMPLE / "trace")
    known = next(one.request_id for one in trace.lookups if one.request_id.startswith("ps-"))
    rows = [
        row(request_id=known, at="1"),
        row(request_id=known, at="2", send="new_ending", shared_tokens=950),
        row(request_id=known, at="3", send="follow_up", prompt_tokens=1100, shared_tokens=1000, answered_tokens=1000,
            answer_tokens=16, shared_answer_tokens=5, role="lora"),
    ]  # fmt: skip
    (case,) = cases(rows, trace)
    cold, ending, before, follow = case.requests
    assert cold.segments == (("s a prompt", 1000),)
    assert ending.segments == (("s a prompt", 950), ("s a new_ending", 50))
    assert (before.segments, before.answer) == (cold.segments, ("s a answer", 16))
    assert follow.segments == (("s a prompt", 1000), ("s a answer", 5), ("s a follow_up", 95))
    assert {one.salt for one in case.requests} == {"s a"}
    assert [one.lora for one in case.requests] == [None, None, "adapter", "adapter"]


def test_rows_that_were_not_traced_make_no_case() -> None:
    """Without its engine's header a row has no geometry, and is left out."""
    trace = read_trace(SAMPLE / "trace")
    assert cases([row(request_id="unknown"), row(status="failed")], trace) == []


def test_shared_answer() -> None:
    """An answer's tokens count as far as the next turn repeats them; unknown stays unknown."""
    first = Prompt("p", 3, 1, (), (1, 2, 3))
    assert shared_answer(first, (7, 8, 9), Prompt("q", 6, 1, (), (1, 2, 3, 7, 8, 5))) == 2
    assert shared_answer(first, (7,), Prompt("q", 3, 1, (), (1, 9, 3))) == 0
    assert shared_answer(first, None, Prompt("q", 3, 1, (), (1, 2, 3))) is None


def test_a_report_carries_its_cases(sample_cases: list[Case], tmp_path: Path) -> None:
    """What a report embeds loads as the run's own cases, and so does a file of its own."""
    page, file = tmp_path / "report.html", tmp_path / "cases.json"
    page.write_text(render_html(SAMPLE), encoding="utf-8")
    file.write_text(to_text(sample_cases), encoding="utf-8")
    assert load(page) == load(file) == load(SAMPLE) == sample_cases


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("page.html", "<html><body>nothing</body></html>", "without a replayable case"),
        ("x.json", "not json", "is no case"),
        ("x.json", "[]", "holds no case"),
        ("x.json", '{"cases": [{"geometry": {}}]}', "can't be read"),
        ("x.json", "[1]", "holds no case"),
        ("x.json", "[" * 100_000, "is no case"),
        ("x.json", '{"schema_version": 99, "cases": [{}]}', "schema version 99"),
        ("x.json", '{"cases": [{"geometry": null, "setting": {}, "requests": []}]}', r"can't be read[\s\S]*Next: "),
    ],
)
def test_what_is_no_case_is_refused(tmp_path: Path, name: str, text: str, says: str) -> None:
    """The error says what the file is instead."""
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(ReplayError, match=says):
        load(tmp_path / name)


@pytest.mark.parametrize("length", [10**12, -5])
def test_a_case_of_impossible_length_is_refused(sample_cases: list[Case], tmp_path: Path, length: int) -> None:
    """Lengths that no server was ever sent are refused before anything is replayed."""
    value = sample_cases[0].to_json()
    value["requests"][0]["segments"] = [["a", length]]
    (tmp_path / "x.json").write_text(json.dumps(value), encoding="utf-8")
    with pytest.raises(ReplayError, match="a replay takes 0 to 500,000,000"):
        load(tmp_path / "x.json")


def test_a_missing_file_and_an_untraced_run(tmp_path: Path) -> None:
    """Neither is a case, and both errors say what to do."""
    with pytest.raises(ReplayError, match="can't be read"):
        load(tmp_path / "none.json")
    with pytest.raises(ReplayError, match="no traced request"):
        load(tmp_path)


def test_the_exported_test_is_the_worst_miss(sample_cases: list[Case]) -> None:
    """It is the prompt whose second send lost most, spelled out with vLLM's names and nothing of ours."""
    case = worst_series(sample_cases)
    assert [case.measured[one.id] for one in case.requests] == [0, 0, 6336]
    text = to_test(case)
    compile(text, "test_case.py", "exec")
    assert "import prefixscope" not in text
    assert "PROMPT_TOKENS = 6446" in text
    assert "*[SlidingWindowSpec(block_size=32" in text
    assert "sliding_window=1024, dtype=dtype)] * 5," in text


def test_nothing_to_export_is_said() -> None:
    """A run without such a miss has no test, and the error says so."""
    geometry = Geometry(groups=(Group(kind="full", block_size=16),), scheduler_block=16, hash_block=16)
    case = Case(geometry=geometry, setting=ServerSetting(), requests=tuple(repeats(100, 3)))
    with pytest.raises(ReplayError, match="hits less on its second send"):
        worst_series([replace(case, measured={"prompt/1": 0, "prompt/2": 96, "prompt/3": 96})])


def test_a_group_that_a_test_can_not_spell_out(sample_cases: list[Case]) -> None:
    """A Mamba group is refused with the way that works."""
    geometry = Geometry(groups=(Group(kind="mamba", block_size=64),), scheduler_block=64, hash_block=64)
    case = Case(geometry=geometry, setting=ServerSetting(), requests=(Request(id="1", segments=(("a", 100),)),))
    with pytest.raises(ReplayError, match=r"kind 'mamba'[\s\S]*predict --trace"):
        to_test(case)


def replayed(case: Case, release: str, interval: int, hits: list[int]) -> Replayed:
    rows = tuple(Predicted(one.id, one.tokens, hit, 0, 0, 0) for one, hit in zip(case.requests, hits, strict=True))
    outcome = Outcome(release=release, rows=rows, pool_blocks=1, interval=interval, drop_groups=(), kept_blocks=(),
                      kept_bytes=(), left_out=(), seconds=0.0)  # fmt: skip
    return Replayed(case=case, release=release, interval=interval, outcome=outcome)


def test_only_the_measured_setting_is_compared() -> None:
    """Beside another release or interval no agreement is shown, and a name from a file can't write to the terminal."""
    geometry = Geometry(groups=(Group(kind="full", block_size=16),), scheduler_block=16, hash_block=16)
    case = Case(geometry=geometry, setting=ServerSetting(interval=0), requests=tuple(repeats(100, 2)), release="0.29.0",
                name="ev\x1b[31mil\n", measured={"prompt/1": 0, "prompt/2": 96})  # fmt: skip
    text = table([replayed(case, "0.29.0", 0, [0, 96]), replayed(case, "0.30.0", 0, [0, 80])])
    first, second = text.splitlines()[1:3]
    assert first.endswith("2 of 2")
    assert second.endswith("96")
    assert "\x1b" not in text
    assert "gives the measured hit in 2 of 2 sends" in text


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--trace", "cases.json", "-o", "page.html"], "-o has no effect here"),
        (["--trace", "cases.json", "--tokens", "100"], "--tokens has no effect here"),
        (["--geometry", "gemma-4-12b", "--concurrency", "3"], "--concurrency has no effect here"),
        (["--workload", "example", "--tokens", "100"], "--tokens has no effect here"),
        (["--geometry", "gemma-4-12b", "-o", "."], ". can't be written: it is a folder"),
        (["--geometry", "gemma-4-12b", "--pool-blocks", "99999999999"], "a replay takes up to 20,000,000"),
    ],
)
def test_an_option_without_effect_is_refused(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is refused before anything is asked, with a next step."""
    try:
        code = main(["predict", *arguments])
    except SystemExit as ended:
        code = int(ended.code or 0)
    shown = capsys.readouterr().err
    assert code == 2
    assert says in shown


def test_a_test_can_not_be_written_over_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The error names the folder, and no traceback is shown."""
    assert main(["export-test", str(SAMPLE), "-o", str(tmp_path)]) == 2
    assert "is a folder" in capsys.readouterr().err


def test_a_case_travels_with_its_layers_and_its_kind_of_drafter() -> None:
    """Layer names and the drafter's method come back; MTP is what a case without a method means."""
    group = Group(kind="full", block_size=16, layer_names=("model.layers.0", "model.layers.1"))
    for method in ("mtp", "eagle3"):
        setting = ServerSetting(drafter_tokens=3, drafter_method=method)
        case = Case(geometry=Geometry.from_json({"groups": [asdict(group)]}), setting=setting, requests=())
        assert Case.from_json(json.loads(json.dumps(case.to_json()))) == case
    assert ServerSetting.from_json({"drafter": {"tokens": 3}}).drafter_method == "mtp"
