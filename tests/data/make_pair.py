"""Two synthetic runs that differ in known things: the same run with its rows and its manifest changed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from data.make_run import BLOCK, make_run

Row = dict[str, Any]
Edit = Callable[[Row], "Row | None"]


def edited(run: Path, change: Edit, *, run_id: str = "second-run", version: str = "0.30.0") -> Path:
    """The run with every raw row changed (None leaves it out), under another id, release and request ids."""
    for file in sorted((run / "raw").glob("*.jsonl")):
        rows = [change(json.loads(line)) for line in file.read_text(encoding="utf-8").splitlines()]
        for row in rows:
            if row is not None and row.get("request_id"):
                row["request_id"] += f"-{run_id}"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows if row is not None), encoding="utf-8")
    for file in (run / "trace").glob("*.jsonl"):
        text = re.sub(r"(chatcmpl-ps-[\w-]+)(?=-abcdef01)", rf"\1-{run_id}", file.read_text(encoding="utf-8"))
        file.write_text(text.replace('"version": "0.29.0"', f'"version": "{version}"'), encoding="utf-8")
    manifest = json.loads((run / "run.json").read_text(encoding="utf-8"))
    manifest |= {"run_id": run_id, "created_at": "2026-11-30T09:00:00.000Z", "engine": {"version": version}}
    manifest["facts"][0]["value"] = version
    (run / "run.json").write_text(json.dumps(manifest), encoding="utf-8")
    return run


def unchanged(row: Row) -> Row:
    return row


def fixed(row: Row) -> Row:
    """The second send hits what the third one hits, as on vLLM 0.30.0."""
    tokens = (row.get("prompt") or {}).get("tokens", 0)
    if (
        row["kind"] == "send"
        and row["send"] == "repeat"
        and row["index"] == 2
        and row["cached_tokens"] == 0
        and tokens > 1088
    ):
        return {**row, "cached_tokens": (tokens - 1) // BLOCK * BLOCK - BLOCK}
    return row


def make_pair(folder: Path, change: Edit = fixed, **options: Any) -> tuple[Path, Path]:
    """A run on vLLM 0.29.0 and the same one changed."""
    return make_run(folder / "before"), edited(make_run(folder / "after"), change, **options)
