"""The incident on the real engine: vLLM 0.29.0, five sliding groups and one full one, scheduler block 64."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from bench import Bench

from prefixscope import frames
from prefixscope.diagnosis import explain
from prefixscope.geometry import default_header, traced
from prefixscope.setting import Setting

pytestmark = pytest.mark.engine

LENGTHS = (128, 129, 640, 1_088, 1_089, 1_600, 6_446)
BLOCK = 64


def full(tokens: int) -> int:
    """The hit without a drafter: whole scheduler blocks, the last token always computed."""
    return (tokens - 1) // BLOCK * BLOCK


def test_the_engine_groups_its_layers_as_the_incident_did(bench: Bench) -> None:
    """The embedded model gives five sliding-window groups and one full group with a scheduler block of 64 tokens."""
    bench.hits(Setting(), LENGTHS)
    header = default_header(bench.investigation)
    assert header is not None
    kinds = [(group.kind, group.block_size, group.window) for group in header.groups]
    assert sorted(kinds, key=str) == sorted([("sliding", 32, 1024)] * 5 + [("full", 64, None)], key=str)
    assert (header.version, header.scheduler_block, header.hash_block, header.interval) == ("0.29.0", 64, 32, 0)


def test_without_a_drafter_the_second_send_hits_whole_blocks(bench: Bench) -> None:
    """Without MTP sends 2 and 3 hit the whole scheduler blocks below the last token."""
    found = bench.hits(Setting(drafter=False), LENGTHS)
    assert found == {n: [0, full(n), full(n)] for n in LENGTHS}


def test_with_a_drafter_the_second_send_of_long_prompts_hits_nothing(bench: Bench) -> None:
    """With MTP at the default retention, 1,089 tokens or more hit 0 on send 2 and one block short on send 3."""
    found = bench.hits(Setting(), LENGTHS)
    expected = {
        n: [0, 0, 0] if n <= 128 else [0, full(n) - 128, full(n) - 128] if n <= 1_088 else [0, 0, full(n) - 64]
        for n in LENGTHS
    }
    assert found == expected


@pytest.mark.parametrize("role", ["base", "lora"])
def test_the_interval_brings_the_hit_back_under_both_names(bench: Bench, role: str) -> None:
    """With MTP, the adapter and interval 1024, send 2 hits one block short of full under each served name."""
    lengths = (640, 1_600, 6_446)
    found = bench.hits(Setting(lora=True, interval=1024), lengths, role=role)
    assert found == {n: [0, *[full(n) - (128 if n <= 1_088 else 64)] * 2] for n in lengths}


def test_the_trace_names_the_group_and_the_missing_blocks(bench: Bench) -> None:
    """For 6,446 tokens the sliding groups end the hit: blocks stored from 168, needed from 166, 166–167 missing."""
    bench.hits(Setting(), LENGTHS)
    rows = [r for r in bench.investigation.run.rows() if r.get("kind") == "send" and r["prompt"]["tokens"] == 6_446]
    row = next(r for r in rows if r["setting"]["drafter"] and r["setting"]["interval"] is None and r["index"] == 2)
    trace = traced(bench.investigation.path)
    lookup = trace.lookup(row["request_id"])
    assert lookup is not None
    limiting = [view for view in lookup.groups if view.limiting]
    assert {view.group.kind for view in limiting} == {"sliding"}
    assert all(
        view.cached == ((168, 201),) and view.needed == (166, 199) and view.missing == ((166, 168),)
        for view in limiting
    )
    found = explain(trace, row["request_id"])
    assert found.cause == "windows_dont_meet"
    assert "166–167" in found.sentence
    assert "--prefix-cache-retention-interval" in found.remedy
    assert "0.30.0" in found.remedy


def test_metrics_and_usage_agree_in_every_send(bench: Bench) -> None:
    """On an idle server ``/metrics`` counts the same hit as ``usage``, send by send."""
    bench.hits(Setting(), LENGTHS)
    sends = frames.sends(bench.investigation.path)
    assert len(sends) >= 3 * len(LENGTHS)
    assert sends["metrics_agree"].fillna(False).all()


def test_the_same_prompts_come_out_token_exact(bench: Bench) -> None:
    """The server counts exactly the prompt tokens that were asked for."""
    bench.hits(Setting(), LENGTHS)
    sends = frames.sends(bench.investigation.path)
    assert (sends["prompt_tokens"] == sends["tokens"]).all()


def test_cold_sends_are_cold(bench: Bench) -> None:
    """Under a salt of its own the first send of every series hits nothing, though other series sent the same text."""
    bench.hits(Setting(), LENGTHS)
    sends: pd.DataFrame = frames.sends(bench.investigation.path)
    assert (sends.loc[sends["send"] == "cold", "cached_tokens"] == 0).all()


def test_the_trace_holds_no_text_and_no_token(bench: Bench) -> None:
    """Nothing of a prompt is in the trace files."""
    bench.hits(Setting(), (640,))
    text = "".join(file.read_text() for file in Path(bench.investigation.path / "trace").glob("*.jsonl"))
    assert "scheduler keeps" not in text
    assert "token_ids" not in text
