"""Real servers that are set up badly, or that can't start: a verdict or a clear error, and nothing lost."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from bench import prefixscope

from prefixscope.engine import Engine
from prefixscope.runs import Run

pytestmark = pytest.mark.engine

SHORT = ("run", "--no-collect-env", "--only", "baseline", "-p", "baseline.lengths=[640]")


def command(engine: Engine, *, without: tuple[str, ...] = (), extra: tuple[str, ...] = ()) -> str:
    """A serve command as a user would give it, for the embedded model."""
    words = [word for word in engine.serve_command() if word not in without]
    environment = [f"{name}={value}" for name, value in engine.environment().items()]
    return shlex.join([*environment, *words, *extra])


def test_null_is_not_zero(engine: Engine, tmp_path: Path) -> None:
    """A server without --enable-prompt-tokens-details gives “not reported”, names the flag, and exits 3."""
    run = tmp_path / "run"
    serve = command(engine, without=("--enable-prompt-tokens-details",))
    done = prefixscope(*SHORT, "-o", str(run), "--serve-cmd", serve, "--json")
    assert done.returncode == 3, done.stderr[-2000:]
    answer = json.loads(done.stdout)
    assert answer["verdict_code"] == "not reported"
    warnings = Run(run).manifest["warnings"]
    assert any("--enable-prompt-tokens-details" in warning["remedy"] for warning in warnings)


def test_caching_off_is_named(engine: Engine, tmp_path: Path) -> None:
    """A server without prefix caching is told apart from one that misses: the finding names the flag."""
    run = tmp_path / "run"
    serve = command(engine, without=("--enable-prefix-caching",), extra=("--no-enable-prefix-caching",))
    done = prefixscope(*SHORT, "-o", str(run), "--serve-cmd", serve)
    assert done.returncode in (0, 3), done.stderr[-2000:]
    found = {warning["code"]: warning for warning in Run(run).manifest["warnings"]}
    assert "--enable-prefix-caching" in found["prefix-caching-off"]["remedy"]


def test_a_server_that_cannot_start_is_a_row_with_its_reason(engine: Engine, tmp_path: Path) -> None:
    """An unknown flag ends the server: exit 1, the reason in the row and the report, the rest of the run goes on."""
    run = tmp_path / "run"
    serve = command(engine, extra=("--no-such-flag",))
    done = prefixscope(*SHORT, "-o", str(run), "--serve-cmd", serve)
    assert done.returncode == 1
    rows = Run(run).rows("baseline")
    assert rows
    assert all(row["status"] == "failed" for row in rows if row["kind"] == "send")
    assert "no-such-flag" in rows[0]["error"]
    assert "no-such-flag" in (run / "report.html").read_text()


def test_a_command_that_does_not_exist_ends_the_run_at_once(tmp_path: Path) -> None:
    """Where no server of a run ever answered, one start is tried, and terminal, verdict and report say why."""
    run = tmp_path / "run"
    done = prefixscope(
        "run", "--no-collect-env", "-o", str(run), "--serve-cmd", "nosuchcommand-xyz serve X --port {port}"
    )
    assert done.returncode == 1
    assert "nosuchcommand-xyz" in done.stderr
    assert "not found" in done.stderr
    assert "left out: no server of this run has answered" in done.stderr
    assert len(list((run / "logs").glob("*.log"))) == 1
    assert "nosuchcommand-xyz" in done.stdout
    assert "nosuchcommand-xyz" in (run / "report.html").read_text()
