"""Speculative decoding on vLLM 0.29.0, from the rows of the quick run: no server is started for these."""

from __future__ import annotations

import re
from typing import Any

import pandas as pd
import pytest
from bench import QuickRun

from prefixscope import conclusions, frames, trade
from prefixscope.prompts import SHAPES
from prefixscope.run_files import read_rows

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def rows(quick_run: QuickRun) -> list[dict[str, Any]]:
    """Every streamed answer."""
    found = list(read_rows(quick_run.path / "raw" / "speculation.jsonl"))
    return [row for row in found if row["kind"] == "generation"]


@pytest.fixture(scope="module")
def drafted(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those of the server with the drafter."""
    return [row for row in rows if row["setting"]["drafter"]]


def test_both_servers_answered_every_prompt_in_turns(rows: list[dict[str, Any]]) -> None:
    """Five shapes, twice each, on the server with the drafter and on the one without, in turns where both fit."""
    asked = {(row["arm"], row["shape"], row["repeat"]) for row in rows if row["status"] == "ok"}
    assert asked == {(arm, shape, repeat) for arm in "AB" for shape in SHAPES for repeat in (1, 2)}
    assert all(row["cached_tokens"] == 0 for row in rows)
    assert len({row["interleaved"] for row in rows}) == 1


def test_counters_and_answers_agree_token_for_token(drafted: list[dict[str, Any]]) -> None:
    """Drafts, drafted, accepted and accepted by place: the answer's own metrics are the counters' difference."""
    for row in drafted:
        own, counted = row["per_request"], row["counters"]
        names = ("drafts", "drafted", "accepted", "per_position")
        assert {name: own[name] for name in names} == {name: counted[name] for name in names}
        assert counted["generated"] == row["completion_tokens"]
        assert counted["prompted"] == row["prompt_tokens"]
        assert row["disturbed"] is False


def test_usage_counts_tokens_and_the_stream_steps(drafted: list[dict[str, Any]]) -> None:
    """Tokens of all chunks are those of usage; after the first chunk there is at most one for each draft."""
    for row in drafted:
        assert sum(row["chunk_tokens"]) == row["completion_tokens"] == len(row["token_ids"])
        # A server that is ahead of its reader sends two steps in one chunk.
        assert 1 < row["chunks"] <= 1 + row["counters"]["drafts"]
        # The last step may accept more than the answer had room for.
        assert row["completion_tokens"] <= 1 + row["counters"]["drafts"] + row["counters"]["accepted"]


def test_without_a_drafter_no_speculation_is_seen(rows: list[dict[str, Any]]) -> None:
    """The other server has no such counters: acceptance is unknown there, not 0 %, and a chunk is a token or more."""
    plain = [row for row in rows if not row["setting"]["drafter"]]
    assert all(row["per_request"] is None and row["counters"]["drafts"] is None for row in plain)
    assert all(1 < row["chunks"] <= row["completion_tokens"] for row in plain)


def test_greedy_answers_are_the_same_with_and_without(quick_run: QuickRun) -> None:
    """In float32 a drafter changes no token of a greedy answer, and asking twice changes none either."""
    pairs = frames.output_pairs(quick_run.path)
    assert set(pairs["pair"]) == {"A / A", "B / B", "A / B"}
    assert len(pairs) == 3 * len(SHAPES)
    assert pairs["identical"].all()


def test_the_trade_uses_what_the_baseline_measured(quick_run: QuickRun) -> None:
    """The long prompt's hits are the baseline's, no server was started for them, and the verdict has both halves."""
    resends = frames.resends(quick_run.path)
    assert set(resends["taken_from"]) == {"baseline"}
    long = resends[(resends["tokens"] == 6_446) & (resends["index"] == 2)].set_index("arm")["cached_tokens"]
    assert long.to_dict() == {"A": 0, "B": 6_400}
    found = trade.of_run(quick_run.path)
    assert found is not None
    assert found.lost_s.value > 0
    text = conclusions.speculation(quick_run.path).text
    assert re.search(r"where the second send hits .*\b0 .*6,400", text)
    assert not pd.isna(
        frames.record(frames.generations(quick_run.path), frames.headrooms(quick_run.path))["a"].iloc[-1]
    )
