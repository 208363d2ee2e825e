"""The report in a real Chromium with the network blocked: it draws, asks for nothing, fits, and runs nobody's text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cdp import Chromium
from data.make_run import make_run
from pages import DRAWN, SHOWN, fits, is_quiet, opened

from prefixscope.lookups import bring
from prefixscope.report import render_report
from prefixscope.runs import Run

pytestmark = pytest.mark.browser

CHARTS = 11
TRACE = Path(__file__).parents[1] / "data" / "trace-incident.jsonl"
HOSTILE = (
    "<script>window.pwned=1</script><img src=x onerror=window.pwned=2></script><!--<script> \x1b[31m\u202e**x** `--x`"
    "<svg onload=window.pwned=3></svg>\"'><a href=javascript:window.pwned=4>\x00\x1b]0;owned\x07\u2067[x](javascript:1)"
    "\n# heading\n| a | b |\n{{ 7 * 7 }} ${window.pwned=5} &lt;b&gt; </textarea></noscript></style>" + "W" * 1_000_000
)
ADD_SCRIPT = """(() => {
  const script = document.createElement("script");
  script.textContent = "window.ran = 1";
  document.body.append(script);
})()"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 380])
def test_every_chart_draws_offline_and_fits(chromium: Chromium, report: Path, width: int, scheme: str) -> None:
    """At desktop and phone width, light and dark, every chart draws, nothing is requested, logged or cut off."""
    page = opened(chromium.page(width=width, scheme=scheme), report)
    assert page.value("Number(document.documentElement.dataset.drawn)") == page.value(DRAWN) == CHARTS
    is_quiet(page, report)
    fits(page, width)


WIDER = """[...document.querySelectorAll(".chart, .scroll")].filter((place) =>
  place.checkVisibility() && place.scrollWidth > place.clientWidth + 1
).map((place) => [place.previousElementSibling?.className, place.previousElementSibling?.hidden, place.tabIndex])"""
SMALLEST = """Math.min(...[...document.querySelectorAll(".live svg")].map((svg) =>
  svg.getBoundingClientRect().width / svg.viewBox.baseVal.width
))"""


def test_what_is_wider_than_a_phone_says_so(chromium: Chromium, report: Path) -> None:
    """On a phone charts keep their size and scroll in their own place, with a note below and for the keyboard."""
    page = opened(chromium.page(width=380), report)
    page.value("document.querySelectorAll('details').forEach((details) => { details.open = true; })")
    page.settle()
    wider = page.value(WIDER)
    assert len(wider) >= 6
    assert all(row == ["more", False, 0] for row in wider), wider
    assert page.value(SMALLEST) >= 0.99, "a chart is shrunk"
    page = opened(chromium.page(width=1440), report)
    assert page.value(WIDER) == []
    assert page.value("[...document.querySelectorAll('.more')].filter((note) => !note.hidden).length") == 0


def test_a_trace_alone_has_a_report(chromium: Chromium, tmp_path: Path) -> None:
    """A trace brought from elsewhere is told from its cause to its words, and the engines it came from are listed."""
    run = Run.create(tmp_path / "run", target={"kind": "sample"}, parameters={})
    bring(TRACE, run.path)
    page = opened(chromium.page(width=1440), file := render_report(run.path))
    assert page.value(DRAWN) >= 4
    assert "1 of 8 lookups in this trace missed" in page.value("document.querySelector('h1').textContent")
    section = page.value("document.querySelector('#blocks').textContent")
    for words in ("the lookup that missed most", "stored and needed windows don't meet", "Remedy.", "Its price."):
        assert words in section, words
    assert page.value("document.querySelectorAll('#blocks .words dt').length") >= 6
    assert page.value("document.querySelectorAll('#environment table')[1].rows.length") == 4
    is_quiet(page, file)


def test_a_trace_without_a_miss_is_quiet(chromium: Chromium, tmp_path: Path) -> None:
    """Where no layer of a figure has a miss to draw, it draws all the same and logs nothing."""
    (tmp_path / "trace.jsonl").write_bytes(b"".join(TRACE.read_bytes().splitlines(keepends=True)[:4]))
    run = Run.create(tmp_path / "run", target={"kind": "sample"}, parameters={})
    bring(tmp_path / "trace.jsonl", run.path)
    page = opened(chromium.page(width=1440), file := render_report(run.path))
    assert "the only lookup in this trace never missed" in page.value("document.querySelector('h1').textContent")
    is_quiet(page, file)


def test_a_narrower_window_draws_again(chromium: Chromium, report: Path) -> None:
    """When the window gets narrower the charts are drawn to fit it."""
    page = opened(chromium.page(width=1200), report)
    page.call("Emulation.setDeviceMetricsOverride", width=400, height=900, deviceScaleFactor=1, mobile=False)
    page.wait("[...document.querySelectorAll('.chart')].every((chart) => Number(chart.dataset.room) < 400)")
    page.settle()
    fits(page, 400)
    is_quiet(page, report)


def test_the_policy_forbids_connections_and_eval(chromium: Chromium, report: Path) -> None:
    """The page's own policy refuses a connection, a foreign script and eval, so no later change can slip one in."""
    page = opened(chromium.page(), report)
    assert page.value("fetch('data:,x').then(() => 'sent', () => 'refused')") == "refused"
    page.value(ADD_SCRIPT)
    assert page.value("window.ran ?? null") is None
    policy = page.value("document.querySelector('meta[http-equiv]').content")
    assert "unsafe-eval" not in policy
    assert "unsafe-inline" not in policy.split("style-src")[0]


def test_downloads_need_no_network(chromium: Chromium, report: Path) -> None:
    """The raw data is inside the file, and its rows are the run's."""
    page = opened(chromium.page(), report)
    links = page.value("[...document.querySelectorAll('#data a')].map((link) => [link.download, link.href])")
    assert {name for name, _ in links} >= {"hits.csv", "sweep.csv", "run.json"}
    assert all(href.startswith("data:") for _, href in links)


def test_without_scripts_the_figures_are_there(chromium: Chromium, report: Path) -> None:
    """With scripts switched off the page shows the same figures as SVG, and the verdict."""
    page = chromium.page(scripts=False, width=380)
    page.open(report.as_uri())
    assert page.value(SHOWN) == CHARTS
    assert "reuses nothing on the second send" in page.value("document.querySelector('h1').textContent")
    fits(page, 380)
    is_quiet(page, report)


def poison(value: Any, *, keys: set[str], text: str) -> Any:
    """The value with that text for whatever a server says under these keys, numbers and nested names too."""
    if isinstance(value, dict):
        return {
            name: text if name in keys and not isinstance(item, (dict, list)) else poison(item, keys=keys, text=text)
            for name, item in value.items()
        }
    return [poison(item, keys=keys, text=text) for item in value] if isinstance(value, list) else value


def poisoned_run(run: Path, text: str) -> Path:
    """A run in which every field that a server controls holds that text; some rows keep their numbers, to be drawn."""
    make_run(run, text=text)
    names = {"model", "error", "text", "finish_reason", "class", "document", "shape", "label", "arm_label", "server"}
    usage = {"prompt_tokens", "cached_tokens", "completion_tokens", "queries", "hits", "drafts", "accepted", "chunks"}
    for file in (run / "raw").glob("*.jsonl"):
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        out = []
        for place, row in enumerate(rows):
            if "lora" in str(row.get("model")):
                row = poison(row, keys=names - {"shape", "document"}, text=text)
            if place % 9 == 5:
                row = poison(row, keys=usage | names, text=text) | {"metrics": {text: text}}
            if place % 9 == 7:
                row = {**row, "status": "failed", "error": f"500: {text}"}
            out.append(json.dumps(row) + "\n")
        file.write_text("".join(out))
    trace = run / "trace" / "trace-9293.jsonl"
    lines = [json.loads(line) for line in trace.read_text().splitlines()]
    header = {**lines[0], "version": text, "spec_method": text, "engine": "another", "pid": 7}
    odd = [
        header,
        {**lines[1], "engine": "another", "request": text, "closest": {"request": text, "common_tokens": 64}},
    ]
    odd.append({"schema": 1, "event": "off", "t": 1.0, "pid": 7, "reason": text})
    trace.write_text("".join(json.dumps(line) + "\n" for line in [*lines, *odd]))
    manifest = json.loads((run / "run.json").read_text())
    manifest["target"]["label"] = manifest["engine"]["version"] = text
    manifest["servers"][0] |= {"id": text, "command": f"vllm serve {text}"}
    manifest["servers"][1]["setting"]["label"] = text
    manifest["facts"] += [{"name": text, "value": value, "source": text} for value in (text, [text, text], True)]
    manifest["warnings"].append({"code": "server-log", "stage": "sweep", "detail": text, "remedy": text})
    manifest["stages"]["sweep"] |= {"status": "failed", "error": text, "note": text}
    manifest["time"].append({"stage": "sweep", "what": text, "seconds": 1.0, "at": "2026-11-29T10:00:00Z"})
    manifest["environment"]["gpu"] = text
    manifest["collect_env"] = {"lines": {"OS": text, text: "x"}}
    (run / "run.json").write_text(json.dumps(manifest))
    return run


def test_hostile_text_is_inert(chromium: Chromium, tmp_path: Path) -> None:
    """Scripts, markup, escape codes, NULs, direction marks and a megabyte in all that a server says do nothing."""
    file = render_report(poisoned_run(tmp_path / "run", HOSTILE), include_text=True)
    text = file.read_text()
    assert file.stat().st_size < 2_500_000
    assert not set("\x00\x1b\u202e\u2067") & set(text)
    for width in (1440, 380):
        page = opened(chromium.page(width=width), file)
        assert page.value("window.pwned ?? null") is None
        assert page.value("document.querySelectorAll('img, iframe, object, embed').length") == 0
        assert page.value("[...document.querySelectorAll('*')].filter((one) => one.onload || one.onerror).length") == 0
        assert page.value("document.body.textContent.includes('<script>window.pwned=1')"), "it is shown, as text"
        assert page.value(DRAWN) >= 8
        is_quiet(page, file)
        fits(page, width)


def test_an_empty_run_opens(chromium: Chromium, tmp_path: Path) -> None:
    """A run with nothing in it gives a page that says what would fill each section."""
    (tmp_path / "run").mkdir()
    file = render_report(tmp_path / "run")
    page = opened(chromium.page(width=380), file)
    assert page.value("document.querySelectorAll('.missing pre').length") >= 6
    is_quiet(page, file)
    fits(page, 380)


BROKEN = """(PLACE => [...document.querySelectorAll(PLACE)].flatMap((place) => {
  const range = document.createRange(), found = [];
  const walk = document.createTreeWalker(place, NodeFilter.SHOW_TEXT);
  for (let node = walk.nextNode(); node; node = walk.nextNode())
    for (const word of node.data.matchAll(/(?<!\\S)--?[a-z][\\w-]*/g)) {
      range.setStart(node, word.index);
      range.setEnd(node, word.index + word[0].length);
      if (new Set([...range.getClientRects()].map((box) => Math.round(box.top))).size > 1) found.push(word[0]);
    }
  return found;
}))("pre, code")"""
"""The flags that a line ends in the middle of."""


@pytest.mark.parametrize("width", [1440, 380])
def test_no_line_ends_within_a_flag(chromium: Chromium, sample: Path, width: int) -> None:
    """A flag stands in one line, in the exact commands and in sentences, and what is copied is the command."""
    page = opened(chromium.page(width=width), sample)
    page.value("document.querySelectorAll('details').forEach((details) => { details.open = true; })")
    assert page.value("document.querySelector('#commands pre').textContent").count(" --") >= 8
    assert page.value(BROKEN) == []


def test_the_first_numbers_are_seen_on_a_phone(chromium: Chromium, sample: Path) -> None:
    """Beside a configuration's name the prompt's length and the hits of sends 1 and 2 need no scrolling."""
    page = opened(chromium.page(width=380), sample)
    page.value("document.querySelectorAll('details').forEach((details) => { details.open = true; })")
    cell = "#hits tbody tr:last-child td:nth-child(4)"
    assert 0 < page.value(f"document.querySelector('{cell}').getBoundingClientRect().right") <= 380
    captions = "[...document.querySelectorAll('caption:not(.unseen)')].map((one) => one.getBoundingClientRect().right)"
    assert max(page.value(captions)) <= 380
