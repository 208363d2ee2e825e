"""The command line: help, plans, exit codes, and that nothing secret leaves the environment."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import pytest
from stub import HTML_PAGE, MODELS, Reply, StubServer

from prefixscope import baseline, cli, notebooks, planned, runner
from prefixscope.errors import EngineError, PrefixscopeError, ReportError, TraceError
from prefixscope.investigation import Investigation

SECRET = "quite-a-secret-value-42"
RECORDED = Path(__file__).parents[1] / "data" / "trace-incident.jsonl"


def closed_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A command that makes a run directory where it stands must not make it in the checkout.
    monkeypatch.chdir(tmp_path)


def kept(folder: Path) -> str:
    """Everything below a folder, as one text."""
    return "\n".join(path.read_bytes().decode("utf-8", "replace") for path in folder.rglob("*") if path.is_file())


# --- help ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        [], ["run"], ["check"],
        ["report"], ["compare"], ["engine"], ["engine", "install"], ["engine", "list"], ["engine", "remove"], ["trace"],
        ["trace", "kit"], ["trace", "show"], ["notebooks"], ["notebooks", "copy"], ["lab"],
    ],
)  # fmt: skip
def test_every_command_has_help(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """``--help`` of each command explains it and every one of its options, and exits 0."""
    with pytest.raises(SystemExit) as caught:
        cli.main([*command, "--help"])
    assert caught.value.code == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"usage: prefixscope {' '.join(command)}".rstrip())
    options = [line.split() for line in shown.splitlines() if line.startswith("  -")]
    assert options
    assert "==SUPPRESS==" not in shown


def test_run_explains_each_of_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    """No option of ``run`` is without a sentence."""
    parser = cli.build_parser()
    commands = next(action for action in parser._actions if action.dest not in ("help", "version"))
    for action in commands.choices["run"]._actions:  # type: ignore[union-attr,call-overload,index]
        assert action.help, action.option_strings


def test_without_a_command_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """``prefixscope`` alone shows its help and exits 2."""
    assert cli.main([]) == 2
    assert "exit codes" in capsys.readouterr().out


def test_an_unknown_option_exits_2(capsys: pytest.CaptureFixture[str]) -> None:
    """argparse's own errors have the exit code of usage errors."""
    with pytest.raises(SystemExit) as caught:
        cli.main(["run", "--urll", "x"])
    assert caught.value.code == 2


def test_help_needs_no_pandas() -> None:
    """The command line answers quickly: showing help loads neither pandas nor Altair nor papermill."""
    code = "import sys\nfrom prefixscope import cli\ntry: cli.main(['run', '--help'])\nexcept SystemExit: pass\n"
    code += "print(sorted({'pandas', 'altair', 'papermill'} & set(sys.modules)), file=sys.stderr)"
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )  # fmt: skip
    assert found.stderr.strip() == "[]"


# --- plans ---------------------------------------------------------------------------------------------------------


def test_a_dry_run_says_what_it_would_do_and_does_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The plan names target, notebooks, parameters and time; no directory is made and no server asked."""
    assert cli.main(["run", "--dry-run", "--quick", "-p", "sweep.intervals=[0, 64]"]) == 0
    shown = capsys.readouterr().out
    assert "embedded vLLM 0.29.0" in shown
    for name in ("00-baseline", "10-block-trace", "20-retention-sweep", "30-output-equality", "90-report"):
        assert name in shown
    assert "intervals=[0, 64]" in shown
    assert "minutes" in shown
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_of_an_attached_server_names_what_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Trace and sweep need restarts; the plan says so and how to get them, without asking the server."""
    assert cli.main(["run", "--dry-run", "--url", f"http://127.0.0.1:{closed_port()}"]) == 0
    shown = capsys.readouterr().out
    assert "left out: trace" in shown
    assert "left out: sweep" in shown
    assert "--serve-cmd" in shown
    assert shown.count("or a trace of it: -p sweep.trace=FILE") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_plan_can_be_read_by_a_script(capsys: pytest.CaptureFixture[str]) -> None:
    """``--json`` gives the plan as JSON on stdout; a guess at the time only where there is ground for one."""
    assert cli.main(["run", "--dry-run", "--json", "--only", "sweep"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["stages"] == ["sweep", "report"]
    assert plan["expected_s"] > 0
    assert cli.main(["run", "--dry-run", "--json", "--serve-cmd", "vllm serve some/model"]) == 0
    assert json.loads(capsys.readouterr().out)["expected_s"] is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-p", "sweep.lenghts=[1]"], ["no parameter 'lenghts'", "'lengths'"]),
        (["-p", "sweep.lengths=7"], ["declares list"]),
        (["-p", "lengths=[7]"], ["stage.name=value"]),
        (["--only", "sweeep"], ["'sweeep'", "baseline"]),
        (["--stop-cmd", "docker stop x"], ["--stop-cmd goes with --serve-cmd"]),
        (["--engine", "0.30.0", "--url", "http://h"], ["--engine"]),
        (["--resume"], ["--resume needs the run directory"]),
        (["--resume", "-o", "nothing-there"], ["run.json"]),
        (["--url", ""], ["needs a URL"]),
        (["--serve-cmd", " "], ["needs a command"]),
    ],
)
def test_wrong_usage_exits_2_in_words_and_writes_nothing(
    arguments: list[str], words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A typo, a wrong type, an unknown stage or options that don't go together end before anything happens."""
    assert cli.main(["run", *arguments]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("prefixscope: ")
    assert all(word in shown.err for word in words), shown.err
    assert "Traceback" not in shown.err
    assert list(tmp_path.iterdir()) == []


# --- targets -------------------------------------------------------------------------------------------------------


def test_an_unreachable_url_exits_2_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The address, the reason and the next command are in the message; no run directory is left behind."""
    url = f"http://127.0.0.1:{closed_port()}"
    assert cli.main(["run", "--url", url, "-o", "run"]) == 2
    shown = capsys.readouterr().err
    assert url in shown
    assert "connection refused" in shown
    assert "Next: curl" in shown
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_model_lists_the_served_ones(
    stub: StubServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A name that is not served exits 2 with the names that are, and nothing is sent or written."""
    assert cli.main(["run", "--url", stub.url, "--model", "tinny", "-o", "run"]) == 2
    assert "tiny, tiny-lora" in capsys.readouterr().err
    assert not stub.sent()
    assert list(tmp_path.iterdir()) == []


def test_a_web_page_is_not_a_server(stub: StubServer, capsys: pytest.CaptureFixture[str]) -> None:
    """Another web server at the address exits 2, showing how its page begins."""
    stub.always(MODELS, Reply(200, HTML_PAGE))
    assert cli.main(["run", "--url", stub.url]) == 2
    assert "another web server" in capsys.readouterr().err


def test_a_key_variable_that_is_not_set_exits_2(
    stub: StubServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The variable is named, and nothing is asked or written."""
    assert cli.main(["run", "--url", stub.url, "--key-env", "PREFIXSCOPE_NO_SUCH_KEY"]) == 2
    assert "'PREFIXSCOPE_NO_SUCH_KEY'" in capsys.readouterr().err
    assert stub.requests == []
    assert list(tmp_path.iterdir()) == []


def test_a_missing_or_wrong_key_exits_2(
    stub: StubServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A 401 names the option that takes a variable's name; the key that was tried is not shown."""
    stub.api_key = "another-value-entirely"
    monkeypatch.setenv("TINY_KEY", SECRET)
    assert cli.main(["run", "--url", stub.url]) == 2
    assert cli.main(["run", "--url", stub.url, "--key-env", "TINY_KEY"]) == 2
    shown = capsys.readouterr()
    assert "--key-env" in shown.err
    assert SECRET not in shown.out + shown.err


@pytest.mark.parametrize("command", ["vllm serve 'unclosed", "vllm serve m && echo"])
def test_a_serve_command_that_can_not_be_split_exits_2_before_anything_is_made(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A malformed --serve-cmd is a usage error, in words."""
    assert cli.main(["run", "--serve-cmd", command, "-o", "run"]) in (1, 2)
    shown = capsys.readouterr().err
    assert "--serve-cmd" in shown
    assert "Traceback" not in shown
    assert list(tmp_path.iterdir()) == []


# --- run directories -----------------------------------------------------------------------------------------------


def test_a_directory_in_the_way_exits_2_untouched(
    stub: StubServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """-o with other files, or with an earlier run, exits 2 and changes nothing."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("keep me")
    assert cli.main(["run", "--url", stub.url, "-o", "mine"]) == 2
    assert "not empty" in capsys.readouterr().err
    assert kept(tmp_path) == "keep me"


def test_a_run_in_use_exits_2_untouched(
    attach: Callable[..., Investigation], capsys: pytest.CaptureFixture[str]
) -> None:
    """Going on with a run that another process writes is refused with that process; its manifest stays the same."""
    run = attach().run
    with run.locked():
        before = (run.path / "run.json").read_bytes()
        assert cli.main(["run", "-o", str(run.path), "--resume", "-p", "baseline.lengths=[7]"]) == 2
    assert f"in use by process {os.getpid()}" in capsys.readouterr().err
    assert (run.path / "run.json").read_bytes() == before


def test_resume_keeps_the_target_of_the_run(
    attach: Callable[..., Investigation], capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a target on the command line the plan is that of the run's own target, not of the embedded engine."""
    run = attach().run
    assert cli.main(["run", "-o", str(run.path), "--resume", "--dry-run", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["target"]["kind"] == "attached"
    assert plan["stages"] == ["baseline", "speculation", "equality", "report"]


def test_a_newer_run_is_refused(attach: Callable[..., Investigation], capsys: pytest.CaptureFixture[str]) -> None:
    """A run directory of a newer prefixscope exits 2 with both schema versions."""
    run = attach().run
    run.update(lambda m: m.update({"schema_version": 99}))
    assert cli.main(["run", "-o", str(run.path), "--resume"]) == 2
    assert "99" in capsys.readouterr().err


# --- exit codes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (EngineError("no wheel"), 1),
        (ReportError("no template"), 1),
        (PrefixscopeError("x"), 1),
        (TraceError("newer"), 2),
        (KeyboardInterrupt(), 130),
    ],
)
def test_errors_have_their_exit_code(
    error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What fails on our side is 1, an interrupt 130, each in words."""

    def fail(*args: object, **options: object) -> Any:
        raise error

    monkeypatch.setattr(runner, "run", fail)
    assert cli.main(["run"]) == code
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("verdict", "failed", "code"),
    [
        ("reuses", (), 0),
        ("not reported", (), 3),
        ("cannot hit", (), 3),
        ("inconclusive", (), 3),
        ("reuses", ("sweep",), 1),
        ("inconclusive", ("sweep",), 1),
    ],
)
def test_a_result_has_its_exit_code(verdict: str, failed: tuple[str, ...], code: int) -> None:
    """A failed stage is 1 whatever the verdict; a run that can't tell is 3."""
    result = runner.Result(path=Path("run"), report=None, verdict="…", code=verdict, failed=failed, seconds=1.0)
    assert result.exit_code == code
    assert result.to_json()["failed_stages"] == list(failed)


def test_trace_kit_prints_the_lines_to_start_a_server_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The kit is written, and a line for the host and one for a container say how a server uses it."""
    assert cli.main(["trace", "kit", "kit", "--trace-dir", "out"]) == 0
    lines = capsys.readouterr().out.splitlines()
    host = next(line for line in lines if "vllm serve" in line)
    container = next(line for line in lines if "docker run" in line)
    assert f"PYTHONPATH={tmp_path / 'kit'} " in host
    assert f"{tmp_path / 'kit'}:/prefixscope:ro" in container
    assert f"{tmp_path / 'out'}" in host
    assert (tmp_path / "kit" / "prefixscope_inside" / "tracer.py").is_file()


def test_trace_show_names_the_cause_and_exits_0(capsys: pytest.CaptureFixture[str]) -> None:
    """The summary of the recorded incident ends with its cause in words; as JSON it is one document."""
    assert cli.main(["trace", "show", str(RECORDED)]) == 0
    assert "Cause: stored and needed windows don't meet." in capsys.readouterr().out
    assert cli.main(["trace", "show", str(RECORDED), "--json", "--limit", "1"]) == 0
    assert json.loads(capsys.readouterr().out)["diagnosis"]["cause"] == "windows_dont_meet"


@pytest.mark.parametrize(
    ("content", "arguments", "code", "words"),
    [
        (None, [], 2, "No file trace.jsonl"),
        ("", [], 2, "the file is empty"),
        ("# a page\n\nof words\n", [], 2, "none is an event of the tracer"),
        ('{"schema": 9, "event": "lookup"}\n', [], 2, "newer schema than 1"),
        ("", ["--follow", "--limit", "-1"], 2, "not a whole number"),
    ],
)
def test_what_is_no_trace_exits_2_in_words(
    content: str | None, arguments: list[str], code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A missing, empty, foreign or newer file, and a wrong limit, say what is wrong and print no summary."""
    if content is not None:
        Path("trace.jsonl").write_text(content)
    try:
        got = cli.main(["trace", "show", "trace.jsonl", *arguments])
    except SystemExit as end:
        got = int(str(end.code))
    shown = capsys.readouterr()
    assert (got, shown.out) == (code, "")
    assert words in shown.err
    assert "Traceback" not in shown.err


def test_trace_show_of_an_unknown_request_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    """A request that no traced engine saw can't be explained; several that begin alike are named."""
    assert cli.main(["trace", "show", str(RECORDED), "--request", "nobody"]) == 2
    shown = capsys.readouterr()
    assert "no request in this trace begins with nobody" in shown.err
    assert "--request with one of these, the newest first: dense-2, dense-1" in shown.err
    assert "Price" not in shown.out + shown.err
    assert cli.main(["trace", "show", str(RECORDED), "--request", "cpu"]) == 2
    assert "cpu-1, cpu-2, cpu-3" in capsys.readouterr().err


def test_follow_prints_as_the_server_writes_and_ends_with_ctrl_c(tmp_path: Path) -> None:
    """A half line is waited for, what is new is printed once, and Ctrl-C is the normal end."""
    whole = RECORDED.read_bytes()
    half = whole.index(b"cpu-2-0123abcd") + 5
    (tmp_path / "trace-1.jsonl").write_bytes(whole[:half])
    process = subprocess.Popen(
        [sys.executable, "-m", "prefixscope.cli", "trace", "show", str(tmp_path), "--follow"],
        stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        # A shell's background job starts with Ctrl-C ignored, and what it starts inherits that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    too_long = threading.Timer(60, process.kill)
    too_long.start()
    with process:
        assert process.stdout is not None
        before = _until(process.stdout, "first send")
        assert "cpu-1" in before
        with (tmp_path / "trace-1.jsonl").open("ab") as file:
            file.write(whole[half:])
        after = _until(process.stdout, "dense-2")
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
    too_long.cancel()
    assert process.returncode == 0
    assert (before + after + rest).count("cpu-2") == 1
    assert "stored and needed windows don't meet" in after


def _until(lines: IO[str], words: str) -> str:
    """What is printed up to the line that holds these words."""
    read = ""
    for line in lines:
        read += line
        if words in line:
            return read
    return read


def test_dry_run_lists_parameters_that_can_be_pasted(capsys: pytest.CaptureFixture[str]) -> None:
    """Every parameter line of --dry-run is accepted by -p as it stands."""
    assert cli.main(["run", "--dry-run"]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines() if line.strip().startswith("-p ")]
    assert len(lines) > 10
    for line in lines:
        _, assignment, *_ = shlex.split(line.split("'  ")[0] + "'")
        notebooks.parse_assignment(assignment)


def test_notebooks_copy_lists_the_copies_and_overwrites_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A second copy to the same place exits 2."""
    assert cli.main(["notebooks", "copy", "mine"]) == 0
    assert len(capsys.readouterr().out.split()) == len(list((tmp_path / "mine").iterdir())) == 6
    assert cli.main(["notebooks", "copy", "mine"]) == 2
    assert "exists already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "what", "remedy"),
    [
        ("missing", "no such file or folder", "measure one: prefixscope run -o missing"),
        ("an empty one", "the folder is empty", "measure one: prefixscope run -o 'an empty one'"),
        (".", "runs are in it: mine", "prefixscope report mine"),
        ("mine/trace", "as a folder of traces does", "prefixscope trace show mine/trace"),
        ("page.html", "it is a file", "prefixscope report --verify page.html"),
        ("other", "it holds other files", "the folder that prefixscope run wrote"),
    ],
)
def test_a_report_of_nothing_is_an_error_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    name: str, what: str, remedy: str,
) -> None:  # fmt: skip
    """``report`` on what is no run says what it is instead, and a command that goes on from there."""
    monkeypatch.chdir(tmp_path)
    for folder in ("mine/raw", "mine/trace"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "mine" / "trace" / "trace-1.jsonl").write_text("{}")
    for folder in ("an empty one", "other"):
        (tmp_path / folder).mkdir()
    (tmp_path / "other" / "a.txt").write_text("a")
    (tmp_path / "page.html").write_text("<html>")
    before = sorted(tmp_path.rglob("*"))
    assert cli.main(["report", name]) == 2
    shown = capsys.readouterr().err
    assert what in shown
    assert remedy in shown
    assert "Next: prefixscope report RUN" not in shown
    assert sorted(tmp_path.rglob("*")) == before


def test_a_half_finished_run_has_a_report(
    attach: Callable[..., Investigation], capsys: pytest.CaptureFixture[str]
) -> None:
    """``report RUN`` works on a run that holds a baseline and nothing else."""
    investigation = attach()
    baseline.run(investigation, lengths=(100,))
    assert cli.main(["report", str(investigation.path)]) == 0
    out = Path(capsys.readouterr().out.splitlines()[0])
    assert out == investigation.path / "report.html"
    assert "<html" in out.read_text("utf-8")[:500].lower()


@pytest.mark.parametrize(
    ("words", "folder", "passed"),
    [
        (["lab", "--port", "8897"], "prefixscope-notebooks", ["--port", "8897"]),
        (["lab", "mine", "--no-browser"], "mine", ["--no-browser"]),
        (["lab"], "prefixscope-notebooks", []),
    ],
)
def test_lab_takes_a_folder_and_passes_the_rest_on(
    words: list[str], folder: str, passed: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a first word without a dash is our folder; Jupyter's options keep their values; the first notebook opens."""
    started: list[list[str]] = []

    def replaced(program: str, arguments: list[str]) -> None:
        started.append(arguments)
        raise SystemExit

    monkeypatch.setattr(os, "execv", replaced)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(SystemExit):
        cli.main(words)
    first = "--LabApp.default_url=/lab/tree/00-baseline.ipynb"
    assert started[0][1:] == ["-m", "jupyterlab", folder, first, *passed]
    assert (tmp_path / folder / "00-baseline.ipynb").is_file()


def test_lab_as_root_says_what_to_add_before_it_makes_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Jupyter would end at once: the command that works is named, and the folder is not made; told to, it starts."""
    started: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda _, arguments: started.append(arguments))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert cli.main(["lab", "mine", "--port", "8897"]) == 2
    assert "Next: prefixscope lab mine --port 8897 --allow-root\n" in capsys.readouterr().err
    assert not (tmp_path / "mine").exists()
    assert started == []
    with contextlib.suppress(TypeError):  # what replaces this process comes back here
        cli.main(["lab", "mine", "--allow-root"])
    assert started[0][-1] == "--allow-root"
    assert (tmp_path / "mine" / "00-baseline.ipynb").is_file()


def test_resume_refuses_another_target(
    attach: Callable[..., Investigation], capsys: pytest.CaptureFixture[str]
) -> None:
    """A run goes on with its own target: another URL, command or engine is refused by name."""
    place = str(attach().run.path)
    for other in (["--url", "http://127.0.0.1:1"], ["--serve-cmd", "vllm serve m"], ["--engine", "0.30.0"]):
        assert cli.main(["run", "-o", place, "--resume", *other]) == 2
        assert other[1] in capsys.readouterr().err


def test_dry_run_of_a_resume_shows_the_runs_own_parameters(
    attach: Callable[..., Investigation], capsys: pytest.CaptureFixture[str]
) -> None:
    """What a resumed run would do is listed with the parameters that it began with."""
    run = attach().run
    run.update(lambda m: m["parameters"].update({"baseline": {"lengths": [777]}}))
    assert cli.main(["run", "-o", str(run.path), "--resume", "--dry-run"]) == 0
    assert "baseline.lengths=[777]" in capsys.readouterr().out


def test_a_full_disk_is_said_in_words(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Wherever the disk turns out to be full, the run ends with exit 1, the cause and the way on."""

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(planned, "plan", full)
    assert cli.main(["run"]) == 1
    shown = capsys.readouterr().err
    assert "the disk is full" in shown
    assert "--resume" in shown
