"""Workloads: what Mooncake files, traces and runs say about which prompts share what."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from prefixscope.errors import ReplayError
from prefixscope.replay import EXAMPLE, Geometry, Workload, default_pools, parse_pools, read_workload
from prefixscope.resources import data_path

DATA = Path(__file__).resolve().parents[1] / "data"
GEOMETRY = Geometry.from_json(
    {
        "groups": [
            {"kind": "sliding", "block_size": 16, "window": 1024, "count": 5, "bytes_per_block": 8 << 20},
            {"kind": "full", "block_size": 64, "bytes_per_block": 8 << 20},
        ]
    }
)


def line(tokens: int, blocks: list[int], answer: int = 10, **more: Any) -> str:
    return json.dumps({"timestamp": 0, "input_length": tokens, "output_length": answer, "hash_ids": blocks, **more})


def written(tmp_path: Path, *lines: str, end: str = "\n") -> Path:
    path = tmp_path / "workload.jsonl"
    path.write_text("\n".join(lines) + end)
    return path


def test_mooncake_blocks_become_segments(tmp_path: Path) -> None:
    """Each hash id is 512 tokens and the last one what is left; the answer is a content of its own."""
    read = read_workload(written(tmp_path, line(1300, [7, 8, 9], 40), line(1024, [7, 8], 0)))
    first, second = read.requests
    assert first.segments == (("block 7", 512), ("block 8", 512), ("block 9", 276))
    assert first.answer == ("answer 1", 40)
    assert (second.segments, second.answer) == ((("block 7", 512), ("block 8", 512)), None)
    assert (read.tokens, read.distinct_tokens) == (2324, 1300)


def test_follow_ups_repeat_a_whole_earlier_prompt(tmp_path: Path) -> None:
    """A follow-up repeats every whole block of an earlier prompt; a shared system prompt alone makes none."""
    read = read_workload(
        written(
            tmp_path,
            line(1700, [0, 1, 2, 3]),  # opens
            line(1700, [0, 4, 5, 6]),  # shares one block with it
            line(2600, [0, 1, 2, 7, 8, 9]),  # goes on with the first
            line(2100, [0, 1, 10, 11, 12]),  # leaves it half way
            line(600, [0, 13]),
            line(3000, [0, 14, 15, 16, 17, 18]),  # has the one whole block of a short prompt
            line(3100, [0, 1, 2, 7, 8, 19, 20]),  # goes on with the third, which is longer than the first
        )
    )
    assert read.repeats == (0, 0, 1536, 0, 0, 0, 2560)
    assert (read.follow_ups, read.first(3).follow_ups) == (2, 1)


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ("{not json}", "line 2 is not JSON"),
        ("[1, 2]", "line 2 is a JSON list"),
        (line(1300, [1, 2]), "line 2: 1,300 input tokens with 2 hash_ids"),
        (line(0, []), "line 2: 0 input tokens"),
        (json.dumps({"input_length": 100, "hash_ids": [1]}), "line 2: output_length is missing"),
        (line(-3, [1]), "line 2: input_length is -3"),
        (line(1 << 30, [1]), "line 2: input_length is 1073741824"),
        (line(True, [1]), "line 2: input_length is True"),
        (json.dumps({"input_length": 100, "output_length": 1, "hash_ids": "x"}), "line 2: hash_ids is 'x'"),
        (json.dumps({"input_length": 100, "output_length": 1, "hash_ids": [[1]]}), "line 2: hash_ids is"),
    ],
)
def test_bad_line_is_named(tmp_path: Path, bad: str, says: str) -> None:
    """A line that is no request stops the reading with its number and what is wrong with it."""
    with pytest.raises(ReplayError) as error:
        read_workload(written(tmp_path, line(100, [1]), bad, line(100, [1])))
    assert says in str(error.value)
    assert "Next:" in str(error.value)


def test_cut_off_last_line_is_left_out(tmp_path: Path) -> None:
    """A last line that was cut off is left out with a warning, not taken for a bad one."""
    read = read_workload(written(tmp_path, line(100, [1]), line(100, [1])[:30], end=""))
    assert len(read.requests) == 1
    assert read.warnings == ("workload.jsonl: line 2, the last one, is cut off and left out",)


def test_line_order_is_kept(tmp_path: Path) -> None:
    """Requests stay in the order of their lines, and a clock that runs backwards is told."""
    rows = [json.dumps({**json.loads(line(100, [n])), "timestamp": at}) for n, at in ((1, 50), (2, 40))]
    read = read_workload(written(tmp_path, *rows))
    assert [one.segments[0][0] for one in read.requests] == ["block 1", "block 2"]
    assert "1 requests have a timestamp before" in read.warnings[0]


def test_nothing_to_replay(tmp_path: Path) -> None:
    """An empty file, a missing one and an empty folder are refused in words."""
    with pytest.raises(ReplayError, match="holds no request"):
        read_workload(written(tmp_path, "", end=""))
    with pytest.raises(ReplayError, match="can't be read"):
        read_workload(tmp_path / "missing.jsonl")
    (tmp_path / "raw").mkdir()
    with pytest.raises(ReplayError, match="holds no request"):
        read_workload(tmp_path)


def test_trace_as_workload() -> None:
    """A trace's prompts begin with what they have in common with their closest earlier request."""
    read = read_workload(DATA / "trace-incident.jsonl")
    first, second = read.requests[:2]
    assert first.segments == ((first.id, 6446),)
    assert second.tokens == 6446
    assert second.segments[0] == (first.id, 6432)
    assert read.repeats[:2] == (0, 6144)


def test_run_as_workload() -> None:
    """A run's sends share their series' prompt under a salt per attempt, as far as the rows say."""
    read = read_workload(data_path("sample", "run"))
    by_salt: dict[str | None, list[int]] = {}
    for one, repeated in zip(read.requests, read.repeats, strict=True):
        by_salt.setdefault(one.salt, []).append(repeated)
    assert len(by_salt) > 10
    assert all(repeated[0] == 0 for repeated in by_salt.values())
    longest = next(salt for one in read.requests if (salt := one.salt) and one.tokens == 6446)
    assert by_salt[longest][1:3] == [6144, 6144]


def test_example_is_the_public_trace() -> None:
    """The stored excerpt is small, has conversations, and its README names source and licence."""
    read = read_workload(EXAMPLE)
    assert 200 <= len(read.requests) <= 600
    assert read.follow_ups > 50
    folder = data_path("traces")
    assert sum(file.stat().st_size for file in folder.iterdir()) < 200_000
    text = (folder / "README.md").read_text()
    assert "kvcache-ai/Mooncake" in text
    assert "Apache-2.0" in text


def test_same_workload_in_every_process() -> None:
    """Content names and the workload's identity do not depend on the process that reads it."""
    program = "from prefixscope.replay import read_workload; print(read_workload('example').id)"
    found = {
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": seed}
            | {"PYTHONPATH": ":".join(sys.path)},
        ).stdout.strip()
        for seed in ("1", "2")
    }  # fmt: skip
    assert found == {read_workload(EXAMPLE).id}


def test_pools_in_blocks_and_bytes() -> None:
    """A pool is given as blocks, as bytes of the geometry's own blocks, or as endless."""
    assert parse_pools("20000, 20GiB,1.5GB,endless", GEOMETRY) == (20000, 2560, 178, None)


@pytest.mark.parametrize(
    ("text", "says"), [("many", "no number of blocks"), ("1.5", "no number"), ("0", "no number"), ("1MB", "no block")]
)
def test_bad_pools(text: str, says: str) -> None:
    """Anything else is refused in words."""
    with pytest.raises(ReplayError, match=says):
        parse_pools(text, GEOMETRY)


def test_bytes_need_a_geometry_that_knows_them() -> None:
    """Bytes can't be counted in blocks of unknown size."""
    with pytest.raises(ReplayError, match="how many bytes"):
        parse_pools("20GiB", Geometry.from_json({"groups": [{"kind": "full", "block_size": 16}]}))


def test_default_pools_hold_the_servers_own() -> None:
    """Four pools that suit the workload; the server's own takes the place of the nearest."""
    read: Workload = read_workload(EXAMPLE)
    plain = default_pools(read, GEOMETRY)
    assert len(plain) == 4
    own = default_pools(read, Geometry.from_json({**GEOMETRY.to_json(), "pool_blocks": plain[1] + 1234}))
    assert own == (plain[0], plain[1] + 1234, *plain[2:])
