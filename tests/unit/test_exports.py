"""What leaves for other tools: span attributes and the Grafana dashboard."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
from data.streamed import generation

from prefixscope import frames, metrics, resources, spans


@pytest.fixture
def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(resources.data_path("grafana", "speculation.json").read_text())
    return found


def test_a_span_has_what_is_known_and_nothing_else(tmp_path: Path) -> None:
    """Counts are whole numbers, shares are fractions, and without a drafter there is no attribute, not a zero."""
    (tmp_path / "raw").mkdir()
    rows = [generation(accepted=(3, 3, 2)), generation("B", accepted=None, tokens=5)]
    (tmp_path / "raw" / "speculation.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with_drafter, without = (spans.attributes(row) for row in frames.generations(tmp_path).to_dict("records"))
    assert with_drafter == {
        "gen_ai.usage.input_tokens": 512, "gen_ai.usage.output_tokens": 12, "gen_ai.vllm.mtp.drafts": 3,
        "gen_ai.vllm.mtp.drafted": 9, "gen_ai.vllm.mtp.accepted": 8, "gen_ai.vllm.mtp.acceptance": pytest.approx(8 / 9),
        "gen_ai.vllm.mtp.tokens_per_step": pytest.approx(1 + 8 / 3),
    }  # fmt: skip
    assert set(without) == {"gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens"}


def test_the_dashboard_asks_for_metrics_that_vllm_has(dashboard: dict[str, Any]) -> None:
    """Every metric in a query is one that prefixscope reads from vLLM, under its newest name."""
    known = {names[0] for names in (*metrics.NAMES.values(), *metrics.DRAFTING.values(), metrics.PER_POSITION)}
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    asked = {name for query in queries for name in re.findall(r"vllm:\w+", query)}
    assert asked - known == {"vllm:kv_cache_usage_perc"}
    assert len(queries) == len(dashboard["panels"]) == 6


def test_the_dashboards_panels_have_their_own_place(dashboard: dict[str, Any]) -> None:
    """Ids are unique, panels stay within 24 columns and none lies on another; data sources are a variable."""
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24
        assert panel["datasource"]["uid"] == "${datasource}"
    for a, b in itertools.combinations([panel["gridPos"] for panel in panels], 2):
        apart = (
            a["x"] + a["w"] <= b["x"]
            or b["x"] + b["w"] <= a["x"]
            or a["y"] + a["h"] <= b["y"]
            or b["y"] + b["h"] <= a["y"]
        )
        assert apart
    assert dashboard["schemaVersion"] == 42
