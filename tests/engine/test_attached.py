"""``--url``: a real server that is not ours to restart."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench import Bench, prefixscope

from prefixscope import frames, resources
from prefixscope.client import Client
from prefixscope.metrics import counters
from prefixscope.runs import Run
from prefixscope.setting import Setting

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def url(bench: Bench) -> Iterator[str]:
    """The address of a running server with MTP, the adapter and interval 1024."""
    investigation = bench.investigation
    with (
        investigation.stage("trace") as stage,
        investigation.server(Setting(lora=True, interval=1024), stage, keep=True) as (client, _),
    ):
        yield client.url


def test_what_is_served_is_measured_and_the_rest_is_named(url: str, tmp_path: Path) -> None:
    """Baseline and equality run under both served names, speculation too; trace and sweep are left out, as is said."""
    run = tmp_path / "run"
    few = ["-p", "baseline.lengths=[640, 1600]", "-p", "equality.documents=1", "-p", "equality.tokens=1300"]
    few += ["-p", "speculation.documents=1", "-p", "speculation.repeats=1", "-p", "speculation.answer_tokens=8"]
    done = prefixscope("run", "--url", url, "-o", str(run), "--json", *few)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout)["verdict_code"] == "reuses"
    sends = frames.sends(run)
    assert sends["model"].nunique() == 2
    second = sends[(sends["send"] == "repeat") & (sends["index"] == 2)]
    assert dict(zip(second["tokens"], second["cached_tokens"], strict=True)) == {640: 448, 1600: 1472}
    assert frames.generations(run)["agree"].all()
    stages = Run(run).manifest["stages"]
    assert {name for name, state in stages.items() if state["status"] == "left out"} == {"trace", "sweep"}
    assert "--serve-cmd" in (run / "report.html").read_text()


def test_the_dashboards_metrics_are_on_its_page(url: str) -> None:
    """Every metric that the Grafana dashboard asks for is one that the real server exposes."""
    dashboard = "".join(file.read_text() for file in resources.data_path("grafana").glob("*.json"))
    with Client(url) as client:
        page = client.metrics() or ""
    for name in set(re.findall(r"vllm:\w+", dashboard)):
        assert f"{name}{{" in page, name


def test_it_sends_little_and_leaves_the_server_as_it_was(url: str, bench: Bench, tmp_path: Path) -> None:
    """A baseline of one length sends at most nine requests per name, and the server still runs afterwards."""
    with Client(url) as client:
        before = counters(client.metrics())
        run = tmp_path / "run"
        prefixscope("run", "--url", url, "-o", str(run), "--only", "baseline", "-p", "baseline.lengths=[640]")
        spent = counters(client.metrics()).since(before)
        assert client.healthy()
    assert spent.queries is not None
    # Per name: the discarded request (256), six sends and the answer before the follow-up (640 each, the last longer).
    assert spent.queries <= 2 * (256 + 7 * 640 + 100)


def test_a_wrong_model_lists_the_served_ones(url: str, tmp_path: Path) -> None:
    """A name that is not served ends with exit 2 and the names that are; no directory is made."""
    done = prefixscope("run", "--url", url, "--model", "gemma", "-o", str(tmp_path / "run"))
    assert done.returncode == 2
    assert "gemma4-small, gemma4-small-lora" in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_prompt_longer_than_the_context_is_a_row(url: str, tmp_path: Path) -> None:
    """A length beyond the served context is a failed row with both numbers; the other lengths are measured."""
    run = tmp_path / "run"
    lengths = "baseline.lengths=[640, 40000]"
    done = prefixscope("run", "--url", url, "-o", str(run), "--only", "baseline", "-p", lengths)
    assert done.returncode == 1
    sends = frames.sends(run)
    failed = sends[sends["status"] == "failed"]
    assert set(failed["tokens"]) == {40000}
    assert failed["error"].str.contains("32,768").all()
    assert (sends.loc[sends["tokens"] == 640, "status"] == "ok").all()
