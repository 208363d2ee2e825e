"""The tracer inside a real vLLM: its scheduler, driven without weights, and what the reader makes of the trace."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from driving import Driven, drive

from prefixscope.diagnosis import explain
from prefixscope.kit import TRACE_DIRECTORY, kit_environment, write_kit
from prefixscope.trace import Lookup, Trace, ranges_text

pytestmark = pytest.mark.engine


def repeat(name: str, tokens: int, times: int = 3, **more: Any) -> list[dict[str, Any]]:
    return [{"id": f"{name}-{send}", "tokens": tokens, **more} for send in range(1, times + 1)]


SCENARIOS: list[dict[str, Any]] = [
    {"geometry": "gemma-16-64", "interval": 0, "sends": repeat("incident", 6392)},
    {"geometry": "gemma-32-64", "interval": 0, "sends": repeat("cpu", 6446)},
    {"geometry": "gemma-32-64", "interval": None, "sends": repeat("dense", 6446, 2)},
    {"geometry": "gemma-16-64", "interval": 1024, "sends": repeat("workaround", 9887, 2)},
    {"geometry": "gemma-16-64", "interval": 4096, "sends": repeat("coarse", 6392, 2)},
    {"geometry": "gemma-16-64", "interval": 0, "mtp": False, "sends": repeat("plain", 6392, 2)},
    {
        "geometry": "gemma-16-64",
        "interval": 0,
        "sends": [*repeat("short", 1000, 2), *repeat("tiny", 100, 2, base=500), *repeat("edge", 193, 2, base=900)],
    },
    {
        # A pool that one other prompt fills.
        "geometry": "gemma-16-64",
        "interval": None,
        "mtp": False,
        "pool": 2400,
        "sends": [
            {"id": "first", "tokens": 6392},
            {"id": "crowd-1", "tokens": 6392, "base": 10000},
            {"id": "crowd-2", "tokens": 6392, "base": 18000},
            {"id": "again", "tokens": 6392},
        ],
    },
    {
        "geometry": "gemma-16-64",
        "interval": 0,
        "mtp": False,
        "sends": [
            {"id": "document", "tokens": 6392},
            {"id": "other-ending", "tokens": 6392, "differs_at": 5000},
            {"id": "salted", "tokens": 6392, "salt": "pepper"},
            "reset",
            {"id": "after-reset", "tokens": 6392},
        ],
    },
    {"geometry": "single", "interval": None, "mtp": True, "sends": repeat("single", 1000, 2)},
    {"geometry": "two-full", "interval": 0, "mtp": False, "sends": repeat("two-full", 3000, 2)},
    {"geometry": "hybrid-64", "interval": 0, "mtp": False, "sends": repeat("hybrid", 3000, 2)},
    {
        # More prompts than the pool can hold at once: some wait and are looked up again and again.
        "geometry": "gemma-16-64",
        "interval": 0,
        "pool": 2200,
        "sends": [[{"id": f"queue-{n}", "tokens": 6000, "base": n * 7, "max_tokens": 150} for n in range(4)]],
    },
    {"geometry": "gemma-16-64", "interval": 0, "caching": False, "sends": repeat("uncached", 2000, 1)},
]


@pytest.fixture(scope="module")
def driven(engine_python: str, model_dir: Path, kit: Path, tmp_path_factory: pytest.TempPathFactory) -> Driven:
    folder = tmp_path_factory.mktemp("driven")
    return drive(engine_python, model_dir, folder, SCENARIOS, kit_environment(kit, folder / "trace"))


@pytest.fixture(scope="module")
def trace(driven: Driven) -> Trace:
    return driven.trace


def look(trace: Trace, request_id: str) -> Lookup:
    lookup = trace.lookup(request_id)
    assert lookup is not None
    return lookup


def test_tracing_changes_no_hit(engine_python: str, model_dir: Path, driven: Driven, tmp_path: Path) -> None:
    """Every hit is the same without the tracer, and nothing is written when the variable is unset."""
    plain = drive(engine_python, model_dir, tmp_path, SCENARIOS, {TRACE_DIRECTORY: ""})
    assert plain.hits == driven.hits
    assert not plain.folder.exists()


def test_every_hit_is_in_the_trace(driven: Driven, trace: Trace) -> None:
    """For every request the trace says the hit that the scheduler used."""
    for name, hit in driven.hits.items():
        if name.startswith(("queue", "uncached")):
            continue
        lookup = look(trace, name)
        assert (lookup.hit_tokens, lookup.admitted_tokens) == (hit, hit), name
    assert trace.warnings == ()


@pytest.mark.parametrize(
    ("request_id", "needed", "cached", "missing", "candidate"),
    [
        ("incident-2", (328, 393), "332–396", "328–331", 6272),
        ("cpu-2", (166, 199), "168–200", "166–167", 6336),
    ],
)
def test_incident_blocks(
    trace: Trace, request_id: str, needed: tuple[int, int], cached: str, missing: str, candidate: int
) -> None:
    """On the second send the sliding groups limit the hit, and the missing blocks are the incident's."""
    lookup = look(trace, request_id)
    assert lookup.hit_tokens == 0
    assert lookup.limiting == (0, 1, 2, 3, 4)
    assert lookup.candidate_tokens == lookup.junction_tokens == candidate
    for view in lookup.groups[:5]:
        assert (view.needed, ranges_text(view.cached), ranges_text(view.missing)) == (needed, cached, missing)
    assert lookup.groups[5].missing == ()


@pytest.mark.parametrize(
    ("request_id", "cause", "hit"),
    [
        ("incident-1", "cold", 0),
        ("incident-2", "windows_dont_meet", 0),
        ("incident-3", "third_send", 6272),
        ("dense-2", "spec_drop", 6336),
        ("workaround-2", "spec_drop", 9792),
        ("coarse-2", "interval_too_long", 4096),
        ("plain-2", "full_hit", 6336),
        ("short-2", "spec_drop", 832),
        ("tiny-2", "cannot_hit", 0),
        ("edge-2", "spec_drop", 64),
        ("again", "evicted", 0),
        ("other-ending", "shared_part", 0),
        ("salted", "cold", 0),
        ("after-reset", "cache_reset", 0),
        ("single-2", "spec_drop", 976),
        ("two-full-2", "full_hit", 2944),
        ("hybrid-2", "full_hit", 2944),
    ],
)
def test_causes(trace: Trace, request_id: str, cause: str, hit: int) -> None:
    """Each miss has its own cause, told apart from its neighbours."""
    diagnosis = explain(trace, request_id)
    assert (diagnosis.cause, look(trace, request_id).hit_tokens) == (cause, hit), diagnosis


def test_salted_repeat_is_told_apart(trace: Trace) -> None:
    """A repeat under another salt shares no block with the request that it should repeat."""
    assert explain(trace, "salted", repeat_of="document").cause == "prompts_differ"


def test_incident_sentence(trace: Trace) -> None:
    """The sentence names the groups, the needed, stored and missing blocks, the release, the remedy and its price."""
    diagnosis = explain(trace, "incident-2")
    for part in ("sliding-window", "6,272", "328–392", "332–396", "328–331", "0.29.0", "6,336"):
        assert part in diagnosis.sentence
    assert "--prefix-cache-retention-interval" in diagnosis.remedy
    assert "vllm#53945" in diagnosis.remedy
    assert "times" in diagnosis.price


def test_shortest_prompt_is_the_engines_own_answer(trace: Trace) -> None:
    """The minimum cacheable prefix is what vLLM's lookup gives when everything is cached."""
    by_request = {name: look(trace, name).header.min_prompt_tokens for name in ("incident-1", "plain-1", "tiny-1")}
    assert by_request == {"incident-1": 193, "plain-1": 65, "tiny-1": 193}
    assert "193" in explain(trace, "tiny-2").sentence


def test_kept_blocks(trace: Trace) -> None:
    """A cold prompt keeps 33 blocks per sliding group at interval 0 and all 201 when dense."""
    assert [one.blocks for one in trace.kept("cpu-1")] == [33] * 5 + [100]
    assert [one.blocks for one in trace.kept("dense-1")] == [201] * 5 + [100]
    assert all(one.bytes is not None and one.bytes % one.blocks == 0 for one in trace.kept("cpu-1"))


def test_store_says_what_it_aimed_at(trace: Trace) -> None:
    """The store side's dropped blocks and boundaries are recorded."""
    sliding = trace.stored("incident-1")[0]
    assert (sliding.kept, sliding.dropped, sliding.boundaries) == (((332, 397),), ((0, 332),), (6391,))


def test_header(trace: Trace) -> None:
    """The header says release, groups, units, pool, interval and speculative method as the engine resolved them."""
    header = look(trace, "incident-1").header
    assert header.version.startswith("0.29.0")
    assert [(group.kind, group.block_size, group.window) for group in header.groups] == [
        *[("sliding", 16, 1024)] * 5,
        ("full", 64, None),
    ]
    assert (header.scheduler_block, header.hash_block, header.pool_blocks) == (64, 16, 20000)
    assert (header.interval, header.spec_method, header.spec_tokens) == (0, "mtp", 7)
    assert header.drop_groups == (0, 1, 2, 3, 4, 5)
    assert look(trace, "dense-1").header.interval == "dense"


def test_queue_is_scanned_once(driven: Driven, trace: Trace) -> None:
    """A request that waits is looked up many times and recorded only when its answer changes."""
    waiting = [one for one in trace.lookups if one.request_id.startswith("queue") and one.retries]
    assert waiting
    assert max(one.retries for one in waiting) > 10
    for number in range(4):
        assert len(trace.all_lookups(f"queue-{number}")) <= 5


def test_nothing_of_the_prompt_is_written(driven: Driven) -> None:
    """No event has a field that could hold tokens or text."""
    names: set[str] = set()
    for path in driven.folder.glob("*.jsonl"):
        for line in path.read_text(encoding="utf-8").splitlines():
            names |= set(json.loads(line))
    assert not names & {"token_ids", "prompt", "text", "hash", "hashes", "block_hashes"}


def test_unknown_release_turns_itself_off(
    engine_python: str, model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A release that the kit does not know is not patched; the log and the trace say so by name."""
    kit = write_kit(tmp_path / "kit")
    versions = kit / "prefixscope_inside" / "versions.py"
    versions.write_text(versions.read_text(encoding="utf-8").replace("(0, 29), ", ""), encoding="utf-8")
    driven = drive(engine_python, model_dir, tmp_path, SCENARIOS[:1], kit_environment(kit, tmp_path / "trace"))
    assert driven.hits["incident-3"] == 6272
    assert "tracing is off" in driven.log
    trace = driven.trace
    assert [code for code, _ in trace.warnings] == ["off"]
    assert "0.29.0" in trace.warnings[0][1]
    assert trace.lookups == ()


def test_failing_hook_never_reaches_the_engine(engine_python: str, model_dir: Path, tmp_path: Path) -> None:
    """An exception inside a hook turns tracing off with one log line, and the engine serves on."""
    kit = write_kit(tmp_path / "kit")
    ranges = kit / "prefixscope_inside" / "ranges.py"
    ranges.write_text(
        ranges.read_text(encoding="utf-8") + "\n\ndef union(left, right):\n    raise KeyError('broken')\n"
    )
    driven = drive(engine_python, model_dir, tmp_path, SCENARIOS[:1], kit_environment(kit, tmp_path / "trace"))
    assert driven.hits == {"incident-1": 0, "incident-2": 0, "incident-3": 6272}
    assert driven.log.count("tracing is off") == 1
    assert [code for code, _ in driven.trace.warnings] == ["off"]
