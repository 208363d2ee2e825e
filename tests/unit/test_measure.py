"""The baseline against a stub: rows, what the verdict is read from, and what is doubted, refused or resumed."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from stub import CHAT, METRICS, Reply, StubServer, error

from prefixscope import baseline, frames, material, prompts, resources, verdict
from prefixscope.errors import Exited, Rejected, TargetError, Unsupported
from prefixscope.investigation import Investigation
from prefixscope.series import ALL_SENDS, REPEATS, Series, lengths_or_error
from prefixscope.setting import Setting
from prefixscope.target import Target

Attach = Callable[..., Investigation]
TOKENS = 700
BEST = (TOKENS - 1) // 64 * 64


def measured(investigation: Investigation, **options: Any) -> list[dict[str, Any]]:
    """The send rows of a baseline."""
    baseline.run(investigation, **{"lengths": (TOKENS,), **options})
    return sends(investigation)


def sends(investigation: Investigation) -> list[dict[str, Any]]:
    return [row for row in investigation.run.rows("baseline") if row["kind"] == "send"]


def by_send(rows: list[dict[str, Any]], model: str = "tiny") -> dict[tuple[str, int], dict[str, Any]]:
    return {(row["send"], row["index"]): row for row in rows if row["model"] == model}


def warnings(investigation: Investigation) -> Counter[str]:
    return Counter(warning["code"] for warning in investigation.run.manifest["warnings"])


def status(investigation: Investigation, stage: str = "baseline") -> str:
    return str(investigation.run.manifest["stages"][stage]["status"])


@pytest.fixture
def alone(stub: StubServer) -> StubServer:
    """A stub without an adapter: half the requests."""
    stub.lora = None
    return stub


# --- a healthy server ----------------------------------------------------------------------------------------------


def test_every_send_of_every_name_is_a_row(attach: Attach) -> None:
    """Two names, one length: cold, two repeats, a control, a new ending and a follow-up under each, in that order."""
    investigation = attach()
    rows = measured(investigation)
    expected = [("cold", 1), ("repeat", 2), ("repeat", 3), ("control", 1), ("new_ending", 1), ("follow_up", 1)]
    for model, role in (("tiny", "base"), ("tiny-lora", "lora")):
        mine = [row for row in rows if row["model"] == model]
        assert {(row["send"], row["index"]) for row in mine} == set(expected)
        assert {row["role"] for row in mine} == {role}
    assert len(rows) == 12
    assert len({row["cell"] for row in rows}) == len({row["request_id"] for row in rows}) == 12
    assert status(investigation) == "done"
    assert not warnings(investigation)


def test_hit_lengths_are_what_the_cache_allows(attach: Attach, alone: StubServer) -> None:
    """Cold and control hit nothing, a repeat all but the last block, a new ending and a follow-up what they share."""
    rows = by_send(measured(attach()))
    assert {key: row["cached_tokens"] for key, row in rows.items() if key[0] in ("cold", "repeat", "control")} == {
        ("cold", 1): 0, ("repeat", 2): BEST, ("repeat", 3): BEST, ("control", 1): 0,
    }  # fmt: skip
    for send in ("new_ending", "follow_up"):
        row = rows[send, 1]
        assert 0 < row["shared_tokens"] < row["prompt_tokens"]
        assert row["cached_tokens"] == row["shared_tokens"] // 64 * 64
    assert all(row["prompt_tokens"] == TOKENS for (send, _), row in rows.items() if send != "follow_up")
    assert rows["follow_up", 1]["prompt_tokens"] > TOKENS


def test_the_counters_see_the_same_hits(attach: Attach, alone: StubServer) -> None:
    """Each row holds what ``/metrics`` counted for that one request."""
    for row in measured(attach()):
        assert row["metrics"] == {"queries": row["prompt_tokens"], "hits": row["cached_tokens"]}


def test_the_first_request_of_each_name_is_discarded(attach: Attach, stub: StubServer) -> None:
    """One request to each name is sent before the measured ones and recorded as discarded."""
    investigation = attach()
    measured(investigation)
    discarded = [row for row in investigation.run.rows("baseline") if row["kind"] == "discarded"]
    assert [row["model"] for row in discarded] == ["tiny", "tiny-lora"]
    assert all(row["setting"]["as_served"] for row in discarded)
    for model in ("tiny", "tiny-lora"):
        first = next(body for body in stub.sent() if body["model"] == model)
        assert first["messages"] == list(prompts.build(lambda m: tuple(stub.tokens(m)), 256, 0).messages)


def test_each_request_to_the_model_has_its_row(attach: Attach, stub: StubServer) -> None:
    """What is sent for another request's sake is told too: rows and requests are as many, with the same tokens."""
    investigation = attach()
    measured(investigation)
    rows = investigation.run.rows("baseline")
    beside = [row for row in rows if row["kind"] == "beside"]
    assert len(beside) == 2, "one answer per follow-up turn"
    assert all("follow-up" in row["why"] and row["cached_tokens"] for row in beside)
    told = [row for row in rows if row["kind"] in ("send", "discarded", "beside")]
    assert len(told) == len(stub.sent())
    assert all(row["prompt_tokens"] for row in told)


def test_every_series_has_a_salt_of_its_own(attach: Attach, stub: StubServer) -> None:
    """All sends of a series share one salt, and no two series, or runs, share any."""
    measured(attach("one"), lengths=(100, TOKENS))
    measured(attach("two"), lengths=(100,))
    salts = Counter(body["cache_salt"] for body in stub.sent())
    assert all(salts)
    # Six cells, and one more request for the answer that a follow-up turn continues; a discarded one is alone.
    assert sorted(salts.values()) == [1, 1, 1, 1, 7, 7, 7, 7, 7, 7]


def test_the_verdict_is_read_from_the_rows(attach: Attach, alone: StubServer) -> None:
    """Hits give reuses, a prompt that is too short cannot hit, and a cold send asks no question."""
    frame = frames.sends((investigation := attach()).path)
    assert len(frame) == 0
    frame = baseline.run(investigation, lengths=(60, TOKENS))
    verdicts = {(row["tokens"], row["send"], row["index"]): row["verdict"] for row in frame.to_dict("records")}
    assert verdicts[TOKENS, "repeat", 2] == "reuses"
    assert verdicts[60, "repeat", 2] == "cannot hit"
    assert frame.loc[frame["send"] == "cold", "verdict"].isna().all()


def test_no_prompt_and_no_answer_is_kept(attach: Attach, alone: StubServer) -> None:
    """The run directory of a baseline holds no text of a prompt or an answer."""
    investigation = attach()
    measured(investigation)
    kept = (investigation.path / "raw" / "baseline.jsonl").read_text()
    sentence = alone.sent()[-1]["messages"][0]["content"][:40]
    assert sentence.strip()
    assert sentence not in kept


def test_what_the_server_says_of_itself_is_kept(attach: Attach, alone: StubServer) -> None:
    """Version and cache settings of an attached server are facts of the run."""
    investigation = attach()
    measured(investigation)
    assert investigation.run.get_fact("vllm version") == "0.29.0"
    assert investigation.run.manifest["engine"]["version"] == "0.29.0"


# --- doubts --------------------------------------------------------------------------------------------------------


def test_null_is_not_zero(attach: Attach, alone: StubServer) -> None:
    """Without prompt_tokens_details every hit length is null, the flag is named, and the verdict is 'not reported'."""
    alone.reports_cached = False
    investigation = attach()
    rows = measured(investigation)
    assert {row["cached_tokens"] for row in rows} == {None}
    found = [w for w in investigation.run.manifest["warnings"] if w["code"] == "cached-not-reported"]
    assert found
    assert "--enable-prompt-tokens-details" in found[0]["remedy"]
    assert set(frames.sends(investigation.path)["verdict"].dropna()) == {"not reported"}


def test_a_usage_that_is_missing_whole_is_no_flags_doing(attach: Attach, alone: StubServer) -> None:
    """Where answers have no usage at all no flag of the engine is named, in the warnings as in the verdict."""
    alone.edit = lambda answer, request: {**answer, "usage": None}
    investigation = attach()
    measured(investigation)
    found = [w for w in investigation.run.manifest["warnings"] if w["code"] == "cached-not-reported"]
    assert {"own address" in w["remedy"] for w in found} == {True}
    assert not any("--enable" in w["remedy"] for w in found)


def test_a_cold_send_that_hits_is_doubted(attach: Attach, alone: StubServer) -> None:
    """Where the salt is ignored, a second run's first send hits: the row keeps the number, and a warning the doubt."""
    alone.honours_salt = False
    first, second = attach("one"), attach("two")
    measured(first)
    rows = by_send(measured(second))
    assert warnings(first)["cold-not-cold"] == 0
    assert rows["cold", 1]["cached_tokens"] == BEST
    assert warnings(second)["cold-not-cold"] == 2, "cold and control"
    frame = frames.sends(second.path)
    assert set(frame.loc[frame["send"].isin(["cold", "control"]), "verdict"]) == {"inconclusive"}


def test_counters_that_disagree_are_a_warning_with_both_numbers(attach: Attach, alone: StubServer) -> None:
    """Where usage and ``/metrics`` part, both numbers are in the warning and in the row."""
    alone.hits_skew = 64
    investigation = attach()
    rows = by_send(measured(investigation))
    assert rows["repeat", 2]["metrics"]["hits"] == BEST + 64
    assert rows["repeat", 2]["cached_tokens"] == BEST
    detail = next(
        w["detail"]
        for w in investigation.run.manifest["warnings"]
        if w["code"] == "metrics-disagree" and "repeat 2" in w["detail"]
    )
    assert f"usage says {BEST} cached tokens, /metrics {BEST + 64}" in detail
    assert "other traffic" not in detail


def test_other_traffic_is_named_as_the_reason(attach: Attach, alone: StubServer) -> None:
    """Where the counters moved by more than our request, the warning says that somebody else was served too."""
    plain = alone.edit

    def busy(answer: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
        alone._queries, alone._hits = alone._queries + 1_000, alone._hits + 128
        return plain(answer, request)

    alone.edit = busy
    investigation = attach()
    measured(investigation)
    details = [w["detail"] for w in investigation.run.manifest["warnings"] if w["code"] == "metrics-disagree"]
    assert details
    assert all("other traffic" in detail for detail in details)


def test_counters_that_stand_still_are_not_called_traffic(attach: Attach, alone: StubServer) -> None:
    """Counters that did not move at all disagree with a hit, but nobody else is blamed for it."""
    alone.always(
        METRICS, Reply(200, "# TYPE x counter\nvllm:prefix_cache_queries_total 0\nvllm:prefix_cache_hits_total 0\n")
    )
    investigation = attach()
    measured(investigation)
    details = [w["detail"] for w in investigation.run.manifest["warnings"] if w["code"] == "metrics-disagree"]
    assert details
    assert not any("moved by more" in detail for detail in details)


def test_a_length_that_is_not_met_is_said(attach: Attach, alone: StubServer) -> None:
    """A tokenizer that skips counts gives the nearest length below, and a warning with the number counted."""
    alone.tokenizer = "pairs"
    investigation = attach()
    rows = measured(investigation, lengths=(TOKENS + 1,))
    counted = by_send(rows)["cold", 1]["prompt_tokens"]
    assert counted in (TOKENS, TOKENS + 1)
    assert (warnings(investigation)["length-not-exact"] > 0) == (counted == TOKENS)
    rows = measured(attach("even"), lengths=(TOKENS,))
    both = {counted, by_send(sends(attach("even")))["cold", 1]["prompt_tokens"]}
    assert len(both) == 1, "one of the two lengths can't be made"


def test_without_tokenize_and_metrics_the_hits_are_still_measured(attach: Attach, alone: StubServer) -> None:
    """A bare OpenAI-compatible server is measured with estimated lengths, no counters and unknown shared lengths."""
    alone.tokenizer = None
    alone.has_metrics = False
    investigation = attach()
    rows = by_send(measured(investigation))
    total = rows["cold", 1]["prompt_tokens"]
    assert rows["repeat", 2]["cached_tokens"] == (total - 1) // 64 * 64
    assert {row["metrics"] for row in rows.values()} == {None}
    assert rows["new_ending", 1]["shared_tokens"] is None
    assert {"no-metrics", "length-not-exact"} <= set(warnings(investigation))


def test_prefix_caching_off_is_a_finding_and_a_verdict(attach: Attach, alone: StubServer) -> None:
    """A server without prefix caching hits 0, not null, and the warning names the flag."""
    alone.prefix_caching = False
    investigation = attach()
    rows = by_send(measured(investigation))
    assert rows["repeat", 2]["cached_tokens"] == 0
    assert warnings(investigation)["prefix-caching-off"] == 1
    frame = frames.sends(investigation.path)
    assert set(frame.loc[frame["send"] == "repeat", "verdict"]) == {"none"}


# --- refusals and failures -----------------------------------------------------------------------------------------


def test_a_refused_prompt_is_a_row_and_the_rest_goes_on(attach: Attach, alone: StubServer) -> None:
    """A prompt beyond the context is a failed row with its reason; shorter prompts are measured whole."""
    alone.max_model_len = 300
    investigation = attach()
    rows = measured(investigation, lengths=(100, TOKENS, 200))
    failed = [row for row in rows if row["status"] == "failed"]
    assert [row["prompt"]["tokens"] for row in failed] == [TOKENS]
    assert "context" in failed[0]["error"]
    assert Counter(row["prompt"]["tokens"] for row in rows if row["status"] == "ok") == {100: 6, 200: 6}
    assert warnings(investigation)["too-long"] == 1
    assert status(investigation) == "partial"


def test_a_request_that_fails_once_ends_only_its_series(attach: Attach, alone: StubServer) -> None:
    """An internal error in the middle of one prompt's sends does not stop the next prompt."""
    alone.edit = lambda answer, request: error(500, "boom") if len(alone.sent()) == 3 else answer
    investigation = attach()
    rows = measured(investigation, lengths=(100, 200))
    assert Counter((row["prompt"]["tokens"], row["status"]) for row in rows) == {
        (100, "ok"): 1, (100, "failed"): 1, (200, "ok"): 6,
    }  # fmt: skip
    assert status(investigation) == "partial"


def test_a_server_that_dies_gives_failed_rows_for_what_it_owed(attach: Attach, alone: StubServer) -> None:
    """When the connection breaks, every unfinished prompt is a failed row, and what was measured stays."""
    alone.edit = lambda answer, request: Reply(close=True) if len(alone.sent()) >= 7 else answer
    investigation = attach()
    rows = measured(investigation, lengths=(100, 200))
    assert {row["prompt"]["tokens"] for row in rows if row["status"] == "failed"} == {100, 200}
    assert [row["cached_tokens"] for row in rows if row["status"] == "ok"] == [0, 64, 64, 0, 192]
    assert warnings(investigation)["server-failed"] == 1
    assert status(investigation) == "partial"


def test_a_key_that_is_withdrawn_stops_the_stage(attach: Attach, alone: StubServer) -> None:
    """A 401 in the middle ends the stage at once: no other request would fare better."""
    alone.edit = lambda answer, request: error(401, "Unauthorized") if len(alone.sent()) >= 3 else answer
    investigation = attach()
    with pytest.raises(Rejected, match="--key-env"):
        baseline.run(investigation, lengths=(100, 200))
    assert len(alone.sent()) == 3
    assert status(investigation) == "failed"
    assert [row["status"] for row in sends(investigation)] == ["ok", "failed"]


def test_a_model_that_is_not_served_stops_the_stage_naming_the_served_ones(attach: Attach) -> None:
    """A wrong model name is refused before anything is sent."""
    investigation = attach(model="tinny")
    with pytest.raises(Rejected, match="tiny, tiny-lora"):
        baseline.run(investigation, lengths=(100,))
    assert sends(investigation) == []


@pytest.mark.parametrize("lengths", [(), (0,), (100, -1), ("many",), (None,)])
def test_lengths_that_are_none_are_refused(lengths: tuple[Any, ...]) -> None:
    """Lengths must be positive numbers, one at least."""
    with pytest.raises(TargetError, match="positive"):
        lengths_or_error(lengths)


def test_lengths_are_sorted_and_unique() -> None:
    """Each length is measured once, the shortest first."""
    assert lengths_or_error([300, 100, 300]) == (100, 300)


# --- going on ------------------------------------------------------------------------------------------------------


def test_done_cells_are_not_sent_again(attach: Attach, stub: StubServer) -> None:
    """A second baseline on the same run sends nothing and gives the same table."""
    first = baseline.run(attach(), lengths=(100, TOKENS))
    sent = len(stub.sent())
    second = baseline.run(attach(), lengths=(100, TOKENS))
    assert len(stub.sent()) == sent
    assert first.equals(second)


def test_only_what_is_new_is_sent(attach: Attach, alone: StubServer) -> None:
    """A length that is added later is measured; the ones that are done are not."""
    measured(attach(), lengths=(100,))
    sent = len(alone.sent())
    rows = measured(attach(), lengths=(100, 200))
    assert len(alone.sent()) == sent + 8
    assert Counter(row["prompt"]["tokens"] for row in rows) == {100: 6, 200: 6}


def test_failed_cells_are_measured_again(attach: Attach, alone: StubServer) -> None:
    """What failed in one attempt is redone whole in the next, under a new attempt and salt."""
    alone.edit = lambda answer, request: Reply(close=True) if len(alone.sent()) == 4 else answer
    assert status_of_first(attach(), lengths=(100,)) == "partial"
    rows = measured(attach(), lengths=(100,))
    attempts = {row["attempt"] for row in rows if row["status"] == "ok"}
    whole = [a for a in attempts if sum(row["attempt"] == a and row["status"] == "ok" for row in rows) == 6]
    assert len(attempts) == 2
    assert len(whole) == 1
    assert status(attach()) == "done"


def status_of_first(investigation: Investigation, **options: Any) -> str:
    measured(investigation, **options)
    return status(investigation)


def test_another_seed_is_another_cell(attach: Attach, alone: StubServer) -> None:
    """A changed seed is measured anew."""
    cells = {row["cell"] for row in measured(attach(), lengths=(100,), seed=1)}
    rows = measured(attach(), lengths=(100,), seed=2)
    assert len({row["cell"] for row in rows} - cells) == 6


def test_cells_of_a_series_are_numbered_by_kind() -> None:
    """Cold is 1 and its repeats count on; every other send begins at 1."""
    series = Series(setting=Setting(), tokens=1, sends=ALL_SENDS)
    assert series.cells() == (
        ("cold", 1),
        ("repeat", 2),
        ("repeat", 3),
        ("control", 1),
        ("new_ending", 1),
        ("follow_up", 1),
    )


def test_a_series_is_known_whatever_stage_asks() -> None:
    """The identity holds target, setting, name, length and seed, and not which sends a stage wants."""
    whole, short = (Series(setting=Setting(), tokens=9, sends=sends) for sends in (ALL_SENDS, REPEATS))
    assert whole.key("t") == short.key("t")
    others = [
        Series(setting=Setting(drafter=False), tokens=9), Series(setting=Setting(), tokens=8),
        Series(setting=Setting(), tokens=9, role="lora"), Series(setting=Setting(), tokens=9, seed=2),
    ]  # fmt: skip
    assert len({whole.key("t"), whole.key("u"), *(other.key("t") for other in others)}) == 6


# --- servers of ours -----------------------------------------------------------------------------------------------


def embedded(attach: Attach, kind: str = "embedded") -> Investigation:
    return Investigation(attach().run, Target(kind=kind))


def test_three_configurations_start_four_settings(attach: Attach, started: list[Setting]) -> None:
    """No MTP, MTP, MTP + LoRA, and the last with the interval; both names where an adapter is served."""
    investigation = embedded(attach)
    baseline.run(investigation, lengths=(100,))
    assert [setting.label for setting in started] == ["no MTP", "MTP", "MTP + LoRA", "MTP + LoRA, interval 1,024"]
    rows = sends(investigation)
    assert Counter((row["setting"]["label"], row["role"]) for row in rows) == {
        ("no MTP", "base"): 6, ("MTP", "base"): 6, ("MTP + LoRA", "base"): 6, ("MTP + LoRA", "lora"): 6,
        ("MTP + LoRA, interval 1,024", "base"): 6, ("MTP + LoRA, interval 1,024", "lora"): 6,
    }  # fmt: skip
    assert status(investigation) == "done"


def test_a_setting_whose_server_fails_is_a_row_and_the_next_one_is_tried(
    attach: Attach, started: list[Setting], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that does not start costs only its own cells; the reason is in the row and in a warning."""
    plain = Investigation.server

    def server(self: Investigation, setting: Setting, stage: Any, *, keep: bool = False) -> Any:
        if setting.lora:
            raise Exited("the server ended with code 1", remedy="read its log")
        return plain(self, setting, stage, keep=keep)

    monkeypatch.setattr(Investigation, "server", server)
    investigation = embedded(attach)
    baseline.run(investigation, lengths=(100,), configurations=("no_mtp", "mtp_lora", "mtp"))
    rows = sends(investigation)
    assert Counter((row["setting"]["label"], row["status"]) for row in rows) == {
        ("no MTP", "ok"): 6, ("MTP", "ok"): 6, ("MTP + LoRA", "failed"): 2,
    }  # fmt: skip
    assert "ended with code 1" in next(row["error"] for row in rows if row["status"] == "failed")
    assert warnings(investigation)["server-failed"] == 1
    assert status(investigation) == "partial"


def test_an_adapter_that_is_missing_where_it_was_asked_for_is_a_failed_row(
    attach: Attach, alone: StubServer, started: list[Setting]
) -> None:
    """A server of ours that serves no adapter under a LoRA setting is a failure; an attached one lacks nothing."""
    investigation = embedded(attach)
    baseline.run(investigation, lengths=(100,), configurations=("mtp_lora",))
    failed = [row for row in sends(investigation) if row["status"] == "failed"]
    assert ["no LoRA adapter" in row["error"] for row in failed] == [True]
    assert not [row for row in measured(attach("attached"), lengths=(100,)) if row["status"] == "failed"]


def test_progress_ends_where_it_was_planned(
    attach: Attach, started: list[Setting], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The steps taken never exceed the planned ones, and at the end nothing is left."""
    seen: list[dict[str, Any]] = []
    from prefixscope.progress import Progress

    real = Progress._write

    def note(self: Progress) -> None:
        seen.append(self.snapshot())
        real(self)

    monkeypatch.setattr(Progress, "_write", note)
    baseline.run(embedded(attach), lengths=(100, 200), configurations=("no_mtp", "mtp"))
    assert all(shown["step"] <= shown["steps"] for shown in seen)
    assert seen[-1]["step"] == seen[-1]["steps"] > 0
    assert seen[-1]["left_s"] == pytest.approx(0, abs=0.5)


def test_a_recorded_sample_answers_from_its_rows(
    attach: Attach, stub: StubServer, started: list[Setting], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sample, a recorded run of the embedded engine, gives its table without a server; other cells are refused."""
    recorded = baseline.run(embedded(attach), lengths=(100,))
    sent = len(stub.sent())
    monkeypatch.undo()
    assert baseline.run(embedded(attach, "sample"), lengths=(100,)).equals(recorded)
    with pytest.raises(Unsupported, match="recorded sample"):
        baseline.run(embedded(attach, "sample"), lengths=(200,))
    assert len(stub.sent()) == sent


def test_the_facts_know_of_which_server_they_are_and_what_answers_show(tmp_path: Path) -> None:
    """Beside the first server's "off" stands what the one with the drafter drafts; cached tokens are reported."""
    sample = Path(shutil.copytree(resources.data_path("sample", "run"), tmp_path / "run"))
    table = frames.facts(sample).set_index("fact")
    assert table.loc["cached tokens in usage"].tolist() == ["yes", "300 of 300 answers"]
    assert table.loc["speculative decoding (s01, no MTP)", "value"] == "off"
    assert table.loc["speculative decoding (s02, MTP)"].tolist() == ["on, mtp", "trace header"]
    assert table.loc["draft tokens a step (s02, MTP)", "value"] == "3"
    assert not {"speculative decoding", "draft tokens a step"} & set(table.index)
    said = {name: value for name, value, _ in material.facts(material.gather(sample))}
    assert said["cached tokens in usage"] == "yes"
    shutil.rmtree(sample / "trace")
    untraced = frames.facts(sample).set_index("fact")
    assert untraced.loc["speculative decoding (s02, MTP)"].tolist() == ["on", "start of s02"]


def test_the_facts_of_a_server_that_reports_no_cached_tokens(attach: Attach, alone: StubServer) -> None:
    """Null in every answer is no; before any answer it is not known. One server needs no name."""
    alone.reports_cached = False
    run = attach()
    baseline.run(run, lengths=(100,))
    table = frames.facts(run.path).set_index("fact")
    assert table.loc["cached tokens in usage", "value"] == "no"
    assert table.loc["cached tokens in usage", "source"].startswith("0 of ")
    assert "served models" in table.index
    shutil.rmtree(run.path / "raw")
    assert pd.isna(frames.facts(run.path).set_index("fact").loc["cached tokens in usage", "value"])


def test_an_unknown_configuration_is_refused(attach: Attach) -> None:
    """A configuration that does not exist is named, with those that do."""
    with pytest.raises(Exception, match="'mtpp'") as caught:
        baseline.run(attach(), configurations=("mtpp",))
    assert "mtp_lora_interval" in str(caught.value)


def test_a_busy_server_is_retried_and_the_row_says_so(attach: Attach, alone: StubServer) -> None:
    """A 429 before an answer is in the row's retries, and its latency is that of the answered call."""
    plain = attach()
    alone.edit = lambda answer, request: error(429, "busy", Retry_After="0.2") if len(alone.sent()) == 2 else answer
    rows = by_send(measured(plain, lengths=(100,)))
    assert rows["cold", 1]["retries"] == 1
    assert rows["cold", 1]["first_token_ms"] < 200
    assert rows["repeat", 2]["retries"] == 0
    assert warnings(plain)["retried"] == 1
    assert alone.sent(CHAT)


def test_an_attached_servers_verdict_names_its_releases_remedy(alone: StubServer, attach: Attach) -> None:
    """Release, drafter and interval match a known fault: the verdict has its pull request and its flag."""
    alone.sends, alone.labels = 2, {"prefix_cache_retention_interval": "0"}
    alone.more_metrics = ["vllm:spec_decode_num_drafts_total 7"]
    investigation = attach()
    measured(investigation)
    assert "0.29.0" in set(frames.facts(investigation.path)["value"])
    found = verdict.of_run(investigation.path)
    assert found.code == "none"
    assert found.remedy is not None
    assert "(vllm#53945, vllm#52216): start it with --prefix-cache-retention-interval" in found.remedy
    assert "0.30.0" in found.sentence


@pytest.mark.parametrize(("sends", "version"), [(2, "0.32.0"), (10**6, "0.29.0")])
def test_an_attached_server_is_promised_nothing_by_another_fault(
    alone: StubServer, attach: Attach, sends: int, version: str
) -> None:
    """Another release's misses, and misses on the third send too, have no remedy from the table."""
    alone.sends, alone.version, alone.labels = sends, version, {"prefix_cache_retention_interval": "0"}
    alone.more_metrics = ["vllm:spec_decode_num_drafts_total 7"]
    investigation = attach()
    measured(investigation)
    assert verdict.of_run(investigation.path).remedy is None


def test_facts_are_of_the_server_that_was_asked(attach: Callable[..., Investigation]) -> None:
    """Where another server has started meanwhile, the trace header is that of the asked one's process group."""
    investigation = attach()
    folder = investigation.path / "trace"
    folder.mkdir(exist_ok=True)
    for name, pid, method, at in (("a", os.getpid(), "mtp", 1), ("b", 1, None, 2)):
        file = folder / f"{name}.jsonl"
        file.write_text(json.dumps({"event": "header", "pid": pid, "spec_method": method}) + "\n")
        os.utime(file, (at, at))
    asked: Any = SimpleNamespace(process=(os.getpid(), 0))
    assert investigation._header_of(asked)["spec_method"] == "mtp"
    gone: Any = SimpleNamespace(process=(2**22 + 1, 0))
    assert investigation._header_of(gone)["spec_method"] is None, "unknown: the newest"
