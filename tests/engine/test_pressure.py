"""Causes that need company: a full pool, a queue, a second rank, a connector. On vLLM's own scheduler."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from driving import Driven, drive

from prefixscope.diagnosis import explain
from prefixscope.kit import kit_environment
from prefixscope.trace import Trace, intersect

pytestmark = pytest.mark.engine

FULL_16 = {"groups": [{"kind": "full", "block_size": 16}], "scheduler_block": 16, "hash_block": 16}
FINE = {
    "groups": [{"kind": "mamba", "block_size": 64}, {"kind": "full", "block_size": 64}],
    "scheduler_block": 64,
    "hash_block": 16,
}
PLAIN: dict[str, Any] = {"geometry": FULL_16, "mtp": False}
SCENARIOS: list[dict[str, Any]] = [
    {
        # The second of two requests waits for room while the first one's answer grows over its cached blocks.
        **PLAIN,
        "pool": 200,
        "sends": [
            {"id": "warm", "tokens": 1600},
            [
                {"id": "busy", "tokens": 1500, "base": 5000, "max_tokens": 600},
                {"id": "waits", "tokens": 3000},
            ],
        ],
    },
    {
        **PLAIN,
        "pool": 210,
        "sends": [
            [
                {"id": "stays", "tokens": 1500, "base": 5000, "max_tokens": 400},
                {"id": "preempted", "tokens": 1500, "base": 9000, "max_tokens": 400},
            ],
            {"id": "after-preemption", "tokens": 1500, "base": 9000},
        ],
    },
    {
        **PLAIN,
        "pool": 150,
        "sends": [
            {"id": "early", "tokens": 1600},
            {"id": "crowd", "tokens": 2000, "base": 5000},
            {"id": "early-again", "tokens": 1600},
            {"id": "never-sent", "tokens": 1600, "base": 20000},
        ],
    },
    {
        # So many small prompts that the engine's tracer forgets the first one's name, and the pool its blocks.
        **PLAIN,
        "pool": 150,
        "sends": [
            {"id": "long-ago", "tokens": 1600},
            *({"id": f"small-{number}", "tokens": 40, "base": 5000 + 50 * number} for number in range(130)),
            {"id": "long-ago-again", "tokens": 1600},
        ],
    },
    {**PLAIN, "sends": [{"id": "before", "tokens": 1600}, "reset", {"id": "after", "tokens": 1600}]},
    {**PLAIN, "rank": 0, "sends": [{"id": "on-rank-0", "tokens": 1600}]},
    {**PLAIN, "rank": 1, "sends": [{"id": "on-rank-1", "tokens": 1600}, {"id": "rank-1-again", "tokens": 1600}]},
    {
        "geometry": FINE,
        "mtp": False,
        "interval": None,
        "sends": [{"id": "local", "tokens": 1000}, {"id": "local-again", "tokens": 1000}],
    },
    {
        "geometry": FINE,
        "mtp": False,
        "interval": None,
        "remote_tokens": 36,
        "sends": [{"id": "connected", "tokens": 1000}, {"id": "superseded", "tokens": 1000}],
    },
]


@pytest.fixture(scope="module")
def driven(engine_python: str, model_dir: Path, kit: Path, tmp_path_factory: pytest.TempPathFactory) -> Driven:
    folder = tmp_path_factory.mktemp("pressure")
    return drive(engine_python, model_dir, folder, SCENARIOS, kit_environment(kit, folder / "trace"))


@pytest.fixture(scope="module")
def trace(driven: Driven) -> Trace:
    return driven.trace


@pytest.mark.parametrize(
    ("request_id", "repeat_of", "cause", "hit", "says"),
    [
        ("waits", None, "retried", 1072, "first told 1,600 cached tokens"),
        ("early-again", None, "evicted", 384, "24–98"),
        ("never-sent", None, "cold", 0, "first send"),
        ("long-ago-again", None, "evicted", 0, "0–98 of this prompt"),
        ("after", None, "cache_reset", 0, "reset"),
        ("on-rank-1", "on-rank-0", "other_engine", 0, "rank 0"),
        ("on-rank-1", None, "cold", 0, "went to another engine"),
        ("rank-1-again", None, "full_hit", 1584, ""),
        ("local-again", None, "full_hit", 992, ""),
        ("superseded", None, "hit_not_used", 992, "used 960 of them, because a KV connector supplied the 36"),
        ("after-preemption", None, "full_hit", 1488, ""),
    ],
)
def test_causes(trace: Trace, request_id: str, repeat_of: str | None, cause: str, hit: int, says: str) -> None:
    """A queue, a full pool, a reset, another rank and a connector each have their own cause, with the numbers."""
    diagnosis, lookup = explain(trace, request_id, repeat_of=repeat_of), trace.lookup(request_id)
    assert lookup is not None
    assert (diagnosis.cause, lookup.hit_tokens) == (cause, hit), diagnosis
    assert says in diagnosis.sentence


def test_preempted_request(driven: Driven, trace: Trace) -> None:
    """A preempted request keeps the cause of its first admission, and the evidence says what was computed twice."""
    diagnosis = explain(trace, "preempted")
    assert diagnosis.cause == "cold"
    assert any("admitted again with 1,440 of 1,665 tokens cached: the other 225" in line for line in diagnosis.evidence)
    assert [one.kind for one in trace.incidents if one.request_id == "preempted"] == ["preempt", "retry"]
    numbers = [one.number for one in trace.all_lookups("preempted")]
    assert numbers == sorted(set(numbers))


def test_nothing_is_amiss_in_the_trace(driven: Driven, trace: Trace) -> None:
    """Pressure leaves no warning, and the trace says the hit that every request was admitted with."""
    assert trace.warnings == ()
    for name, hit in driven.hits.items():
        lookup = trace.lookup(name)
        assert lookup is not None
        assert lookup.cached_tokens == hit


def test_what_a_connector_supplied_is_told(trace: Trace) -> None:
    """Tokens from a KV connector are apart from the hit, and the evidence says that usage counts both."""
    first = trace.lookup("connected")
    assert first is not None
    assert (first.hit_tokens, first.admitted_tokens, first.external_tokens) == (0, 0, 36)
    diagnosis = explain(trace, "connected")
    assert diagnosis.cause == "cold"
    assert any("supplied 36 tokens" in line and "counts 36 as cached" in line for line in diagnosis.evidence)


def test_evicted_blocks_are_this_prompts_own(trace: Trace) -> None:
    """A lookup finds the evicted blocks of its own prompt, and none of another prompt that had the same positions."""
    again, new = trace.lookup("early-again"), trace.lookup("never-sent")
    assert again is not None
    assert new is not None
    assert again.groups[0].evicted == again.groups[0].missing == ((24, 99),)
    assert again.evicted_s is not None
    assert new.groups[0].missing == ((0, 99),)
    assert new.groups[0].evicted == ()
    before = [one for one in trace.evictions if one.engine == new.header.engine and one.t <= new.t]
    assert intersect([(0, 99)], before[0].ranges)


def test_evictions_have_positions(trace: Trace) -> None:
    """What a crowd evicted of one earlier prompt is recorded as ranges of that prompt's blocks."""
    again = trace.lookup("early-again")
    assert again is not None
    own = [one for one in trace.evictions if one.engine == again.header.engine and one.t <= again.t]
    assert [(one.gid, one.blocks, one.ranges) for one in own] == [(0, 76, ((24, 100),))]


def test_a_forgotten_prompt_still_counts_as_missed(trace: Trace) -> None:
    """Evicted blocks show that a prompt was computed before, though no earlier request is remembered."""
    again = trace.lookup("long-ago-again")
    assert again is not None
    assert again.closest_id is None
    assert again.missed_tokens == again.full_tokens == 1584
