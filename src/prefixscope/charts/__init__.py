"""One function per figure: summary frame → Altair chart whose title says what it shows.

Every function returns None where its frame holds nothing to draw; the caller says what would fill the gap.
Charts carry no colours of ink or paper: ``theme.vega_config`` gives them, light or dark.
"""

from __future__ import annotations

from prefixscope.charts.clock import time_spent
from prefixscope.charts.compared import compared_hits, compared_rates, compared_sweep, times_named
from prefixscope.charts.drafting import accepted_by_position, balance_over_reuse, speed_by_shape, speed_title
from prefixscope.charts.evictions import evictions_over_time
from prefixscope.charts.hits import hits_by_length, hits_by_send
from prefixscope.charts.lanes import block_range
from prefixscope.charts.latency import first_token
from prefixscope.charts.lookups import lookups_over_time
from prefixscope.charts.outputs import equality_matrix
from prefixscope.charts.predicted import interval_front, short_heat, version_matrix
from prefixscope.charts.pressed import hit_rate_under_pressure, pressure_title
from prefixscope.charts.retention import cost_against_shortfall, hit_against_interval
from prefixscope.charts.ruler import block_ruler
from prefixscope.charts.store import store_ruler
from prefixscope.charts.titles import as_subject, with_configs

__all__ = [
    "accepted_by_position",
    "as_subject",
    "balance_over_reuse",
    "block_range",
    "block_ruler",
    "compared_hits",
    "compared_rates",
    "compared_sweep",
    "cost_against_shortfall",
    "equality_matrix",
    "evictions_over_time",
    "first_token",
    "hit_against_interval",
    "hit_rate_under_pressure",
    "hits_by_length",
    "hits_by_send",
    "interval_front",
    "lookups_over_time",
    "pressure_title",
    "short_heat",
    "speed_by_shape",
    "speed_title",
    "store_ruler",
    "time_spent",
    "times_named",
    "version_matrix",
    "with_configs",
]
