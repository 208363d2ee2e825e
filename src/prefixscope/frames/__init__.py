"""Column tables of a run directory: the only place where DataFrames are built.

Tidy frames hold one row per observation and keep failed ones; summary frames give medians with their range and
count, never a bare mean. A value that no server reported stays ``<NA>``: it is not zero.
"""

from __future__ import annotations

from prefixscope.frames.attempts import counted, cut_short
from prefixscope.frames.cache import blocks, group_label, groups, kept, lookups
from prefixscope.frames.clock import servers, timeline
from prefixscope.frames.compared import compared_hits, compared_rates, compared_sweep
from prefixscope.frames.drafting import (
    across,
    arm_labels,
    by_shape,
    effect,
    generations,
    headrooms,
    output_pairs,
    positions,
    record,
    resends,
)
from prefixscope.frames.evictions import evictions_over_time
from prefixscope.frames.outputs import answers, comparisons, equality
from prefixscope.frames.predicted import predicted, predicted_cases, predicted_versions
from prefixscope.frames.pressed import TIE, pressed
from prefixscope.frames.requests import FULL_HIT_BLOCKS, current, repeats, send_label, sends, worst
from prefixscope.frames.rows import doubts, forget, load_run, problems, read_rows, trace_headers, warning
from prefixscope.frames.served import facts
from prefixscope.frames.summaries import (
    agreed,
    agreement,
    by_send,
    cheaper_interval,
    crosscheck,
    hits,
    interval_totals,
    keeps_all,
    latency,
    predicted_sweep,
    sweep,
)
from prefixscope.frames.traced import causes, lookups_over_time, stores

__all__ = [
    "FULL_HIT_BLOCKS",
    "TIE",
    "across",
    "agreed",
    "agreement",
    "answers",
    "arm_labels",
    "blocks",
    "by_send",
    "by_shape",
    "causes",
    "cheaper_interval",
    "compared_hits",
    "compared_rates",
    "compared_sweep",
    "comparisons",
    "counted",
    "crosscheck",
    "current",
    "cut_short",
    "doubts",
    "effect",
    "equality",
    "evictions_over_time",
    "facts",
    "forget",
    "generations",
    "group_label",
    "groups",
    "headrooms",
    "hits",
    "interval_totals",
    "keeps_all",
    "kept",
    "latency",
    "load_run",
    "lookups",
    "lookups_over_time",
    "output_pairs",
    "positions",
    "predicted",
    "predicted_cases",
    "predicted_sweep",
    "predicted_versions",
    "pressed",
    "problems",
    "read_rows",
    "record",
    "repeats",
    "resends",
    "send_label",
    "sends",
    "servers",
    "stores",
    "sweep",
    "timeline",
    "trace_headers",
    "warning",
    "worst",
]
