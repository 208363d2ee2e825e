"""The tracer's own parts, outside an engine: its file, its ranges, its guard."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from prefixscope.inside import tracer
from prefixscope.inside.ranges import from_flags, union
from prefixscope.inside.versions import parse
from prefixscope.inside.writer import Writer


def lines(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for path in folder.glob("*.jsonl") for line in path.read_text().splitlines()]


def test_file_appears_with_the_first_event(tmp_path: Path) -> None:
    """A process that has nothing to say leaves no file."""
    writer = Writer(str(tmp_path / "trace"), 1000)
    assert not (tmp_path / "trace").exists()
    writer.write("header", {})
    assert [line["event"] for line in lines(tmp_path / "trace")] == ["header"]


def test_file_is_bounded(tmp_path: Path) -> None:
    """At its limit the file ends with one gap event and grows no more."""
    writer = Writer(str(tmp_path), 2000)
    for number in range(200):
        writer.write("lookup", {"number": number})
    events = [line["event"] for line in lines(tmp_path)]
    assert events.count("gap") == 1
    assert events[-1] == "gap"
    assert sum(path.stat().st_size for path in tmp_path.glob("*.jsonl")) < 2200


def test_a_reused_process_id_goes_on_in_the_same_file(tmp_path: Path) -> None:
    """After a line that was cut off, a new process with the same id starts on a line of its own."""
    first = Writer(str(tmp_path), 10_000)
    first.write("header", {})
    path = next(tmp_path.glob("*.jsonl"))
    path.write_text(path.read_text() + '{"schema":1,"ev')
    Writer(str(tmp_path), 10_000).write("lookup", {})
    assert len(path.read_text().splitlines()) == 3
    assert json.loads(path.read_text().splitlines()[-1])["event"] == "lookup"


def test_failing_part_turns_tracing_off_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The first exception stops recording with one log line; later calls do nothing."""
    one = tracer._Tracer(str(tmp_path), 10_000)
    one.on = True

    def broken() -> None:
        raise KeyError("nobody expected this")

    with caplog.at_level("WARNING", logger="vllm.prefixscope"):
        one.guarded(broken)
        one.guarded(broken)
    assert len(caplog.records) == 1
    assert "nobody expected this" in caplog.text
    assert [line["event"] for line in lines(tmp_path)] == ["off"]


def test_full_disk_turns_tracing_off(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A file that can't be written stops recording and raises nothing."""
    (tmp_path / "trace").write_text("a file where the folder should be")
    one = tracer._Tracer(str(tmp_path / "trace"), 10_000)
    one.on = True
    with caplog.at_level("WARNING", logger="vllm.prefixscope"):
        one.guarded(one.writer.write, "lookup", {})
    assert not one.on
    assert len(caplog.records) == 1


def test_nothing_happens_without_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loaded in a process that is not to be traced, the plugin does not even import vLLM."""
    monkeypatch.delenv(tracer.DIRECTORY, raising=False)
    monkeypatch.setattr(tracer._Tracer, "current", None)
    tracer.register()
    assert tracer._Tracer.current is None


def test_register_without_vllm_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Where vLLM can't be imported or is unknown, tracing turns itself off instead of raising."""
    monkeypatch.setenv(tracer.DIRECTORY, str(tmp_path))
    monkeypatch.setattr(tracer._Tracer, "current", None)
    monkeypatch.setattr(tracer.versions, "load", lambda: (_ for _ in ()).throw(tracer.versions.Unexpected("odd")))
    with caplog.at_level("WARNING", logger="vllm.prefixscope"):
        tracer.register()
        tracer.register()
    assert [line["reason"] for line in lines(tmp_path)] == ["odd"]
    monkeypatch.setattr(tracer._Tracer, "current", None)


@pytest.mark.parametrize(("text", "size"), [("1", 1048576), ("nonsense", 268435456), ("", 268435456)])
def test_limit(monkeypatch: pytest.MonkeyPatch, text: str, size: int) -> None:
    """The size limit is read in MB; anything else means the default."""
    monkeypatch.setenv(tracer.LIMIT, text)
    assert tracer._limit_bytes() == size


@pytest.mark.parametrize(("version", "release"), [("0.29.0", (0, 29)), ("0.30.1+cpu", (0, 30)), ("dev", (-1, -1))])
def test_parse(version: str, release: tuple[int, int]) -> None:
    """A release is its first two numbers, whatever the build is called."""
    assert parse(version) == release


def test_ranges_agree_with_sets() -> None:
    """Flags and unions keep exactly the blocks that went in, merged and sorted."""
    random.seed(7)
    for _ in range(200):
        one = [random.random() < 0.5 for _ in range(30)]
        other = [random.random() < 0.3 for _ in range(30)]
        merged = union(from_flags(one), from_flags(other))
        blocks = {block for start, stop in merged for block in range(start, stop)}
        assert blocks == {index for index in range(30) if one[index] or other[index]}
        assert all(merged[index][1] < merged[index + 1][0] for index in range(len(merged) - 1))
    assert from_flags([True, False, True], 10) == [[10, 11], [12, 13]]
