"""Reports that are made again from what they embed: the same bytes, and every edit by hand found."""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from data.make_run import make_run

from prefixscope import cli, difference, digests, page, report, shared, verify
from prefixscope.lookups import bring
from prefixscope.report import render_report
from prefixscope.runs import Run

SAMPLE = Path(__file__).parents[2] / "data" / "sample" / "run"
TRACE = Path(__file__).parents[1] / "data" / "trace-incident.jsonl"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def made(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return render_report(run, out=tmp_path_factory.mktemp("made") / "report.html")


@pytest.fixture(autouse=True, scope="module")
def _each_folder_is_rendered_once() -> Iterator[None]:
    """Most edits leave the data as they are: what is made again from them is then the same, and made once."""
    render, known = verify.render_shared, {}

    def remembered(folder: Path, **options: Any) -> str:
        files = [(str(file.relative_to(folder)), file.read_bytes()) for file in sorted(folder.rglob("*.json*"))]
        key = hashlib.sha256(repr((files, options)).encode()).hexdigest()
        if key not in known:
            known[key] = render(folder, **options)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verify, "render_shared", remembered)
        yield


def embedded(text: str, name: str) -> tuple[str, str]:
    """The link's address as it stands in the page, and the file in it."""
    found = re.search(rf'href="(data:[a-z/]+;base64,([^"]+))" download="{re.escape(name)}(?:\.gz)?"', text)
    assert found, name
    data = base64.b64decode(found[2])
    return found[1], (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode()


def in_file(name: str, old: str, new: str) -> Callable[[str], str]:
    """An edit of an embedded file, packed again as it was."""

    def edit(text: str) -> str:
        href, inside = embedded(text, name)
        assert old in inside, name
        data = inside.replace(old, new, 1).encode()
        packed = gzip.compress(data) if "gzip" in href else data
        return text.replace(href, href.split(",")[0] + "," + base64.b64encode(packed).decode(), 1)

    return edit


def once(old: str, new: str) -> Callable[[str], str]:
    def edit(text: str) -> str:
        assert old in text, old
        return text.replace(old, new, 1)

    return edit


def in_specs(text: str) -> str:
    """One number of one chart's data."""
    start = text.index('id="specs">')
    found = re.compile(r'"hit":6336\b').search(text, start)
    assert found
    return text[: found.start()] + '"hit":6337' + text[found.end() :]


def in_drawing(text: str) -> str:
    """One bar of a figure drawn without scripts."""
    return re.sub(r'(<div class="drawn">.*?<path [^>]*?\bd="M)(\d)', r"\g<1>9\2", text, count=1, flags=re.DOTALL)


def run_cli(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = cli.main(list(words))
    told = capsys.readouterr()
    return code, told.out + told.err


def test_a_report_agrees_with_its_own_rows(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``report`` prints the digest and size; ``--verify`` makes it again to the byte without the run directory."""
    file = tmp_path / "out.html"
    code, told = run_cli(capsys, "report", str(run), "-o", str(file))
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    assert code == 0
    assert told.splitlines() == [str(file), f"sha256 {digest}, {file.stat().st_size:,} bytes"]
    code, told = run_cli(capsys, "report", "--verify", str(file))
    assert code == 0
    assert digest in told
    assert "agrees: made again from the rows it embeds, it is the same to the byte" in told
    assert "not verifiable" not in told
    assert "that they are the rows that were measured only the sha256 above shows" in told


def test_the_sample_is_small_and_agrees(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A default run's report is under 2.5 MB with everything in it, and can be recomputed whole."""
    file = render_report(SAMPLE, out=tmp_path / "sample.html")
    assert file.stat().st_size < 2_500_000
    text = file.read_text()
    assert "left in the run directory" not in text
    assert "0+unknown" not in text
    code, told = run_cli(capsys, "report", "--verify", str(file))
    assert (code, "same to the byte" in told) == (0, True), told


PAGE_EDITS: dict[str, tuple[Callable[[str], str], str]] = {
    "cell": (once("<bdi>6,336</bdi>", "<bdi>6,399</bdi>"), "shown 6,399, recomputed 6,336"),
    "chart": (in_specs, "shown 6337, recomputed 6336"),
    "drawing": (in_drawing, "drawn without scripts: shown another drawing"),
    "words": (once("<h1>MTP on", "<h1>LoRA on"), "verdict: headline: shown LoRA on"),
    "csv": (in_file("hits.csv", "6336", "6337"), "hits.csv, line"),
    "case": (in_file("cases.json", "6446", "6447"), "shown 6447, recomputed 6446"),
}


def test_each_edit_of_the_page_is_named(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A number in a table, in a chart's data, a bar, a word and an embedded table changed by hand are each named."""
    text = made.read_text()
    for edit, _ in PAGE_EDITS.values():
        edited = edit(text)
        assert edited != text
        text = edited
    (tmp_path / "edited.html").write_text(text)
    code, told = run_cli(capsys, "report", "--verify", str(tmp_path / "edited.html"))
    assert code == 1, told
    assert f"differs: {len(PAGE_EDITS)} places of " in told
    for name, (_, words) in PAGE_EDITS.items():
        assert words in told, name


def test_an_edited_row_is_named_with_its_field(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is shown of two texts is where they differ: a field of a row or of a case, never two equal beginnings."""
    (tmp_path / "edited.html").write_text(
        in_file("rows.jsonl", '"cached_tokens":6336', '"cached_tokens":6400')(made.read_text())
    )
    code, told = run_cli(capsys, "report", "--verify", str(tmp_path / "edited.html"))
    assert code == 1
    number = embedded(made.read_text(), "rows.jsonl")[1].split('"cached_tokens":6336')[0].count("\n") + 1
    _, first, place, then = told.splitlines()[:4]
    assert first == "differs: 1 place of what the page was made from, edited since:"
    assert re.fullmatch(
        rf"  rows\.jsonl, row {number} \(baseline, .+, 6,446 tokens, send \d\): edited after the page was made: "
        r"cached_tokens is 6400, was 6336", place,
    ), place  # fmt: skip
    assert then.startswith("so these no longer follow: ")
    pairs = re.findall(r"^  (.+): shown (.*), recomputed (.*)$", told, re.MULTILINE)
    assert pairs
    assert all(shown != recomputed for _, shown, recomputed in pairs), told
    case = next(pair for pair in pairs if pair[0].startswith("cases.json"))
    assert re.fullmatch(r"cases\.json, cases\[\d+\]\.measured\.ps-baseline-\w+", case[0]), case
    assert case[1:] == ("6336", "6400")


def test_a_row_that_can_not_be_read_is_said_first(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Everything else follows from it: the row is left out of what is made again."""
    garble = in_file("rows.jsonl", '{"at"', 'garbage"at"')
    number = embedded(garble(made.read_text()), "rows.jsonl")[1].split("garbage")[0].count("\n") + 1
    (tmp_path / "edited.html").write_text(garble(made.read_text()))
    code, told = run_cli(capsys, "report", "--verify", str(tmp_path / "edited.html"))
    assert code == 1
    first = next(line for line in told.splitlines() if line.startswith("  "))
    assert first.startswith(f"  rows.jsonl, row {number} is unreadable: shown garbage")
    assert first.endswith("recomputed nothing")


def change(name: str, number: int, edit: Callable[[dict[str, Any]], Any]) -> Callable[[str], str]:
    """An edit of one row of an embedded file, by its number; None takes the row out."""

    def made(text: str) -> str:
        lines = embedded(text, name)[1].splitlines(keepends=True)
        row = json.loads(lines[number - 1])
        new = "" if edit(row) is None else shared.as_line(row)
        return in_file(name, "".join(lines), "".join([*lines[: number - 1], new, *lines[number:]]))(text)

    return made


def _set(**values: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda row: row.update(values) or row


def _lack(field: str) -> Callable[[dict[str, Any]], Any]:
    return lambda row: (row.pop(field), row)


EDITED_ROWS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "time": (_set(first_token_ms=9.5), r"first_token_ms is 9\.5, was \d+\.\d"),
    "not drawn": (_set(completion_tokens=77), "completion_tokens is 77, was 1"),
    "impossible": (_set(cached_tokens="many"), r'cached_tokens is "many", was \d+'),
    "inside": (lambda row: row["prompt"].update(tokens=77) or row, r"prompt\.tokens is 77, was \d+"),
    "whole": (_set(prompt={"name": "x"}), 'prompt.name is "x", was ".* tokens"'),
    "gone": (_lack("model"), 'model is nothing, was "gemma4-tiny"'),
    "new": (_set(note="x"), 'note is "x", was nothing'),
    "two": (_set(completion_tokens=77, shared_tokens=5), ""),
}


@pytest.mark.parametrize("name", EDITED_ROWS)
def test_an_edited_row_is_named_first(
    made: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Row, field and what stood there, whether or not anything is drawn from it; of two fields the row alone."""
    edit, words = EDITED_ROWS[name]
    (tmp_path / "edited.html").write_text(change("rows.jsonl", 8, edit)(made.read_text()))
    code, told = run_cli(capsys, "report", "--verify", str(tmp_path / "edited.html"))
    assert code == 1
    first = told.splitlines()[2]
    assert re.fullmatch(
        rf"  rows\.jsonl, row 8 \(.+\): edited after the page was made{': ' if words else ''}{words}", first
    ), first


def test_several_edits_are_each_named(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Edits of rows, of the manifest and of the trace are told before what no longer follows from any of them."""
    text = made.read_text()
    for edit in (
        change("rows.jsonl", 3, _set(completion_tokens=2)),
        change("rows.jsonl", 90, _set(cached_tokens=1)),
        in_file("run.json", '"cpus": "2"', '"cpus": "64"'),
        in_file("trace.jsonl", '"n":1', '"n":7'),
    ):
        text = edit(text)
    (tmp_path / "edited.html").write_text(text)
    told = run_cli(capsys, "report", "--verify", str(tmp_path / "edited.html"))[1].splitlines()
    assert told[1] == "differs: 4 places of what the page was made from, edited since:"
    assert told[2].startswith("  rows.jsonl, row 3 (")
    assert told[3].startswith("  rows.jsonl, row 90 (")
    assert re.match(r'  run\.json, line \d+: edited after the page was made, it reads "cpus": "64"', told[4])
    assert re.match(r"  trace\.jsonl, line \d+ \(lookup\): edited after the page was made: n is 7, was 1", told[5])
    assert told[6].startswith("so these no longer follow: ")


@pytest.mark.parametrize("number", [40, 0], ids=["in the middle", "the last"])
def test_a_row_taken_out_is_told(made: Path, tmp_path: Path, number: int, capsys: pytest.CaptureFixture[str]) -> None:
    """How many rows there were and are, and from which on they are others."""
    text = made.read_text()
    many = len(embedded(text, "rows.jsonl")[1].splitlines())
    gone = number or many
    (tmp_path / "edited.html").write_text(change("rows.jsonl", gone, lambda row: None)(text))
    told = run_cli(capsys, "report", "--verify", str(tmp_path / "edited.html"))[1].splitlines()
    assert told[2] == (
        f"  rows.jsonl: it had {many:,} rows when the page was made and has {many - 1:,}: from row {gone} on they are "
        "others"
    )  # fmt: skip


def test_an_edited_row_is_named_whoever_made_the_page(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another version's words can't be told from an edit, but an edited row can: it is named, the rest is left open."""
    text = change("rows.jsonl", 11, _set(cached_tokens=1))(made.read_text()).replace("reuses nothing", "uses nothing")
    (tmp_path / "other.html").write_text(re.sub(r"(&#34;prefixscope&#34;: &#34;)[^&]+", r"\g<1>9.9.9", text))
    code, told = run_cli(capsys, "report", "--verify", str(tmp_path / "other.html"))
    assert code == 1
    assert "cached_tokens is 1, was" in told
    assert "not verifiable from this file: what follows from it: the page was made with prefixscope 9.9.9" in told
    assert "no longer follow:" not in told


def test_a_page_without_digests_agrees_too(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A page of format 1 keeps no digests: it is made again to the byte, and an edit is found by what followed."""
    (tmp_path / "shared").mkdir()
    shared.share(run, tmp_path / "shared")
    file = tmp_path / "old.html"
    file.write_text(text := report.render_shared(tmp_path / "shared", form=1))
    assert "digests&#34;" not in text
    code, told = run_cli(capsys, "report", "--verify", str(file))
    assert (code, "same to the byte" in told) == (0, True), told
    file.write_text(change("rows.jsonl", 11, _set(cached_tokens=1))(text))
    code, told = run_cli(capsys, "report", "--verify", str(file))
    assert (code, "edited since" in told) == (1, False)
    assert "differs: " in told


@pytest.mark.parametrize("lines", ['{"rows.jsonl": {"lines": "x", "digests": 3}, "no.jsonl": {}}', "[1]", "{}"])
def test_digests_that_are_none_are_an_edit_of_the_page(
    made: Path, tmp_path: Path, lines: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Digests that were taken out or are no digests name no row; the page is not as it was made."""
    odd = html.escape(f'"lines": {lines}, "prefixscope"')
    text = re.sub(r"&#34;lines&#34;: .*?, &#34;prefixscope&#34;", lambda _: odd, made.read_text(), count=1)
    (tmp_path / "odd.html").write_text(text)
    code, told = run_cli(capsys, "report", "--verify", str(tmp_path / "odd.html"))
    assert (code, "edited since" in told) == (1, False)
    assert "the page's own markup, style or scripts" in told


def test_of_very_many_lines_a_few_share_a_digest() -> None:
    """A long file has as many digests at most as a short one; an edit is then known to a few lines."""
    text = "".join(f'{{"row":{number}}}\n' for number in range(10_000))
    known = digests.of_lines(text)
    assert len(known["digests"]) <= 8 * digests.MOST
    assert list(digests.changed(text, known)) == []
    ((first, last, _),) = digests.changed(text.replace('"row":5000}', '"row":1}'), known)
    assert (first, last) == (4_999, 5_001)


def test_a_separator_inside_a_text_ends_no_line() -> None:
    """JSON may hold every separator but the line feed as it is: a row with one is one line."""
    assert digests.lines_of('{"a":"b\u2028c\x85d"}\n{}\n') == ['{"a":"b\u2028c\x85d"}', "{}"]


@pytest.mark.parametrize(
    ("shown", "recomputed", "place", "said"),
    [
        ('{"a":[{"b":1}]}\n{"a":[{"b":2,"c":3}]}', '{"a":[{"b":1}]}\n{"a":[{"b":2}]}', "x.jsonl, row 2, a[0].c",
         "shown 3, recomputed nothing"),
        ("x" * 300 + "A" + "y" * 300, "x" * 300 + "B" + "y" * 300, "x.jsonl, row 1",
         f"shown …{'x' * 30}A{'y' * 69}…, recomputed …{'x' * 30}B{'y' * 69}…"),
        ('{"a": 1}', '{"a":1}', "x.jsonl, row 1", 'shown {"a": 1}, recomputed {"a":1}'),
    ],
)  # fmt: skip
def test_a_difference_is_shown_where_it_is(shown: str, recomputed: str, place: str, said: str) -> None:
    """Row and field of JSON lines; of other texts the characters around the first that differs."""
    found = difference.in_file("x.jsonl", shown, recomputed)
    assert str(found) == f"{place}: {said}"


@pytest.mark.parametrize(
    ("edit", "place"),
    [
        (in_file("rows.jsonl", '"cached_tokens":6336', '"cached_tokens":6400'), "hits.csv, line"),
        (in_file("rows.jsonl", '"seed":7', '"seed":8'), "data: rows.jsonl"),
        (in_file("run.json", '"cpus": "2"', '"cpus": "64"'), "shown 2, recomputed 64"),
        (in_file("trace.jsonl", '"hit_tokens":0', '"hit_tokens":64'), "data: trace.jsonl"),
        (once("</style>", ".missing { display: none }</style>"), "markup, style or scripts"),
        (once('"use strict";', '"use strict"; window.x = 1;'), "markup, style or scripts"),
    ],
    ids=["row", "unused field", "manifest", "trace", "style", "script"],
)
def test_an_edit_of_data_or_scripts_is_found(
    made: Path, tmp_path: Path, edit: Callable[[str], str], place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One row, a field that nothing is drawn from, the manifest, an event or a line of script changed is found."""
    (tmp_path / "edited.html").write_text(edit(made.read_text()))
    code, told = run_cli(capsys, "report", "--verify", str(tmp_path / "edited.html"))
    assert (code, "agrees" in told) == (1, False), told
    assert place in told


def test_a_report_with_answers_agrees_too(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``--include-text`` puts answers in and says that prompts are in no run; a changed answer is found."""
    file = tmp_path / "text.html"
    _, told = run_cli(capsys, "report", str(run), "--include-text", "-o", str(file))
    assert "never their text" in told
    text = file.read_text()
    assert "harbour lights" in text
    assert "harbour lights" in embedded(text, "rows.jsonl")[1]
    assert run_cli(capsys, "report", "--verify", str(file))[0] == 0
    file.write_text(text.replace("harbour lights", "harbour ships", 1))
    code, told = run_cli(capsys, "report", "--verify", str(file))
    assert (code, "harbour ships" in told) == (1, True)


def test_a_trace_alone_agrees(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A report of a trace from elsewhere is made again from the trace that it embeds."""
    directory = Run.create(tmp_path / "run", target={"kind": "sample"}, parameters={})
    bring(TRACE, directory.path)
    file = render_report(directory.path)
    code, told = run_cli(capsys, "report", "--verify", str(file))
    assert (code, "same to the byte" in told) == (0, True), told
    file.write_text(in_file("trace.jsonl", '"hit_tokens":0', '"hit_tokens":64')(file.read_text()))
    assert run_cli(capsys, "report", "--verify", str(file))[0] == 1


def test_a_trace_too_large_is_named(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without its trace all but the block trace can be recomputed, and the answer says what can't."""
    monkeypatch.setattr(report, "MOST_TRACE_BYTES", 1_000)
    file = render_report(run, out=tmp_path / "report.html")
    monkeypatch.undo()
    assert "trace.jsonl: " in file.read_text()
    code, told = run_cli(capsys, "report", "--verify", str(file))
    assert code == 0, told
    assert "not verifiable from this file: the block trace" in told
    text = file.read_text()
    file.write_text(once("<bdi>6,336</bdi>", "<bdi>6,400</bdi>")(text))
    assert run_cli(capsys, "report", "--verify", str(file))[0] == 1


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda text: "# notes, not a page", "no report"),
        (lambda text: text[: len(text) // 2], "its end is missing"),
        (lambda text: re.sub(r'<meta name="generator"[^>]*>', "", text), "does not say how it was made"),
        (once("&#34;format&#34;: 2", "&#34;format&#34;: 3"), "has format 3"),
        (in_file("run.json", '"schema_version": 1', '"schema_version": 0'), "has schema 0"),
        (lambda text: re.sub(r'<a href="[^"]*" download="run.json">run.json</a>', "run.json", text), "no manifest"),
        (once(";base64,", ";base64,A"), "damaged"),
    ],
    ids=["foreign", "cut", "early", "newer", "schema", "manifest", "packed"],
)
def test_what_cannot_be_recomputed_exits_2(
    made: Path, tmp_path: Path, edit: Callable[[str], str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is no report, cut off, of another format or schema is refused with the reason and what to do."""
    (tmp_path / "odd.html").write_text(edit(made.read_text()))
    code, told = run_cli(capsys, "report", "--verify", str(tmp_path / "odd.html"))
    assert code == 2, told
    assert words in told
    assert "Next: " in told


def test_rows_too_many_to_embed_exit_2(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where the rows were too many to embed nothing is recomputed, and the run directory is asked for."""
    monkeypatch.setattr(report, "MOST_RAW_ROWS", 10)
    file = render_report(run, out=tmp_path / "report.html")
    assert "too many to embed" in file.read_text()
    code, told = run_cli(capsys, "report", "--verify", str(file))
    assert (code, "ask for the run directory" in told) == (2, True)


def test_another_version_cannot_tell_an_edit(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What another version made, and comes out differently, is neither confirmed nor blamed: exit 2 names it."""
    text = once("reuses nothing", "uses nothing again")(made.read_text())
    (tmp_path / "other.html").write_text(re.sub(r"(&#34;prefixscope&#34;: &#34;)[^&]+", r"\g<1>9.9.9", text))
    code, told = run_cli(capsys, "report", "--verify", str(tmp_path / "other.html"))
    assert code == 2
    assert "pip install prefixscope==9.9.9" in told


def test_verify_takes_a_report_alone(run: Path, made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run directory beside ``--verify``, or neither of the two, is a usage error."""
    assert run_cli(capsys, "report", str(run), "--verify", str(made))[0] == 2
    assert run_cli(capsys, "report")[0] == 2


def test_what_differs_is_shown_without_control_characters(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An edited report can't write to the terminal of who verifies it."""
    text = once("<bdi>6,336</bdi>", "<bdi>\x1b]0;owned\x07\x1b[2J\u202e</bdi>")(made.read_text())
    (tmp_path / "odd.html").write_text(text)
    code, told = run_cli(capsys, "report", "--verify", str(tmp_path / "odd.html"))
    assert code == 1
    assert not set("\x1b\x07\u202e") & set(told)
    text = change("rows.jsonl", 11, _set(**{"\x1b[2J": "\x1b[2J", "stage": "\x1b[2J"}))(made.read_text())
    (tmp_path / "odd.html").write_text(text)
    told = run_cli(capsys, "report", "--verify", str(tmp_path / "odd.html"))[1]
    assert "row 11" in told
    assert "\x1b" not in told


def test_the_same_run_gives_the_same_bytes_anywhere(run: Path, tmp_path: Path) -> None:
    """Another folder, working directory, hash seed, time zone and language give the same bytes."""
    made = []
    for name, extra in (
        ("a", {"PYTHONHASHSEED": "1", "TZ": "UTC", "LC_ALL": "C.UTF-8"}),
        ("another place", {"PYTHONHASHSEED": "77", "TZ": "Asia/Kathmandu", "LC_ALL": "C"}),
    ):
        place = tmp_path / name
        shutil.copytree(run, place / "run")
        subprocess.run(
            [sys.executable, "-m", "prefixscope.cli", "report", "run"], cwd=place, check=True, capture_output=True,
            env={**os.environ, **extra, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )  # fmt: skip
        made.append((place / "run" / "report.html").read_bytes())
    assert hashlib.sha256(made[0]).hexdigest() == hashlib.sha256(made[1]).hexdigest()


def test_a_report_holds_what_made_it(made: Path) -> None:
    """The page says which versions made it, in which fonts, and whether answers are in it."""
    found = re.search(r'<meta name="generator" content="([^"]*)">', made.read_text())
    assert found
    told = json.loads(found[1].replace("&#34;", '"'))
    assert told["text"] is False
    assert told["left out"] == []
    assert told["fonts"] == page.fonts()
    assert re.fullmatch(r"\d+\.\d+\.\d+", told["prefixscope"])
