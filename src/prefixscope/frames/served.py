"""Frame of what the server said of itself."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from prefixscope.frames.columns import TEXT, make_frame
from prefixscope.frames.rows import dicts_in, load_run

FACT_COLUMNS = {"fact": TEXT, "value": TEXT, "source": TEXT}


def facts(run_dir: Path) -> pd.DataFrame:
    """One row per fact about the server: what, its value (null where no endpoint tells it), where it was read."""
    rows = [
        {"fact": fact.get("name"), "value": None if value is None else str(value), "source": fact.get("source")}
        for fact in dicts_in(load_run(run_dir), "facts")
        for value in (fact.get("value"),)
    ]
    return make_frame(rows, FACT_COLUMNS)
