"""A prediction without an engine: what is asked, what is recommended, what is said, drawn and refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import vl_convert
from data.answers import GEMMA, NEW, OLD, PROBES, heat_cells, prediction

from prefixscope import charts, cli, display, engine, frames
from prefixscope.errors import ReplayError
from prefixscope.prediction import advise, changes, render_prediction, upgrade
from prefixscope.replay import (
    Geometry,
    Grid,
    Share,
    Survey,
    choose_releases,
    default_intervals,
    heat_grid,
    parse_tokens,
    read_prompts,
    thinned,
)


@pytest.mark.parametrize(
    ("text", "shares"),
    [
        ("6392", [(6392, 1.0)]),
        ("9887,6392", [(6392, 1.0), (9887, 1.0)]),
        (" 1_000x9, 6392x0.5,1000 ", [(1000, 10.0), (6392, 0.5)]),
    ],
)
def test_lengths_with_how_often_they_come(text: str, shares: list[tuple[int, float]]) -> None:
    """Lengths are sorted, equal ones added up."""
    assert [(one.tokens, one.weight) for one in parse_tokens(text)] == shares


@pytest.mark.parametrize("text", ["", "6392,", "many", "-5", "0", "1.5", "6392x", "٣", "1e3", "100x0", "9999999999"])
def test_odd_lengths_are_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What is no prompt length ends with exit 2 and an example."""
    assert cli.main(["predict", "--geometry", "nowhere.json", f"--tokens={text}"]) == 2
    assert "Next:" in capsys.readouterr().err


def test_prompts_from_a_file(tmp_path: Path) -> None:
    """A length a line, JSON lines with count and pattern, and rows of a run stand beside each other."""
    file = tmp_path / "prompts"
    rows = [
        "1000",
        "",
        '{"tokens": 1000, "count": 2}',
        '{"tokens": 6392, "pattern": "follow-up", "count": 0.5}',
        '{"kind": "send", "send": "cold", "prompt_tokens": 704}',
        '{"kind": "send", "send": "repeat", "prompt_tokens": 704}',
    ]
    file.write_text("\n".join(rows))
    found = [(one.tokens, one.pattern, one.weight) for one in read_prompts(file)]
    assert found == [(704, "repeat", 1.0), (1000, "repeat", 3.0), (6392, "follow_up", 0.5)]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "no prompt in it"),
        (b"Tell me a story", "line 1 is no prompt"),
        (b'100\n{"tokens": "6392"}', "line 2 is no prompt"),
        (b'{"tokens": true}', "is no prompt"),
        (b'{"tokens": 5, "count": -1}', "count -1"),
        (b'{"tokens": 5, "pattern": "odd"}', "repeat, new-ending, follow-up"),
        (b"2000000", "from 1 to 1,000,000"),
        (b"\xff\xfe\x00", "no UTF-8"),
        (b"[" * 100_000, "is no prompt"),
    ],
)
def test_odd_files_of_prompts(content: bytes, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file that holds no prompts is refused with the line and what would do."""
    file = tmp_path / "prompts"
    file.write_bytes(content)
    assert cli.main(["predict", "--geometry", "nowhere.json", "--prompts", str(file)]) == 2
    assert words in capsys.readouterr().err


def test_many_lengths_are_stood_for_by_quantiles() -> None:
    """A thousand lengths become 64 that carry the same traffic, the tail included."""
    given = [Share(tokens=n, weight=1.0 if n < 9_000 else 3.0) for n in range(10, 10_000, 10)]
    found = thinned(given)
    assert len(found) == 64
    assert sum(one.weight for one in found) == pytest.approx(sum(one.weight for one in given))
    assert sum(one.weight for one in found if one.tokens >= 9_000) == pytest.approx(300, rel=0.1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--geometry", "nowhere.json"], "can't be read"),
        (["--geometry", "no-such-model"], "there is no geometry 'no-such-model'"),
        (["--trace", "nowhere"], "No file nowhere"),
        (["--geometry", "GEOMETRY", "--intervals", "12.5"], "'12.5'"),
        (["--geometry", "GEOMETRY", "--intervals", "0,-64"], "'-64'"),
        (["--geometry", "GEOMETRY", "--vllm", "0.12.0"], "vLLM '0.12.0' can't be replayed"),
        (["--geometry", "GEOMETRY", "--vllm", "newest"], "'newest' is no vLLM version"),
        (["--geometry", "GEOMETRY", "--vllm", "0.29.0"], "prefixscope engine install 0.29.0"),
        (["--geometry", "GEOMETRY"], "prefixscope engine install"),
    ],
)
def test_what_can_not_be_asked_is_refused(
    options: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A wrong value, a release that is unknown or not installed: exit 2, with the value seen and the way on."""
    monkeypatch.setenv("PREFIXSCOPE_CACHE", str(tmp_path / "empty"))
    file = tmp_path / "geometry.json"
    file.write_text(json.dumps(GEMMA.to_json()))
    assert cli.main(["predict", *(str(file) if word == "GEOMETRY" else word for word in options)]) == 2
    shown = capsys.readouterr().err
    assert words in shown
    assert "Next:" in shown


@pytest.mark.parametrize(
    "content", ["", "[1]", "{}", '{"groups": []}', '{"groups": [{"kind": "full", "block_size": 0}]}']
)
def test_odd_geometries_are_refused(content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file that is no geometry ends with exit 2 and words, never a traceback."""
    file = tmp_path / "geometry.json"
    file.write_text(content)
    assert cli.main(["predict", "--geometry", str(file)]) == 2
    shown = capsys.readouterr().err
    assert "Next:" in shown
    assert "engine install" not in shown


@pytest.mark.parametrize(
    "words",
    [
        ["--drafter", "0"],
        ["--drafter", "on"],
        ["--pool-blocks", "0"],
        ["--pool-blocks", "2G"],
        ["--pool-blocks", "20XB"],
        ["--pool-blocks", "1ZB,20000", "--workload", "example"],
        ["--pool-blocks", "0GiB"],
        ["--pool-blocks", "1.5"],
        ["--pool-blocks", ""],
    ],
)
def test_odd_numbers_are_refused_by_the_parser(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Options that take a number say which."""
    with pytest.raises(SystemExit) as ended:
        cli.main(["predict", "--geometry", "x.json", *words])
    assert ended.value.code == 2
    assert words[1].partition(",")[0] in capsys.readouterr().err


def test_intervals_are_those_that_a_geometry_takes() -> None:
    """Each default interval is a multiple of the scheduler block; without thinned groups only the default is asked."""
    gdn = Geometry.from_json({"groups": [{"kind": "mamba", "block_size": 544}, {"kind": "full", "block_size": 544}]})
    assert default_intervals(gdn) == (None, 0, 544, 1088, 2176, 4352, "dense")
    assert default_intervals(GEMMA) == (None, 0, 64, 512, 1024, 2048, 4096, "dense")
    assert default_intervals(Geometry.from_json({"groups": [{"kind": "full", "block_size": 16}]})) == (None,)


def test_the_heat_map_is_at_block_resolution() -> None:
    """Lengths lie a scheduler block apart, in its middle; intervals are legal; about 2,000 cells."""
    grid = Grid(geometry=GEMMA, lengths=(6400,), intervals=(None, 0))
    heat = heat_grid(grid)
    assert heat.lengths[:3] == (32, 96, 160)
    assert len(heat.lengths) == 100
    assert all(one == "dense" or one % 64 == 0 for one in heat.intervals)
    assert 1500 <= len(heat.lengths) * len(heat.intervals) <= 2000


def test_only_known_releases_are_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A release whose scheduler was never read is refused by its name."""
    monkeypatch.setenv("PREFIXSCOPE_CACHE", str(tmp_path))
    with pytest.raises(ReplayError, match=r"0\.34\.0"):
        choose_releases(["0.29.0", "0.34.0"])


def test_with_nothing_installed_the_usual_engine_is_advised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The release that the embedded engine has by default, the running server's where a trace tells, or those named."""
    monkeypatch.setenv("PREFIXSCOPE_CACHE", str(tmp_path))
    trace = Path(__file__).resolve().parents[1] / "data" / "trace-incident.jsonl"
    newer = tmp_path / "trace-1.jsonl"
    newer.write_text(trace.read_text().replace('"0.29.0"', '"0.31.0"'))
    for words, release in (
        (["--geometry", "gemma-4-12b"], engine.DEFAULT_VERSION),
        (["--workload", "example"], engine.DEFAULT_VERSION),
        (["--trace", str(newer)], "0.31.0"),
        (["--geometry", "gemma-4-12b", "--vllm", "0.33.0"], "0.33.0"),
    ):
        assert cli.main(["predict", *words]) == 2
        assert capsys.readouterr().err.splitlines()[-1] == f"Next: prefixscope engine install {release}"


def test_releases_are_told_oldest_first() -> None:
    """In whichever order they are named, and whatever their defaults are: 0.28's, dense, comes before 0.29's, 0."""
    dense = [replace(one, release="0.28.0", resolved="dense") for one in OLD if one.interval is None]
    survey = Survey(cells=[*NEW, *OLD, *dense], probes=PROBES)
    made = prediction(survey=survey)
    cases = made.cases()
    assert cases["release"].drop_duplicates().tolist() == ["0.28.0", "0.29.0", "0.30.0"]
    shown = [line.split()[0] for line in made.text().splitlines() if re.match(r"0\.\d\d\.0  ", line)]
    assert shown == ["0.28.0", "0.29.0", "0.30.0"]


# --- what is said of the cells -----------------------------------------------------------------------------------


def test_the_recommendation_names_interval_price_and_upgrade() -> None:
    """The interval that lifts every length is recommended, with its price and with the release that needs none."""
    cases = prediction().cases()
    advice = advise(cases, "0.29.0")
    assert advice is not None
    assert advice.setting == "--prefix-cache-retention-interval 1024"
    assert "124 tokens short of full on average, not 3,996" in advice.sentence
    assert "2,085 cache blocks for the average prompt instead of 425, 4.9 times as many" in advice.sentence
    assert "interval 2,048 keeps 1,135 blocks for the average prompt and leaves 860 tokens short" in advice.why
    assert "vLLM 0.30.0 does as well when the same prompt comes again at its own default, interval 0" in upgrade(
        cases, advice
    )


def test_an_upgrade_says_what_the_other_sends_lose() -> None:
    """“As well” is said of the sends that were judged; what hits less at the later default has its two numbers."""
    wide = {"new_ending": (5952, 0), "follow_up": (6400, 6272)}
    others = [
        replace(one, pattern=pattern, hit_tokens=hits[one.release == "0.30.0"] if one.send == 2 else one.hit_tokens)
        for pattern, hits in wide.items()
        for one in [*OLD, *NEW]
        if one.resolved == (0 if one.release == "0.30.0" else 1024)
    ]
    cases = prediction(survey=Survey(cells=[*OLD, *NEW, *others])).cases()
    advice = advise(cases, "0.29.0")
    assert advice is not None
    assert upgrade(cases, advice).endswith(
        " But a new ending hits 0 instead of 5,952 and a follow-up hits 6,272 instead of 6,400 (6,392 tokens; vLLM "
        "0.29.0 at interval 1,024)."
    )
    same = [replace(one, hit_tokens=6272) if one.send == 2 else one for one in others]
    nothing = prediction(survey=Survey(cells=[*OLD, *NEW, *same])).cases()
    assert "But" not in upgrade(nothing, advice)
    judged = prediction(shares=(Share(tokens=6392), Share(tokens=6392, pattern="follow_up", weight=0.1)))
    mixed = replace(judged, survey=Survey(cells=[*OLD, *NEW, *same])).cases()
    found = advise(mixed, "0.29.0")
    assert found is not None
    assert "does as well with these prompts at its own default" in upgrade(mixed, found)


def test_the_recommendation_follows_the_prompts() -> None:
    """Where only long prompts come, the coarser interval does as well and is cheaper."""
    long = prediction(shares=(Share(tokens=6392, weight=5),))
    advice = advise(long.cases(), "0.29.0")
    assert advice is not None
    assert advice.setting == "--prefix-cache-retention-interval 2048"
    assert advice.blocks == 1135


def test_a_good_default_is_left_alone() -> None:
    """On a release whose default does as well, nothing is to be set."""
    advice = advise(prediction().cases(), "0.30.0")
    assert advice is not None
    assert advice.setting == ""
    assert "Leave the interval of vLLM 0.30.0 at 0" in advice.sentence


def test_a_dense_default_can_be_thinned_out() -> None:
    """Where a sparser interval than the default hits the same, 0.28's variable is named with what it saves."""
    old = [replace(cell, release="0.28.0", interval=None if cell.resolved == 1024 else cell.resolved) for cell in NEW]
    advice = advise(prediction(survey=Survey(cells=old)).cases(), "0.28.0")
    assert advice is not None
    assert (
        "With VLLM_PREFIX_CACHE_RETENTION_INTERVAL=0 on vLLM 0.28.0 the hits of these prompts stay" in advice.sentence
    )
    assert "it keeps 425 cache blocks for the average prompt instead of 2,085" in advice.sentence


def test_the_front_holds_what_nothing_beats() -> None:
    """On the front less short takes more blocks; an interval that keeps more for the same is not on it."""
    cases = prediction().cases()
    totals = frames.interval_totals(cases[cases["release"] == "0.29.0"])
    assert totals["interval"].tolist() == ["1,024", "2,048", "0 (default)"]
    assert totals["front"].all()
    better = frames.interval_totals(cases[cases["release"] == "0.30.0"])
    assert better.loc[better["front"], "interval"].tolist() == ["0 (default)"]


def test_every_recommendation_is_called_unpressured() -> None:
    """Text, JSON and page carry the word wherever something is recommended."""
    made = prediction(missing=("0.31.0",))
    text = made.text()
    assert "unpressured" in text.splitlines()[0]
    assert text.count("recommendation:") == text.count("Unpressured recommendation:") == 1
    assert all("unpressured" in part for part in text.split("\n\n") if part.startswith("After an upgrade: vLLM"))
    answer = made.to_json()
    assert answer["pressure"] == answer["recommendation"]["pressure"] == "unpressured"
    assert answer["not_installed"] == [{"release": "0.31.0", "install": "prefixscope engine install 0.31.0"}]
    assert len(answer["rows"]) == len(made.survey.cells)
    json.dumps(answer, allow_nan=False)


def test_the_table_folds_what_comes_to_the_same() -> None:
    """A line per release and run of equal intervals, with both sends and what is kept."""
    lines = prediction().text(200).splitlines()
    assert any(re.fullmatch(r"0\.29\.0 +0 \(default\) +0 +1,472 +0 +6,264 +425 +425\.0", line) for line in lines), lines
    assert any(re.fullmatch(r" +2,048 +0 +1,472 +6,272 +6,272 +1,135 +1,135\.0", line) for line in lines)


def test_what_changed_is_computed_from_the_answers() -> None:
    """Each question about releases gets a sentence with the hits behind it."""
    found = dict(changes(frames.predicted_versions(PROBES), drafter_group=False))
    assert "hits 0 on 0.29.0, and only the third 6,272" in found["The retained checkpoint (vllm#53945)"]
    assert "as many blocks kept, 425" in found["The retained checkpoint (vllm#53945)"]
    assert (
        "exactly 6,400 tokens hits 0 on 0.29.0, 6,272 on 0.30.0"
        in found["Prompts of an exact number of blocks (vllm#54713)"]
    )
    assert "6 on 0.29.0 and 0.30.0, 0 on 0.33.0" in found["Which groups drop a block (vllm#61455)"]
    assert "with lookahead hashes off 6 on 0.33.0" in found["Which groups drop a block (vllm#61455)"]
    assert "hits 6,336 of 6,392 tokens on send 2; with lookahead hashes off 6,272" in found["Lookahead hashes"]
    assert changes(frames.predicted_versions([]), drafter_group=False) == []


CHARTS: dict[str, tuple[Callable[[], Any], str, tuple[str, ...], int]] = {
    "heat": (
        lambda: charts.short_heat(frames.predicted(heat_cells()), block=64),
        "Within two blocks of full in 100% of all cells on vLLM 0.30.0 and 0.31.0, in 72% on 0.29.0",
        ("0.29.0", "0.30.0 and 0.31.0", "≤ 64", "&gt; 4,096", "dense", "tokens short of full on send 2"),
        10,
    ),
    "front": (
        lambda: charts.interval_front(
            frames.interval_totals(prediction().cases().query("release == '0.29.0'")), release="0.29.0", prompts=2
        ),
        "On vLLM 0.29.0 interval 1,024 leaves the fewest tokens short, 124 of the average prompt, for 2,085 blocks",
        ("1,024", "2,048", "0 (default)", "blocks kept in the cache after one prompt"),
        4,
    ),
    "versions": (
        lambda: charts.version_matrix(frames.predicted_versions(PROBES), block=64),
        "At interval 0 the second send of 6,392 tokens falls behind the third on vLLM 0.29.0",
        ("0 (0)", "6,336", "exactly 6,400 tokens, send 2", "lookahead hashes off, send 2", "0.33.0"),
        12,
    ),
}


@pytest.mark.parametrize("name", CHARTS)
def test_figure_draws(name: str) -> None:
    """A figure's drawing holds its marks and labels, and its title the finding."""
    make, title, labels, marks = CHARTS[name]
    chart = make()
    chart.to_dict(validate=True)
    assert display.title_of(chart) == title
    svg = display.to_svg(chart)
    shown = [re.sub(r"<[^>]+>", "", found) for found in re.findall(r"<text[^>]*>(.*?)</text>", svg)]
    for label in labels:
        assert label in shown, (label, shown)
    drawn = re.findall(r'aria-roledescription="(?:bar|point|rect mark|circle|symbol)[^"]*"', svg)
    assert len(drawn) >= marks, len(drawn)
    assert "NaN" not in svg


def test_a_low_heat_map_has_no_title_along_its_rows() -> None:
    """Two intervals are lower than a title beside them would be long: what the rows are is said above the figure."""
    few = [cell for cell in heat_cells() if cell.resolved in (0, 1024)]
    chart = charts.short_heat(frames.predicted(few), block=64)
    svg = display.to_svg(chart)
    assert len(re.findall(r"<text[^>]*rotate\(-90", svg)) == 0
    assert "Each row is a retention interval in tokens" in " ".join(chart.to_dict()["title"]["subtitle"])
    spec = {**display.themed(chart), "title": "", "columns": 1}
    spec["spec"] = {**spec["spec"], "width": 240}
    width = re.search(r'width="([\d.]+)"', vl_convert.vegalite_to_svg(spec))
    assert width is not None
    assert float(width[1]) <= 348, "the legend is no wider than a phone has room"


def test_figures_of_nothing_are_none() -> None:
    """Without cells there is no figure."""
    assert charts.short_heat(frames.predicted([]), block=64) is None
    assert charts.version_matrix(frames.predicted_versions([]), block=64) is None


def test_the_page_holds_figures_and_rows(tmp_path: Path) -> None:
    """The page draws offline: its figures as specifications and as SVG, every row as a download, names escaped."""
    hostile = replace(GEMMA, origin="<script>window.pwned=1</script>")
    grid = Grid(geometry=hostile, lengths=(1600, 6392), intervals=(None, 1024, 2048), drafters=(7,))
    made = prediction(grid=grid, survey=Survey(cells=[*OLD, *NEW], probes=PROBES, heat=heat_cells()))
    page = render_prediction(made, tmp_path / "page.html").read_text("utf-8")
    assert page.count('class="drawn"') == 3
    assert "data:application/json;base64," in page
    assert "Unpressured recommendation" in page
    assert "<script>window" not in page


def test_an_interval_that_hits_nothing_is_no_cheaper_choice() -> None:
    """What is offered as cheaper reuses something at least; the fault itself is never offered."""
    few = prediction(survey=Survey(cells=[cell for cell in OLD if cell.resolved in (0, 1024)], probes=PROBES))
    told = [one.advice(one.cases()) for one in (few, prediction())]
    assert all(one is not None for one in told)
    assert ["Cheaper" in one.why for one in told if one] == [False, True]
    assert told[1] is not None
    assert "interval 2,048 keeps" in told[1].why
