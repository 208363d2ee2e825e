"""Values in a row that can't be: told with file, line, field and value, and in no number of anything."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import pytest
from data.make_pair import Row, edited
from data.make_run import make_run

from prefixscope import cli, comparison, frames, impossible, pieces, verdict
from prefixscope.replay import travel
from prefixscope.run_files import read_rows

NAN, ENDLESS = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("row", "field", "said"),
    [
        ({"cached_tokens": "many"}, "cached_tokens", '"many" is no whole number from 0 on'),
        ({"cached_tokens": "12"}, "cached_tokens", '"12" is no whole number from 0 on'),
        ({"cached_tokens": -5}, "cached_tokens", "-5 is no whole number from 0 on"),
        ({"cached_tokens": True}, "cached_tokens", "true is no whole number from 0 on"),
        ({"cached_tokens": 6.5}, "cached_tokens", "6.5 is no whole number from 0 on"),
        ({"prompt_tokens": [1]}, "prompt_tokens", "[1] is no whole number from 0 on"),
        ({"prompt_tokens": 10**400}, "prompt_tokens", f"1{'0' * 39}… is more than any count here"),
        ({"first_token_ms": 1e308}, "first_token_ms", "1e+308 is more than any time here"),
        ({"at": "yesterday"}, "at", '"yesterday" is no date and time'),
        ({"at": "2099-13-45T99:99:99Z"}, "at", '"2099-13-45T99:99:99Z" is no date and time'),
        ({"status": "banana"}, "status", '"banana" is no outcome of a request'),
        ({"send": "zzz"}, "send", '"zzz" is the name of no send'),
        ({"cached_tokens": 101, "prompt_tokens": 100}, "cached_tokens", "101 is more than its prompt_tokens, 100"),
        (
            {"per_request": {"drafted": 5, "accepted": 6}},
            "per_request.accepted",
            "6 is more than its per_request.drafted, 5",
        ),
        ({"per_request": {"drafted": 5, "accepted": "x"}}, "per_request.accepted", '"x" is no whole number from 0 on'),
        ({"counters": {"per_position": [3, -1]}}, "counters.per_position", "-1 is no whole number from 0 on"),
        ({"metrics": "none"}, "metrics", '"none" is no JSON object'),
        ({"prompt": {"tokens": -1}}, "prompt.tokens", "-1 is no whole number from 0 on"),
        ({"first_token_ms": NAN}, "first_token_ms", "NaN is no number from 0 on"),
        ({"first_token_ms": ENDLESS}, "first_token_ms", "Infinity is no number from 0 on"),
        ({"first_token_ms": -0.1}, "first_token_ms", "-0.1 is no number from 0 on"),
        ({"arrivals_ms": [1.0, None]}, "arrivals_ms", "null is no number from 0 on"),
        ({"arrivals_ms": [2.0, 1.0]}, "arrivals_ms", "1.0 is before the one that it follows"),
        ({"logprobs": [-0.1, NAN]}, "logprobs", "NaN is no finite number"),
        ({"overlapped": "false"}, "overlapped", '"false" is neither true nor false'),
        ({"setting": {"interval": -64}}, "setting.interval", '-64 is no number of tokens, nor "dense"'),
        ({"model": ["m"]}, "model", '["m"] is no text'),
    ],
)
def test_a_value_that_can_not_be_is_taken_out(row: dict[str, Any], field: str, said: str) -> None:
    """It is null in the row, stands beside it as text, and why it can't be is said; the rest stays as it is."""
    found, why = impossible.judged({**row, "stage": "baseline"})
    outer, _, inner = field.partition(".")
    assert why == {field: said}
    assert (found[outer][inner] if inner else found[outer]) is None
    assert found["impossible"] == {field: said[: said.index(" is ")]}
    assert found["stage"] == "baseline"
    assert impossible.taken_out(found, field)
    assert impossible.judged(found) == (found, {})


def test_what_can_be_stays() -> None:
    """Null, zero, dense, 64.0 for 64, a place that nobody counted, a server's odd counters: all possible."""
    row = {"cached_tokens": 0, "prompt_tokens": 64.0, "first_token_ms": 0, "metrics": {"queries": 5, "hits": 6},
           "margin": -0.5, "setting": {"interval": "dense", "drafter": None}, "counters": {"per_position": [3, None]},
           "arrivals_ms": [1, 1.5, 1.5], "document": 3}  # fmt: skip
    found, why = impossible.judged(row)
    assert (found, why) == (row, {})
    assert isinstance(found["prompt_tokens"], int)


ODD: dict[int, dict[str, Any]] = {
    1: {"cached_tokens": "many"},
    2: {"cached_tokens": -55_555},
    3: {"cached_tokens": 999_999},
    4: {"first_token_ms": -33_333},
}
"""Second sends with MTP, in their order → what stands in them."""


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[int, str]]:
    """A run with four impossible values, and the line of each."""
    run = make_run(tmp_path_factory.mktemp("odd"))
    file = run / "raw" / "baseline.jsonl"
    rows, lines = [json.loads(line) for line in file.read_text().splitlines()], {}
    mine = [n for n, row in enumerate(rows) if row["index"] == 2 and row["setting"]["label"] == "MTP"]
    for place, values in ODD.items():
        rows[mine[place]].update(values)
        lines[place] = f"line {mine[place] + 1}, "
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return run, lines


def test_a_report_names_each_and_counts_none(
    odd: tuple[Path, dict[int, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Page and terminal name file, line, field and value; no figure, table or verdict holds one as a number."""
    run, lines = odd
    assert cli.main(["report", str(run)]) == 0
    told = capsys.readouterr()
    text = (run / "report.html").read_text()
    warnings = html.unescape(text.partition('<section id="warnings"')[2].partition("</section>")[0])
    cached = (
        f'raw/baseline.jsonl: cached_tokens has an impossible value, read as not known: {lines[1]}"many" is no whole '
        f"number from 0 on; {lines[2]}-55555 is no whole number from 0 on; {lines[3]}999999 is more than its "
        "prompt_tokens, "
    )
    for place in (warnings, told.err):
        assert cached in place
        assert f"first_token_ms has an impossible value, read as not known: {lines[4]}-33333 is no number" in place
    assert len(told.out.splitlines()) == 2
    found = pieces.read(text)
    numbers = [*found.values.values(), *(said for place, said in found.texts.items() if not place.startswith("warn"))]
    assert not [one for one in numbers if re.search(r"55,?555|999,?999|33,?333", one)]
    assert cli.main(["report", "--verify", str(run / "report.html")]) == 0, capsys.readouterr().out


def test_frames_say_that_it_can_not_be_told(odd: tuple[Path, dict[int, str]]) -> None:
    """The hit is null, the send inconclusive and so is its configuration; the time is missing, its hit is not."""
    sent = frames.sends(odd[0])
    mine = sent[(sent["config"] == "MTP") & (sent["index"] == 2) & (sent["stage"] == "baseline")]
    assert mine["cached_tokens"].isna().tolist() == [False, True, True, True, False]
    assert mine["verdict"].tolist()[1:4] == ["inconclusive"] * 3
    assert mine["first_token_ms"].isna().tolist() == [False, False, False, False, True]
    assert mine["predicted_agrees"].isna().tolist()[1:4] == [True] * 3


def test_no_case_to_replay_holds_one(tmp_path: Path) -> None:
    """What a replay reads of a run directory itself has no measured hit where the row says an impossible one."""
    run = make_run(tmp_path / "run", stages=("baseline", "trace"))
    file = run / "raw" / "baseline.jsonl"
    rows = [{**row, "cached_tokens": -1} for row in read_rows(file)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    hits = [hit for case in travel.of_run(run) for hit in case.measured.values()]
    assert hits
    assert set(hits) == {None}


def test_a_hit_that_can_not_be_told_gives_no_all_clear(tmp_path: Path) -> None:
    """Where every other second send reuses, one impossible hit length leaves the verdict inconclusive."""
    run = make_run(tmp_path / "run", stages=("baseline",))
    file = run / "raw" / "baseline.jsonl"
    rows = [row for row in read_rows(file) if row["setting"]["label"] == "no MTP"]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert verdict.of_run(run).code == "reuses"
    second = next(row for row in rows if row["index"] == 2 and row["prompt"]["tokens"] > 6000)
    file.write_text("".join(json.dumps({**row, "cached_tokens": -1} if row is second else row) + "\n" for row in rows))
    frames.forget()
    assert verdict.of_run(run).code == "inconclusive"


def test_many_of_one_field_are_counted(tmp_path: Path) -> None:
    """Of many impossible values of a field the first are named and the others counted."""
    (tmp_path / "raw").mkdir()
    line = json.dumps({"schema": 1, "kind": "send", "cached_tokens": -1}) + "\n"
    (tmp_path / "raw" / "baseline.jsonl").write_text(line * 1_000)
    (problem,) = frames.read_rows(tmp_path)[1]
    assert problem.count("line ") == 5
    assert problem.endswith("line 5, -1 is no whole number from 0 on; 995 more lines")


def test_a_comparison_can_not_tell_and_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a run directory and of its report alike: that send is no change, and the row's line is among the doubts."""
    before = make_run(tmp_path / "before", stages=("baseline",))

    def change(row: Row) -> Row:
        second = row["index"] == 2 and row["prompt"]["tokens"] == 6446 and row["setting"]["label"] == "no MTP"
        return {**row, "cached_tokens": 7_000} if second else row

    after = edited(make_run(tmp_path / "after", stages=("baseline",)), change)
    assert cli.main(["report", str(after)]) == 0
    for other in (after, after / "report.html"):
        found = comparison.compare([str(before), str(other)])
        (untold,) = [one for one in found.pairs[0].changes if one.code == "doubtful"]
        assert (untold.cell.tokens, untold.delta) == (6446, 0)
        assert any("7000 is more than its prompt_tokens, 6446" in doubt for doubt in found.sides[1].doubts)
        assert "can't tell: its row says nothing possible" in comparison.to_markdown(found)


def test_a_hit_without_its_prompt_is_not_judged(tmp_path: Path) -> None:
    """A row that lacks its prompt tokens has no hit length that any figure could draw, and is inconclusive."""
    run = make_run(tmp_path / "run", stages=("baseline", "sweep"))

    def lacking(row: Row) -> Row:
        return {**row, "prompt_tokens": None} if row.get("index") == 2 else row

    edited(run, lacking)
    sent = frames.sends(run)
    second = sent[sent["index"] == 2]
    assert second["cached_tokens"].isna().all()
    assert set(second["verdict"]) == {"inconclusive"}
    table = frames.sweep(sent, frames.kept(run))
    assert table["hit_2"].isna().all()
