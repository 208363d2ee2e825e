"""Frames of streamed answers, and what is concluded from them: rates, acceptance, the trade, whose noise it is."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from data.streamed import ACCEPTED, generation, pair, resend, speculation_rows

from prefixscope import charts, conclusions, display, frames, noise, resources, streaming, trade
from prefixscope.errors import RunError
from prefixscope.report import render_html
from prefixscope.speculation import Mix

MIX = Mix(prompt_tokens=6446, answer_tokens=60, reuse=0.7)
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Makes a run directory of these rows."""

    def make(rows: Any, name: str = "run", load: object = (6446, 60, 0.7), version: str = "0.29.0") -> Path:
        (tmp_path / name / "raw").mkdir(parents=True)
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / name / "raw" / "speculation.jsonl").write_text(lines)
        stage = {"status": "done", "parameters": {"load": load}}
        manifest = {"schema_version": 1, "engine": {"version": version}, "stages": {"speculation": stage}}
        (tmp_path / name / "run.json").write_text(json.dumps(manifest))
        return tmp_path / name

    return make


def one(run: Path) -> Any:
    return frames.generations(run).iloc[0]


# --- one answer ----------------------------------------------------------------------------------------------------


def test_tokens_a_second_count_tokens_and_chunks_a_second_chunks(write: Write) -> None:
    """Three steps of 40 ms that brought 4, 4 and 3 tokens are 11 tokens in 120 ms; a count of chunks would see 3."""
    row = one(write([generation(accepted=(3, 3, 2))]))
    assert (row["completion_tokens"], row["chunks"]) == (12, 4)
    assert row["tokens_per_s"] == pytest.approx(11 / 0.12)
    assert row["chunks_per_s"] == pytest.approx(3 / 0.12)
    assert (row["first_token_ms"], row["step_ms"]) == (140.0, 40.0)


def test_acceptance_and_tokens_per_step_are_of_this_request(write: Write) -> None:
    """8 of 9 drafted tokens accepted in 3 steps: 89 %, 3.67 tokens per step, from the answer's own metrics."""
    row = one(write([generation(accepted=(3, 3, 2))]))
    assert row["acceptance"] == pytest.approx(8 / 9)
    assert row["tokens_per_step"] == pytest.approx(1 + 8 / 3)
    assert (row["source"], row["agree"]) == ("answer", True)


@pytest.mark.parametrize("accepted", [None, ()], ids=["no counters", "zero drafts"])
def test_no_drafts_are_no_speculation_and_not_zero_percent(write: Write, accepted: Any) -> None:
    """A server without a drafter and an answer without a draft have no acceptance at all."""
    run = write([generation(accepted=accepted, tokens=5)])
    assert pd.isna(one(run)["acceptance"])
    assert pd.isna(one(run)["tokens_per_step"])
    assert streaming.drafted(frames.by_shape(frames.generations(run))) == ["MTP: no speculation seen."]


def test_drafts_that_were_all_wrong_are_zero_percent(write: Write) -> None:
    """Nothing accepted of something drafted is a true 0 %."""
    row = one(write([generation(accepted=(0, 0))]))
    assert (row["acceptance"], row["tokens_per_step"]) == (0.0, 1.0)


def test_counters_that_others_moved_are_not_used(write: Write) -> None:
    """Where other traffic moved the counters and the answer has no score of its own, nothing is claimed."""
    row = one(write([generation(per_request=None, disturbed=True)]))
    assert pd.isna(row["acceptance"])
    assert pd.isna(row["source"])
    row = one(write([generation(per_request=None)], "quiet"))
    assert row["source"] == "counters"


def test_sources_that_part_are_seen(write: Write) -> None:
    """The answer's own metrics stand, and the row says that the counters say otherwise."""
    row = one(write([generation(counters={**generation()["counters"], "accepted": 7})]))
    assert (row["agree"], row["accepted"]) == (False, 8)


@pytest.mark.parametrize(
    "changes",
    [{"completion_tokens": None}, {"arrivals_ms": [5.0]}, {"arrivals_ms": []}, {"chunk_tokens": None}],
    ids=str,
)
def test_what_a_server_leaves_out_gives_no_rate(write: Write, changes: dict[str, Any]) -> None:
    """Without usage, or with everything in one piece, there is no rate; without ids the first chunk is one token."""
    row = one(write([generation(accepted=(3,), **changes)]))
    if "chunk_tokens" in changes:
        assert row["tokens_per_s"] == pytest.approx(4 / 0.04)
    else:
        assert pd.isna(row["tokens_per_s"])


# --- summaries -----------------------------------------------------------------------------------------------------


def test_shapes_keep_their_percentiles(write: Write) -> None:
    """One row per shape and arm, A before B, with median, 10th and 90th percentile over its four requests."""
    table = frames.by_shape(frames.generations(write(speculation_rows())))
    assert list(zip(table["shape"], table["arm"], strict=True)) == [(one, arm) for one in ACCEPTED for arm in "AB"]
    row = table[(table["arm"] == "A") & (table["shape"] == "XML")].iloc[0]
    assert row["requests"] == 4
    assert row["tokens_per_s_p10"] < row["tokens_per_s"] < row["tokens_per_s_p90"]
    assert row["acceptance"] == pytest.approx(6 / 24)


def test_places_of_the_draft_fall(write: Write) -> None:
    """Each later place is accepted as often as every earlier one was right too."""
    table = frames.positions(write(speculation_rows()))
    prose = table[table["shape"] == "prose"]
    assert prose["share"].tolist() == [1.0, 1.0, 0.8]


def test_the_record_is_one_table(write: Write) -> None:
    """Wall clock, tokens a second of each shape with their effect, acceptance, tokens per step and headroom."""
    run = write(speculation_rows())
    table = frames.record(frames.generations(run), frames.headrooms(run)).set_index("metric")
    assert table.loc["KV cache headroom, tokens", ["a", "b", "times"]].tolist() == [269243, 269243, 1]
    every = table.loc["tokens/s, all shapes"]
    assert every["low"] < every["times"] < every["high"]
    assert every["pairs"] == 6
    assert table.loc["acceptance, all drafted tokens", "a"] == pytest.approx((14 * 1 + 10 + 6) / (3 * (5 + 6 + 8)))
    assert pd.isna(table.loc["acceptance, all drafted tokens", "b"])
    assert table.loc["wall clock of the same requests, s", "a"] > 0


def test_the_wall_clock_is_that_of_requests_which_both_answered(write: Write) -> None:
    """A request that one arm refused is in neither sum."""
    rows = [generation("A"), generation("B", accepted=None, tokens=12), generation("A", repeat=2)]
    run = write([*rows, generation("B", repeat=2, status="failed")])
    table = frames.record(frames.generations(run), frames.headrooms(run)).set_index("metric")
    assert table.loc["wall clock of the same requests, s", "a"] == pytest.approx(0.3)


def test_two_runs_are_compared_like_two_servers(write: Write) -> None:
    """The drafter's arm of one run is A, that of another B, and both names say which release it was."""
    first = write([generation(step_ms=20.0), generation("B", accepted=None, tokens=3)], "before")
    second = write([generation(step_ms=40.0)], "after", version="0.30.0")
    table, heads = frames.across(first, second)
    assert table["label"].tolist() == ["MTP, vLLM 0.29.0 (A)", "MTP, vLLM 0.30.0 (B)"]
    assert frames.record(table, heads).set_index("metric").loc["tokens/s, prose", "times"] == pytest.approx(2.0)
    assert not table["interleaved"].any()


# --- the trade -----------------------------------------------------------------------------------------------------


def test_both_halves_stand_side_by_side(write: Write) -> None:
    """Generation saved and prefill lost are what the rows say, and the balance is their difference."""
    run = write(speculation_rows())
    found = trade.of_run(run)
    assert found is not None
    assert found.lost_s.value == pytest.approx(0.3 * (2.4 - 2.2) + 0.7 * (2.4 - 0.06))
    assert found.net_s.value == pytest.approx(found.gained_s.value - found.lost_s.value)
    assert found.net_s.low is not None
    assert found.net_s.low < found.net_s.value
    assert found.hits == (0, 6400)
    assert found.gained_s.value == pytest.approx(60 / found.rates[1] - 60 / found.rates[0])
    text = trade.sentence(found)
    for part in (
        "6,446",
        "70%",
        "MTP gains",
        "loses 1.70 s",
        "0 with MTP and 6,400 with no MTP",
        "as its third one does",
    ):
        assert part in text


def test_the_prefill_half_says_that_one_server_was_asked_after_the_other(write: Write) -> None:
    """Beside the loss stands how its long prompts were sent, other than the answers, and which stage sent them."""
    found = trade.of_run(write(speculation_rows()))
    assert found is not None
    own = "The prefill times are not those of the streamed answers but of long prompts, which were sent to one server "
    own += "after the other"
    assert f"6,400 with no MTP. {own}" in trade.sentence(found)
    rows = [{**row, "taken_from": "baseline"} if row["kind"] == "resend" else row for row in speculation_rows()]
    taken = trade.of_run(write(rows, "taken"))
    assert taken is not None
    assert "of long prompts, which stage baseline sent to one server after the other" in trade.sentence(taken)


def test_the_halves_meet_at_the_break_even(write: Write) -> None:
    """At the share that is named the balance is nothing, and beyond it the drafter costs time."""
    run = write(speculation_rows())
    generations, resends = frames.generations(run), frames.resends(run)
    found = trade.weigh(generations, resends, MIX)
    assert found is not None
    assert found.break_even is not None
    even = Mix(prompt_tokens=6446, answer_tokens=60, reuse=found.break_even)
    balance = trade.weigh(generations, resends, even)
    assert balance is not None
    assert balance.net_s.value == pytest.approx(0.0, abs=1e-9)
    table = trade.over_reuse(generations, resends, MIX)
    assert table["net"].is_monotonic_decreasing
    assert (table["low"] < table["net"]).all()
    assert table["hit"].iloc[-1] > table["net"].iloc[-1]


def test_title_and_verdict_name_the_crossing_and_how_far_it_is_known() -> None:
    """On the sample the halves meet at 19 %, known to 2 to 33 %; from 34 % on the loss is certain."""
    run = resources.data_path("sample", "run")
    found = trade.of_run(run)
    assert found is not None
    assert found.even_between == (0.02, 0.33)
    assert "The two halves meet where 19% (95 % interval 2% to 33%) of the prompts" in trade.sentence(found)
    table = trade.over_reuse(frames.generations(run), frames.resends(run), found.mix)
    sure = table.loc[table["high"] < 0, "reuse"].min()
    assert sure == 0.34
    assert display.title_of(charts.balance_over_reuse(table, found.labels)) == (
        "MTP costs time where 34% or more of the prompts were sent before; the estimate alone says so from 19% on"
    )
    turned = table.assign(net=-table["net"], low=-table["high"], high=-table["low"])
    assert display.title_of(charts.balance_over_reuse(turned, found.labels)) == (
        "MTP costs time where 1% or less of the prompts were sent before; the estimate alone says so up to 19%"
    )
    gain = table.assign(low=table["net"] - 0.1, high=table["net"] + 2)
    assert display.title_of(charts.balance_over_reuse(gain, found.labels)).endswith(
        "or less of the prompts were sent before; the estimate alone says so up to 19%"
    )


def test_the_interval_of_the_prefill_half_says_where_it_comes_from() -> None:
    """Sends that were timed once scatter by nothing of their own: whose scatter is taken is said, and how much."""
    run = resources.data_path("sample", "run")
    generations, resends = frames.generations(run), frames.resends(run)
    found = trade.of_run(run)
    assert found is not None
    noise, _ = trade.first_token_noise(generations)
    said = f"takes them to scatter as the streamed prompts' first tokens did, by {noise:.1%}."
    assert f"Each was timed once; their interval {said}" in trade.sentence(found)
    more = pd.concat([resends, resends[resends["arm"] == "A"]])
    twice = trade.weigh(generations, more, found.mix)
    assert twice is not None
    assert "Each was timed 1 to 2 times; their interval" in trade.sentence(twice)
    alone = trade.weigh(generations.drop_duplicates("arm"), resends, found.mix)
    assert alone is not None
    assert "scatter" not in trade.sentence(alone)


def test_shares_of_a_page_are_all_of_the_same_sums() -> None:
    """By shape as over all: accepted over drafted tokens, in the sentence and beside the bars."""
    shapes = frames.by_shape(frames.generations(resources.data_path("sample", "run")))
    (said, _) = streaming.drafted(shapes)
    assert said.endswith("(69%), 3.07 tokens per step; from 49% (XML) to 81% (tool arguments).")
    drawn = display.to_svg(charts.speed_by_shape(shapes))
    mine = shapes[(shapes["arm"] == "A") & shapes["shape"].isin(["XML", "tool arguments"])]
    for row in mine.itertuples():
        assert f"{row.accepted / row.drafted:.0%} accepted, {1 + row.accepted / row.drafts:.2f} tokens a step" in drawn


def test_a_third_send_that_hits_no_more_offers_nothing(write: Write) -> None:
    """Where the second send hits already there is no 'if it hit'."""
    rows = [row for row in speculation_rows() if row["kind"] != "resend"]
    rows += [
        resend(arm, index, 6336 if index > 1 else 0, 60 if index > 1 else 2000) for arm in "AB" for index in (1, 2, 3)
    ]
    found = trade.of_run(write(rows))
    assert found is not None
    assert found.hit_net_s is None
    assert found.lost_s.value == pytest.approx(0.0)


@pytest.mark.parametrize("kept", [("generation",), ("resend", "pair")], ids=str)
def test_without_one_half_there_is_no_trade(write: Write, kept: tuple[str, ...]) -> None:
    """Answers without resends, or resends without answers, weigh nothing against nothing."""
    assert trade.of_run(write(row for row in speculation_rows() if row["kind"] in kept)) is None


@pytest.mark.parametrize("load", [[6446, 200], [0, 200, 0.5], [6446, 200, 1.5], ["a", 1, 0]], ids=str)
def test_a_load_that_is_none_is_refused(write: Write, load: list[Any]) -> None:
    """Two numbers, no prompt, a share above one, a word: refused with the values; a run that holds one has no trade."""
    with pytest.raises(RunError, match=r"load|reuse"):
        Mix.of(load)
    assert trade.of_run(write(speculation_rows(), load=load)) is None


# --- whose difference ----------------------------------------------------------------------------------------------


def judged(**differing: int) -> noise.Judgement:
    """The judgement of 20 prompts of which the first so many of each pair differ."""
    names = {"aa": "A / A", "bb": "B / B", "ab": "A / B"}
    rows = [pair(names[key], "prose", n, identical=n > many) for key, many in differing.items() for n in range(1, 21)]
    return noise.judge(pd.DataFrame(rows))


@pytest.mark.parametrize(
    ("differing", "code"),
    [
        ({"aa": 0, "bb": 0, "ab": 0}, "same"),
        ({"aa": 0, "bb": 0, "ab": 6}, "arms"),
        ({"aa": 0, "bb": 0, "ab": 5}, "can't tell"),
        ({"aa": 7, "bb": 7, "ab": 7}, "noise"),
        ({"aa": 0, "bb": 9, "ab": 9}, "noise"),
        ({"ab": 9}, "can't tell"),
    ],
    ids=str,
)
def test_a_difference_is_held_against_each_arms_own(differing: dict[str, int], code: str) -> None:
    """Six prompts that part only between the arms tell; five don't; noise of the same size excuses the drafter."""
    assert judged(**differing).code == code


def test_the_counts_that_would_tell_are_named() -> None:
    """3 of 20 prompts that part between the arms alone would be enough among 40: six of them, at this rate."""
    found = judged(aa=0, bb=0, ab=3)
    assert found.needed == 40
    assert "about 40 prompts would tell" in found.sentence


def test_no_difference_has_a_bound() -> None:
    """20 equal answers say no more than that fewer than 16 % of such prompts differ."""
    assert "fewer than 16%" in judged(aa=0, bb=0, ab=0).sentence


def test_the_cache_stands_beside_the_drafter() -> None:
    """Cold against cold and cold against warm, from the equality stage, are rows of the same table."""
    warm = pd.DataFrame(
        [{"pair": name, "identical": n > 1} for name in ("cold-control", "cold-warm") for n in range(1, 11)]
        + [{"pair": "cold-warm", "identical": None}]
    )
    table = noise.differences(pd.DataFrame([pair("A / B", "prose", 1)]), warm, ("MTP", "no MTP")).set_index("pair")
    cold, warmed = "cold against cold, equality stage", "cold against warm, equality stage"
    assert table["compared"].to_dict() == {"MTP against no MTP": 1, cold: 10, warmed: 10}
    assert table.loc[warmed, "differ"] == 1


# --- the page ------------------------------------------------------------------------------------------------------


def test_the_report_has_both_halves_and_no_answer(write: Write) -> None:
    """The section states the trade, what was accepted, the naive count and the table; no answer's text leaves."""
    page = render_html(write(speculation_rows()))
    for part in (
        "Speculative decoding",
        "The trade",
        "KV cache headroom, tokens",
        "takes chunks for tokens",
        "269,243",
    ):
        assert part in page
    assert "harbour" not in page


def test_a_run_without_the_stage_says_what_fills_the_section(write: Write) -> None:
    """The section of an older run names the command, and the conclusion says that nothing was streamed."""
    run = write([])
    manifest = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**manifest, "stages": {}}))
    assert "--resume --only speculation" in re.sub(r"<[^>]+>", "", render_html(run))
    assert "No answer was streamed" in conclusions.speculation(run).text


def test_the_conclusion_holds_both_halves(write: Write) -> None:
    """Trade, acceptance and the verdict on the answers, in one text."""
    text = conclusions.speculation(write(speculation_rows())).text
    for part in (
        "On balance MTP costs time",
        "tokens were accepted",
        "no MTP: no speculation seen",
        "No answer differs",
    ):
        assert part in text


def test_one_server_alone_asks_for_a_second(write: Write) -> None:
    """Acceptance is told, and that a trade needs another server."""
    text = conclusions.speculation(write([generation(document=n) for n in (1, 2)])).text
    assert "16 of 18 drafted tokens were accepted" in text
    assert "give a second one" in text


def test_a_gain_beyond_the_tokens_of_a_step_is_doubted(write: Write) -> None:
    """A server that gains more than its tokens per step was not slowed down by its own drafter alone: it is said."""
    slowed = []
    for row in speculation_rows():
        slow = row["kind"] == "generation" and row["arm"] == "B"
        slowed.append({**row, "arrivals_ms": [4 * one for one in row["arrivals_ms"]]} if slow else row)
    told = streaming.too_fast(frames.generations(write(slowed)))
    assert told is not None
    assert "tokens per step can bring" in told


def test_a_gain_that_its_steps_explain_is_not_doubted(write: Write) -> None:
    """A drafter that brings no more than its tokens per step is believed."""
    assert streaming.too_fast(frames.generations(write(speculation_rows()))) is None


def test_an_answer_that_came_in_one_burst_has_no_speed(write: Write) -> None:
    """Chunks microseconds apart were held back on their way: no rate is made of them, and how many is said."""
    rows = list(speculation_rows())
    first = next(row for row in rows if row["kind"] == "generation" and row["arm"] == "A")
    first["arrivals_ms"] = [first["arrivals_ms"][0] + 0.01 * place for place in range(len(first["arrivals_ms"]))]
    table = frames.generations(write(rows))
    held = table[table["request_id"] == first["request_id"]].iloc[0]
    assert pd.isna(held["tokens_per_s"])
    assert pd.isna(held["chunks_per_s"])
    assert table["tokens_per_s"].max() < 200
    told = streaming.held_back(table)
    assert told is not None
    assert told.startswith("1 of 24 streamed answers came in one burst")
    run = write(rows, "again")
    assert "ask the engine itself, not through a gateway" in render_html(run)
    manifest = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**manifest, "target": {"kind": "embedded"}}))
    assert "not through a gateway" not in render_html(run), "nothing stands between us and the embedded engine"
