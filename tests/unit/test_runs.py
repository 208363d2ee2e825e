"""The run directory: what is written stays, one writer at a time, and whatever ends a run, it can go on."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from prefixscope import runs
from prefixscope.errors import RunError
from prefixscope.run_files import TOKEN_ENV, read_rows
from prefixscope.runner import Result
from prefixscope.runs import OWNER_ENV, Run, copy_run

RunFactory = Callable[..., Run]


def child(code: str, *arguments: object, **environment: str) -> subprocess.Popen[str]:
    """A Python process with this code; its arguments are in ``sys.argv``."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **environment},
    )  # fmt: skip


def said(process: subprocess.Popen[str]) -> str:
    """The next line that a child prints."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def full_disk(*_: object) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def append_two(run: Run, between: Callable[[], object]) -> None:
    """A stage of two rows with something in between."""
    with run.stage("sweep") as stage:
        stage.append({"n": 1})
        between()
        stage.append({"n": 2})


# --- making and opening --------------------------------------------------------------------------------------------


def test_a_new_run_has_its_folders_and_a_manifest(run_factory: RunFactory) -> None:
    """Everything a stage writes to is there from the beginning."""
    run = run_factory(lengths=[1])
    assert {"raw", "trace", "logs", "notebooks", "run.json"} <= {path.name for path in run.path.iterdir()}
    assert run.manifest["schema_version"] == runs.SCHEMA_VERSION
    assert run.manifest["parameters"] == {"lengths": [1]}
    assert run.manifest["stages"] == {}


def test_a_directory_with_files_is_not_taken(run_factory: RunFactory, tmp_path: Path) -> None:
    """A run never begins among other files; an earlier run is named as one, with the way to go on."""
    run = run_factory()
    before = (run.path / "run.json").read_bytes()
    with pytest.raises(RunError, match="an earlier run is there") as caught:
        run_factory()
    assert "--resume" in caught.value.remedy
    assert (run.path / "run.json").read_bytes() == before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("keep me")
    with pytest.raises(RunError, match="other files"):
        run_factory("mine")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.txt"]


def test_the_command_that_goes_on_can_be_pasted(tmp_path: Path) -> None:
    """A folder's name with a space is quoted; where the folder holds no run there is nothing to go on with."""
    place = tmp_path / "my run"
    Run.create(place, target={}, parameters={})
    with pytest.raises(RunError) as caught:
        Run.free(place)
    assert caught.value.remedy == f"prefixscope run -o '{place}' --resume, or another -o"
    (place / "run.json").unlink()
    with pytest.raises(RunError) as caught:
        Run.free(place)
    assert "--resume" not in caught.value.remedy
    failed = Result(place, None, "no verdict", "", ("sweep",), 1.0)
    assert f"prefixscope run -o '{place}' --resume" in failed.text()


def test_a_file_is_no_run_directory(run_factory: RunFactory, tmp_path: Path) -> None:
    """A file in the way is named."""
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="is a file"):
        run_factory("file")
    with pytest.raises(RunError, match="can't make"):
        run_factory("file/below")


def test_a_directory_without_a_run_says_so(tmp_path: Path) -> None:
    """Opening something else is an error in words."""
    with pytest.raises(RunError, match=r"no run\.json"):
        Run(tmp_path)
    with pytest.raises(RunError, match=r"no run\.json"):
        Run(tmp_path / "missing")


@pytest.mark.parametrize("text", ["", "{", "[1]", '"x"', "\x00"])
def test_a_damaged_manifest_says_so(run_factory: RunFactory, text: str) -> None:
    """A manifest that can't be read is named, never guessed."""
    run = run_factory()
    (run.path / "run.json").write_text(text)
    with pytest.raises(RunError, match=r"run\.json"):
        Run(run.path)


@pytest.mark.parametrize("version", [99, "2", None])
def test_a_newer_schema_is_refused_untouched(run_factory: RunFactory, version: object) -> None:
    """A run of another schema is neither read nor changed; both versions are in the message."""
    run = run_factory()
    run.update(lambda m: m.update({"schema_version": version}))
    before = (run.path / "run.json").read_bytes()
    with pytest.raises(RunError, match=f"{version!r}.*reads {runs.SCHEMA_VERSION}"):
        Run(run.path)
    assert (run.path / "run.json").read_bytes() == before


def test_a_copy_can_be_written_to(run_factory: RunFactory, tmp_path: Path) -> None:
    """A copy holds the rows and takes new ones; the original stays as it was."""
    run = run_factory()
    with run.stage("baseline") as stage:
        stage.append({"n": 1})
    other = copy_run(run.path, tmp_path / "copy")
    with other.stage("baseline") as stage:
        stage.append({"n": 2})
    assert [row["n"] for row in other.rows()] == [1, 2]
    assert [row["n"] for row in run.rows()] == [1]


# --- the manifest --------------------------------------------------------------------------------------------------


def test_the_manifest_is_never_half_written(run_factory: RunFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that fails leaves the old manifest whole and no temporary file, and says that there is no room."""
    run = run_factory()
    before = run.manifest
    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(RunError, match="No space left"):
        run.fact("vllm version", "0.29.0", "/version")
    monkeypatch.undo()
    assert Run(run.path).manifest == before
    assert not list(run.path.glob("*.tmp")) + list(run.path.glob(".*.tmp"))


def test_changes_from_several_threads_are_all_kept(run_factory: RunFactory) -> None:
    """No update of the manifest is lost, whoever else updates it."""
    run = run_factory()
    threads = [threading.Thread(target=run.fact, args=(f"fact {n}", n, "here")) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(fact["value"] for fact in run.manifest["facts"]) == list(range(12))


def test_a_fact_is_replaced_and_a_warning_kept_once(run_factory: RunFactory) -> None:
    """The last value of a fact counts; the same warning twice is one warning."""
    run = run_factory()
    run.fact("block", 32, "a")
    run.fact("block", 64, "b")
    assert run.get_fact("block") == 64
    assert run.get_fact("nothing") is None
    for _ in range(2):
        run.warn("code", "detail")
    assert len(run.manifest["warnings"]) == 1


def test_keys_are_masked_in_warnings_and_errors(run_factory: RunFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key that gets into a warning's text or into an exception does not get into the manifest."""
    monkeypatch.setenv("MY_API_KEY", "quite-secret-value")
    run = run_factory()
    run.warn("code", "it said quite-secret-value")
    with pytest.raises(ValueError), run.stage("baseline"):
        raise ValueError("no quite-secret-value here")
    assert "quite-secret-value" not in (run.path / "run.json").read_text()


# --- stages --------------------------------------------------------------------------------------------------------


def test_a_stage_keeps_its_status_whatever_happens(run_factory: RunFactory) -> None:
    """Done, failed and interrupted stages are told apart; a failure's reason is kept, a second try clears it."""
    run = run_factory()
    with run.stage("baseline", {"seed": 1}):
        assert run.manifest["stages"]["baseline"]["status"] == "running"
    assert run.manifest["stages"]["baseline"]["status"] == "done"
    assert run.manifest["stages"]["baseline"]["parameters"] == {"seed": 1}
    with pytest.raises(RuntimeError), run.stage("baseline"):
        raise RuntimeError("boom")
    assert run.manifest["stages"]["baseline"]["status"] == "failed"
    assert "boom" in run.manifest["stages"]["baseline"]["error"]
    with pytest.raises(KeyboardInterrupt), run.stage("baseline"):
        raise KeyboardInterrupt
    assert run.manifest["stages"]["baseline"]["status"] == "interrupted"
    assert run.manifest["stages"]["baseline"]["error"] == "interrupted by Ctrl-C"
    with pytest.raises(SystemExit), run.stage("baseline"):
        sys.exit(143)
    assert run.manifest["stages"]["baseline"]["error"] == "ended from outside (exit code 143)"
    with pytest.raises(AssertionError), run.stage("baseline"):
        raise AssertionError
    assert run.manifest["stages"]["baseline"]["error"] == "AssertionError"
    with run.stage("baseline") as stage:
        stage.outcome, stage.note = "skipped", "why"
    assert run.manifest["stages"]["baseline"]["status"] == "skipped"
    assert run.manifest["stages"]["baseline"]["error"] is None


def test_rows_come_back_in_order_with_their_stage(run_factory: RunFactory) -> None:
    """A row is on disk as soon as it is appended, with schema, stage and time."""
    run = run_factory()
    with run.stage("sweep") as stage:
        stage.append({"n": 1})
        assert [row["n"] for row in Run(run.path).rows("sweep")] == [1]
        stage.append({"n": 2, "text": "ümlaut\nline"})
    rows = run.rows("sweep")
    assert [(row["n"], row["stage"], row["schema"]) for row in rows] == [(1, "sweep", 1), (2, "sweep", 1)]
    assert rows[1]["text"] == "ümlaut\nline"
    assert all(row["at"].endswith("Z") for row in rows)
    assert run.rows("nothing") == []


# --- interrupted writes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tail", [b'{"n": 2, "te', b'{"n": 2, "text": "\xc3', b"\x00\x00\x00"])
def test_a_truncated_last_line_is_passed_over_and_closed(run_factory: RunFactory, tail: bytes) -> None:
    """What a killed writer left half-written is not read, and the next row does not run into it."""
    run = run_factory()
    with run.stage("sweep") as stage:
        stage.append({"n": 1})
    with (run.path / "raw" / "sweep.jsonl").open("ab") as file:
        file.write(tail)
    assert [row["n"] for row in run.rows("sweep")] == [1]
    with run.stage("sweep") as stage:
        stage.append({"n": 3})
    assert [row["n"] for row in run.rows("sweep")] == [1, 3]


def test_a_whole_last_line_without_its_end_is_kept(run_factory: RunFactory) -> None:
    """A row that lacks nothing but its line end is a row."""
    run = run_factory()
    (run.path / "raw" / "sweep.jsonl").write_bytes(b'{"n": 1}')
    with run.stage("sweep") as stage:
        stage.append({"n": 2})
    assert [row["n"] for row in run.rows("sweep")] == [1, 2]


def test_foreign_lines_are_passed_over(run_factory: RunFactory) -> None:
    """A line that is no JSON object is no row."""
    run = run_factory()
    (run.path / "raw" / "sweep.jsonl").write_text('{"n": 1}\n\n[1]\nnull\nnonsense\n{"n": 2}\n')
    assert [row["n"] for row in read_rows(run.path / "raw" / "sweep.jsonl")] == [1, 2]


def test_a_short_write_is_taken_back(run_factory: RunFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that fits only in part is removed again, the error says so, and the earlier rows are whole."""
    run = run_factory()
    real = os.write
    with pytest.raises(RunError, match="all earlier rows are safe"):
        append_two(run, lambda: monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[: len(data) // 2])))
    monkeypatch.undo()
    assert (run.path / "raw" / "sweep.jsonl").read_bytes().count(b"\n") == 1
    assert [row["n"] for row in run.rows("sweep")] == [1]
    assert run.manifest["stages"]["sweep"]["status"] == "failed"


def test_a_full_disk_names_the_way_on(run_factory: RunFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """ENOSPC is told in words, with the command that goes on; nothing is lost and the run can be resumed."""
    run = run_factory()
    with pytest.raises(RunError, match="No space left") as caught:
        append_two(run, lambda: monkeypatch.setattr(os, "write", full_disk))
    monkeypatch.undo()
    assert f"prefixscope run -o {run.path} --resume" in caught.value.remedy
    with run.stage("sweep") as stage:
        stage.append({"n": 3})
    assert [row["n"] for row in run.rows("sweep")] == [1, 3]


def test_a_real_size_limit_stops_the_stage_and_keeps_its_rows(run_factory: RunFactory) -> None:
    """Where the kernel itself refuses to write more, the stage ends with our error and every row on disk is whole."""
    run = run_factory()
    process = child(
        """
        import resource, sys
        from prefixscope.errors import RunError
        from prefixscope.runs import Run
        run = Run(sys.argv[1])
        resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))
        try:
            with run.stage("sweep") as stage:
                for n in range(1000):
                    stage.append({"n": n, "pad": "x" * 300})
        except RunError as error:
            print(type(error).__name__, str(error).splitlines()[0])
        """,
        run.path,
    )
    out, err = process.communicate(timeout=30)
    assert out.startswith("RunError the row could not be written"), err
    rows = run.rows("sweep")
    assert [row["n"] for row in rows] == list(range(len(rows)))
    assert 5 < len(rows) < 15
    with run.stage("sweep") as stage:
        stage.append({"n": -1})
    assert run.rows("sweep")[-1]["n"] == -1


def test_a_kill_in_the_middle_of_writing_loses_at_most_the_open_row(run_factory: RunFactory) -> None:
    """After kill −9 the rows are a whole sequence from the first on, the lock is free, and the stage can go on."""
    run = run_factory()
    process = child(
        """
        import sys
        from prefixscope.runs import Run
        with Run(sys.argv[1]).stage("sweep") as stage:
            for n in range(10**9):
                stage.append({"n": n, "pad": "x" * 5000})
                if n == 20:
                    print("going", flush=True)
        """,
        run.path,
    )
    assert said(process) == "going"
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=10)
    process.communicate()
    rows = run.rows("sweep")
    assert [row["n"] for row in rows] == list(range(len(rows)))
    assert len(rows) > 20
    assert run.manifest["stages"]["sweep"]["status"] == "running"
    with run.stage("sweep") as stage:
        stage.append({"n": "next"})
    assert run.rows("sweep")[-1]["n"] == "next"
    assert run.manifest["stages"]["sweep"]["status"] == "done"


# --- the lock ------------------------------------------------------------------------------------------------------

HOLD = """
import sys
from prefixscope.runs import Run
with Run(sys.argv[1]).locked() as token:
    print(token, flush=True)
    sys.stdin.read()
"""


def test_a_run_in_use_is_refused_with_its_holder(run_factory: RunFactory) -> None:
    """A second writer is told who writes; the rows and the manifest stay as they are."""
    run = run_factory()
    process = child(HOLD, run.path)
    token = said(process)
    before = (run.path / "run.json").read_bytes()
    with pytest.raises(RunError, match=f"in use by process {process.pid}"), run.stage("sweep") as stage:
        stage.append({"n": 1})
    assert run.rows() == []
    assert (run.path / "run.json").read_bytes() == before
    assert token not in str(before)
    process.communicate("", timeout=10)
    with run.stage("sweep") as stage:
        stage.append({"n": 2})


def test_a_kernel_of_the_holder_may_write(run_factory: RunFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under the holder's token the run is open; under another token it is not."""
    run = run_factory()
    process = child(HOLD, run.path)
    token = said(process)
    monkeypatch.setenv(TOKEN_ENV, "0" * 16)
    with pytest.raises(RunError, match="in use"), run.locked():
        pass
    monkeypatch.setenv(TOKEN_ENV, token)
    with run.stage("sweep") as stage:
        stage.append({"n": 1})
    process.communicate("", timeout=10)
    assert len(run.rows()) == 1


def test_a_killed_holder_leaves_no_lock(run_factory: RunFactory) -> None:
    """The lock of a process that was killed is nobody's."""
    run = run_factory()
    process = child(HOLD, run.path)
    said(process)
    process.kill()
    process.communicate()
    with run.locked():
        pass


def test_a_stale_token_opens_nothing(run_factory: RunFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token whose holder has finished takes the lock like anybody else."""
    run = run_factory()
    with run.locked() as token:
        pass
    monkeypatch.setenv(TOKEN_ENV, token)
    process = child(HOLD, run.path)
    said(process)
    with pytest.raises(RunError, match="in use"), run.locked():
        pass
    process.communicate("", timeout=10)


def test_nothing_is_written_after_the_owner_is_gone(run_factory: RunFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that outlives its runner stops at its next row."""
    run = run_factory()
    gone = subprocess.Popen(["true"])
    gone.wait()
    monkeypatch.setenv(OWNER_ENV, str(os.getpid()))
    with pytest.raises(RunError, match=r"runner .* is gone"):
        append_two(run, lambda: monkeypatch.setenv(OWNER_ENV, str(gone.pid)))
    assert [row["n"] for row in run.rows()] == [1]


def test_a_lock_that_can_not_be_written_is_told_in_words(run_factory: RunFactory) -> None:
    """A lock or a manifest lock that can't be opened is an error of ours, not a bare OSError."""
    for name in (".lock", ".manifest.lock"):
        run = run_factory(f"run{name}")
        (run.path / name).unlink(missing_ok=True)
        (run.path / name).mkdir()
        with pytest.raises(RunError, match=r"lock"), run.stage("sweep"):
            pass


def test_progress_is_a_small_file_that_is_always_whole(run_factory: RunFactory) -> None:
    """A stage's progress names its step and what is left of its plan, and never more steps than planned."""
    run = run_factory()
    with run.stage("sweep") as stage:
        stage.progress.plan(10.0, 2)
        stage.progress.say("first")
        stage.progress.advance(5.0)
        shown: dict[str, Any] = json.loads((run.path / "progress.json").read_text())
    assert (shown["stage"], shown["step"], shown["steps"], shown["text"]) == ("sweep", 1, 2, "first")
    assert 0 <= shown["left_s"] <= 5


def test_a_stage_run_again_with_nothing_to_do_keeps_its_times(run_factory: RunFactory) -> None:
    """What a stage took when it measured stays in the manifest; one that measures more, or fails, is told anew."""
    run = run_factory()
    with run.stage("sweep", {"n": 1}) as stage:
        stage.append({"n": 1})
    first = run.manifest["stages"]["sweep"]
    with run.stage("sweep", {"n": 1}):
        pass
    assert run.manifest["stages"]["sweep"] == first
    with run.stage("sweep", {"n": 2}) as stage:
        stage.append({"n": 2})
    assert run.manifest["stages"]["sweep"]["parameters"] == {"n": 2}
    with run.stage("sweep") as stage:
        stage.outcome, stage.note = "partial", "a server failed"
    assert run.manifest["stages"]["sweep"]["status"] == "partial"
