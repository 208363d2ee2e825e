"""A workload under pressure as table, chart and sentences; the numbers are made up, their telling is not."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from data.workload import RATES, ROWS, pressure, row

from prefixscope import charts, cli, display, frames
from prefixscope.errors import ReplayError
from prefixscope.replay import Pressure, PressureRow
from prefixscope.replay.refused import refused
from prefixscope.sections import pressed
from prefixscope.setting import Interval


@pytest.fixture
def asked() -> Pressure:
    return pressure()


def test_best_of_each_pool() -> None:
    """Each pool has one best interval; rates a tenth of a point apart are equal, and the sparser one is best."""
    table = frames.pressed(ROWS[::-1], own_pool=50_000)
    best = table[table["best"]]
    assert best["pool"].tolist() == ["10,000 blocks", "50,000 blocks", "endless"]
    assert best["interval"].tolist() == ["0", "4,096", "4,096"]
    assert table["interval"].tolist() == ["0", "4,096", "dense"] * 3
    assert table.loc[table["own"], "pool"].unique().tolist() == ["50,000 blocks"]


def test_default_and_the_same_interval_are_one_row() -> None:
    """A default that the release resolves to an interval that was asked for too is that row, marked."""
    table = frames.pressed([*ROWS[:3], row(10_000, None, 0.12, resolved=0)])
    assert len(table) == 3
    assert table["default"].tolist() == [True, False, False]
    assert frames.pressed(ROWS)["default"].isna().all()


def test_refused_setting_is_no_zero(asked: Pressure) -> None:
    """A setting that the release refuses has no rate, and its reason in the table; the others are drawn."""
    table = frames.pressed([*ROWS, row(50_000, 1000, None, refused="vLLM 0.29.0 refuses <1,000>")])
    refused = table[table["refused"].notna()].iloc[0]
    assert pd.isna(refused["hit_rate"])
    assert not refused["best"]
    cells = pressed(table, asked).tables[0].rows
    assert any(cell[3] == "—" and cell[-1] == "refused: vLLM 0.29.0 refuses <1,000>" for cell in cells)


def test_chart_shows_the_best_interval_moving() -> None:
    """One line per pool, only the user's own bold, a ring on each best interval; the title says that it moves."""
    chart = charts.hit_rate_under_pressure(frames.pressed(ROWS, own_pool=50_000), workload="example")
    chart.to_dict(validate=True)
    assert (
        display.title_of(chart)
        == "The best interval moves with the pool: 0 on 10,000; 4,096 on 50,000 blocks and an endless one"
    )
    svg = display.to_svg(chart)
    shown = [re.sub(r"<[^>]+>", "", found) for found in re.findall(r"<text[^>]*>(.*?)</text>", svg)]
    for label in ("10,000 blocks: 12.0%", "50,000 blocks, your server: 25.0%", "endless: 27.0%", "4,096", "dense"):
        assert label in shown, (label, shown)
    widths = re.findall(r'<path aria-label="[^"]*" role="graphics-symbol" aria-roledescription="line mark"[^>]*>', svg)
    assert sorted(re.findall(r'stroke-width="([\d.]+)"', " ".join(widths))) == ["1.5", "1.5", "4"]
    points = re.findall(r'<path[^>]*aria-roledescription="point"[^>]*>', svg)
    assert sum('stroke="#' in point for point in points) == 3
    assert "NaN" not in svg


def test_several_releases_have_a_panel_each() -> None:
    """Each release has its own panel."""
    rows = ROWS + [row(pool, interval, rate / 2, release="0.33.0") for (pool, interval), rate in RATES.items()]
    svg = display.to_svg(charts.hit_rate_under_pressure(frames.pressed(rows)))
    assert "vLLM 0.29.0" in svg
    assert "vLLM 0.33.0" in svg


def test_nothing_to_draw() -> None:
    """With one interval, or none that worked, there is no chart."""
    assert charts.hit_rate_under_pressure(frames.pressed(ROWS[:1])) is None
    assert charts.hit_rate_under_pressure(frames.pressed([])) is None


@pytest.mark.parametrize(
    ("rates", "title"),
    [
        ({(100, 0): 0.1, (100, "dense"): 0.1}, "No interval changes this workload's hit rate"),
        ({(100, 0): 0.1, (100, "dense"): 0.2, (200, 0): 0.1, (200, "dense"): 0.3}, "Interval dense hits most"),
    ],
)
def test_title_of_a_best_that_stays(rates: dict[tuple[int, Interval], float], title: str) -> None:
    """The title does not claim a movement that the rows do not show."""
    table = frames.pressed([row(pool, interval, rate) for (pool, interval), rate in rates.items()])
    assert charts.pressure_title(table).startswith(title)


@pytest.mark.parametrize(
    ("rates", "title"),
    [
        ({(100, 0): 0.1, (100, "dense"): 0.2}, "in a pool of 100 blocks"),
        ({(None, 0): 0.1, (None, "dense"): 0.2}, "in an endless pool"),
        ({(100, 0): 0.1, (100, "dense"): 0.2, (200, 0): 0.1, (200, "dense"): 0.2}, "on every pool, 100 to 200 blocks"),
        (
            {(100, 0): 0.1, (100, "dense"): 0.2, (None, 0): 0.1, (None, "dense"): 0.2},
            "on every pool, 100 blocks to an endless one",
        ),
        (
            {(100, 0): 0.2, (100, "dense"): 0.1, (200, 0): 0.1, (200, "dense"): 0.2},
            "moves with the pool: 0 on 100; dense on 200 blocks",
        ),
        (
            {(100, 0): 0.2, (100, "dense"): 0.1, (None, 0): 0.1, (None, "dense"): 0.2},
            "moves with the pool: 0 on 100 blocks; dense on an endless one",
        ),
    ],
)
def test_a_pool_in_the_title_has_its_unit(rates: dict[tuple[int | None, Interval], float], title: str) -> None:
    """The last pool that is a number is in blocks, whatever stands after it; an endless one has no unit."""
    table = frames.pressed([row(pool, interval, rate) for (pool, interval), rate in rates.items()])
    assert charts.pressure_title(table).endswith(title)


def test_sentences_say_where_the_workaround_does_harm(asked: Pressure) -> None:
    """The advice is the best interval of the user's own pool; where dense retention lowers the rate, it says so."""
    section = pressed(frames.pressed(ROWS, own_pool=50_000), asked)
    advice, harm = section.after
    assert advice == (
        "vLLM 0.29.0, 50,000 blocks, your server: interval 4,096 hits 25.0% of this workload's prompt tokens, "
        "interval 0 hits 12.0%; 25 of 40 follow-ups stay warm."
    )
    assert harm == (
        "vLLM 0.29.0: interval dense instead of 0, which brings the second send of one prompt back, lowers the hit "
        "rate of this workload from 12.0% to 6.0% on 10,000 blocks; it raises it from 12.0% to 16.0% on 50,000 blocks, "
        "from 12.0% to 27.0% on an endless pool."
    )


def test_no_harm_no_sentence(asked: Pressure) -> None:
    """Where dense retention never lowers the rate nothing says that it does."""
    section = pressed(frames.pressed([one for one in ROWS if one.pool_blocks != 10_000]), asked)
    assert not any("lowers" in text for text in section.after)
    assert "one after another" in section.before[0]


@pytest.fixture
def replayed(monkeypatch: pytest.MonkeyPatch) -> list[Pressure]:
    """Workloads are not replayed: they get the rows above, and what was asked is kept."""
    seen: list[Pressure] = []

    def replay_rows(self: Pressure, **_: object) -> list[PressureRow]:
        seen.append(self)
        return ROWS

    monkeypatch.setattr(Pressure, "replay", replay_rows)
    monkeypatch.setattr(
        "prefixscope.replay.choose_releases", lambda wanted, own="": (wanted or ["0.28.0", "0.29.0"], [])
    )
    return seen


def test_command_prints_table_and_sentences(replayed: list[Pressure], capsys: pytest.CaptureFixture[str]) -> None:
    """Without a geometry the example is replayed in the incident's, on one release, in four pools."""
    assert cli.main(["predict", "--workload", "example"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("The best interval moves with the pool")
    assert "vLLM 0.29.0: interval dense instead of 0" in out
    assert "10,000         0     12.0%" in out
    (asked,) = replayed
    assert (asked.releases, len(asked.pools), asked.setting.drafter_tokens) == (("0.29.0",), 4, 7)
    assert asked.intervals[0] is None
    assert asked.concurrency == 1


def test_command_takes_pools_intervals_and_releases(
    replayed: list[Pressure], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pools in blocks or bytes, intervals, releases, requests in flight; JSON on stdout, and a page."""
    words = "--pool-blocks 50000,16GiB --intervals 0,dense --vllm 0.28.0,0.33.0 --drafter off --concurrency 4 --json"
    page = tmp_path / "page.html"
    assert cli.main(["predict", "--workload", "example", *words.split(), "-o", str(page)]) == 0
    found = json.loads(capsys.readouterr().out)
    (asked,) = replayed
    assert (asked.pools, asked.intervals, asked.releases) == ((50_000, 16_384), (0, "dense"), ("0.28.0", "0.33.0"))
    assert (asked.setting.drafter_tokens, asked.concurrency, found["concurrency"]) == (None, 4, 4)
    assert [row["hit_rate"] for row in found["rows"][:3]] == [0.12, 0.10, 0.06]
    text = page.read_text()
    assert "under pressure" in text
    assert "unpressured" not in text
    assert "50,000 blocks" in text


def test_a_page_with_a_secret_is_not_written(
    replayed: list[Pressure], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A page of a prediction is passed on as a report is, and gets the same last look."""
    monkeypatch.setenv("ODD_TOKEN", "gemma-4-12b")  # in the rows that the page embeds
    assert cli.main(["predict", "--workload", "example", "-o", str(tmp_path / "page.html")]) == 1
    assert "would hold the value of ODD_TOKEN" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


class _TooSmall:
    """A release that refuses every pool as too small, in the words of its worker."""

    release = "0.29.0"

    def replay(self, *args: object, **options: object) -> object:
        words = "with a pool of 10 blocks its scheduler never ends request 1 (900 tokens)"
        asked: dict[str, Any] = {"setting": {}, "geometry": {"scheduler_block": 64}}
        raise refused("0.29.0", asked, {"about": "pool", "message": words})


def test_refused_everywhere_has_a_next_step(asked: Pressure) -> None:
    """Where no setting could be replayed the error has what the first refusal advises."""
    with pytest.raises(ReplayError) as caught:
        list(asked.replay(replayer=_TooSmall()))  # type: ignore[arg-type]
    assert "no setting could be replayed: vLLM 0.29.0 can't replay this" in caught.value.what
    assert "too small for that one request" in caught.value.what
    assert caught.value.remedy == "a larger pool: --pool-blocks N"


def test_rows_in_any_order_are_told_oldest_release_first() -> None:
    """Replays end in no particular order; the table begins with the oldest release and its smallest pool."""
    rows = [replace(one, release=release) for release in ("0.33.0", "0.29.0") for one in reversed(ROWS)]
    table = frames.pressed(rows)
    assert table["release"].drop_duplicates().tolist() == ["0.29.0", "0.33.0"]
    assert table["pool_blocks"].iloc[0] == 10_000


def test_several_pools_need_a_workload(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Pools compete for nothing without traffic: more than one is refused in words."""
    geometry = tmp_path / "geometry.json"
    geometry.write_text(json.dumps({"groups": [{"kind": "full", "block_size": 16}]}))
    assert cli.main(["predict", "--geometry", str(geometry), "--pool-blocks", "1000,2000"]) == 2
    assert "--workload example" in capsys.readouterr().err


def test_own_pool_is_the_servers(replayed: list[Pressure], capsys: pytest.CaptureFixture[str]) -> None:
    """With a server's trace its groups, its settings and its pool are taken; the pool is marked as its own."""
    trace = Path(__file__).resolve().parents[1] / "data" / "trace-incident.jsonl"
    assert cli.main(["predict", "--workload", str(trace), "--trace", str(trace), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["geometry"]["pool_blocks"] == 20_000
    assert 20_000 in replayed[0].pools
    assert replayed[0].setting.drafter_tokens == 7
