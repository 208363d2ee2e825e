"""What a prediction says holds together: sentence, chart, table and pool; the numbers are made up."""

from __future__ import annotations

import argparse
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from data.answers import GEMMA, OLD, PROBES, heat_cells, prediction, probe
from data.workload import ROWS, pressure, row

from prefixscope import charts, cli, display, frames
from prefixscope.charts.titles import spans
from prefixscope.cli import named
from prefixscope.prediction import Now, advise, changes, render_prediction, render_pressed
from prefixscope.replay import Cell, Geometry, Grid, Share, Survey, read_workload
from prefixscope.replay.refused import refused
from prefixscope.resources import data_path
from prefixscope.sections import pressed

DENSE = [
    replace(one, release="0.28.0", interval=None if again == "dense" else again, resolved=again)
    for again in ("dense", 1024)
    for one in OLD
    if one.resolved == 1024
] + [replace(one, release="0.28.0") for one in OLD if one.resolved == 2048]


def test_what_is_set_already_wins_a_tie_everywhere(tmp_path: Path) -> None:
    """Sentence, chart title, table and JSON name the same of two equal intervals; both lie on the front."""
    made = prediction(survey=Survey(cells=DENSE, probes=PROBES), now=Now(release="0.28.0"))
    cases = made.cases()
    advice = made.advice(cases)
    assert advice is not None
    assert advice.setting == ""
    assert "Leave the interval of vLLM 0.28.0 at dense" in advice.sentence
    totals, prompts = made.totals(cases, "0.28.0")
    assert totals["interval"].tolist() == ["dense (default)", "1,024", "2,048"]
    assert totals["front"].tolist() == [True, True, True]
    chart = charts.interval_front(totals, release="0.28.0", prompts=prompts)
    assert "interval dense (default) leaves the fewest tokens short" in display.title_of(chart)
    assert [one["interval"] for one in made.to_json()["intervals"]["0.28.0"]] == ["dense", 1024, 2048]
    page = render_prediction(made, tmp_path / "page.html").read_text("utf-8")
    table = page[page.index("One row per interval on vLLM 0.28.0, the recommended one first.") :]
    assert table.index("dense (default)") < table.index(">1,024<")


def test_equals_alone_on_the_front_are_beaten_by_nothing() -> None:
    """The front of two equal intervals is one point, and the title says that nothing beats it."""
    cases = prediction(survey=Survey(cells=[one for one in DENSE if one.resolved != 2048])).cases()
    totals = frames.interval_totals(cases, first=float("inf"))
    title = display.title_of(charts.interval_front(totals, release="0.28.0", prompts=2))
    assert title.startswith("On vLLM 0.28.0 nothing beats dense (default)")


def test_the_next_sentence_contradicts_no_recommendation(tmp_path: Path) -> None:
    """No interval does better, and of those that do as well none keeps less; the page has the cheaper one beside it."""
    made = prediction(survey=Survey(cells=DENSE, probes=PROBES), now=Now(release="0.28.0"))
    advice = made.advice(made.cases())
    assert advice is not None
    assert advice.sentence.endswith(
        "no interval that was tried does better, and none that does as well keeps less than its 2,085 blocks for the "
        "average prompt."
    )
    assert advice.why == (
        "Cheaper, but short of more: interval 2,048 keeps 1,135 blocks for the average prompt and leaves 860 tokens "
        "short on average; what it hits less of are the prompts of 1,600 tokens."
    )
    page = render_prediction(made, tmp_path / "page.html").read_text("utf-8")
    box = page[page.index('class="remedy"') :].partition("</div>")[0]
    assert "Cheaper, but short of more" in box
    assert page.count("Cheaper, but short of more") - len(re.findall(r'"why": "Cheaper', page)) == 1


def test_one_length_is_not_told_from_others() -> None:
    """Where only one length was asked nothing says which prompts fall short."""
    cells = [replace(one, hit_tokens=4096) if (one.resolved, one.send) == (2048, 2) else one for one in DENSE]
    made = prediction(survey=Survey(cells=cells), shares=(Share(tokens=6392),), now=Now(release="0.28.0"))
    advice = made.advice(made.cases())
    assert advice is not None
    assert advice.why.endswith(
        "interval 2,048 keeps 1,135 blocks for the average prompt and leaves 2,296 tokens short on average."
    )


def _evicting() -> list[Cell]:
    return [replace(one, evicted_blocks=50 if one.resolved == 1024 else 0) for one in OLD]


def test_a_pool_that_evicts_is_not_called_unpressured(tmp_path: Path) -> None:
    """Text, JSON and page say that the given pool evicted, and the price that it is cut off."""
    grid = Grid(geometry=GEMMA, lengths=(1600, 6392), intervals=(None, 1024), drafters=(7,), pool_blocks=1500)
    made = prediction(grid=grid, survey=Survey(cells=_evicting(), probes=PROBES))
    text = " ".join(made.text().split())
    assert "unpressured" not in text.lower()
    assert "in a pool of 1,500 blocks that evicts" in text
    assert "evictable at any time, cut off by the pool, which evicted blocks meanwhile" in text
    answer = made.to_json()
    assert answer["pressure"] == answer["recommendation"]["pressure"] == "in a pool of 1,500 blocks that evicts"
    page = render_prediction(made, tmp_path / "page.html").read_text("utf-8")
    assert "by vLLM's own scheduler · in a pool of 1,500 blocks that evicts" in page
    roomy = prediction(grid=grid).text()
    assert "Unpressured recommendation" in roomy
    assert "cut off" not in roomy


def test_a_heat_map_of_a_pool_that_evicts_says_so() -> None:
    """Its subtitle is about the pool that was asked."""
    for many, words in ((0, "; unpressured."), (3, "; in a pool that evicts.")):
        cells = [replace(one, evicted_blocks=many) for one in heat_cells()]
        subtitle = " ".join(charts.short_heat(frames.predicted(cells), block=64).to_dict()["title"]["subtitle"])
        assert subtitle.endswith(words)


def test_dense_is_explained_where_vllm_calls_it_none() -> None:
    """The sentence says that None is dense; the setting is the bare flag."""
    cells = [replace(one, resolved="dense", interval="dense") if one.resolved == 1024 else one for one in OLD]
    advice = advise(prediction(survey=Survey(cells=cells)).cases(), "0.29.0")
    assert advice is not None
    assert advice.setting == "--prefix-cache-retention-interval None"
    assert "With --prefix-cache-retention-interval None (vLLM's word for dense) on vLLM 0.29.0" in advice.sentence


def test_a_release_that_was_not_asked_is_named() -> None:
    """Where the running server's release gave no answer, the notes say whom the recommendation is for."""
    note = "vLLM 0.31.0 was not asked: the recommendation is for vLLM 0.29.0."
    assert note in prediction(now=Now(release="0.31.0", known=True)).notes()
    assert not any("was not asked" in text for text in prediction().notes())


def test_no_resend_hits() -> None:
    """Where neither the second send nor the third hits, sentence, finding and title say that no resend does."""
    cells = [replace(one, hit_tokens=0) if one.resolved == 0 else one for one in OLD]
    made = prediction(survey=Survey(cells=cells))
    assert "no resend of 6,392 tokens hits" in made.answer(made.cases())
    table = frames.predicted_versions([probe("0.29.0", "sparse", 0, 0), probe("0.30.0", "sparse", 6272)])
    said = dict(changes(table, drafter_group=False))["The retained checkpoint (vllm#53945)"]
    assert said == (
        "At interval 0 no resend of 6,392 tokens hits on 0.29.0. "
        "At interval 0 the second send of 6,392 tokens hits what the third does: 6,272 on 0.30.0."
    )
    title = display.title_of(charts.version_matrix(table, block=64))
    assert title == "At interval 0 no resend of 6,392 tokens hits on vLLM 0.29.0"


def test_groups_that_drop_are_counted_in_any_number() -> None:
    """One group is as good as six: the count stands by itself."""
    table = frames.predicted_versions([probe("0.29.0", "sparse", 0, drop_groups=1)])
    said = dict(changes(table, drafter_group=True))["Which groups drop a block (vllm#61455)"]
    assert said == (
        "Groups that give up a block for the drafter, of 6 KV cache groups (one is the drafter's own): 1 on 0.29.0."
    )


def test_spans_of_pairs_are_one_list() -> None:
    """Two neighbours are listed with the others."""
    order = ["0", "560", "2,240", "4,480"]
    assert spans(["0", "2,240", "4,480"], order) == "0, 2,240 and 4,480"
    assert spans(order[1:], order) == "560 to 4,480"


def test_a_follow_up_says_how_long_it_is() -> None:
    """A hit above the first prompt's length is no wonder where the follow-up's own length is named."""
    turns = [
        replace(one, pattern="follow_up", prompt_tokens=6552, reusable_tokens=6520) for one in OLD if one.tokens == 6392
    ]
    text = " ".join(prediction(survey=Survey(cells=[*OLD, *turns])).text().split())
    assert "Tokens hit. Follow-up: its next turn, 6,552 tokens; blocks: kept after its first send." in text


def test_the_heat_maps_title_names_every_panel() -> None:
    """Three groups of releases, three shares."""
    cells = [
        replace(one, hit_tokens=0) if one.release == "0.31.0" and one.send == 2 and one.resolved else one
        for one in heat_cells()
    ]
    title = display.title_of(charts.short_heat(frames.predicted(cells), block=64))
    shares = re.fullmatch(
        r"Within two blocks of full in 100% of all cells on vLLM 0\.30\.0, in 72% on 0\.29\.0, in \d+% on 0\.31\.0",
        title,
    )
    assert shares, title


@pytest.mark.parametrize(
    "words", [["engine", "install", "0.29"], ["predict", "--geometry", "gemma-4-12b", "--vllm", "0.29"]]
)
def test_a_version_of_two_numbers_is_refused(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 2 with what is installed and known; it is never advised to install such a version."""
    monkeypatch.setenv("PREFIXSCOPE_CACHE", str(tmp_path))
    try:
        code = cli.main(words)
    except SystemExit as ended:
        code = int(str(ended.code))
    shown = capsys.readouterr().err
    assert code == 2
    assert "'0.29' is no vLLM version (installed: none)" in shown
    assert "0.28.0 to 0.33.0" in shown
    assert "engine install 0.29\n" not in shown


def _refused(config: dict[str, Any], message: str) -> str:
    return str(refused("0.29.0", {"model": {"config": config}}, {"about": "model", "message": message}))


def test_a_config_that_vllm_can_not_build_names_what_it_lacks() -> None:
    """Its own words, whole ones, and the field that is missing."""
    none = (
        "AttributeError: 'NoneType' object has no attribute 'hidden_size'; it has no vision_config and no audio_config"
    )
    shown = _refused({"model_type": "gemma4"}, none)
    assert "vLLM 0.29.0's own code could not build this model from its config.json: AttributeError" in shown
    assert "Likely cause: the config lacks vision_config or audio_config\n" in shown
    assert "Likely cause: the config lacks model_type\n" in _refused({}, "Unrecognized model")
    assert re.search(r"word …\n", _refused({"model_type": "x"}, "word " * 300))


def test_a_files_name_keeps_its_letters(tmp_path: Path) -> None:
    """A file's name never begins a sentence, so no letter of it is raised."""
    file = tmp_path / "wl.jsonl"
    file.write_text(json.dumps({"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": [1]}))
    asked = replace(pressure(), workload=read_workload(file))
    assert pressed(frames.pressed(ROWS), asked).before[0].startswith("The file wl.jsonl: 1 request,")


def test_a_refusal_stands_below_the_table(tmp_path: Path) -> None:
    """A release's long words stand once under the table, not in its rows."""
    said = "vLLM 0.29.0 can't replay this: a pool of 10 blocks is too small"
    rows = [*ROWS, *(row(10, interval, None, refused=said) for interval in (0, 1024))]
    page = render_pressed(pressed(frames.pressed(rows), pressure()), {}, tmp_path / "page.html").read_text("utf-8")
    told = page.replace("&#39;", "'")
    assert told.count(said) == 1
    assert told.index("</table>") < told.index(said)
    assert told.count(">refused<") == 2


def test_of_several_releases_the_title_names_its_own() -> None:
    """A title that is about one panel says which."""
    newer = [replace(one, release="0.33.0") for one in ROWS]
    assert charts.pressure_title(frames.pressed([*ROWS, *newer])).startswith("vLLM 0.33.0: the best interval moves")


@pytest.mark.parametrize(
    ("words", "about"),
    [
        (["--vllm", "0.30.0,0.28.0"], "0.30.0"),
        (["--vllm", "0.31.0,0.30.0,0.28.0"], "0.30.0"),
        ([], "0.29.0"),
    ],
)
def test_now_is_the_first_release_that_was_named(words: list[str], about: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As typed, not as sorted; the default engine's where nobody names one."""
    opened: list[str] = []

    class Stop(Exception):
        pass

    def stop(release: str) -> None:
        opened.append(release)
        raise Stop

    have = ["0.28.0", "0.29.0", "0.30.0"]
    monkeypatch.setattr(
        "prefixscope.replay.choose_releases",
        lambda wanted, own="": ([name for name in have if name in (wanted or have)], []),
    )
    monkeypatch.setattr("prefixscope.replay.open_release", stop)
    with pytest.raises(Stop):
        cli.main(["predict", "--geometry", "gemma-4-12b", *words])
    assert opened == [about]


def test_of_several_engines_the_one_with_the_worst_miss_is_asked(capsys: pytest.CaptureFixture[str]) -> None:
    """A run's folder of traces is asked about the server that missed, whichever was traced last."""
    folder = data_path("sample", "run") / "trace"
    geometry, drafter, header = named.geometry(argparse.Namespace(trace=str(folder), geometry=None))
    assert header is not None
    assert (header.version, header.interval, drafter) == ("0.29.0", 0, 3)
    assert geometry == Geometry.from_header(header)
    assert (
        "holds 10 engines; taken is that of the worst miss, vLLM 0.29.0 at interval 0; for another one name its "
        in (capsys.readouterr().err)
    )
