"""A geometry by name, from a file or from a config: what is wrong with what was given, and what to give instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from prefixscope.errors import ReplayError
from prefixscope.replay import RELEASES, Geometry, geometries


@pytest.mark.parametrize("name", geometries.names())
def test_shipped_geometry_says_where_it_comes_from(name: str) -> None:
    """Each shipped geometry has sources, says what is inferred, and knows 0.29.0 with the drafter and without."""
    found = geometries.preset(name)
    assert found.about
    assert found.sources
    assert found.inferred
    for drafter in (True, False):
        geometry = found.geometry("0.29.0", drafter=drafter)
        assert geometry.bytes_per_block
        assert geometry.origin.endswith(name)
        assert all(geometry.scheduler_block % group.block_size == 0 for group in geometry.groups)


def test_the_incidents_geometry() -> None:
    """Gemma 4 12B is five sliding groups of 16-token blocks, window 1,024, and a full one of 64, in every release."""
    for release in RELEASES:
        found = geometries.load("gemma-4-12b", release=release)
        assert [(g.kind, g.block_size, g.window, g.layers) for g in found.groups] == [
            *[("sliding", 16, 1024, 8)] * 5,
            ("full", 64, None, 8),
        ]
        assert (found.scheduler_block, found.hash_block, found.bytes_per_block) == (64, 16, 1 << 20)


def test_geometry_of_another_release() -> None:
    """Where the drafter shares the model's KV cache, 0.31 and 0.32 take the full group for the drafter's."""
    found = geometries.load("gemma-4-12b")
    drafters = {release: [g.drafter for g in found.on(release, drafter=True).groups] for release in RELEASES}
    assert [release for release, flags in drafters.items() if any(flags)] == ["0.31.0", "0.32.0"]
    assert drafters["0.31.0"] == [False] * 5 + [True]
    assert found.on("0.29.0", drafter=True) == found.on("0.27.0", drafter=True) == found
    alone = Geometry.from_json(found.to_json())
    assert alone.groups == found.groups
    assert alone.on("0.31.0", drafter=True) == alone


def test_draft_tokens_change_the_block_of_a_gdn_hybrid() -> None:
    """Qwen3-Next has blocks of 544 tokens, 560 with its MTP, as a GPU measured."""
    sizes = [geometries.load("qwen3-next-80b", drafter=drafter).scheduler_block for drafter in (False, True)]
    assert sizes == [544, 560]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, r"can't be read: No such file[\s\S]*gemma-4-12b"),
        ("{", "is not JSON"),
        ("[1]", "holds a JSON list"),
        ('{"layers": 3}', r"neither a geometry nor a model's config: its fields are layers[\s\S]*--trace FILE"),
        ('{"architectures": ["A"]}', r"it holds a model's config[\s\S]*--config"),
        ('{"groups": [{"kind": "full"}]}', "block size None"),
    ],
)
def test_file_that_is_no_geometry(tmp_path: Path, text: str | None, message: str) -> None:
    """A file that is missing, not JSON or something else is refused with what it is and what to give."""
    path = tmp_path / "geometry.json"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    with pytest.raises(ReplayError, match=message):
        geometries.load(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "can't be read: No such file"),
        ('{"groups": []}', r"it holds a geometry[\s\S]*--geometry"),
        ("{}", r"neither a model's config nor a geometry: it is empty[\s\S]*config\.json"),
    ],
)
def test_file_that_is_no_config(tmp_path: Path, text: str | None, message: str) -> None:
    """A folder without a config, or with something else in its place, is refused."""
    if text is not None:
        (tmp_path / "config.json").write_text(text, encoding="utf-8")
    with pytest.raises(ReplayError, match=message):
        geometries.read_config(tmp_path)


def test_name_that_is_not_shipped() -> None:
    """An unknown name is answered with the names that there are."""
    with pytest.raises(ReplayError, match=r"no geometry 'gemma-5'[\s\S]*gemma-4-12b, gemma-4-26b-a4b"):
        geometries.load("gemma-5")


def test_release_that_was_never_asked() -> None:
    """A shipped geometry is not handed out for a release that never made it."""
    with pytest.raises(ReplayError, match=r"not known for vLLM 0\.27\.0"):
        geometries.load("gemma-4-12b", release="0.27.0")
