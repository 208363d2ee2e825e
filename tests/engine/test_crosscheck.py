"""Predicted beside measured: on the embedded engine the two agree in every send, and a case replays elsewhere."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from bench import QuickRun

from prefixscope import crosscheck, frames
from prefixscope import engine as engines
from prefixscope.cli import main
from prefixscope.engine import Engine
from prefixscope.investigation import Investigation
from prefixscope.replay import open_release
from prefixscope.replay.exported import to_test
from prefixscope.replay.travel import load, worst_series
from prefixscope.runs import Run
from prefixscope.target import Target

pytestmark = pytest.mark.engine


def test_every_send_is_predicted_to_the_token(quick_run: QuickRun) -> None:
    """Every send of a run on the embedded engine hits what the same release's scheduler says, follow-up turns too."""
    sent = frames.sends(quick_run.path)
    sent = sent[sent["status"] == "ok"]
    wrong = sent[~sent["predicted_agrees"].fillna(False)]
    assert not len(wrong), wrong[["config", "prompt", "send_label", "cached_tokens", "predicted_tokens"]].to_string()
    assert {"cold", "repeat", "control", "new_ending", "follow_up"} <= set(sent["send"])
    assert set(sent["predicted_by"]) == {"0.29.0"}
    assert frames.load_run(quick_run.path)["stages"]["crosscheck"]["status"] == "done"


def test_the_report_shows_both(quick_run: QuickRun) -> None:
    """The report says in how many sends the two are the same, and marks no row."""
    text = (quick_run.path / "report.html").read_text(encoding="utf-8")
    total = len(frames.sends(quick_run.path))
    assert f"the measured hit, to the token, in {total} of {total} sends" in text
    assert 'class="bad"' not in text


def test_a_report_replays_elsewhere(quick_run: QuickRun) -> None:
    """The cases inside a report give the measured hits again, and under 0.30.0 the miss is gone."""
    found = load(quick_run.path / "report.html")
    case = worst_series(found)
    engines.ensure("0.30.0", progress=print)
    with open_release("0.29.0") as old, open_release("0.30.0") as new:
        for each in found:
            hits = {row.id: row.hit_tokens for row in old.case(each).rows}
            assert {name: hits[name] for name in each.measured} == dict(each.measured)
        assert [row.hit_tokens for row in old.case(case).rows] == [0, 0, 6336]
        assert [row.hit_tokens for row in new.case(case).rows] == [0, 6336, 6336]


def test_predict_takes_a_report(quick_run: QuickRun, capsys: pytest.CaptureFixture[str]) -> None:
    """`predict --trace report.html` gives each send again under the release that is asked for, and at its own."""
    engines.ensure("0.30.0", progress=print)
    report = str(quick_run.path / "report.html")
    assert main(["predict", "--trace", report, "--vllm", "0.29.0,0.30.0", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert all(row["hit_tokens"] == row["measured_tokens"] for row in rows if row["release"] == "0.29.0")
    mended = [row for row in rows if row["release"] == "0.30.0" and row["hit_tokens"] > row["measured_tokens"]]
    assert {(row["prompt_tokens"], row["measured_tokens"], row["hit_tokens"]) for row in mended} >= {(6446, 0, 6336)}
    assert main(["predict", "--trace", report]) == 0
    total = len(frames.sends(quick_run.path))
    assert f"gives the measured hit in {total} of {total} sends" in capsys.readouterr().out


def test_the_exported_test_fails_where_the_fault_is(quick_run: QuickRun, tmp_path: Path) -> None:
    """Written for vLLM's tree, it fails on 0.29.0 and passes on 0.30.0, with vLLM's packages alone."""
    done = subprocess.run(
        [sys.executable, "-m", "prefixscope.cli", "export-test", str(quick_run.path / "report.html")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == to_test(worst_series(load(quick_run.path)))
    (tmp_path / "exported.py").write_text(done.stdout, encoding="utf-8")
    call = (
        "import pathlib, sys; sys.path.insert(0, '.'); import exported; "
        "exported.test_second_send_hits_what_the_third_does(pathlib.Path('scratch'))"
    )
    codes = {}
    for release in ("0.29.0", "0.30.0"):
        engine = engines.ensure(release, progress=print)
        place = tmp_path / release
        (place / "scratch").mkdir(parents=True)
        (place / "exported.py").write_text(done.stdout, encoding="utf-8")
        result = subprocess.run(
            [str(engine.python), "-c", call],
            env={"PATH": "/usr/bin:/bin", **engine.environment()},
            cwd=place,
            capture_output=True,
            text=True,
            check=False,
        )
        codes[release] = (result.returncode, "assert second == third" in result.stderr)
    assert codes == {"0.29.0": (1, True), "0.30.0": (0, False)}


def test_the_sweep_of_an_attached_server_is_predicted_from_its_trace(quick_run: QuickRun, tmp_path: Path) -> None:
    """With a trace and no server to restart, the sweep's hits are the ones that a restarted server gave."""
    target = Target(kind="attached", url="http://127.0.0.1:9/v1")
    investigation = Investigation(Run.create(tmp_path / "run", target=target.to_json(), parameters={}), target)
    trace = next((quick_run.path / "trace").glob("*.jsonl"))
    found = crosscheck.swept(investigation, intervals=[0, 1024], lengths=[1600, 6446], trace=str(quick_run.path))
    assert trace.exists()
    assert not found["measured"].any()
    measured = frames.sweep(frames.sends(quick_run.path), frames.kept(quick_run.path))
    columns = ["tokens", "hit_2", "hit_3", "blocks"]
    assert found[columns].values.tolist() == measured[columns].values.tolist()


def test_what_is_not_installed_is_said(
    quick_run: QuickRun, engine: Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without an engine of the server's release there is no prediction, and a warning has the command."""
    target = Target(kind="attached", url="http://127.0.0.1:9/v1")
    investigation = Investigation(Run.create(tmp_path / "run", target=target.to_json(), parameters={}), target)
    monkeypatch.setattr(crosscheck.engines, "find", lambda version: None)
    found = crosscheck.swept(investigation, intervals=[0], lengths=[1600], trace=str(quick_run.path))
    assert not len(found)
    (warning,) = investigation.run.manifest["warnings"]
    assert warning["code"] == "not-predicted"
    assert "prefixscope engine install 0.29.0" in warning["remedy"]
