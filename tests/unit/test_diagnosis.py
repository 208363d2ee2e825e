"""From a lookup to a cause in words, on the recorded incident and on variations of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from prefixscope.diagnosis import explain
from prefixscope.trace import Trace, read_trace

RECORDED = Path(__file__).parents[1] / "data" / "trace-incident.jsonl"
Event = dict[str, Any]


def events() -> list[Event]:
    return [json.loads(line) for line in RECORDED.read_text(encoding="utf-8").splitlines()]


def changed(folder: Path, change: Callable[[Event], Event | None]) -> Trace:
    rows = [one for one in (change(event) for event in events()) if one is not None]
    path = folder / "trace-1.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return read_trace(path)


def about(event: Event, request_id: str, name: str = "lookup") -> bool:
    return event["event"] == name and request_id in str(event.get("request"))


@pytest.mark.parametrize(
    ("request_id", "cause"),
    [
        ("cpu-1", "cold"),
        ("cpu-2", "windows_dont_meet"),
        ("cpu-3", "third_send"),
        ("tiny-1", "cannot_hit"),
        ("spaced-2", "spec_drop"),
        ("dense-2", "spec_drop"),
    ],
)
def test_causes_of_the_recorded_sends(request_id: str, cause: str) -> None:
    """Each recorded send has its own cause."""
    assert explain(read_trace(RECORDED), request_id).cause == cause


def test_incident_sentence() -> None:
    """The incident's sentence states what is needed, stored and missing, and why, for this release."""
    sentence = explain(read_trace(RECORDED), "cpu-2").sentence
    assert sentence.startswith(
        "The 5 sliding-window groups (32-token blocks) end the hit: a hit at 6,336 needs blocks 166–198, blocks "
        "168–200 are stored, 166–167 were never kept, so the hit is 0. In vLLM 0.29.0"
    )
    assert "6,400" in sentence


def test_incident_remedy_and_price() -> None:
    """The remedy names the flag with a legal value and the release with its PR; the price is what was traced."""
    diagnosis = explain(read_trace(RECORDED), "cpu-2")
    assert "--prefix-cache-retention-interval" in diagnosis.remedy
    assert "(1024 here)" in diagnosis.remedy
    assert "0.30.0 (vllm#53945, merged 8 September 2026)" in diagnosis.remedy
    # 5 × 33 + 100 against 5 × 201 + 100.
    assert "265 blocks" in diagnosis.price
    assert "1,105 blocks" in diagnosis.price
    assert "4.2 times" in diagnosis.price


def test_price_that_was_not_measured(tmp_path: Path) -> None:
    """Without a trace under another setting the price says that it was not measured."""
    engine = events()[0]["engine"]
    diagnosis = explain(changed(tmp_path, lambda event: event if event["engine"] == engine else None), "cpu-2")
    assert diagnosis.cause == "windows_dont_meet"
    assert "was not measured" in diagnosis.price


def test_price_from_another_trace(tmp_path: Path) -> None:
    """Traces of other servers give the alternatives too."""
    engine = events()[0]["engine"]
    alone = changed(tmp_path, lambda event: event if event["engine"] == engine else None)
    assert "1,105 blocks" in explain(alone, "cpu-2", others=[read_trace(RECORDED)]).price


def test_third_send_says_what_the_second_met() -> None:
    """The third send's sentence says that it hits because the second missed, and carries the second's remedy."""
    diagnosis = explain(read_trace(RECORDED), "cpu-3")
    assert "cpu-2" in diagnosis.sentence
    assert "6,336" in diagnosis.sentence
    assert "--prefix-cache-retention-interval" in diagnosis.remedy
    assert any("Two sends are not enough" in line for line in diagnosis.evidence)


def test_cannot_hit_prints_the_minimum() -> None:
    """A prompt that is too short is told the shortest that can hit."""
    assert "193 tokens" in explain(read_trace(RECORDED), "tiny-1").sentence


def test_drop_says_how_much_it_costs() -> None:
    """The speculative-decoding drop is stated in tokens, against the hit without it."""
    diagnosis = explain(read_trace(RECORDED), "dense-2")
    assert "64 tokens less than 6,400" in diagnosis.sentence
    assert diagnosis.price.startswith("64 tokens")


def test_full_hit(tmp_path: Path) -> None:
    """A hit that goes as far as the prompt allows has nothing to remedy."""

    def longer(event: Event) -> Event:
        return {**event, "hit_tokens": 6400} if about(event, "dense-2") or about(event, "dense-2", "admit") else event

    assert explain(changed(tmp_path, longer), "dense-2").cause == "full_hit"


def test_evicted_is_told_from_never_kept(tmp_path: Path) -> None:
    """Missing blocks that the earlier request had kept were evicted; those it dropped were never kept."""

    def gone(event: Event) -> Event:
        if about(event, "dense-2"):
            event["hit_tokens"] = 0
            event["limiting"] = [0, 1, 2, 3, 4]
            event["groups"][0]["cached"] = [[190, 201]]
        return event

    diagnosis = explain(changed(tmp_path, gone), "dense-2")
    assert diagnosis.cause == "evicted"
    assert "166–189" in diagnosis.sentence


def test_evicted_and_never_kept_are_both_said(tmp_path: Path) -> None:
    """Where a window lacks blocks for two reasons, both are named, and what would decide between them."""

    def gone(event: Event) -> Event:
        if about(event, "cpu-2"):
            event["groups"][0] |= {"cached": [[168, 190]], "evicted": [[190, 199]]}
            event["evicted_s"] = [0.25, 3.5]
        return event

    diagnosis = explain(changed(tmp_path, gone), "cpu-2")
    assert diagnosis.cause == "evicted"
    for part in ("190–198", "250 ms to 3.5 s before this lookup", "166–167", "one cause of two"):
        assert part in diagnosis.sentence
    assert "idle server" in diagnosis.remedy


def test_reset_is_told_from_eviction(tmp_path: Path) -> None:
    """A reset between two sends is named as such."""
    rows = events()
    at = next(index for index, event in enumerate(rows) if about(event, "dense-2"))
    rows[at]["hit_tokens"] = 0
    for group in rows[at]["groups"]:
        group["cached"] = []
    reset = {name: rows[at][name] for name in ("schema", "pid", "engine")}
    rows.insert(at, {**reset, "event": "reset", "done": True, "t": rows[at]["t"] - 0.0001})
    path = tmp_path / "trace-1.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    assert explain(read_trace(path), "dense-2").cause == "cache_reset"


def test_another_rank(tmp_path: Path) -> None:
    """A prompt that another data-parallel rank has seen, and this one has not, is told so."""

    def move(event: Event) -> Event | None:
        if event["event"] == "header" and event["interval"] == "dense":
            return {**event, "interval": 0, "dp_rank": 1, "pid": 4711}
        return event

    trace = changed(tmp_path, move)
    diagnosis = explain(trace, "dense-1", repeat_of="cpu-1")
    assert diagnosis.cause == "other_engine"
    assert "rank 1" in diagnosis.sentence
    # Without the caller's word it may as well be a first send: both are said.
    undecided = explain(trace, "dense-1")
    assert undecided.cause == "cold"
    assert "went to another engine" in undecided.sentence


def test_prompts_that_differ_from_the_start(tmp_path: Path) -> None:
    """Two prompts of one length without a common block point at template, adapter or salt."""

    def strangers(event: Event) -> Event:
        if about(event, "cpu-2"):
            event.pop("closest")
            for group in event["groups"]:
                group["cached"] = []
        return event

    trace = changed(tmp_path, strangers)
    undecided = explain(trace, "cpu-2")
    assert undecided.cause == "cold"
    assert "meant to repeat cpu-1" in undecided.sentence
    diagnosis = explain(trace, "cpu-2", repeat_of="cpu-1")
    assert diagnosis.cause == "prompts_differ"
    assert "salt" in diagnosis.sentence


def test_shared_part(tmp_path: Path) -> None:
    """A prompt that shares only a part with the last one misses the checkpoint at the part's end."""

    def part(event: Event) -> Event:
        if about(event, "cpu-2"):
            event["closest"]["common_tokens"] = 5312
            event["candidate_tokens"] = 5248
            for group in event["groups"]:
                if group["gids"] != [5]:
                    group |= {"cached": [], "needed": [132, 165]}
        return event

    diagnosis = explain(changed(tmp_path, part), "cpu-2")
    assert diagnosis.cause == "shared_part"
    assert "5,312 tokens" in diagnosis.sentence
    assert "132–164" in diagnosis.sentence


def test_hit_that_was_not_used(tmp_path: Path) -> None:
    """A hit that the admission did not use in full is its own cause."""
    trace = changed(tmp_path, lambda event: {**event, "hit_tokens": 64} if about(event, "dense-2", "admit") else event)
    assert explain(trace, "dense-2").cause == "hit_not_used"


def test_hit_that_shrank_in_the_queue(tmp_path: Path) -> None:
    """A request that was promised more than it got in the end is told so."""
    rows = events()
    at = next(index for index, event in enumerate(rows) if about(event, "cpu-2"))
    rows.insert(at, {**rows[at], "hit_tokens": 6336})
    path = tmp_path / "trace-1.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    diagnosis = explain(read_trace(path), "cpu-2")
    assert diagnosis.cause == "retried"
    assert "6,336" in diagnosis.sentence


def test_caching_off(tmp_path: Path) -> None:
    """An engine without prefix caching is named before anything else."""
    trace = changed(tmp_path, lambda event: {**event, "caching": False} if event["event"] == "header" else event)
    diagnosis = explain(trace, "cpu-2")
    assert diagnosis.cause == "caching_off"
    assert "--enable-prefix-caching" in diagnosis.remedy


def test_unseen_request() -> None:
    """A request that no traced engine saw can't be explained, and the sentence says why."""
    diagnosis = explain(read_trace(RECORDED), "nobody")
    assert diagnosis.cause == "cant_tell"
    assert "not in the trace" in diagnosis.sentence


def test_undecided_names_the_measurement(tmp_path: Path) -> None:
    """Without the earlier request in the trace, never stored and evicted look alike: both are said."""

    def orphan(event: Event) -> Event | None:
        if "cpu-1" in str(event.get("request")):
            return None
        if about(event, "cpu-2"):
            event.pop("closest")
        return event

    diagnosis = explain(changed(tmp_path, orphan), "cpu-2")
    assert diagnosis.cause == "cant_tell"
    assert "never stored" in diagnosis.sentence
    assert "evicted" in diagnosis.sentence
    assert "twice" in diagnosis.sentence


def test_newer_release_is_asked_to_report(tmp_path: Path) -> None:
    """The same windows on a release that was to fix them are not sent to that release."""
    trace = changed(tmp_path, lambda event: {**event, "version": "0.31.0"} if event["event"] == "header" else event)
    diagnosis = explain(trace, "cpu-2")
    assert diagnosis.cause == "windows_dont_meet"
    assert "report it" in diagnosis.remedy


def test_evidence_is_what_was_recorded() -> None:
    """The evidence gives the lengths, the blocks per kind of group, and the earlier request."""
    evidence = " ".join(explain(read_trace(RECORDED), "cpu-2").evidence)
    for part in ("6,446 tokens", "166–167", "0–99", "cpu-1", "6,432"):
        assert part in evidence
