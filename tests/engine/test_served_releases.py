"""The releases after the incident's, served: hits of the incident's prompt, and the tracer's account of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from prefixscope import engine as engines
from prefixscope import prompts
from prefixscope.diagnosis import explain
from prefixscope.geometry import traced
from prefixscope.investigation import Investigation
from prefixscope.replay import Geometry, ServerSetting, open_release, repeats
from prefixscope.runs import Run
from prefixscope.sender import Sender, new_salt
from prefixscope.setting import Setting
from prefixscope.target import Target
from prefixscope.trace import Trace

pytestmark = pytest.mark.engine

TOKENS, HIT = 6_446, 6_336
SHORT = 640
"""Here it matters which groups give up a block: the second send hits 448 where all do, 512 where only the full one."""
OLDER = Path(__file__).parents[2] / "data/sample/run"
"""A recorded run of 0.29.0 with the same model."""


@dataclass(frozen=True)
class Served:
    """Three sends of one prompt on one release, three of a short one, and the trace of its server."""

    version: str
    rows: list[dict[str, Any]]
    short: list[dict[str, Any]]
    trace: Trace


@pytest.fixture(scope="module", params=["0.30.0", "0.31.0", "0.32.0"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    version = request.param
    engines.ensure(version, progress=print, to_serve=True)
    target = Target(kind="embedded", engine=version)
    run = Run.create(tmp_path_factory.mktemp("served") / "run", target=target.to_json(), parameters={})
    investigation = Investigation(run, target)
    try:
        setting = Setting(interval=0)
        with investigation.stage("trace") as stage, investigation.server(setting, stage) as (client, server_id):
            sender, salt = Sender(investigation, stage, client, server_id, setting), new_salt()
            prompt = prompts.build(sender.count(sender.base), TOKENS, 1)
            # One token each: without triton-cpu the drafter of 0.30.0's CPU build ends the engine at the second.
            rows = [sender.send(prompt, model=sender.base, salt=salt)[1] for _ in range(3)]
            prompt, salt = prompts.build(sender.count(sender.base), SHORT, 2), new_salt()
            short = [sender.send(prompt, model=sender.base, salt=salt)[1] for _ in range(3)]
        yield Served(version, rows, short, traced(investigation.path))
    finally:
        investigation.stop_servers()


def test_the_second_send_hits(served: Served) -> None:
    """From 0.30.0 on the second send hits, at interval 0 and with MTP, one block short of full."""
    assert [row["cached_tokens"] for row in served.rows] == [0, HIT, HIT]


def test_rows_and_lookups_meet_by_request_id(served: Served) -> None:
    """Each row's request is in the trace, and its reconciled hit, as admitted, is what usage reported."""
    for row in served.rows:
        lookup = served.trace.lookup(row["request_id"])
        assert lookup is not None
        assert (lookup.prompt_tokens, lookup.hit_tokens) == (row["prompt_tokens"], row["cached_tokens"])
        assert lookup.cached_tokens == row["cached_tokens"]
    assert [explain(served.trace, row["request_id"]).cause for row in served.rows] == ["cold", "spec_drop", "spec_drop"]
    assert served.trace.warnings == ()


def test_the_header_is_this_release_and_geometry(served: Served) -> None:
    """The header names the release, five sliding-window groups of 32-token blocks and a full one of 64."""
    (header,) = served.trace.headers
    kinds = sorted((group.kind, group.block_size, group.window or 0) for group in header.groups)
    assert kinds == [("full", 64, 0), *[("sliding", 32, 1024)] * 5]
    assert header.version.startswith(served.version)
    assert (header.scheduler_block, header.interval, header.spec_method, header.spec_tokens) == (64, 0, "mtp", 3)


def test_the_scheduler_alone_predicts_the_served_hits(served: Served) -> None:
    """The same release's scheduler, given the groups of the served engine's header, hits what the server hit."""
    (header,) = served.trace.headers
    with open_release(served.version) as replayer:
        outcome = replayer.replay(
            Geometry.from_header(header), ServerSetting.from_header(header), repeats(served.rows[0]["prompt_tokens"], 3)
        )
    assert [row.hit_tokens for row in outcome.rows] == [row["cached_tokens"] for row in served.rows]


def test_groups_of_another_release_are_marked_as_this_one_marks_them(served: Served) -> None:
    """Groups traced on 0.29.0, replayed here, drop a block where the served engine says, and hit what it hit."""
    older = next(header for header in traced(OLDER).headers if header.interval == 0 and header.spec_tokens == 3)
    (header,) = served.trace.headers
    requests = [
        *repeats(served.rows[0]["prompt_tokens"], 3),
        *repeats(served.short[0]["prompt_tokens"], 3, name="short"),
    ]
    with open_release(served.version) as replayer:
        outcome = replayer.replay(Geometry.from_header(older), ServerSetting.from_header(older), requests)
    assert outcome.regrouped
    assert outcome.drop_groups == header.drop_groups
    assert [row.hit_tokens for row in outcome.rows] == [row["cached_tokens"] for row in served.rows + served.short]
