"""Predictions of the schedulers themselves, through the grid and through the command."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from prefixscope import cli
from prefixscope import engine as engines
from prefixscope.errors import ReplayError
from prefixscope.replay import (
    Geometry,
    Grid,
    Replayer,
    Request,
    ServerSetting,
    ask,
    heat_grid,
    open_release,
    repeats,
    survey,
)

pytestmark = pytest.mark.engine

GEMMA = {
    "groups": [
        {"kind": "sliding", "block_size": 16, "window": 1024, "count": 5},
        {"kind": "full", "block_size": 64},
    ]
}
RELEASES = ("0.29.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0")


@pytest.fixture(scope="module", autouse=True)
def _installed() -> None:
    for release in RELEASES:
        engines.ensure(release, progress=print)


@pytest.fixture(scope="module")
def replayer() -> Iterator[Replayer]:
    """A warm 0.29.0."""
    with open_release("0.29.0") as found:
        yield found


def test_a_reset_is_as_good_as_a_salt(replayer: Replayer) -> None:
    """Every cell of the grid is what the same prompts hit beside each other under salts of their own."""
    geometry, lengths = Geometry.from_json(GEMMA), (704, 1600, 6392)
    grid = Grid(geometry=geometry, lengths=lengths, intervals=(None, 0, 1024, 4096), drafters=(7,))
    cells = ask(replayer, grid)
    for interval in (0, 1024, 4096):
        salted = [one for n in lengths for one in repeats(n, 3, name=f"{n}")]
        outcome = replayer.replay(geometry, ServerSetting(interval=interval, drafter_tokens=7), salted)
        mine = [cell for cell in cells if cell.resolved == interval and cell.pattern == "repeat"]
        assert [cell.hit_tokens for cell in mine] == [row.hit_tokens for row in outcome.rows]
        before = 0
        for cell in mine:
            row = next(row for row in outcome.rows if row.id == f"{cell.tokens}/{cell.send}")
            if cell.send == 1:
                # Whole blocks; 0.29.0 also caches a last one of the full group that is partly filled.
                assert row.cached_blocks - before - sum(cell.kept_blocks or ()) in (0, 1)
            before = row.cached_blocks
    # Asked once: the default is interval 0 on this release.
    assert len(cells) == 3 * len(lengths) * 3 * 3
    first = next(cell for cell in cells if cell.tokens == 6392)
    assert (first.interval, first.resolved, first.kept_blocks) == (None, 0, (65, 65, 65, 65, 65, 99))
    # Nobody said how large these groups' layers are.
    assert first.kept_bytes == (None,) * 6
    turn = next(c for c in cells if (c.tokens, c.resolved, c.pattern, c.send) == (6392, 1024, "follow_up", 2))
    assert (turn.prompt_tokens, turn.reusable_tokens, turn.hit_tokens) == (6552, 6520, 6400)


def test_a_follow_up_is_the_conversation_itself(replayer: Replayer) -> None:
    """The grid's second turn hits what a hand-written conversation hits, with drafts accepted or not."""
    geometry, answer = Geometry.from_json(GEMMA), ("a", 128)
    requests = [
        Request(id="1", segments=(("question", 3000),), answer=answer),
        Request(id="2", segments=(("question", 3000), answer, ("next", 32))),
    ]
    for interval in (0, 1024):
        grid = Grid(geometry=geometry, lengths=(3000,), intervals=(interval,), drafters=(7,), patterns=("follow_up",))
        second = ask(replayer, grid)[1]
        plain = replayer.replay(geometry, ServerSetting(interval=interval, drafter_tokens=7), requests)
        assert second.hit_tokens == plain.hit("2")


def test_releases_side_by_side() -> None:
    """The checkpoint moves in 0.30.0, exact multiples gain a block in 0.32.0, 0.33.0 drops without lookahead alone."""
    grid = Grid(geometry=Geometry.from_json(GEMMA), lengths=(6400,), intervals=(None,), drafters=(7,), sends=2)
    found = {(one.release, one.probe): one for one in survey(grid, RELEASES).probes}
    assert {name: found[name, "multiple"].hit_2 for name in RELEASES} == {
        "0.29.0": 0, "0.30.0": 6272, "0.31.0": 6272, "0.32.0": 6336, "0.33.0": 6336,
    }  # fmt: skip
    # The other probes end in the middle of a block.
    assert {name: found[name, "sparse"].hit_2 for name in RELEASES} == {
        "0.29.0": 0, "0.30.0": 6272, "0.31.0": 6272, "0.32.0": 6272, "0.33.0": 6336,
    }  # fmt: skip
    assert (found["0.29.0", "sparse"].hit_3, found["0.33.0", "legacy"].hit_2) == (6272, 6272)
    assert found["0.29.0", "sparse"].kept_blocks == found["0.30.0", "sparse"].kept_blocks == 424
    assert {name: found[name, "sparse"].drop_groups for name in RELEASES} == {
        "0.29.0": 6, "0.30.0": 6, "0.31.0": 6, "0.32.0": 6, "0.33.0": 0,
    }  # fmt: skip
    assert (found["0.33.0", "legacy"].drop_groups, found["0.33.0", "sparse"].lookahead_tokens) == (6, 1)
    assert ("0.32.0", "legacy") not in found


def test_a_release_that_refuses_is_named_and_the_others_go_on() -> None:
    """What one release can't be asked is left out with its reason."""
    geometry = Geometry.from_json(GEMMA)

    def only_old(replayer: object) -> Geometry:
        if getattr(replayer, "release", "") != "0.29.0":
            raise ReplayError("this geometry is not known")
        return geometry

    grid = Grid(geometry=geometry, lengths=(1000,), intervals=(None,), patterns=("repeat",))
    found = survey(grid, ("0.29.0", "0.30.0"), geometry_on=only_old)
    assert {cell.release for cell in found.cells} == {"0.29.0"}
    assert "not known" in str(found.refused["0.30.0"])


def test_the_command_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Table, recommendation and page for a person, every row for a script; nothing but JSON on stdout."""
    file, page = tmp_path / "gemma.json", tmp_path / "page.html"
    file.write_text(json.dumps(GEMMA))
    words = ["predict", "--geometry", str(file), "--drafter", "7", "--tokens", "704,1600"]
    assert cli.main([*words, "--intervals", "default,1024", "--vllm", "0.29.0"]) == 0
    shown = capsys.readouterr().out
    assert "Unpressured recommendation: With --prefix-cache-retention-interval 1024 on vLLM 0.29.0" in shown
    again = [*words, "--intervals", "default,0,1024", "--vllm", "0.29.0,0.30.0", "-o", str(page), "--json"]
    assert cli.main(again) == 0
    both = capsys.readouterr()
    assert "wrote" in both.err
    assert page.read_text("utf-8").count('class="drawn"') == 3
    answer = json.loads(both.out)
    assert "vLLM 0.30.0 does" in answer["upgrade"]
    second = [row for row in answer["rows"] if (row["tokens"], row["pattern"], row["send"]) == (1600, "repeat", 2)]
    assert [(row["release"], row["interval"], row["hit_tokens"]) for row in second] == [
        ("0.29.0", 0, 0), ("0.29.0", 1024, 1472), ("0.30.0", 0, 1472), ("0.30.0", 1024, 1472),
    ]  # fmt: skip


def test_two_thousand_cells(replayer: Replayer) -> None:
    """A heat map of 2,000 cells takes seconds of the worker's time: far less than a minute."""
    grid = heat_grid(Grid(geometry=Geometry.from_json(GEMMA), lengths=(6400,), intervals=(None, 0), drafters=(7,)))
    assert len(grid.lengths) * len(grid.intervals) >= 1900
    replayer.start()
    assert replayer._process is not None
    before = _cpu_s(replayer._process.pid)
    cells = ask(replayer, grid)
    spent = _cpu_s(replayer._process.pid) - before
    assert len(cells) == len(grid.lengths) * len(grid.intervals) * 2
    missed = [cell for cell in cells if cell.resolved == 0 and cell.send == 2 and cell.tokens >= 1089]
    assert all(cell.hit_tokens == 0 for cell in missed)
    assert spent < 40


def _cpu_s(pid: int) -> float:
    """CPU seconds of a process, whatever else the machine does."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / 100
