"""The oldest and the newest release that the tracer knows, on their own schedulers: neither is served here.

0.33.0 has no CPU build: its scheduler comes out of the GPU wheel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from driving import Driven, drive

from prefixscope import engine as engines
from prefixscope.diagnosis import explain
from prefixscope.kit import kit_environment, write_kit
from prefixscope.trace import Trace

pytestmark = pytest.mark.engine

FULL_16 = {"groups": [{"kind": "full", "block_size": 16}], "scheduler_block": 16, "hash_block": 16}
SCENARIOS: list[dict[str, Any]] = [
    {
        "geometry": "gemma-16-64",
        "interval": 0,
        "sends": [{"id": f"incident-{send}", "tokens": 6392} for send in (1, 2, 3)],
    },
    {
        "geometry": "gemma-16-64",
        "interval": None,
        "sends": [{"id": f"dense-{send}", "tokens": 9887} for send in (1, 2)],
    },
    {
        "geometry": FULL_16,
        "interval": None,
        "mtp": False,
        "pool": 150,
        "sends": [
            {"id": "early", "tokens": 1600},
            {"id": "crowd", "tokens": 2000, "base": 5000},
            {"id": "early-again", "tokens": 1600},
        ],
    },
]


@dataclass(frozen=True)
class Release:
    """One release: its engine, what was driven, the trace."""

    version: str
    can_serve: bool
    driven: Driven
    trace: Trace


@pytest.fixture(scope="module", params=["0.28.0", "0.33.0"])
def release(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, engine: engines.Engine
) -> Release:
    # The default engine first: a release without a CPU build borrows its PyTorch.
    found = engines.ensure(request.param, progress=print)
    folder = tmp_path_factory.mktemp("release")
    environment = {**found.environment(), **kit_environment(write_kit(folder / "kit"), folder / "trace")}
    driven = drive(str(found.python), found.model.target.parent, folder, SCENARIOS, environment)
    return Release(found.version, found.can_serve, driven, driven.trace)


def test_hits(release: Release) -> None:
    """0.28.0 with the variable at 0 has the incident; 0.33.0 looks ahead in its hashes and gives up nothing."""
    hits = release.driven.hits
    incident, dense = {"0.28.0": ([0, 0, 6272], 9792), "0.33.0": ([0, 6336, 6336], 9856)}[release.version]
    assert [hits[f"incident-{send}"] for send in (1, 2, 3)] == incident
    assert hits["dense-2"] == dense


def test_every_hit_is_in_the_trace(release: Release) -> None:
    """For every request the trace says the hit that the scheduler used, and has no warning."""
    assert release.trace.warnings == ()
    for name, hit in release.driven.hits.items():
        lookup = release.trace.lookup(name)
        assert lookup is not None
        assert (lookup.hit_tokens, lookup.cached_tokens) == (hit, hit)
        assert lookup.header.version.startswith(release.version)


def test_causes(release: Release) -> None:
    """The causes are this release's own, and so is the remedy."""
    second = explain(release.trace, "incident-2")
    if release.version == "0.28.0":
        assert second.cause == "windows_dont_meet"
        assert "VLLM_PREFIX_CACHE_RETENTION_INTERVAL" in second.remedy
        assert explain(release.trace, "dense-2").cause == "spec_drop"
    else:
        assert second.cause == "full_hit"
        assert explain(release.trace, "dense-2").cause == "full_hit"


def test_evictions_have_positions(release: Release) -> None:
    """Evicted blocks and their positions are recorded, and the lookup that needs them finds them."""
    again = release.trace.lookup("early-again")
    assert again is not None
    assert again.groups[0].evicted == again.groups[0].missing == ((24, 99),)
    assert explain(release.trace, "early-again").cause == "evicted"
    own = [one for one in release.trace.evictions if one.engine == again.header.engine and one.t <= again.t]
    assert [(one.gid, one.blocks, one.ranges) for one in own] == [(0, 76, ((24, 100),))]


def test_only_builds_for_a_cpu_can_serve(release: Release) -> None:
    """Of these two, 0.28.0 has a CPU build."""
    assert release.can_serve == (release.version == "0.28.0")
