"""A run that was killed, stopped or failed says so where its reader looks first, with the command that goes on."""

from __future__ import annotations

import html
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from prefixscope import cli, comparison, conclusions, frames, standing, verdict
from prefixscope.display import themed
from prefixscope.material import gather
from prefixscope.notes import for_issue, incident, symptom
from prefixscope.notes.account import account, shared_account
from prefixscope.report import render_html
from prefixscope.resources import data_path
from prefixscope.run_files import TOKEN_ENV
from prefixscope.runs import Run
from prefixscope.sections import sections
from prefixscope.verify import verify

SAID = "Unfinished: stage speculation was stopped before it was done; stages equality and sweep have not begun."
GO_ON = "prefixscope run -o RUN --resume"


def rewritten(run: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    manifest = json.loads((run / "run.json").read_text())
    change(manifest)
    (run / "run.json").write_text(json.dumps(manifest))
    return run


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    """A copy of the recorded run, which is finished."""
    return Path(shutil.copytree(data_path("sample", "run"), tmp_path / "run"))


@pytest.fixture
def killed(sample: Path) -> Path:
    """The recorded run as ``kill -9`` left it in its speculation stage."""

    def cut(manifest: dict[str, Any]) -> None:
        for name in ("crosscheck", "equality", "sweep", "report"):
            del manifest["stages"][name]
        began = manifest["stages"]["speculation"]["started_at"]
        manifest["stages"]["speculation"] = {"status": "running", "started_at": began, "error": None, "note": ""}
        manifest["run_id"] = "killed"

    for name in ("crosscheck", "equality", "sweep"):
        (sample / "raw" / f"{name}.jsonl").unlink()
    rows = sample / "raw" / "speculation.jsonl"
    rows.write_text("".join(rows.read_text().splitlines(keepends=True)[:20]))
    return rewritten(sample, cut)


def test_the_command_says_what_is_done_and_what_goes_on(killed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``report DIR`` says it in one line on stderr; of a finished run it says nothing."""
    assert cli.main(["report", str(killed), "--for-issue"]) == 0
    told = capsys.readouterr()
    assert told.err == (
        "unfinished: baseline, trace done; speculation stopped; equality, sweep not begun; "
        f"go on with: prefixscope run -o {killed} --resume\n"
    )
    assert told.out == f"{killed / 'issue.md'}\n"
    assert cli.main(["report", str(data_path("sample", "run")), "--for-issue", "-o", str(killed / "other.md")]) == 0
    assert capsys.readouterr().err == ""


def test_the_page_has_the_command_and_no_path(killed: Path) -> None:
    """Above the headline and in the tab's title, with RUN for the directory; the page is made again from itself."""
    page = killed / "report.html"
    page.write_text(render_html(killed))
    top = html.unescape(page.read_text().partition('<div id="verdict">')[2].partition("<nav")[0])
    assert top.index("Unfinished") < top.index("<h1>")
    headline = verdict.of_run(killed).headline
    assert f"<title>Unfinished: {headline}</title>" in html.unescape(page.read_text())
    assert f"<h1>{headline}</h1>" in re.sub("</?code>|</?span[^>]*>", "", top)
    box = top.partition('<div class="missing">')[2].partition("</div>")[0]
    assert f"<p>{SAID}" in box
    assert re.sub("<[^>]+>", "", box.partition("<pre>")[2].partition("</pre>")[0]) == GO_ON
    assert top.count("Unfinished") == 1
    assert str(killed.parent) not in page.read_text()
    assert verify(page).identical
    assert "Unfinished" not in render_html(data_path("sample", "run"))


def test_every_configuration_is_every_one_measured(sample: Path) -> None:
    """What holds in every configuration of a stopped run holds in every one that was measured."""
    rows = sample / "raw" / "baseline.jsonl"
    mine = [row for line in rows.read_text().splitlines() if (row := json.loads(line))["setting"]["label"] == "no MTP"]
    rows.write_text("".join(json.dumps(row) + "\n" for row in mine))
    for name in ("crosscheck", "sweep", "speculation", "equality"):
        (sample / "raw" / f"{name}.jsonl").unlink()
    title = "Hits follow the prompt's length in every configuration"

    def shown() -> str:
        hits = next(one for one in sections(gather(sample)) if one.id == "hits")
        return " ".join(themed(hits.figures[0].chart)["title"]["text"])

    def begun(manifest: dict[str, Any]) -> None:
        manifest["stages"] = {"baseline": {"status": "interrupted"}}

    assert shown() == title
    rewritten(sample, begun)
    assert shown() == f"{title} measured"


def test_a_new_ending_is_told_of_every_configuration_measured(killed: Path) -> None:
    """In the note of a stopped run too; a finished one names every configuration."""
    for run, words in (
        (killed, "in every other configuration measured."),
        (data_path("sample", "run"), "configuration."),
    ):
        with shared_account(run) as told:
            assert words in symptom.new_ending(told)
    assert "measured" not in symptom.new_ending(told)


def test_notes_say_it_first(killed: Path) -> None:
    """The incident note in its first section, the bug report above its first heading; each once."""
    with shared_account(killed) as told:
        note, issue = incident.note(told, {}), for_issue.issue(told)
    want = f"{SAID} `{GO_ON}` goes on with it (RUN is its directory)."
    assert note.partition("## In short\n\n")[2].startswith(want)
    assert f"> {want}" in issue.partition("###")[0]
    assert (note.count("Unfinished"), issue.count("Unfinished")) == (1, 1)
    assert "Stage speculation was stopped before it was done: killed, or its machine went down" in note


def test_compare_says_it_first_of_all(killed: Path) -> None:
    """A base that was killed is not called running; its report, which knows no directory, says the same of RUN."""
    (killed.parent / "killed.html").write_text(render_html(killed))
    for base in (killed, killed.parent / "killed.html"):
        text = comparison.to_text(comparison.compare([str(base), str(data_path("sample", "run"))]), 300)
        way = GO_ON if base.suffix else GO_ON.replace("RUN", str(base))
        assert text.startswith(f"A: {SAID}\n  go on with: {way}\n\nFrom ")
        assert f"  A  {base}\n" in text
        assert "A: stage speculation was stopped before it was done: killed" in text
        assert "running" not in text


NOTEBOOKS = ("baseline", "trace", "sweep", "equality", "speculation", "report")


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_each_notebooks_verdict_says_it(killed: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The verdict cell of every notebook; inside the run that goes on with it only the report's, the last one."""
    found = getattr(conclusions, name)
    want = f"{SAID} `{GO_ON}` goes on with it (RUN is its directory)."
    assert f"\n\n{want}" in found(killed)._repr_markdown_()
    assert found(killed)._repr_markdown_().count("Unfinished") == 1
    assert "Unfinished" not in found(data_path("sample", "run"))._repr_markdown_()
    with Run(killed).locked() as token:
        monkeypatch.setenv(TOKEN_ENV, token)
        assert ("Unfinished" in found(killed)._repr_markdown_()) == (name == "report")


def test_a_run_at_work_is_not_called_stopped(killed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """While somebody holds its lock, its stage has not ended, and there is nothing to go on with."""
    with Run(killed).locked():
        # As its holder would write it: taking the lock put what the killed process left down as stopped.
        rewritten(killed, lambda m: m["stages"]["speculation"].update(status="running", error=None))
        found = standing.of_run(frames.load_run(killed))
        assert (found.at_work, found.command) == (True, "")
        page = html.unescape(render_html(killed))
        assert "stage speculation had not ended" in page
        assert "It was still at work when this page was made" in page
        assert cli.main(["report", str(killed), "--for-issue"]) == 0
        assert "speculation still running; equality, sweep not begun; it is still at work\n" in capsys.readouterr().err
        # Between two stages nothing is in state running.
        rewritten(killed, lambda m: m["stages"]["speculation"].update(status="done"))
        assert cli.main(["report", str(killed), "--for-issue"]) == 0
        assert "equality, sweep not begun; it is still at work\n" in capsys.readouterr().err


def test_whoever_goes_on_puts_down_what_was_killed(killed: Path) -> None:
    """A stage that nobody went on with is not called running because another one is at work."""
    with Run(killed).locked():
        assert frames.load_run(killed)["stages"]["speculation"]["status"] == "interrupted"
        assert frames.load_run(killed)["stages"]["speculation"]["error"] == standing.KILLED
    assert "speculation" in standing.of_run(frames.load_run(killed)).unfinished


@pytest.mark.parametrize(
    ("status", "words"), [("failed", "stage sweep failed"), ("partial", "stage sweep is not complete")]
)
def test_a_stage_that_failed_is_unfinished_too(sample: Path, status: str, words: str) -> None:
    """With the stages that were to come after it; one that was left out or skipped is none of them."""
    rewritten(sample, lambda m: m["stages"]["sweep"].update(status=status, error="it ended"))
    rewritten(sample, lambda m: m["stages"]["equality"].update(status="skipped"))
    rewritten(sample, lambda m: m["stages"]["trace"].update(status="left out"))
    assert verdict.of_run(sample).unfinished == f"Unfinished: {words}."


def test_what_earlier_versions_wrote_of_a_stop_by_hand_is_worded(sample: Path) -> None:
    """``KeyboardInterrupt:`` stands nowhere: not on the page, in no note, in no comparison."""
    rewritten(sample, lambda m: m["stages"]["sweep"].update(status="interrupted", error="KeyboardInterrupt: "))
    rewritten(sample, lambda m: m.update(run_id="stopped"))
    told = account(sample)
    text = comparison.to_text(comparison.compare([str(data_path("sample", "run")), str(sample)]), 300)
    for said in (render_html(sample), incident.note(told, {}), for_issue.issue(told), text):
        assert "KeyboardInterrupt" not in said
        assert re.search("[Ii]nterrupted by Ctrl-C", said)
