"""What a report leaves behind: secrets in any spelling, hosts and folders; and that it is refused where one is left."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from data.make_pair import fixed, make_pair
from data.make_run import make_run

from prefixscope import cli, leaks, page, redact
from prefixscope.errors import ReportError
from prefixscope.report import render_html

SECRET = "s3cr&t va<lue/42+"
SPELLINGS: dict[str, Callable[[str], str]] = {
    "html": html.escape,
    "json": lambda text: json.dumps(text)[1:-1].replace("<", "\\u003c").replace("&", "\\u0026"),
    "address": lambda text: quote(text, safe=""),
    "form": quote_plus,
    "base64": lambda text: base64.b64encode(text.encode()).decode(),
    "base64, shifted": lambda text: base64.b64encode(b"user:" + text.encode() + b"!").decode(),
    "base64 for addresses": lambda text: base64.urlsafe_b64encode(b"u" + text.encode()).decode(),
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "run", stages=("baseline",))


def fail_with(run: Path, text: str) -> None:
    """A server's error body with that text in it, as a row and as a warning hold it."""
    rows = run / "raw" / "baseline.jsonl"
    first = json.loads(rows.read_text().splitlines()[0])
    with rows.open("a") as out:
        out.write(json.dumps({**first, "status": "failed", "error": f"400: {text}", "cell": "other"}) + "\n")
    manifest = json.loads((run / "run.json").read_text())
    manifest["warnings"].append({"code": "odd", "stage": "baseline", "detail": text, "remedy": ""})
    (run / "run.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize("name", ["SOME_API_KEY", "X_AUTH", "MY_PASSWD", "HF_TOKEN", "AWS_CREDENTIALS"])
def test_a_known_secret_is_masked(run: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The value of a secret-looking variable never reaches the page, however the run came to hold it."""
    monkeypatch.setenv(name, SECRET)
    fail_with(run, f"you sent {SECRET}")
    text = render_html(run)
    assert SECRET not in text
    assert "you sent ***" in text


@pytest.mark.parametrize("spell", list(SPELLINGS.values()), ids=list(SPELLINGS))
def test_a_spelled_secret_stops_the_report(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], spell: Callable[[str], str]
) -> None:
    """A secret that a server gave back in another spelling stops the report: the variable is named, nothing is left."""
    monkeypatch.setenv("ODD_TOKEN", SECRET)
    fail_with(run, spell(SECRET))
    before = sorted(path.name for path in run.iterdir())
    assert cli.main(["report", str(run)]) == 1
    told = capsys.readouterr().err
    assert "ODD_TOKEN" in told
    assert SECRET not in told
    assert spell(SECRET) not in told
    assert sorted(path.name for path in run.iterdir()) == before


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_pair(tmp_path_factory.mktemp("pair"), fixed)


@pytest.mark.parametrize(
    ("words", "file"),
    [
        (["report", "{run}", "-o", "{file}"], "page.html"),
        (["report", "{run}", "--incident", "-o", "{file}"], "note.md"),
        (["report", "{run}", "--for-issue", "-o", "{file}"], "issue.md"),
        (["compare", "{run}", "{other}", "-o", "{file}"], "compared.html"),
        (["compare", "{run}", "{other}", "-o", "{file}"], "compared.md"),
        (["export-test", "{run}", "-o", "{file}"], "test_resend.py"),
        (["export-test", "{run}"], "standard output"),
    ],
)
def test_every_file_to_pass_on_is_looked_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], pair: tuple[Path, Path],
    words: list[str], file: str,
) -> None:  # fmt: skip
    """Whatever is written to be passed on is refused where it holds a secret: nothing is left, the variable named."""
    (tmp_path / "out").mkdir()
    command = [word.format(run=pair[0], other=pair[1], file=tmp_path / "out" / file) for word in words]
    assert cli.main(command) == 0
    for written in (tmp_path / "out").iterdir():
        written.unlink()
    capsys.readouterr()
    monkeypatch.setenv("ODD_TOKEN", "prefixscope")  # a word of ours that each of them holds
    assert cli.main(command) in (1, 2)
    shown = capsys.readouterr()
    assert "would hold the value of ODD_TOKEN" in shown.err
    assert "if it is no secret, unset that variable" in shown.err
    assert shown.out == ""
    assert not (tmp_path / "out" / file).exists()


def test_embedded_files_are_looked_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """A secret inside a compressed file of the page is found, and no short or plain variable is taken for one."""
    monkeypatch.setenv("ODD_SECRET", "hunter2-hunter2")
    packed = page.download("rows.jsonl", "rows", "x" * 300_000 + "hunter2-hunter2")
    assert "gzip" in packed.href
    with pytest.raises(ReportError, match="ODD_SECRET"):
        leaks.refuse(f'<a href="{packed.href}">', "page")
    monkeypatch.setenv("ODD_SECRET", "short")
    monkeypatch.setenv("AUTHOR_NAME", "hunter2-hunter2")
    leaks.refuse(f'<a href="{packed.href}">', "page")


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("HTTPConnectionPool(host='gpu7.lab', port=8000)", "HTTPConnectionPool(host='host', port=8000)"),
        ("vllm serve m --host 10.1.2.3 --port 8000", "vllm serve m --host host --port 8000"),
        ("vllm serve m --host 127.0.0.1 --port 80", "vllm serve m --host 127.0.0.1 --port 80"),
        ("--master-addr=node-a", "--master-addr=host"),
        ("listening on 192.168.7.9:5555", "listening on host:5555"),
        ("tcp://worker-3:29500", "tcp://host:29500"),
        ("bound to fe80::1ff:fe23:4567:890a", "bound to host"),
        ("gpu7.example.org:8000 refused", "host:8000 refused"),
        ("db.prod.internal went away", "host went away"),
        ("file:///home/jo/model", "file:…/model"),
        ("scheduler.py:123 at 12:34:56 on vllm 0.29.0 with nvidia-cudnn==9.10.2.21",
         "scheduler.py:123 at 12:34:56 on vllm 0.29.0 with nvidia-cudnn==9.10.2.21"),
        ("http://localhost:8000/v1/models", "http://localhost:8000/v1/models"),
        ("\x1b]8;;http://x\x07link\u061c\ufeff", "link"),
    ],
)  # fmt: skip
def test_hosts_and_marks_are_left_out(text: str, left: str) -> None:
    """Hosts go wherever they look like one, this machine's own address and file:line of a log stay."""
    assert redact.clean(text) == left


def test_the_servers_own_name_is_left_out(run: Path) -> None:
    """The host that a run asked is left out wherever it stands, even as a bare word in a log line."""
    manifest = json.loads((run / "run.json").read_text())
    manifest["target"] |= {"kind": "attached", "url": "http://gpu-7:8000", "label": "attached server http://gpu-7:8000"}
    (run / "run.json").write_text(json.dumps(manifest))
    fail_with(run, "the worker on gpu-7 died")
    text = render_html(run)
    assert "gpu-7" not in text
    assert "the worker on host died" in text


def test_unnamed_fields_stay_behind(run: Path) -> None:
    """Whatever a later version or another tool writes into rows, manifest or trace is in no report."""
    extra: dict[str, Any] = {"left-behind": "left-behind"}
    for file in (run / "raw").glob("*.jsonl"):
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        file.write_text(
            "".join(json.dumps({**row, **extra, "prompt": {**row["prompt"], **extra}}) + "\n" for row in rows)
        )
    manifest = json.loads((run / "run.json").read_text())
    manifest |= extra
    manifest["stages"]["baseline"]["parameters"] |= {**extra, "trace": "left-behind"}
    for part in ("target", "environment", "engine"):
        manifest[part] |= extra
    (run / "run.json").write_text(json.dumps(manifest))
    (run / "trace").mkdir()
    full = make_run(run.parent / "whole")
    events = [json.loads(line) for line in (full / "trace" / "trace-9293.jsonl").read_text().splitlines()]
    events[0]["groups"][0] |= extra
    lines = [json.dumps({**event, **extra}) for event in [*events, {**events[1], "event": "left-behind"}]]
    (run / "trace" / "trace-1.jsonl").write_text("\n".join(lines) + "\n")
    text = render_html(run, include_text=True)
    held = [part for part in (text, *leaks._embedded(text)) if "left-behind" in part]
    assert not held


def test_a_page_is_the_same_before_and_after_its_own_stage_is_done(tmp_path: Path) -> None:
    """What a run keeps of its report's stage is not in the report: made again it has the same bytes."""
    run = make_run(tmp_path / "run")
    first = render_html(run)
    manifest = json.loads((run / "run.json").read_text())
    manifest["stages"]["report"] = {"given": {}, "status": "done", "error": None}
    (run / "run.json").write_text(json.dumps(manifest))
    assert render_html(run) == first
