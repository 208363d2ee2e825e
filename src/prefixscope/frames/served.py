"""Frame of what the server said of itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from prefixscope.frames.columns import TEXT, make_frame
from prefixscope.frames.rows import dicts_in, load_run

FACT_COLUMNS = {"fact": TEXT, "value": TEXT, "source": TEXT}


def facts(run_dir: Path) -> pd.DataFrame:
    """One row per fact about the server: what, its value, where it was read; null where no endpoint tells, and last."""
    rows = [
        {"fact": fact.get("name"), "value": _words(fact.get("value")), "source": fact.get("source")}
        for fact in dicts_in(load_run(run_dir), "facts")
    ]
    return make_frame(sorted(rows, key=lambda row: row["value"] is None), FACT_COLUMNS)


def _words(value: Any) -> str | None:
    """A fact as people read it; metrics give numbers and truths as text."""
    text = {"True": "yes", "False": "no", "None": None}.get(str(value), str(value))
    return f"{int(text):,}" if text is not None and text.isascii() and text.isdigit() else text
