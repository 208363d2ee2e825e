"""Public reports of hits, replayed on vLLM's own scheduler with the tracer on: the hit and the cause must agree."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from prefixscope import engine as engines
from prefixscope.diagnosis import explain
from prefixscope.replay import Geometry, Request, ServerSetting, open_release
from prefixscope.trace import Trace, read_trace

pytestmark = pytest.mark.engine

FILE = Path(__file__).parents[2] / "data" / "cases" / "hit-lengths.json"
CASES: list[dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8"))["cases"]
ARMS = [(case["id"], number, arm) for case in CASES for number, arm in enumerate(case["arms"])]
LEFT_OUT = [case for case in CASES if not case["arms"]]


def requests(case_id: str, number: int, arm: dict[str, Any]) -> list[Request]:
    """The sends of one arm, named by case, arm and place."""
    found = []
    for place, send in enumerate(arm["sends"], start=1):
        text, tokens = f"conversation {send.get('conversation', 0)}", send["tokens"]
        shared = send.get("shared", tokens)
        segments = ((text, shared), (f"ending {place}", tokens - shared)) if shared < tokens else ((text, tokens),)
        found.append(Request(id=f"{case_id}-{number}-{place}", segments=segments))
    return found


@dataclass(frozen=True)
class Replayed:
    """All arms of one release: hits by request, and what the tracer wrote."""

    hits: dict[str, int]
    trace: Trace


@pytest.fixture(scope="module")
def replayed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Replayed]:
    """Every arm of a release, in one engine process that is started when the first of them is asked for."""
    done: dict[str, Replayed] = {}

    def run(release: str) -> Replayed:
        if release not in done:
            engines.ensure(release, progress=print)
            folder = tmp_path_factory.mktemp("cases")
            hits: dict[str, int] = {}
            with open_release(release, trace_dir=folder) as replayer:
                for case_id, number, arm in ARMS:
                    if arm["release"] == release:
                        setting = ServerSetting(
                            interval=arm["interval"],
                            drafter_tokens=arm["drafter_tokens"],
                            pool_blocks=arm["pool"],
                            max_batched_tokens=arm["batch"],
                        )
                        geometry = Geometry.from_json(arm["geometry"])
                        outcome = replayer.replay(geometry, setting, requests(case_id, number, arm))
                        hits |= {row.id: row.hit_tokens for row in outcome.rows}
            done[release] = Replayed(hits, read_trace(folder))
        return done[release]

    return run


@pytest.mark.parametrize(
    ("case_id", "number", "arm"), ARMS, ids=[f"{case_id}: {arm['name']}" for case_id, _, arm in ARMS]
)
def test_case(replayed: Callable[[str], Replayed], case_id: str, number: int, arm: dict[str, Any]) -> None:
    """Hit and cause of every send are those of the report, or those that the file gives for the replayed release."""
    found = replayed(arm["release"])
    for want in arm["expected"]:
        name = f"{case_id}-{number}-{want['send']}"
        lookup, diagnosis = found.trace.lookup(name), explain(found.trace, name)
        assert lookup is not None
        assert (found.hits[name], diagnosis.cause) == (want["replayed"], want["cause"]), diagnosis
        assert lookup.hit_tokens == lookup.admitted_tokens == want["replayed"]
        assert lookup.header.version.startswith(arm["release"])
        if "shortest" in want:
            assert lookup.header.min_prompt_tokens == want["shortest"]
            assert f"{want['shortest']:,} tokens" in diagnosis.sentence
        assert want.get("says", "") in diagnosis.sentence


def test_traces_of_the_cases_are_whole(replayed: Callable[[str], Replayed]) -> None:
    """No case leaves a warning in its trace."""
    for release in sorted({arm["release"] for _, _, arm in ARMS}):
        assert replayed(release).trace.warnings == ()


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_each_case_is_replayed_or_says_why_not(case: dict[str, Any]) -> None:
    """A case has arms that are driven, or a reason; where the replay differs from the report, a note or a reason."""
    assert case["source"]
    assert bool(case["arms"]) != bool(case.get("not_reproduced"))
    for arm in case["arms"]:
        assert arm["expected"]
        for want in arm["expected"]:
            assert want["reported"] in (None, want["replayed"]) or arm.get("note") or case.get("note")


def test_what_is_left_out() -> None:
    """The cases that can't be driven are these and no others."""
    assert [case["id"] for case in LEFT_OUT] == ["H22", "H23", "H38", "H39"]
