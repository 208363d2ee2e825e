"""A workload through vLLM's own scheduler: what it hits in an endless pool and in finite ones."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from prefixscope import engine as engines
from prefixscope import frames
from prefixscope.errors import ReplayError
from prefixscope.replay import (
    EXAMPLE,
    Geometry,
    Pressure,
    PressureRow,
    Replayer,
    ServerSetting,
    Workload,
    open_release,
    read_workload,
)
from prefixscope.resources import data_path
from prefixscope.sections import pressed

pytestmark = pytest.mark.engine

RELEASE = "0.29.0"
GEMMA = Geometry.from_json(
    {
        "groups": [
            {"kind": "sliding", "block_size": 16, "window": 1024, "count": 5},
            {"kind": "full", "block_size": 64},
        ]
    }
)


@pytest.fixture(scope="module")
def warm() -> Iterator[Replayer]:
    engines.ensure(RELEASE, progress=print)
    with open_release(RELEASE) as replayer:
        yield replayer


@pytest.fixture(scope="module")
def example() -> Workload:
    return read_workload(EXAMPLE)


def ask(workload: Workload, geometry: Geometry = GEMMA, **more: object) -> Pressure:
    given: dict[str, object] = {"pools": (None,), "intervals": (0,), "releases": (RELEASE,), **more}
    setting = given.pop("setting", ServerSetting(drafter_tokens=7))
    return Pressure(workload=workload, geometry=geometry, setting=setting, **given)  # type: ignore[arg-type]


def ideal_tokens() -> int:
    """Tokens that a cache of 512-token blocks which forgets nothing would hit, counted from the file alone."""
    seen: set[int] = set()
    found = 0
    for line in (data_path("traces") / "mooncake-conversation-excerpt.jsonl").read_text().splitlines():
        row = json.loads(line)
        whole = row["hash_ids"][: row["input_length"] // 512]
        known = next((place for place, block in enumerate(whole) if block not in seen), len(whole))
        found += 512 * min(known, (row["input_length"] - 1) // 512)
        seen |= set(whole)
    return found


def test_endless_pool_hits_all_that_was_seen(warm: Replayer, example: Workload) -> None:
    """Without a drafter and with blocks as large as the trace's, an endless pool hits every block that came before."""
    geometry = Geometry.from_json({"groups": [{"kind": "full", "block_size": 512}]})
    # One generated token an answer is quicker.
    quick = replace(example, requests=tuple(replace(one, answer=None) for one in example.requests))
    asked = ask(quick, geometry, setting=ServerSetting(), intervals=(None,))
    (row,) = asked.replay(replayer=warm)
    assert row.cached_tokens == ideal_tokens() > 1_000_000
    assert (row.prompt_tokens, row.evicted_blocks, row.warm) == (example.tokens, 0, example.follow_ups)


def test_the_best_interval_depends_on_the_pool(warm: Replayer, example: Workload, tmp_path: Path) -> None:
    """Dense retention doubles the hit rate in a large pool and lowers it in a small one; a rerun replays nothing."""
    asked = ask(example, pools=(12_000, 190_000), intervals=(0, "dense"))
    told: list[dict[str, object]] = []
    rows = {
        (row.pool_blocks, row.interval): row
        for row in asked.replay(replayer=warm, store=tmp_path / "rows.jsonl", progress=told.append)
    }
    rate = {key: row.hit_rate or 0 for key, row in rows.items()}
    assert rate[190_000, "dense"] > 2 * rate[190_000, 0]
    assert rate[12_000, "dense"] < 0.8 * rate[12_000, 0]
    assert all((row.retained_blocks or 0) < (row.pool_blocks or 0) for row in rows.values())
    assert (rows[12_000, "dense"].warm or 0) < (rows[12_000, 0].warm or 0) < example.follow_ups
    harm = pressed(frames.pressed(list(rows.values())), asked).after[-1]
    assert "lowers the hit rate of this workload" in harm
    assert told[-1]["step"] == told[-1]["steps"] == 4
    assert any(isinstance(one["left_s"], float) and one["left_s"] > 0 for one in told)
    again = {(row.pool_blocks, row.interval): row for row in asked.replay(store=tmp_path / "rows.jsonl")}
    assert again == rows


def test_a_pool_too_small_for_one_request_is_refused_in_words(warm: Replayer, example: Workload) -> None:
    """The request is named with its length, the pool with its size, and what to do stands beside it."""
    with pytest.raises(
        ReplayError, match=r"pool of 10 blocks its scheduler never ends request 1 \([\d,]+ tokens\)"
    ) as caught:
        list(ask(example.first(2), pools=(10,)).replay(replayer=warm))
    assert "--pool-blocks" in caught.value.remedy


def test_in_flight_together_evicts_more(warm: Replayer, example: Workload) -> None:
    """Requests in flight together are all served, and hold blocks that a cache could use."""
    first = example.first(60)
    pair = [next(iter(ask(first, pools=(9_000,), concurrency=n).replay(replayer=warm))) for n in (1, 8)]
    assert [row.requests for row in pair] == [60, 60]
    assert (pair[1].hit_rate or 0) <= (pair[0].hit_rate or 0)


def test_refused_setting_is_a_row_with_its_reason(warm: Replayer, example: Workload) -> None:
    """A setting that the release refuses leaves the others alone; where it refuses all, that is the error."""
    rows = list(ask(example.first(2), pools=(5_000,), intervals=(1000, 1024)).replay(replayer=warm))
    refused = {row.interval: row.refused for row in rows}
    assert "refuses the retention interval 1,000" in refused[1000]
    assert refused[1024] == ""
    with pytest.raises(ReplayError, match="refuses the retention interval 1,000"):
        list(ask(example.first(2), intervals=(1000,)).replay(replayer=warm))


def test_stopping_early_ends_the_workers(example: Workload) -> None:
    """Rows come as they are made, and who stops listening leaves no worker behind."""
    before = threading.active_count()
    rows = ask(example.first(20), pools=(5_000, 6_000, 7_000), intervals=(0, "dense")).replay(workers=1)
    assert isinstance(next(rows), PressureRow)
    rows.close()  # type: ignore[attr-defined]
    left = [thread for thread in threading.enumerate() if thread.name.startswith("pressure")]
    assert (left, threading.active_count() <= before + 1) == ([], True)


def test_release_that_is_not_installed(example: Workload) -> None:
    """A release that is not installed is refused before anything starts, with the command that installs it."""
    with pytest.raises(ReplayError, match=r"prefixscope engine install 0\.12\.0"):
        next(iter(ask(example, releases=("0.12.0",)).replay()))
