"""What leaves for other tools: span attributes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from data.streamed import generation

from prefixscope import frames, spans


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
