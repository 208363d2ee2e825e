"""``prefixscope run --quick`` on the embedded engine, from the command line to the report."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from bench import QuickRun, prefixscope

from prefixscope import frames, notebooks, verdict
from prefixscope.engine import Engine
from prefixscope.run_files import read_rows
from prefixscope.runs import Run

pytestmark = pytest.mark.engine


def test_it_ends_well_and_names_its_report(quick_run: QuickRun) -> None:
    """The run exits 0 and prints where the report is."""
    assert quick_run.exit_code == 0, quick_run.progress[-3000:]
    assert Path(quick_run.answer["report"]).is_file()
    assert quick_run.answer["failed_stages"] == []


def test_the_verdict_states_the_incident_from_its_own_rows(quick_run: QuickRun) -> None:
    """The verdict says that send 2 reuses nothing, that send 3 does, and that interval 1024 brings the hit back."""
    found = verdict.of_run(quick_run.path)
    assert found.code == "none"
    for part in ("0.29.0", "6,446", "6,336", "--prefix-cache-retention-interval 1024"):
        assert part in found.text
    html = (quick_run.path / "report.html").read_text()
    assert "6,336" in html
    assert "166–167" in html
    note = Path(quick_run.answer["incident"]).read_text()
    assert note.startswith("# MTP on vLLM 0.29.0: repeated prompts hit nothing in the prefix cache; retention interval")
    assert "166–167 (2)" in note


def test_every_stage_is_done_and_every_notebook_kept(quick_run: QuickRun) -> None:
    """Each stage is done in the manifest, and each executed notebook is in the run directory."""
    stages = Run(quick_run.path).manifest["stages"]
    assert {name: state["status"] for name, state in stages.items() if name != "report"} == dict.fromkeys(
        ("baseline", "trace", "speculation", "equality", "sweep", "crosscheck"), "done"
    )
    assert {file.stem for file in (quick_run.path / "notebooks").glob("*.ipynb")} == set(notebooks.FILES.values())


def test_servers_are_shared_between_stages(quick_run: QuickRun) -> None:
    """Four starts serve the whole quick run: what two notebooks need is measured once."""
    settings = [server["setting"]["label"] for server in Run(quick_run.path).manifest["servers"]]
    assert settings == ["no MTP", "MTP", "MTP + LoRA, interval 1,024", "MTP, interval 1,024"]


def test_no_server_outlives_the_run(quick_run: QuickRun) -> None:
    """When the run is over none of its processes is left."""
    assert not processes_of(quick_run.path)


def test_interval_1024_costs_blocks(quick_run: QuickRun) -> None:
    """Interval 1024 keeps every block of the prompt: 201 in each sliding group, against 33 at the default."""
    kept = frames.kept(quick_run.path)
    sliding = kept[(kept["tokens"] == 6_446) & (kept["group_kind"] == "sliding")]
    assert set(sliding.loc[sliding["interval"] == "1,024", "blocks"]) == {201}
    assert set(sliding.loc[sliding["interval"] != "1,024", "blocks"]) == {33}


def test_answers_are_equal_and_mean_something(quick_run: QuickRun) -> None:
    """In float32 every warm answer and every control equals its cold one, with at least 10 distinct tokens."""
    rows = [row for row in read_rows(quick_run.path / "raw" / "equality.jsonl") if row["kind"] == "comparison"]
    assert len(rows) == 3 * 2 * 2
    assert all(row["identical"] is True and row["by"] == "token ids" for row in rows)
    assert all(row["cached_tokens"] for row in rows if row["pair"] == "cold-warm")
    assert min(row["distinct_tokens"] for row in rows) >= 10


def test_base_and_adapter_answer_differently(quick_run: QuickRun) -> None:
    """The adapter changes the answers, so that asking under both names tests two paths."""
    rows = [
        row
        for row in read_rows(quick_run.path / "raw" / "equality.jsonl")
        if row["kind"] == "answer" and row["arm"] == "cold"
    ]
    by_document: dict[str, set[str]] = {}
    for row in rows:
        by_document.setdefault(row["document"], set()).add(json.dumps(row["token_ids"]))
    assert all(len(answers) == 2 for answers in by_document.values())


def test_no_row_holds_a_prompt(quick_run: QuickRun) -> None:
    """Raw rows name prompts by length, seed and digest, never by text."""
    assert "the scheduler keeps" not in (quick_run.path / "raw" / "baseline.jsonl").read_text().lower()


def test_an_illegal_interval_is_refused_before_any_start(quick_run: QuickRun, tmp_path: Path) -> None:
    """On a run that knows its scheduler block, interval 100 is refused at once, naming 64 and 128; no server starts."""
    run = Path(shutil.copytree(quick_run.path, tmp_path / "run"))
    before = len(Run(run).manifest["servers"])
    done = prefixscope(
        "run", "--no-collect-env", "-o", str(run), "--resume", "--only", "sweep", "-p", "sweep.intervals=[0, 100]"
    )
    assert done.returncode == 1
    assert "64 or 128" in done.stderr
    assert len(Run(run).manifest["servers"]) == before


def test_a_run_in_use_is_refused(quick_run: QuickRun) -> None:
    """While one process holds the run directory, another ends with exit 2, naming the holder."""
    with Run(quick_run.path).locked():
        done = prefixscope("run", "-o", str(quick_run.path), "--resume")
    assert done.returncode == 2
    assert f"in use by process {os.getpid()}" in done.stderr


def test_a_killed_sweep_resumes(quick_run: QuickRun, engine: Engine, tmp_path: Path) -> None:
    """kill −9 of the runner in mid-sweep leaves no process and loses no row; --resume measures only what is missing."""
    run = tmp_path / "run"
    command = [sys.executable, "-m", "prefixscope.cli", "run", "--no-collect-env", "-o", str(run), "--only", "sweep"]
    options = ["-p", "sweep.intervals=[1024, 'dense']", "-p", "sweep.lengths=[1200, 1600]"]
    runner = subprocess.Popen([*command, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 240
    while rows_of(run) < 4 and time.monotonic() < deadline:
        assert runner.poll() is None, "the runner ended before it could be killed"
        time.sleep(0.1)
    os.kill(runner.pid, signal.SIGKILL)
    runner.wait()
    deadline = time.monotonic() + 30
    while processes_of(run) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not processes_of(run)
    before = (run / "raw" / "sweep.jsonl").read_text()

    done = prefixscope("run", "--no-collect-env", "-o", str(run), "--resume", "--only", "sweep")
    assert done.returncode in (0, 3), done.stderr[-2000:]
    after = (run / "raw" / "sweep.jsonl").read_text()
    assert after.startswith(before)
    complete = [
        row for row in read_rows(run / "raw" / "sweep.jsonl") if row["kind"] == "send" and row["status"] == "ok"
    ]
    first = {row["attempt"] for row in complete[:3]}
    assert len(first) == 1
    series = {(row["setting"]["label"], row["prompt"]["tokens"]) for row in complete}
    assert {("MTP, interval 1,024", n) for n in (1200, 1600)} | {
        ("MTP, interval dense", n) for n in (1200, 1600)
    } <= series
    whole = [row for row in complete if row["series"] == complete[0]["series"]]
    assert len(whole) == 3, "a finished series was measured again"


def rows_of(run: Path) -> int:
    return sum(1 for row in read_rows(run / "raw" / "sweep.jsonl") if row.get("kind") == "send")


def processes_of(run: Path) -> list[int]:
    """Living processes that were started for this run directory."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                environment = (entry / "environ").read_bytes()
                words = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if words and str(run).encode() in environment + words:
                found.append(int(entry.name))
    return found
