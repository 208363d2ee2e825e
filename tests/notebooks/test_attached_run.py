"""An attached server, the whole way: notebooks run headless, the report is there, and the key is nowhere."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from stub import StubServer

from prefixscope import cli
from prefixscope.runs import Run

SECRET = "quite-a-secret-value-42"


def kept(folder: Path) -> str:
    """Everything below a folder, as one text."""
    return "\n".join(path.read_bytes().decode("utf-8", "replace") for path in folder.rglob("*") if path.is_file())


def test_an_attached_run_ends_with_a_report_and_no_key(
    stub: StubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Baseline, equality and report run, what was left out is said, and the key is neither printed nor kept."""
    stub.api_key = SECRET
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TINY_LOGIN", SECRET)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    arguments = ["-p", "baseline.lengths=[100, 700]", "-p", "equality.documents=1", "-p", "equality.tokens=500"]
    code = cli.main(["run", "--url", stub.url, "--key-env", "TINY_LOGIN", "-o", "run", "--json", *arguments])
    shown = capfd.readouterr()
    assert code == 0, shown.err
    result = json.loads(shown.out)
    assert result["verdict_code"] == "reuses"
    assert result["failed_stages"] == []
    assert Path(result["report"]).exists()
    assert "repeated prompts hit the prefix cache" in Path(result["incident"]).read_text().splitlines()[0]
    assert "trace     left out" in shown.err
    stages = {name: stage["status"] for name, stage in Run(tmp_path / "run").manifest["stages"].items()}
    assert stages == {
        "baseline": "done",
        "speculation": "done",
        "equality": "done",
        "report": "done",
        "trace": "left out",
        "sweep": "left out",
        "crosscheck": "skipped",  # nothing was traced
    }
    assert {row["cached_tokens"] for row in Run(tmp_path / "run").rows("baseline") if row.get("send") == "repeat"} == {
        64,
        640,
    }
    assert SECRET not in shown.out + shown.err + kept(tmp_path)

    sent = len(stub.sent())
    assert cli.main(["run", "-o", "run", "--resume"]) == 0
    assert "done already" in capfd.readouterr().err
    assert len(stub.sent()) == sent
