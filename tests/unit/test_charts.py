"""Each chart is drawn, and its marks, labels and stated finding are looked up in the drawing."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from data.make_run import make_run

from prefixscope import charts, display, frames, trade
from prefixscope.material import Material, gather
from prefixscope.quantities import listing
from prefixscope.sections.record import time_spent
from prefixscope.speculation import Mix


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Material:
    return gather(make_run(tmp_path_factory.mktemp("run")))


def texts(svg: str) -> list[str]:
    return [re.sub(r"<[^>]+>", "", found) for found in re.findall(r"<text[^>]*>(.*?)</text>", svg)]


CASES: dict[str, tuple[Callable[[Material], Any], str, tuple[str, ...], int]] = {
    "hits_by_send": (
        lambda m: charts.hits_by_send(m.hits, configs=["no MTP", "MTP", "MTP, interval 1,024"]),
        "Send 2 of the same 6,446 tokens reuses nothing with MTP",
        ("0 – nothing reused", "6,400", "6,336", "send 1 (cold)", "cached tokens"),
        9,
    ),
    "hits_by_length": (
        lambda m: charts.hits_by_length(m.hits, configs=["no MTP", "MTP"]),
        "From 1,089 tokens on, the second send misses with MTP",
        ("sends 2 and 3", "send 2", "send 3", "prompt tokens", "6,000"),
        20,
    ),
    "first_token": (
        lambda m: charts.first_token(m.latency, configs=["no MTP", "MTP"]),
        "A hit brings the first token after 6,446 prompt tokens from",
        ("send 2", "time to first token, ms"),
        6,
    ),
    "block_ruler": (
        lambda m: charts.block_ruler(m.telling.blocks),
        "MTP, send 2: blocks 166–167 of the 5 sliding-window groups are needed and not stored",
        ("missing 166–167", "needed 166–198", "stored 168–200", "MTP, send 3: hit 6,336 of 6,446"),
        13,
    ),
    "hit_against_interval": (
        lambda m: charts.hit_against_interval(m.sweep),
        "Intervals 64 to 1,024 and dense reuse 6,336 of 6,446 tokens",
        ("0 (default)", "dense", "prompt of 6,446 tokens", "prompt of 704 tokens", "4,096", "cached tokens on send 2"),
        28,
    ),
    "cost_against_shortfall": (
        lambda m: charts.cost_against_shortfall(m.sweep),
        "Interval 1,024 leaves 110 of 6,446 tokens to compute, for 4.2 times the blocks of interval 0 (default)",
        ("64 · 512 · 1,024 · dense", "4,096", "blocks kept in the cache after one prompt"),
        4,
    ),
    "equality_matrix": (
        lambda m: charts.equality_matrix(m.comparisons),
        "19 of 20 warm answers equal their cold ones",
        ("doc 10", "markup", "cold / warm", "gemma4-tiny-lora"),
        40,
    ),
    "speed_by_shape": (
        lambda m: charts.speed_by_shape(frames.by_shape(m.generations), frames.effect(m.generations, "tokens_per_s")),
        "MTP generates 2.09 times as many tokens a second as no MTP (95 %: 1.45 to 3.01; 6 prompts)",
        ("prose", "code", "XML", "MTP", "no MTP", "tokens a second"),
        12,
    ),
    "accepted_by_position": (
        lambda m: charts.accepted_by_position(m.positions),
        "The drafter's first token is right in up to 100% of its drafts (prose)",
        ("token 1", "token 3", "80%", "100%"),
        9,
    ),
    "balance_over_reuse": (
        lambda m: charts.balance_over_reuse(
            trade.over_reuse(m.generations, m.resends, Mix(prompt_tokens=6446, answer_tokens=60, reuse=0.7))
        ),
        "A costs time where 56% or more of the prompts were sent before; the estimate alone says so from 38% on",
        ("as measured", "if send 2 hit as send 3 does", "share of the prompts that were sent once before"),
        1,
    ),
    "time_spent": (
        lambda m: charts.time_spent(m.timeline),
        "7.8 minutes; starting 10 servers took 3.9",
        ("baseline", "s01 MTP", "minutes since the start", "150 s"),
        25,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_chart_draws(name: str, material: Material) -> None:
    """A chart's drawing holds its marks and labels, and its title the finding."""
    make, title, labels, marks = CASES[name]
    chart = make(material)
    chart.to_dict(validate=True)
    assert display.title_of(chart).startswith(title)
    svg = display.to_svg(chart)
    shown = texts(svg)
    for label in labels:
        assert label in shown, (label, shown)
    drawn = re.findall(r'aria-roledescription="(?:bar|point|rect mark|circle|symbol|tick|rule)[^"]*"', svg)
    assert len(drawn) >= marks, len(drawn)
    assert "NaN" not in svg
    assert "undefined" not in svg


def views(spec: dict[str, Any]) -> list[dict[str, Any]]:
    """The parts of a specification that have a height of their own, with the layers in them."""
    inner = [spec["spec"]] if "spec" in spec else spec.get("vconcat", [])
    return [one for part in inner for one in views(part)] if inner else [spec]


@pytest.mark.parametrize("name", CASES)
def test_no_title_along_an_axis_is_longer_than_its_panel(name: str, material: Material) -> None:
    """What runs along the y axis ends with it, so that in panels below each other no two lie on each other."""
    few = replace(material, sweep=material.sweep[material.sweep["interval"].isin(["64", "1,024"])])
    for view in views(CASES[name][0](few).to_dict()):
        for layer in view.get("layer", [view]):
            title = layer.get("encoding", {}).get("y", {}).get("title") or ""
            assert len(title) * 6 <= view["height"], title


def test_boundaries_near_each_other_are_all_named(material: Material) -> None:
    """Where the label of a boundary has no room beside the next one's, that one names both."""
    stores = material.telling.stores
    other = stores[stores["state"] == "boundary"].iloc[[0]]
    other = other.assign(start_token=other["start_token"] - 64)
    shown = texts(display.to_svg(charts.store_ruler(pd.concat([other, stores]), beside=material.telling.blocks)))
    token = int(other["start_token"].iloc[0])
    assert f"boundaries {token:,} and {token + 64:,}" in shown


def test_seconds_saved_have_ticks_that_differ(material: Material) -> None:
    """On an engine that saves hundredths of a second the axis tells them apart."""
    balance = trade.over_reuse(
        material.generations, material.resends, Mix(prompt_tokens=6446, answer_tokens=60, reuse=0.7)
    )
    small = balance.assign(**{name: balance[name] / 200 for name in ("net", "low", "high", "hit")})
    ticks = [
        text for text in texts(display.to_svg(charts.balance_over_reuse(small))) if re.match(r"[+−]?[\d.]+$", text)
    ]
    assert len(ticks) == len(set(ticks)) > 2


def test_the_last_point_has_room_for_its_name(material: Material) -> None:
    """Above the longest prompt's hit there is room for its label within the plot, over the line of a whole prompt."""
    chart = charts.hits_by_length(material.hits, configs=["MTP"]).to_dict()
    low, high = chart["spec"]["layer"][0]["encoding"]["y"]["scale"]["domain"]
    assert (high - 6446) / (high - low) * chart["spec"]["height"] >= 20


def test_an_arm_whose_speed_is_not_known_says_so_in_its_lane(material: Material) -> None:
    """A lane without a bar is not an empty one: it tells that this speed is not known, and the axis is the others'."""
    shapes = frames.by_shape(material.generations)
    unknown = (shapes["arm"] == "B") & (shapes["shape"] == "code")
    speeds = [name for name in shapes if name.startswith("tokens_per_s")]
    shapes.loc[unknown, speeds] = float("nan")
    shown = texts(display.to_svg(charts.speed_by_shape(shapes)))
    assert shown.count("speed not known") == 1, shown
    assert len([text for text in shown if "tokens/s" in text]) == len(shapes) - 1
    shapes[speeds] = float("nan")
    assert charts.speed_by_shape(shapes) is None


def test_what_took_a_moment_has_a_line_in_its_lane(material: Material) -> None:
    """A stage of no length is drawn, so that its lane does not look like one that never ran."""
    frame = material.timeline.assign(stop_min=lambda f: f["start_min"].where(f["lane"] == "baseline", f["stop_min"]))
    bars = charts.time_spent(frame).to_dict()
    rows = next(iter(bars["datasets"].values())) if "datasets" in bars else bars["data"]["values"]
    widths = [row["to"] - row["from"] for row in rows]
    assert min(widths) >= max(row["to"] for row in rows) * 0.003


def test_every_stage_has_its_seconds_in_the_table_of_time() -> None:
    """Speculation and equality, which time no part of their measuring, are there with the whole stage, in run order."""
    run = gather(Path(__file__).parents[2] / "data" / "sample" / "run")
    rows = time_spent(run).tables[0].rows
    for stage in ("speculation", "equality"):
        assert (stage, "measuring", "1", f"{run.run['stages'][stage]['seconds']:,.1f}") in rows
    assert list(dict.fromkeys(row[0] for row in rows)) == [
        "baseline", "trace", "speculation", "equality", "sweep", "crosscheck",
    ]  # fmt: skip
    assert ("baseline", "measuring") not in {row[:2] for row in rows}, "its parts are timed already"


@pytest.mark.parametrize("name", CASES)
def test_chart_without_data_is_none(name: str, tmp_path: Path) -> None:
    """With nothing measured there is no chart, not an empty one."""
    assert CASES[name][0](gather(tmp_path)) is None


def test_notebooks_get_svg_and_png(material: Material) -> None:
    """A chart shows as SVG and PNG together, which JupyterLab draws offline and untrusted."""
    data, metadata = display.mimebundle(charts.cost_against_shortfall(material.sweep))
    assert data["image/svg+xml"].startswith("<svg")
    assert data["image/png"].startswith(b"\x89PNG")
    assert 400 < metadata["image/png"]["width"] < 1200
    assert "application/vnd" not in " ".join(data)


def test_unprintable_names_do_not_end_the_process(material: Material) -> None:
    """Escape codes and lone surrogates in a name are left out of a drawing; vl-convert would abort on them."""
    table = material.timeline.copy()
    table.loc[0, "lane"] = "\x1b[31mred\x00 \ud800 name"
    assert "[31mred  name" in " ".join(texts(display.to_svg(charts.time_spent(table))))


def test_missing_figure_says_so() -> None:
    """Where there is no chart a notebook shows what would fill it."""
    figure = display.show(None, missing="Run the sweep first.")
    assert figure._repr_mimebundle_() == {"text/plain": "Run the sweep first."}


def test_intervals_are_not_joined(material: Material) -> None:
    """Between two intervals nothing was measured, so no line leads from one to the other."""
    assert "'line'" not in str(charts.hit_against_interval(material.sweep).to_dict())


def test_a_server_that_is_not_ours_is_named_in_words() -> None:
    """Titles say of an attached server that it is as served, not with it."""
    assert charts.with_configs(["as served"]) == "on this server as it is served"
    assert charts.with_configs(["as served · a", "as served · b"]) == "on this server as it is served (a and b)"
    assert charts.with_configs(["MTP", "no MTP"]) == "with MTP and no MTP"


def test_one_failed_interval_leaves_a_gap(material: Material) -> None:
    """An interval whose server failed is left out and the others are drawn."""
    table = material.sweep.copy()
    table.loc[table["interval"] == "64", ["hit_2", "short_2", "blocks"]] = None
    assert "64" not in texts(display.to_svg(charts.hit_against_interval(table)))
    assert charts.cost_against_shortfall(table) is not None


def test_equal_groups_are_folded_and_different_ones_are_not(material: Material) -> None:
    """Groups with the same ranges share a row; one that differs has its own."""
    blocks = material.telling.blocks
    part = blocks[blocks["send_label"] == "MTP, send 2"]
    different = part.copy()
    different.loc[(different["gid"] == 2) & (different["state"] == "stored"), "start"] = 170
    shown = texts(display.to_svg(charts.block_ruler(different)))
    assert any("4 sliding-window groups" in text for text in shown)
    assert frames.group_label("sliding", 16, 1024, True) == "sliding · window 1,024 · 16-token blocks · drafter"


def test_void_comparisons_are_no_differences() -> None:
    """Where nothing was reused the title says that nothing could be compared, not that 0 are equal."""
    row = {"document": "document 1", "model": "m", "pair": "cold-warm", "identical": None, "class": "void"}
    chart = charts.equality_matrix(pd.DataFrame([row]))
    assert display.title_of(chart).startswith("No warm answer could be compared")


def test_names_with_commas_are_told_apart() -> None:
    """A list of configurations whose names have commas is separated by semicolons."""
    assert listing(["no MTP", "MTP", "MTP + LoRA"]) == "no MTP, MTP and MTP + LoRA"
    assert listing(["MTP", "MTP, interval 2,048"]) == "MTP; and MTP, interval 2,048"
