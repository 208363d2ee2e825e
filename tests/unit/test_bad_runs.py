"""Runs that something is wrong with: a report that says so, or a clear error, never a traceback."""

from __future__ import annotations

import html
import json
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from data.make_run import make_run

from prefixscope import cli
from prefixscope.report import render_html, render_report
from prefixscope.runs import Run
from prefixscope.setting import Setting

Rows = list[dict[str, Any]]
Change = Callable[[Path], None]


def edit_rows(change: Callable[[Rows], Rows]) -> Change:
    """A change to the rows of every stage."""

    def edit(run: Path) -> None:
        for file in sorted((run / "raw").glob("*.jsonl")):
            rows = change([json.loads(line) for line in file.read_text().splitlines()])
            file.write_text("".join(json.dumps(row) + "\n" for row in rows))

    return edit


def edit_manifest(**values: Any) -> Change:
    def edit(run: Path) -> None:
        manifest = json.loads((run / "run.json").read_text())
        (run / "run.json").write_text(json.dumps({**manifest, **values}))

    return edit


def only_first(run: Path) -> None:
    edit_rows(lambda rows: rows[:1])(run)
    for file in list((run / "raw").glob("*.jsonl"))[1:]:
        file.unlink()


def all_failed(rows: Rows) -> Rows:
    nothing = {"prompt_tokens": None, "cached_tokens": None, "first_token_ms": None, "metrics": None}
    return [{**row, **nothing, "status": "failed", "error": "503: overloaded"} for row in rows]


def not_a_number(rows: Rows) -> Rows:
    nan, endless = float("nan"), float("inf")
    return [{**row, "cached_tokens": nan, "first_token_ms": endless, "seconds": nan} for row in rows]


def other_types(rows: Rows) -> Rows:
    odd = {"cached_tokens": "many", "prompt_tokens": [1], "metrics": "none", "prompt": 7, "setting": None, "index": {}}
    return [{**row, **odd} for row in rows]


def two_releases(run: Path) -> None:
    file = run / "trace" / "trace-9293.jsonl"
    text = file.read_text()
    other = text.replace('"0.29.0"', '"0.30.0"').replace("14102055", "14102056").replace("9293", "9294")
    (run / "trace" / "trace-9294.jsonl").write_text(other)


def no_manifest(run: Path) -> None:
    (run / "run.json").write_text('{"stages": ')


def no_rows(run: Path) -> None:
    shutil.rmtree(run / "raw")


def garbage(run: Path) -> None:
    file = run / "raw" / "baseline.jsonl"
    file.write_text("garbage\nmore\n" + file.read_text())


@pytest.mark.parametrize(
    ("change", "words", "remedy"),
    [
        (no_manifest, "run.json is missing or damaged", "copy run.json back"),
        (no_rows, "stage baseline is done, but its rows in raw/baseline.jsonl are gone", "copy raw/ back"),
        (garbage, "raw/baseline.jsonl: 2 unreadable lines left out", "nothing to do: what can't be read is left out"),
        (edit_rows(lambda rows: [{**row, "schema": 2} for row in rows]), "of an unknown schema left out",
         "read them with the prefixscope that wrote them"),
        (edit_rows(not_a_number), "cached_tokens has an impossible value, read as not known: line 1, NaN is no whole",
         "nothing to do: such a value is in no number above"),
    ],
    ids=["no manifest", "no rows", "garbage", "newer rows", "NaN"],
)  # fmt: skip
def test_each_problem_of_a_run_has_its_own_remedy(tmp_path: Path, change: Change, words: str, remedy: str) -> None:
    """What is gone for good is not called nothing, and what was left out needs nothing."""
    run = make_run(tmp_path / "run")
    change(run)
    rows = re.findall(r"<tr>.*?</tr>", render_html(run), re.DOTALL)
    found = [html.unescape(re.sub(r"<[^>]+>", "", row)) for row in rows]
    mine = [row for row in found if words in row]
    assert mine
    assert all(remedy in row for row in mine), mine


def test_nothing_goes_on_with_a_stage_whose_rows_are_gone(tmp_path: Path) -> None:
    """Top and empty sections of such stages give the warning's remedy; a stage that was not begun has its own."""
    run = make_run(tmp_path / "run")
    no_rows(run)
    manifest = json.loads((run / "run.json").read_text())
    manifest["stages"] = {"baseline": {"status": "done"}, "sweep": {"status": "done"}, "trace": {"status": "done"}}
    (run / "run.json").write_text(json.dumps(manifest))
    page = html.unescape(re.sub(r"</?(?:span|code)[^>]*>", "", render_html(run)))
    names = ("hits", "latency", "blocks", "sweep", "cost", "crosscheck", "equality", "speculation")
    parts = {name: page.partition(f'<section id="{name}">')[2].partition("</section>")[0] for name in names}
    parts["top"] = page.partition('<div id="verdict">')[2].partition("<nav")[0]
    going_on = {name for name, text in parts.items() if "--resume" in text}
    assert going_on == {"equality", "speculation"}
    for name in parts.keys() - going_on:
        assert "measure again in a new one:</p><pre>prefixscope run -o NEW</pre>" in parts[name], name
        assert "Copy raw/ back from another copy of this run" in parts[name], name
    assert "RUN is this run" not in parts["top"]


def test_a_stop_by_hand_is_told_with_the_way_on(tmp_path: Path) -> None:
    """Ctrl-C is named in words, and no warning is without something to do."""
    run = Run(make_run(tmp_path / "run", stages=("baseline",)))
    run.warn("server-failed", "s02: ended while it was needed", stage="sweep")
    with pytest.raises(KeyboardInterrupt), run.stage("sweep"):
        raise KeyboardInterrupt
    page = render_html(run.path)
    assert "KeyboardInterrupt" not in page
    assert "Interrupted by Ctrl-C." in page
    warnings = page.partition('<section id="warnings"')[2].partition("</section>")[0]
    rows = [html.unescape(re.sub(r"<[^>]+>", "", row)) for row in re.findall(r"<tr>.*?</tr>", warnings, re.DOTALL)]
    mine = [row for row in rows if "sweep" in row and ("Ctrl-C" in row or "s02" in row)]
    assert len(mine) == 2
    assert all("prefixscope run -o RUN --resume --only sweep" in row for row in mine), mine


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (only_first, "No prompt was sent twice, so nothing can be said about prefix reuse yet"),
        (edit_rows(lambda rows: []), "No request has been measured yet"),
        (edit_rows(all_failed), "503: overloaded"),
        (edit_rows(not_a_number), "first_token_ms has an impossible value, read as not known: line 1, Infinity is no"),
        (edit_rows(other_types), "prefixscope run -o RUN --resume"),
        (edit_rows(lambda rows: [{**row, "schema": 2} for row in rows]), "of an unknown schema left out"),
        (two_releases, "Engines of 2 vLLM releases answered (0.29.0, 0.30.0)"),
        (no_manifest, "run.json is missing or damaged"),
    ],
    ids=["one row", "no row", "failures", "NaN", "types", "newer rows", "two releases", "no manifest"],
)
def test_a_report_says_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: Change, words: str
) -> None:
    """The report of an odd run is written, says what is odd, and agrees with its own rows."""
    run = make_run(tmp_path / "run")
    change(run)
    assert cli.main(["report", str(run)]) == 0
    file = run / "report.html"
    assert words in re.sub("</?span[^>]*>", "", file.read_text())
    assert cli.main(["report", "--verify", str(file)]) == 0, capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (edit_manifest(schema_version=2), ["schema 2", "newer prefixscope", "--upgrade"]),
        (edit_manifest(schema_version=0), ["schema 0", "install the one that wrote it: 0.1.0"]),
        (edit_manifest(schema_version="</script>"), ["</script>", "another prefixscope"]),
    ],
    ids=["newer", "older", "odd"],
)
def test_another_schema_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: Change, words: list[str]
) -> None:
    """A run of another schema is refused with both versions and the next command; no report is left."""
    run = make_run(tmp_path / "run", stages=("baseline",))
    change(run)
    assert cli.main(["report", str(run)]) == 1
    told = capsys.readouterr().err
    assert all(word in told for word in words), told
    assert not (run / "report.html").exists()


@pytest.mark.parametrize("place", ["/proc/report.html", "missing/report.html", "taken", "."])
def test_a_place_that_takes_no_file_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Where the report can't be written the error names the file and another way, and nothing else is left behind."""
    monkeypatch.chdir(tmp_path)
    run = make_run(tmp_path / "run", stages=("baseline",))
    (tmp_path / "taken").mkdir()
    assert cli.main(["report", str(run), "-o", place]) == 2
    told = capsys.readouterr().err
    assert "can't be written" in told
    assert "--out FILE" in told
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "taken"]


def test_a_run_directory_is_only_read(tmp_path: Path) -> None:
    """Rendering to another place writes nothing into the run directory, so it may be read-only."""
    run = make_run(tmp_path / "run")

    def seen() -> list[tuple[str, int, int]]:
        return sorted((str(path), path.stat().st_mtime_ns, path.stat().st_size) for path in (run, *run.rglob("*")))

    before = seen()
    render_report(run, out=tmp_path / "report.html")
    assert seen() == before


def many_rows(count: int, *, lengths: int) -> Rows:
    """Sends of so many prompt lengths, each cold and again."""
    rows = []
    for number in range(count):
        tokens, index = 200 + (number // 2) % lengths, 1 + number % 2
        rows.append(
            {
                "schema": 1, "kind": "send", "stage": "baseline", "at": f"2026-11-29T10:00:{number % 60:02d}Z",
                "cell": f"c{number}", "series": f"s{number // 2}", "attempt": "a", "role": "base",
                "setting": Setting().to_json(), "server": "s00", "model": "m",
                "prompt": {"name": f"{tokens:,} tokens", "tokens": tokens, "digest": "d", "seed": 1},
                "send": "cold" if index == 1 else "repeat", "index": index, "request_id": f"ps-{number:x}",
                "status": "ok", "error": None, "prompt_tokens": tokens, "cached_tokens": 0 if index == 1 else 128,
                "shared_tokens": None, "completion_tokens": 1, "first_token_ms": 50.0 + number % 7, "metrics": None,
            }
        )  # fmt: skip
    return rows


def test_a_huge_run_is_capped(tmp_path: Path) -> None:
    """100,000 rows give a page under 2.5 MB within a minute of processor time; what was left out is said."""
    run = make_run(tmp_path / "run", stages=())
    text = "".join(json.dumps(row) + "\n" for row in many_rows(100_000, lengths=50_000))
    (run / "raw" / "baseline.jsonl").write_text(text)
    started = time.process_time()
    page = render_html(run)
    assert time.process_time() - started < 60
    assert len(page.encode()) < 2_500_000
    assert "every raw row (100,000), too many to embed: left in the run directory" in page
    assert "50,000 prompt lengths were measured; figures and tables show 60 of them" in page
