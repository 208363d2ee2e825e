"""Shipped geometries are what vLLM's own code makes of the model that they name; so is any model's config."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from data.make_geometries import FOLDER, grouped, same

from prefixscope import engine as engines
from prefixscope.errors import ReplayError
from prefixscope.replay import RELEASES, Replayer, ServerSetting, geometries, open_release, repeats

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def on() -> Iterator[Callable[[str], Replayer]]:
    """A warm replayer per release, started when first asked for."""
    with ExitStack() as stack:
        opened: dict[str, Replayer] = {}

        def get(release: str) -> Replayer:
            if release not in opened:
                engines.ensure(release, progress=print)
                opened[release] = stack.enter_context(open_release(release))
            return opened[release]

        yield get


@pytest.mark.parametrize("name", geometries.names())
def test_shipped_geometry_is_made_again(on: Callable[[str], Replayer], name: str) -> None:
    """vLLM 0.29.0 makes each shipped geometry of the model in its file, with the drafter and without."""
    file = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    for one in (file, *file["variants"]):
        if "0.29.0" in one["releases"]:
            assert same(one, grouped(on("0.29.0"), file["model"], drafter=one["with_drafter"]))


@pytest.mark.parametrize("release", [one for one in RELEASES if one != "0.29.0"])
def test_other_releases_make_what_the_file_says(on: Callable[[str], Replayer], release: str) -> None:
    """Each other release makes the geometry that the file gives for it: of Gemma 4 12B and Qwen3-Next, drafter on."""
    for name in ("gemma-4-12b", "qwen3-next-80b"):
        file = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
        made = grouped(on(release), file["model"], drafter=True)
        assert [
            one["releases"]
            for one in (file, *file["variants"])
            if one["with_drafter"] and release in one["releases"] and same(one, made)
        ]


def test_the_incident_by_its_name(on: Callable[[str], Replayer]) -> None:
    """The shipped Gemma 4 12B gives the incident's hits: nothing on the second send of 6,392 tokens."""
    found = geometries.load("gemma-4-12b", release="0.29.0")
    setting = ServerSetting(drafter_tokens=geometries.preset("gemma-4-12b").drafter_tokens)
    outcome = on("0.29.0").replay(found, setting, repeats(6392, 3))
    assert [row.hit_tokens for row in outcome.rows] == [0, 0, 6272]
    assert outcome.left_out == ()
    assert outcome.kept_bytes == tuple(blocks << 20 for blocks in outcome.kept_blocks)


def test_parallel_ranks_and_cache_dtype(on: Callable[[str], Replayer], tmp_path: Path) -> None:
    """A config from a folder, on two ranks and with an fp8 cache: each takes half of a block's bytes."""
    config = geometries.preset("gpt-oss-120b").model["config"]
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    one, two, small = (
        geometries.from_config(on("0.29.0"), tmp_path, tensor_parallel=ranks, kv_cache_dtype=dtype)
        for ranks, dtype in ((1, "auto"), (2, "auto"), (2, "fp8"))
    )
    assert one.bytes_per_block == 2 * (two.bytes_per_block or 0) == 4 * (small.bytes_per_block or 0)
    assert [group.block_size for group in one.groups] == [16, 16]
    assert any("H200" in each for each in one.inferred)


def test_model_that_the_release_does_not_know(on: Callable[[str], Replayer], tmp_path: Path) -> None:
    """An unknown architecture is refused in vLLM's words with the way out, and the worker lives on."""
    config = {"architectures": ["NobodysModel"], "model_type": "llama", "hidden_size": 64}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(ReplayError, match=r"NobodysModel[\s\S]*take the geometry from a trace"):
        geometries.from_config(on("0.29.0"), tmp_path / "config.json")
    outcome = on("0.29.0").replay(geometries.load("gemma-4-12b"), ServerSetting(), repeats(640, 1))
    assert outcome.hit("prompt/1") == 0
