"""Frames, verdict and report text, from a synthetic run whose hits follow the measured arithmetic."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from data.make_run import make_run

from prefixscope import frames, quantities, redact, verdict
from prefixscope.errors import ReportError
from prefixscope.page import script_json
from prefixscope.report import render_html, render_report
from prefixscope.setting import Setting


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("run"))


def write_rows(run: Path, *rows: dict[str, Any], tail: str = "") -> Path:
    (run / "raw").mkdir(parents=True, exist_ok=True)
    (run / "raw" / "baseline.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + tail)
    return run


def send(index: int = 2, **values: Any) -> dict[str, Any]:
    row = {
        "schema": 1, "kind": "send", "cell": f"c{index}", "setting": Setting().to_json(), "model": "m", "status": "ok",
        "prompt": {"name": "6,446 tokens", "tokens": 6446}, "send": "cold" if index == 1 else "repeat", "index": index,
        "prompt_tokens": 6446, "cached_tokens": 0, "first_token_ms": 100.0, "metrics": None,
    }  # fmt: skip
    return {**row, **values}


def cell(table: pd.DataFrame, config: str, tokens: int, label: str) -> Any:
    found = table[(table["config"] == config) & (table["tokens"] == tokens) & (table["send_label"] == label)]
    assert len(found) == 1
    return found.iloc[0]


def test_sends_have_derived_columns(run: Path) -> None:
    """A send's shortfall, its agreement with the server's counters and its verdict are computed."""
    table = frames.hits(frames.sends(run))
    second = cell(table, "MTP", 6446, "send 2")
    assert (second["cached_tokens"], second["short_tokens"], second["verdict"]) == (0, 6446, "none")
    assert cell(table, "MTP", 6446, "send 3")["short_tokens"] == 110
    assert cell(table, "no MTP", 6446, "send 2")["verdict"] == "reuses"
    assert cell(table, "MTP", 150, "send 2")["verdict"] == "cannot hit"
    assert frames.sends(run)["metrics_agree"].all()


def test_two_served_names_are_two_configurations(run: Path) -> None:
    """Where one server serves two names the configuration says which."""
    configs = set(frames.sends(run)["config"])
    assert {"MTP", "MTP + LoRA · gemma4-tiny", "MTP + LoRA · gemma4-tiny-lora"} <= configs


def test_null_is_not_zero(tmp_path: Path) -> None:
    """A hit length that the server does not report stays missing, and so does all that follows from it."""
    frame = frames.sends(write_rows(tmp_path, send(1, cached_tokens=None), send(2, cached_tokens=None)))
    assert frame["cached_tokens"].isna().all()
    assert frame["short_tokens"].isna().all()
    assert frame["metrics_agree"].isna().all()
    assert verdict.of_run(tmp_path).code == "not reported"
    assert "--enable-prompt-tokens-details" in verdict.of_run(tmp_path).sentence


def test_a_missing_usage_is_no_flags_doing(tmp_path: Path) -> None:
    """Where prompt tokens are missing too no flag of the engine is named: a gateway may have dropped the usage."""
    nothing = {"prompt_tokens": None, "cached_tokens": None}
    found = verdict.of_run(write_rows(tmp_path, send(1, **nothing), send(2, **nothing)))
    assert found.code == "not reported"
    assert "--enable" not in found.sentence
    assert "ask the engine at its own address" in found.sentence


def test_a_truncated_line_is_left_out_and_named(tmp_path: Path) -> None:
    """A line that an interrupted write cut off is left out and reported; the others are read."""
    write_rows(tmp_path, send(1), send(2), {"schema": 99, "kind": "send"}, tail='{"schema": 1, "kin')
    rows, problems = frames.read_rows(tmp_path)
    assert len(rows) == 2
    assert len(problems) == 2
    assert "1 unreadable line left out (line 4, maybe an interrupted write)" in render_html(tmp_path)


def test_nan_and_failed_rows_are_kept(tmp_path: Path) -> None:
    """A failed row stays with its status, and NaN is a missing value."""
    failed = send(2, status="failed", error="boom", prompt_tokens=None, cached_tokens=None, first_token_ms=None)
    frame = frames.sends(write_rows(tmp_path, send(1, first_token_ms=float("nan"), cached_tokens=float("nan")), failed))
    assert frame["status"].tolist() == ["ok", "failed"]
    assert frame["verdict"].tolist() == ["inconclusive", "inconclusive"]
    assert verdict.of_run(tmp_path).code == "inconclusive"
    assert "boom" in render_html(tmp_path)


def test_a_repeated_cell_outweighs_its_failure(tmp_path: Path) -> None:
    """A cell that failed and was measured on resume counts as measured."""
    failed = send(2, status="failed", error="boom", prompt_tokens=None, cached_tokens=None)
    frame = frames.hits(frames.sends(write_rows(tmp_path, send(1), failed, send(2, cached_tokens=6336))))
    assert cell(frame, "MTP", 6446, "send 2")["verdict"] == "reuses"


def test_summaries_are_medians_with_range_and_count(tmp_path: Path) -> None:
    """Repeated measurements give a median, the lowest, the highest and how many there were."""
    times = [send(2, first_token_ms=value) for value in (100.0, 140.0, 900.0)]
    frame = frames.latency(frames.sends(write_rows(tmp_path, *times, send(2, first_token_ms=9999.0, overlapped=True))))
    row = frame.iloc[0]
    assert (row["median_ms"], row["min_ms"], row["max_ms"], row["count"]) == (140.0, 100.0, 900.0, 3)


def test_the_default_interval_takes_its_place(run: Path) -> None:
    """The release's default is shown under the interval that the engine resolved, beside the others."""
    table = frames.sweep(frames.sends(run), frames.kept(run))
    longest = table[table["tokens"] == 6446]
    assert longest["interval"].tolist() == ["0 (default)", "64", "512", "1,024", "2,048", "4,096", "dense"]
    assert longest["hit_2"].tolist() == [0, 6336, 6336, 6336, 6144, 4096, 6336]
    assert longest["blocks"].tolist()[:2] == [265, 1105]


def test_blocks_are_ranges_on_one_token_axis() -> None:
    """Stored, needed, missing and evicted ranges become rows in blocks and in tokens; missing and evicted are apart."""
    group = SimpleNamespace(gid=0, kind="sliding", block_size=32, window=1024, drafter=False)
    view = SimpleNamespace(
        group=group,
        cached=((168, 190),),
        needed=(166, 199),
        missing=((166, 168), (190, 199)),
        evicted=((190, 199),),
        limiting=True,
    )
    lookup = SimpleNamespace(
        request_id="r",
        prompt_tokens=6446,
        hit_tokens=0,
        candidate_tokens=6336,
        common_tokens=6432,
        groups=(view,),
    )
    frame = frames.blocks([lookup], labels={"r": "send 2"})
    assert frame["state"].tolist() == ["stored", "needed", "missing", "evicted"]
    assert frame[["start_token", "stop_token"]].iloc[2].tolist() == [5312, 5376]
    assert frame[["start", "stop"]].iloc[3].tolist() == [190, 199]


def test_verdict_states_the_incident(run: Path) -> None:
    """The verdict names the lengths that miss, the third send, the remedy and its price, from the run's own rows."""
    found = verdict.of_run(run)
    assert found.code == "none"
    assert found.headline == (
        "MTP on vLLM 0.29.0 reuses nothing on the second send of prompts of 1,089, 3,008 and 6,446 tokens (0 of "
        "6,446 tokens)."
    )
    assert "The third send reuses 6,336" in found.sentence
    assert "Without MTP the second send reuses 6,400." in found.sentence
    assert (
        "--prefix-cache-retention-interval 1024 the second send reuses 6,336 of 6,446 (110 tokens short"
        in found.sentence
    )
    assert "4.2 times the cache blocks: 1,105 instead of 265" in found.sentence
    assert "rests on one second send at each of 5 prompt lengths" in found.basis


@pytest.mark.parametrize(
    ("tokens", "cached", "code"),
    [(6446, 6336, "reuses"), (6446, 4096, "short"), (6446, 0, "none"), (150, 0, "cannot hit")],
)
def test_verdict_codes(tmp_path: Path, tokens: int, cached: int, code: str) -> None:
    """Each outcome of a second send has its code."""
    prompt = {"prompt": {"tokens": tokens}, "prompt_tokens": tokens}
    found = verdict.of_run(write_rows(tmp_path, send(1, **prompt), send(2, cached_tokens=cached, **prompt)))
    assert found.code == code


def test_nothing_sent_twice_is_inconclusive(tmp_path: Path) -> None:
    """Without a second send nothing is claimed."""
    assert verdict.of_run(write_rows(tmp_path, send(1))).code == "inconclusive"
    assert verdict.of_run(tmp_path / "nowhere").code == "inconclusive"


def test_share_interval_is_not_certainty() -> None:
    """19 of 20 is between 76 % and 99 %, and 20 of 20 does not start at 100 %."""
    assert tuple(round(bound, 2) for bound in quantities.wilson(19, 20)) == (0.76, 0.99)
    assert quantities.wilson(20, 20)[0] < 0.9
    assert quantities.wilson(0, 0) == (0.0, 1.0)


def test_same_run_same_bytes(run: Path) -> None:
    """A run directory renders to the same bytes each time."""
    same = render_html(run) == render_html(run)
    assert same


@pytest.mark.parametrize("stages", [(), ("baseline",), ("sweep",), ("equality",)])
def test_half_finished_runs_render(tmp_path: Path, stages: tuple[str, ...]) -> None:
    """Whatever is missing, the report says what and the command that fills it."""
    page = re.sub("<[^>]+>", "", render_html(make_run(tmp_path, stages=stages)))
    missing = {"baseline", "sweep", "equality", "trace"} - set(stages)
    for stage in missing - ({"baseline"} if stages == ("sweep",) else set()):
        assert f"prefixscope run -o RUN --resume --only {stage}" in page


def test_nothing_private_is_in_the_report(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers, folders, host names and unknown environment fields stay in the run directory."""
    page = render_html(run)
    for private in ("harbour lights", "someone", "build-host-17", "token_ids", str(run)):
        assert private not in page
    assert "harbour lights" in render_html(run, include_text=True)


def test_text_is_shortened_and_cleaned() -> None:
    """Paths lose their folders, URLs their hosts, text its control and direction marks and its excess."""
    assert redact.clean("/home/a/models/gemma --x /v1/models") == "…/gemma --x /v1/models"
    assert redact.clean("PYTHONPATH=/a/b/kit:/c/d/site x") == "PYTHONPATH=…/kit:…/site x"
    assert redact.clean("https://u:p@gpu7.corp:8000/v1") == "https://host:8000/v1"
    assert redact.clean("\x1b[31mred\x1b[0m\u202e") == "red"
    assert len(redact.clean("x" * 1_000_000)) < 2_100


def test_json_in_a_script_cannot_end_it() -> None:
    """No JSON that goes into a script element can close it or open a comment."""
    text = script_json({"a": "</script><!--<script>&"})
    assert not set("<>&") & set(text)
    assert json.loads(text) == {"a": "</script><!--<script>&"}


def test_errors_name_the_folder(tmp_path: Path) -> None:
    """A directory that is not there is an error that names it."""
    with pytest.raises(ReportError, match="nowhere"):
        render_report(tmp_path / "nowhere")


def test_a_damaged_run_is_doubted(run: Path) -> None:
    """A manifest that can't be read, or a stage that is done without rows, is said; a whole run raises no doubt."""
    assert frames.doubts(run) == []
    (run / "raw" / "sweep.jsonl").unlink()
    assert "stage sweep is done" in " ".join(frames.doubts(run))
    (run / "run.json").write_text('{"stages": ')
    assert "run.json is missing or damaged" in " ".join(frames.doubts(run))


def test_a_manifest_of_odd_shapes_is_read_without_them(run: Path) -> None:
    """Parts of run.json that have the wrong shape are left out instead of breaking what reads them."""
    manifest = frames.load_run(run)
    (run / "run.json").write_text(json.dumps({**manifest, "stages": "x", "servers": 3}))
    assert "stages" not in frames.load_run(run)
    assert frames.timeline(frames.load_run(run)).empty
