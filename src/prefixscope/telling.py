"""The part of a trace that a report tells: few of its lookups, chosen and said why, and all of them counted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from prefixscope import frames, lookups, redact
from prefixscope.charts import with_configs
from prefixscope.conclusions import missed_most
from prefixscope.diagnosis import Diagnosis, explain
from prefixscope.errors import TraceError
from prefixscope.geometry import brought
from prefixscope.quantities import count, number
from prefixscope.trace import Header, Lookup, Trace, read_trace
from prefixscope.verdict import Verdict

MOST_PANELS = 3
MOST_POINTS = 1_000
"""Lookups that a page draws one by one; of more, stretches of time are drawn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Telling:
    """What a report's trace section is made of.

    ``blocks`` and ``stores`` are of the sends chosen; ``beside`` is ``blocks`` with the first sends that only the store
    side shows. ``over_time``, ``evictions`` and ``tally`` are of the whole trace. ``why`` says which sends were chosen
    and why, ``causes`` is what each is called with its diagnosis, ``other`` what missed more over the whole trace,
    ``engines`` what each server of the run resolved its settings to, by the server's id, ``problems`` what could not be
    read.
    """

    blocks: pd.DataFrame
    beside: pd.DataFrame
    stores: pd.DataFrame
    over_time: pd.DataFrame
    evictions: pd.DataFrame
    tally: pd.DataFrame
    engines: Mapping[str, Header]
    why: str = ""
    other: str = ""
    causes: tuple[tuple[str, Diagnosis], ...] = ()
    problems: tuple[str, ...] = ()


def tell(run_dir: Path, sent: pd.DataFrame, verdict: Verdict) -> Telling:
    """What to show of a run's trace: the sends that its verdict rests on; without any, of the trace brought to it."""
    if not len(sent):
        found = brought(run_dir)
        return _nothing() if found is None else _alone(found)
    if not any((run_dir / "trace").glob("*.jsonl")) or verdict.config is None:
        return _nothing()
    try:
        trace = read_trace(run_dir / "trace")
    except TraceError as error:
        return _nothing(f"trace: {error.what}")
    seen = {row for row in sent["request_id"].dropna() if trace.lookup(row) is not None}
    chosen = _chosen(sent, verdict, seen)
    engines = _engines(trace, sent)
    if not len(chosen):
        return replace(_nothing(*_doubts(trace)), engines=engines)
    labels = {row.request_id: f"{row.config}, {row.send_label}" for row in chosen.itertuples()}
    mine = chosen[chosen["config"] == verdict.config]
    first = frames.repeats(sent)
    causes = tuple(
        (labels[row.request_id], explain(trace, row.request_id, repeat_of=first.get(row.request_id)))
        for row in mine[mine["send"] == "repeat"].itertuples()
    )
    beside, tally = frames.blocks([trace.lookup(request) for request in labels], labels=labels), frames.causes(trace)
    other_first = set(chosen.loc[(chosen["config"] != verdict.config) & (chosen["send"] == "cold"), "request_id"])
    keeping = [*mine["request_id"].tolist()[:2], *other_first]
    fixed = f", and the second send with {verdict.remedy_config}" if other_first else ""
    return Telling(
        blocks=beside[~beside["request_id"].isin(other_first)].reset_index(drop=True),
        beside=beside,
        stores=frames.stores(trace, {request: labels[request] for request in labels if request in keeping}),
        over_time=frames.lookups_over_time(trace, most=MOST_POINTS),
        evictions=frames.evictions_over_time(trace),
        tally=tally,
        other=missed_most(trace, tally, [cause for _, cause in causes]),
        engines=engines,
        why=f"{_size(trace)} Drawn are the sends of the {number(mine['tokens'].max())}-token prompt "
        f"{with_configs([verdict.config])}, the longest prompt of the configuration that the verdict is about{fixed}.",
        causes=causes,
        problems=_doubts(trace),
    )


def _alone(trace: Trace) -> Telling:
    """Of a trace without rows: its worst miss, with the sends of the same prompt around it."""
    worst = trace.worst()
    if worst is None:
        return _nothing(*_doubts(trace))
    sends = trace.sends(worst, limit=MOST_PANELS)
    labels = {
        one.engine_request_id: f"send {place}, {redact.clean(one.request_id, limit=40)}"
        for place, one in enumerate(sends, 1)
    }
    seen = lookups.View(trace, labels, {}, {})
    blocks, tally = lookups.blocks(seen, drafter=True), frames.causes(trace)
    cause = explain(trace, worst.engine_request_id)
    reason = "the lookup that missed most" if worst.missed_tokens else f"none missed, so {_longest(worst)}"
    return Telling(
        blocks=blocks,
        beside=blocks,
        stores=lookups.stored(seen, drafter=True),
        over_time=frames.lookups_over_time(trace, most=MOST_POINTS),
        evictions=frames.evictions_over_time(trace),
        tally=tally,
        other=missed_most(trace, tally, [cause]),
        engines={f"pid {one.pid}, {one.engine}": one for one in trace.headers},
        why=f"{_size(trace)} Drawn is {redact.clean(worst.request_id, limit=40)} ({reason}), with the sends of the "
        "same prompt around it.",
        causes=((labels[worst.engine_request_id], cause),),
        problems=_doubts(trace),
    )


def _longest(lookup: Lookup) -> str:
    return "the longest repeat" if lookup.common_tokens else "the longest prompt; none was sent twice"


def _chosen(sent: pd.DataFrame, verdict: Verdict, traced: set[str]) -> pd.DataFrame:
    """The first three sends of the main configuration, then two with the remedy, at the longest prompt traced."""
    rows = sent[sent["send"].isin(["cold", "repeat"]) & sent["request_id"].isin(traced)]
    mine = rows[rows["config"] == verdict.config]
    repeats = mine[mine["send"] == "repeat"]
    if not len(repeats):
        return mine.head(0)
    tokens = repeats["tokens"].max()
    fixed = rows[(rows["config"] == verdict.remedy_config) & (rows["index"] <= 2) & (rows["tokens"] == tokens)]
    own = mine[(mine["tokens"] == tokens) & (mine["index"] <= MOST_PANELS)]
    picked = pd.concat([own.sort_values("index"), fixed.sort_values("index")])
    return picked.drop_duplicates(["config", "index"], keep="last")


def _engines(trace: Trace, sent: pd.DataFrame) -> dict[str, Header]:
    """What each server resolved its settings to, as far as it was traced."""
    found: dict[str, Header] = {}
    for row in sent[["server", "request_id"]].dropna().itertuples():
        lookup = None if row.server in found else trace.lookup(row.request_id)
        if lookup is not None:
            found[str(row.server)] = lookup.header
    return found


def _size(trace: Trace) -> str:
    engines = f"{count(len(trace.headers), 'engine')} {'was' if len(trace.headers) == 1 else 'were'} traced"
    return f"{engines}, {count(len(trace.lookups), 'lookup')}."


def _doubts(trace: Trace) -> tuple[str, ...]:
    return tuple(f"trace, {code}: {detail}" for code, detail in trace.warnings)


def _nothing(*problems: str) -> Telling:
    empty, trace = frames.blocks([]), Trace()
    return Telling(
        blocks=empty, beside=empty, stores=frames.stores(trace, {}), over_time=frames.lookups_over_time(trace),
        evictions=frames.evictions_over_time(trace),
        tally=frames.causes(trace), engines={}, problems=problems,
    )  # fmt: skip
