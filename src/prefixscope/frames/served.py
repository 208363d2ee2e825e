"""Frame of what the server said of itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from prefixscope.frames.columns import TEXT, make_frame, whole
from prefixscope.frames.rows import Rows, dict_in, dicts_in, load_run, read_rows, trace_headers
from prefixscope.quantities import count

FACT_COLUMNS = {"fact": TEXT, "value": TEXT, "source": TEXT}

BY_SERVER = (
    "served models", "LoRA names", "speculative decoding", "draft tokens a step", "pool, blocks", "pool, tokens",
    "block size reported, tokens", "Mamba block, tokens", "retention interval reported",
    "batched tokens a step, at most",
)  # fmt: skip
"""Facts that depend on how a server was started."""

CACHED = "cached tokens in usage"


def facts(run_dir: Path) -> pd.DataFrame:
    """One row per fact about the server: what, its value, where it was read; null where no endpoint tells, and last.

    A run asks its first server. Where it started others too, what depends on the start is told under that one's name,
    and of the first one whose drafter is another what it drafts with. Whether cached tokens are reported is what the
    answers show.
    """
    run = load_run(run_dir)
    started = dicts_in(run, "servers")
    settings = {str(dict_in(row, "setting").get("id")) for row in started}
    first = _name(started[0]) if len(settings) > 1 else ""
    rows: Rows = []
    for fact in dicts_in(run, "facts"):
        name, value, source = fact.get("name"), _words(fact.get("value")), fact.get("source")
        if name == CACHED and value is None:
            value, source = answered(_cached(run_dir))
        rows.append(_row(f"{name} ({first})" if first and name in BY_SERVER else name, value, source))
    return make_frame(sorted(rows + _drafting(run_dir, started), key=lambda row: row["value"] is None), FACT_COLUMNS)


def answered(cached: Iterable[Any]) -> tuple[str | None, str]:
    """Whether answers report cached tokens, and how many show it; None of no answer. ``cached`` is what each said."""
    usage = list(cached)
    told = sum(whole(value) is not None for value in usage)
    if not usage:
        return None, "not reported"
    return "yes" if told else "no", f"{told:,} of {count(len(usage), 'answer')}"


def _cached(run_dir: Path) -> Iterator[Any]:
    for row in read_rows(run_dir)[0]:
        if row.get("kind") in ("send", "answer", "generation") and row.get("status") in (None, "ok"):
            yield row.get("cached_tokens")


def _drafting(run_dir: Path, started: Rows) -> Rows:
    """What the first server drafts with whose drafter is on where the first one's is off, or the other way round."""
    drafts = [dict_in(row, "setting").get("drafter") for row in started]
    other = next((row for row, on in zip(started, drafts, strict=True) if on is not None and on != drafts[0]), None)
    if other is None or drafts[0] is None:
        return []
    on, name = bool(dict_in(other, "setting").get("drafter")), _name(other)
    known = {
        (str(one["spec_method"]), whole(one.get("spec_tokens")))
        for one in trace_headers(run_dir)
        if one.get("spec_method")
    }
    if not on or len(known) != 1:
        return [_row(f"speculative decoding ({name})", "on" if on else "off", f"start of {other.get('id')}")]
    ((method, tokens),) = known
    return [
        _row(f"speculative decoding ({name})", f"on, {method}", "trace header"),
        _row(f"draft tokens a step ({name})", _words(tokens), "trace header"),
    ]


def _name(server: Mapping[str, Any]) -> str:
    """``s01, no MTP``."""
    return f"{server.get('id')}, {dict_in(server, 'setting').get('label') or 'unnamed'}"


def _row(name: Any, value: str | None, source: Any) -> dict[str, Any]:
    return {"fact": name, "value": value, "source": source}


def _words(value: Any) -> str | None:
    """A fact as people read it; metrics give numbers and truths as text."""
    text = {"True": "yes", "False": "no", "None": None}.get(str(value), str(value))
    return f"{int(text):,}" if text is not None and text.isascii() and text.isdigit() else text
