"""The sweep: which intervals are legal, which servers it starts, what a failing one costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from stub import StubServer

from prefixscope import baseline, frames, geometry, sweep
from prefixscope.errors import Exited, RunError
from prefixscope.investigation import Investigation
from prefixscope.setting import Setting, interval_label, parse_interval
from prefixscope.target import Target

Attach = Callable[..., Investigation]


@dataclass
class FakeHeader:
    """What the sweep asks of a trace header."""

    interval: int | str = 0
    scheduler_block: int = 64
    kinds: tuple[str, ...] = ("sliding", "full")

    @property
    def groups(self) -> tuple[Any, ...]:
        return tuple(type("Group", (), {"kind": kind})() for kind in self.kinds)


@dataclass
class FakeTrace:
    """A trace that knows the header of each request."""

    known: dict[str, FakeHeader] = field(default_factory=dict)
    everything: FakeHeader | None = None

    @property
    def headers(self) -> tuple[FakeHeader, ...]:
        return (*self.known.values(), *([self.everything] if self.everything else []))

    def lookup(self, request_id: str) -> Any:
        header = self.known.get(request_id, self.everything)
        return type("Lookup", (), {"header": header, "groups": ()})() if header else None

    def kept(self, request_id: str) -> tuple[()]:
        return ()


@pytest.fixture
def trace(monkeypatch: pytest.MonkeyPatch) -> FakeTrace:
    """The trace of the run, as the test sets it."""
    found = FakeTrace()
    monkeypatch.setattr(geometry, "traced", lambda path: found)
    monkeypatch.setattr(sweep, "traced", lambda path: found)
    return found


@pytest.fixture
def started(started: list[Setting], monkeypatch: pytest.MonkeyPatch) -> list[Setting]:
    """Every server of ours is the stub, except for interval 512, whose server does not start."""
    plain = Investigation.server

    def server(self: Investigation, setting: Setting, stage: Any, *, keep: bool = False) -> Any:
        if setting.interval == 512:
            started.append(setting)
            raise Exited("the server ended with code 1", cause="out of memory")
        return plain(self, setting, stage, keep=keep)

    monkeypatch.setattr(Investigation, "server", server)
    return started


@pytest.fixture
def ours(attach: Attach) -> Investigation:
    """An investigation of servers that we may start."""
    return Investigation(attach().run, Target(kind="embedded"))


# --- intervals -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "value", "label"),
    [
        (0, 0, "0"),
        ("1024", 1024, "1,024"),
        (64, 64, "64"),
        ("dense", "dense", "dense"),
        ("default", None, "default"),
        (None, None, "default"),
    ],
)
def test_an_interval_is_read_and_named(given: Any, value: Any, label: str) -> None:
    """Tokens, dense and default are the three kinds of interval, each with one way to be printed."""
    assert parse_interval(given) == value
    assert interval_label(parse_interval(given)) == label


@pytest.mark.parametrize("given", [-64, "-1", "1.5", "sparse", True, False, 1.5])
def test_what_is_no_interval_is_refused(given: Any) -> None:
    """The message names the value and what would fit."""
    with pytest.raises(ValueError, match=r"use 0, a positive whole number of tokens, 'dense' or 'default'"):
        parse_interval(given)


@pytest.mark.parametrize(
    ("interval", "block", "neighbours"), [(1000, 64, "960 or 1,024"), (32, 64, "64"), (6400, 560, "6,160 or 6,720")]
)
def test_an_illegal_interval_names_its_legal_neighbours(interval: int, block: int, neighbours: str) -> None:
    """An interval between two multiples of the scheduler block is refused with both, 0 not among them."""
    with pytest.raises(RunError, match=f"{interval:,} is not a multiple of .* {block} tokens") as caught:
        geometry.check_intervals([0, interval], block)
    assert caught.value.remedy == f"use {neighbours}"


@pytest.mark.parametrize(
    ("block", "kinds", "legal"),
    [(64, ("sliding", "full"), 1024), (544, ("mamba", "full"), 1088), (64, ("full",), None)],
)
def test_the_workaround_is_one_that_the_server_takes(block: int, kinds: tuple[str, ...], legal: int | None) -> None:
    """1024 becomes the next multiple of the server's block, and nothing where no group is thinned out."""
    header: Any = FakeHeader(scheduler_block=block, kinds=kinds)
    assert geometry.legal_interval(header, 1024) == legal


def test_a_model_with_full_attention_only_is_not_swept(
    ours: Investigation, started: list[Setting], trace: FakeTrace
) -> None:
    """Where an interval does nothing, one server is started to learn that, and a warning says why the rest is not."""
    trace.everything = FakeHeader(kinds=("full",))
    sweep.run(ours, intervals=(0, 64, "dense"), lengths=(100,))
    assert [setting.interval for setting in started] == [None]
    manifest = ours.run.manifest
    assert manifest["stages"]["sweep"]["status"] == "skipped"
    assert [warning["code"] for warning in manifest["warnings"]].count("interval-does-nothing") == 1


def test_legal_intervals_pass() -> None:
    """Multiples, 0, dense and the default are all legal."""
    geometry.check_intervals([0, 64, 1024, "dense", None], 64)


def test_an_illegal_interval_starts_no_server(ours: Investigation, trace: FakeTrace, started: list[Setting]) -> None:
    """Where an earlier stage showed the scheduler block, an illegal interval is refused before anything starts."""
    trace.everything = FakeHeader()
    baseline.run(ours, lengths=(100,), configurations=("mtp",))
    before = list(started)
    with pytest.raises(RunError, match="960 or 1,024"):
        sweep.run(ours, intervals=[0, 1000, "dense"], lengths=(100,))
    assert started == before
    assert ours.run.manifest["stages"]["sweep"]["status"] == "failed"


def test_on_its_own_the_sweep_starts_one_server_to_learn_the_block(
    ours: Investigation, trace: FakeTrace, started: list[Setting]
) -> None:
    """Without an earlier trace the default is measured first; an illegal interval is refused right after that."""
    trace.everything = FakeHeader()
    with pytest.raises(RunError, match="960 or 1,024"):
        sweep.run(ours, intervals=[1000, 1024], lengths=(100,))
    assert started == [Setting()]


def test_a_word_that_is_no_interval_is_refused_before_anything_is_written(
    ours: Investigation, started: list[Setting]
) -> None:
    """A typo in the list of intervals costs nothing."""
    with pytest.raises(RunError, match="'densse'"):
        sweep.run(ours, intervals=[0, "densse"], lengths=(100,))
    assert not started
    assert "sweep" not in ours.run.manifest["stages"]


# --- servers -------------------------------------------------------------------------------------------------------


def test_each_interval_has_a_server_and_the_default_is_measured_without_the_flag(
    ours: Investigation, trace: FakeTrace, started: list[Setting]
) -> None:
    """The release's own default needs no flag and no second server; the others are started in the order given."""
    trace.everything = FakeHeader(interval=0)
    sweep.run(ours, intervals=[0, 1024, "dense"], lengths=(100, 200))
    assert started == [Setting(), Setting(interval=1024), Setting(interval="dense")]
    rows = [row for row in ours.run.rows("sweep") if row["kind"] == "send"]
    assert Counter(row["setting"]["interval"] for row in rows) == {None: 6, 1024: 6, "dense": 6}
    assert {row["send"] for row in rows} == {"cold", "repeat"}


def test_without_a_trace_every_interval_gets_its_flag(
    ours: Investigation, trace: FakeTrace, started: list[Setting]
) -> None:
    """Where no trace tells the default, nothing is taken for it."""
    sweep.run(ours, intervals=[0, 1024], lengths=(100,))
    assert started == [Setting(), Setting(interval=0), Setting(interval=1024)]


def test_a_server_with_the_flag_never_passes_for_the_default(
    ours: Investigation, trace: FakeTrace, started: list[Setting]
) -> None:
    """Where only a server with an interval was traced, that interval is not taken for the release's default."""
    baseline.run(ours, lengths=(100,), configurations=("mtp_lora_interval",))
    for row in ours.run.rows("baseline"):
        if row["kind"] == "send":
            trace.known[row["request_id"]] = FakeHeader(interval=1024)
    sweep.run(ours, intervals=[1024], lengths=(100,))
    assert started[-1] == Setting(interval=1024)


def test_an_interval_whose_server_fails_is_a_row_and_the_sweep_goes_on(
    ours: Investigation, trace: FakeTrace, started: list[Setting]
) -> None:
    """The failed interval keeps its reason, the ones after it are measured, and the stage calls itself partial."""
    trace.everything = FakeHeader()
    frame = sweep.run(ours, intervals=[0, 512, 1024], lengths=(100,))
    assert [setting.interval for setting in started] == [None, 512, 1024]
    assert Counter(zip(frame["interval"], frame["status"], strict=True)) == {
        ("default", "ok"): 3, ("512", "failed"): 1, ("1,024", "ok"): 3,
    }  # fmt: skip
    assert "out of memory" in frame.loc[frame["status"] == "failed", "error"].item()
    assert ours.run.manifest["stages"]["sweep"]["status"] == "partial"
    assert "server-failed" in {warning["code"] for warning in ours.run.manifest["warnings"]}


def test_a_second_sweep_starts_only_what_failed(ours: Investigation, trace: FakeTrace, started: list[Setting]) -> None:
    """Going on redoes the failed interval and no other."""
    trace.everything = FakeHeader()
    for _ in range(2):
        sweep.run(ours, intervals=[0, 512, 1024], lengths=(100,))
    assert [setting.interval for setting in started] == [None, 512, 1024, 512]


def test_what_the_baseline_measured_is_not_measured_again(
    ours: Investigation, trace: FakeTrace, started: list[Setting], stub: StubServer
) -> None:
    """The sweep at the default is the baseline with MTP: its cells are used as they are."""
    trace.everything = FakeHeader()
    baseline.run(ours, lengths=(100,), configurations=("mtp",))
    sent = len(stub.sent())
    sweep.run(ours, intervals=[0], lengths=(100,))
    assert len(stub.sent()) == sent
    assert ours.run.manifest["stages"]["sweep"]["status"] == "done"


def test_an_attached_server_is_not_swept(attach: Attach, stub: StubServer) -> None:
    """Nothing is sent; the stage is skipped, and the way to get a sweep is named."""
    investigation = attach()
    assert len(sweep.run(investigation)) == 0
    assert not stub.sent()
    assert investigation.run.manifest["stages"]["sweep"]["status"] == "skipped"
    warning = investigation.run.manifest["warnings"][0]
    assert warning["code"] == "no-sweep"
    assert "--serve-cmd" in warning["remedy"]
    assert len(frames.kept(investigation.path)) == 0


def test_what_is_kept_is_recorded_once(ours: Investigation, trace: FakeTrace, started: list[Setting]) -> None:
    """Blocks per group of each prompt's first send are one row each, however often the sweep is run."""

    @dataclass
    class Kept:
        gid: int
        blocks: int = 33
        bytes: int = 1024

    group = type("Group", (), {"gid": 0, "kind": "sliding_window", "block_size": 32})
    trace.everything = FakeHeader()
    lookup = trace.lookup("any")
    lookup.groups = (type("View", (), {"group": group})(),)
    trace.lookup = lambda request_id: lookup  # type: ignore[method-assign]
    trace.kept = lambda request_id: (Kept(0),)  # type: ignore[method-assign,assignment,return-value]
    for _ in range(2):
        sweep.run(ours, intervals=[0, 1024], lengths=(100,))
    rows = [row for row in ours.run.rows("sweep") if row["kind"] == "kept"]
    assert [(row["setting"]["interval"], row["blocks"]) for row in rows] == [(None, 33), (1024, 33)]
