"""Where finished files go: a regular file is replaced whole, a link is followed, everything else is refused."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from data.make_run import make_run

from prefixscope import cli, finished, notes, page
from prefixscope.errors import Unwritable
from prefixscope.resources import data_path

SAMPLE = data_path("sample/run")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "run", stages=("baseline",))


def commands(run: Path, out: Path) -> dict[str, list[str]]:
    return {
        "report": ["report", str(run), "-o", str(out)],
        "incident": ["report", str(run), "--incident", "-o", str(out)],
        "issue": ["report", str(run), "--for-issue", "-o", str(out)],
        "export-test": ["export-test", str(SAMPLE), "-o", str(out)],
        "predict": ["predict", "--geometry", "gemma-4-12b", "-o", str(out)],
        "compare": ["compare", str(run), str(SAMPLE), "-o", str(out)],
    }


@pytest.mark.parametrize("command", ["report", "incident", "issue", "export-test", "predict", "compare"])
def test_what_is_no_regular_file_is_refused_and_stays(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    """A pipe, as a device would be, is left as it is, alone in its folder; the error says why, with exit code 2."""
    pipe = tmp_path / "out.html"
    os.mkfifo(pipe)
    assert cli.main(commands(run, pipe)[command]) == 2
    told = capsys.readouterr().err
    assert f"{pipe} can't be written: it is no regular file" in told
    assert "--out FILE" in told
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert [one.name for one in tmp_path.iterdir()] == ["out.html"]


def test_a_pipe_at_a_place_that_no_option_names_is_refused_too(run: Path, tmp_path: Path) -> None:
    """A frame's CSV is a finished file as well, and so is a link to a pipe."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "csv").mkdir()
    (tmp_path / "csv" / "hits.csv").symlink_to(tmp_path / "pipe")
    with pytest.raises(Unwritable, match="no regular file"):
        notes.write_csv(run, tmp_path / "csv")
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_a_folder_that_can_not_be_made_has_the_same_exit_code(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """``--csv`` at a pipe: refused as a file's place is."""
    os.mkfifo(tmp_path / "pipe")
    assert cli.main(["report", str(run), "--csv", str(tmp_path / "pipe")]) == 2
    assert "--csv DIR" in capsys.readouterr().err
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_a_pipe_is_told_from_an_ending_that_is_not_known(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """``compare -o`` at a pipe without an ending says that it is a pipe."""
    os.mkfifo(tmp_path / "pipe")
    assert cli.main(["compare", str(run), str(SAMPLE), "-o", str(tmp_path / "pipe")]) == 2
    assert "it is no regular file" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "link"])
def test_a_stream_that_goes_into_a_file_does_not_lose_it(run: Path, tmp_path: Path, name: str) -> None:
    """``-o /dev/stdout > x`` is refused in words, and x is still the file that the shell opened."""
    (tmp_path / "link").symlink_to("/dev/stdout")
    with (tmp_path / "x").open("w") as out:
        before = os.fstat(out.fileno()).st_ino
        words = [sys.executable, "-m", "prefixscope.cli", "report", str(run), "--for-issue", "-o", name]
        ended = subprocess.run(words, stdout=out, stderr=subprocess.PIPE, text=True, cwd=tmp_path, check=False)
    assert ended.returncode == 2
    assert f"{name} can't be written: it is an open stream" in ended.stderr
    assert (tmp_path / "x").stat().st_ino == before
    assert sorted(one.name for one in tmp_path.iterdir()) == ["link", "x"]


@pytest.mark.parametrize("there", [True, False])
def test_a_link_is_followed_and_stays(tmp_path: Path, there: bool) -> None:
    """What the link leads to gets the text, whether it was there or not; no other file is left in either folder."""
    (tmp_path / "kept").mkdir()
    real, link = tmp_path / "kept" / "real.html", tmp_path / "link.html"
    if there:
        real.write_text("before", encoding="utf-8")
    link.symlink_to(Path("kept") / "real.html")
    assert page.write("after", link) == link
    assert link.is_symlink()
    assert not real.is_symlink()
    assert real.read_text(encoding="utf-8") == "after"
    assert sorted(one.name for one in tmp_path.rglob("*")) == ["kept", "link.html", "real.html"]


def test_links_in_a_ring_are_an_error_in_words(tmp_path: Path) -> None:
    """Neither link is replaced."""
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(Unwritable, match=r"in a ring|levels of"):
        finished.write("text", tmp_path / "a")
    assert (tmp_path / "a").is_symlink()


@pytest.mark.parametrize("form", ["--incident", "--for-issue"])
def test_the_error_names_the_file_that_was_asked_for(run: Path, capsys: pytest.CaptureFixture[str], form: str) -> None:
    """Not one that would stand beside it."""
    assert cli.main(["report", str(run), form, "-o", "/proc/note.md"]) == 2
    assert "/proc/note.md can't be written" in capsys.readouterr().err
