"""Causes that need company: a full pool, a queue, a second rank, a connector. On vLLM's own scheduler."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from driving import Driven, drive

from prefixscope.diagnosis import explain
from prefixscope.kit import kit_environment
from prefixscope.trace import Trace

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
        ("after", None, "cache_reset", 0, "reset"),
        ("on-rank-1", "on-rank-0", "other_engine", 0, "rank 0"),
        ("on-rank-1", None, "cold", 0, "went to another engine"),
        ("rank-1-again", None, "full_hit", 1584, ""),
        ("local-again", None, "full_hit", 992, ""),
        ("superseded", None, "hit_not_used", 992, "the admission used 960"),
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
        # What a connector loads is not the prefix cache's.
        external = 36 if name in ("connected", "superseded") else 0
        assert lookup.admitted_tokens == hit - external
