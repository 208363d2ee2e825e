"""Who answered: one engine, engines of one server that take turns, or several servers behind one address.

Read from ``/metrics``, so it costs no request of a model: processes differ in when they started, engines of one server
count under labels of their own, and a page that counts fewer tokens than we sent belongs to one server of several.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from prefixscope import metrics

PROCESS = ("process_start_time_seconds", "vllm:prefix_cache_queries_created")
"""Metrics that differ between two processes and never change in one."""


def several_processes(pages: Iterable[str | None]) -> bool:
    """Whether these pages came from different processes."""
    known = [page for page in pages if page]
    for name in PROCESS:
        values = {tuple(sorted(value for _, value in metrics.samples(page, name))) for page in known}
        if len(values - {()}) > 1:
            return True
    queries = [n for page in known if (n := metrics.counters(page).queries) is not None]
    return any(later < earlier for earlier, later in pairwise(queries))


def split(before: str | None, after: str | None, sends: Sequence[int]) -> bool | None:
    """Whether sends of so many tokens were looked up by different engines of one server.

    None where the counters have no engines, or moved by more or less than the sends: others moved them too.
    """
    start, end = metrics.queries_by_engine(before), metrics.queries_by_engine(after)
    moved = [added for engine, count in end.items() if (added := count - start.get(engine, 0))]
    if len(end) < 2 or sum(moved) != sum(sends) or not sends:
        return None
    return len(moved) > 1


def missed_some(counted: int | None, sends: Sequence[int]) -> bool:
    """Whether a page counted one of our sends and not the others: another server answered those."""
    return counted is not None and len(sends) > 1 and counted < sum(sends) and counted in sends
