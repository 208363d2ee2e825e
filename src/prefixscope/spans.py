"""One streamed answer as OpenTelemetry span attributes, under the names that dashboards already use for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

ATTRIBUTES: Mapping[str, str] = {
    # gen_ai.usage.*: OpenTelemetry's semantic conventions; gen_ai.vllm.mtp.*: an operator's published extension.
    "prompt_tokens": "gen_ai.usage.input_tokens",
    "completion_tokens": "gen_ai.usage.output_tokens",
    "drafts": "gen_ai.vllm.mtp.drafts",
    "drafted": "gen_ai.vllm.mtp.drafted",
    "accepted": "gen_ai.vllm.mtp.accepted",
    "acceptance": "gen_ai.vllm.mtp.acceptance",
    "tokens_per_step": "gen_ai.vllm.mtp.tokens_per_step",
}


def attributes(row: Mapping[str, Any]) -> dict[str, int | float]:
    """The attributes of one row of ``frames.generations``; what is not known has none, for null is not zero."""
    found = {name: row.get(column) for column, name in ATTRIBUTES.items()}
    return {
        name: float(value) if isinstance(value, float) else int(value)
        for name, value in found.items()
        if value is not None and not pd.isna(value)
    }
