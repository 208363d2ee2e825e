"""Several releases asked side by side; one that refuses is named, and the others go on."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from prefixscope.errors import ReplayError
from prefixscope.replay.grid import Cell, Grid, ask
from prefixscope.replay.matrix import Probe, ask_probes
from prefixscope.replay.worker import Replayer, open_release

MOST_TOGETHER = 4
"""Workers at once; each takes a core and about 1 GB."""

Told = Callable[[int, int, float | None], None]
"""Takes the sends done, all sends, and the seconds left (None while nobody can say)."""


@dataclass(slots=True)
class Survey:
    """What the releases answered, oldest first.

    ``heat`` has the cells of the heat map where one was asked for. ``refused`` has a release's own words where it could
    not be asked.
    """

    cells: list[Cell] = field(default_factory=list)
    probes: list[Probe] = field(default_factory=list)
    heat: list[Cell] = field(default_factory=list)
    refused: dict[str, ReplayError] = field(default_factory=dict)


def survey(
    grid: Grid, releases: Sequence[str], *, heat: Grid | None = None, probes: bool = True, told: Told | None = None
) -> Survey:
    """Ask every release for the grid, for what tells releases apart, and for the heat map.

    Raises
    ------
    ReplayError
        where every release refuses; it is the first one's.
    """
    clock = _Clock(len(releases) * (grid.total_sends + (heat.total_sends if heat else 0)), told)

    def one(replayer: Replayer) -> Survey:
        with replayer:
            found = Survey(cells=ask(replayer, grid, told=clock.more))
            if probes:
                for drafter in grid.drafters:
                    found.probes += ask_probes(replayer, grid.geometry, tokens=max(grid.lengths), drafter=drafter)
            if heat is not None:
                found.heat = ask(replayer, heat, told=clock.more)
            return found

    workers = [open_release(release) for release in releases]
    result = Survey()
    with ThreadPoolExecutor(max(1, min(len(workers), os.cpu_count() or 1, MOST_TOGETHER))) as pool:
        waiting = [pool.submit(one, worker) for worker in workers]
        try:
            for worker, answer in zip(workers, waiting, strict=True):
                try:
                    found = answer.result()
                except ReplayError as error:
                    result.refused[worker.release] = error
                else:
                    result.cells += found.cells
                    result.probes += found.probes
                    result.heat += found.heat
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in workers:
                worker.close()
            raise
    if result.refused and not result.cells:
        raise next(iter(result.refused.values()))
    return result


class _Clock:
    """Sends done over all workers, and what is left at the pace since the first one."""

    def __init__(self, total: int, told: Told | None) -> None:
        self._total, self._told = total, told
        self._done, self._began, self._lock = 0, time.monotonic(), threading.Lock()

    def more(self, count: int) -> None:
        with self._lock:
            self._done += count
            if self._told is not None:
                # Importing vLLM and the first config belong to the time that later workers take as well.
                known = self._done * 20 >= self._total
                left = (time.monotonic() - self._began) / self._done * (self._total - self._done) if known else None
                self._told(self._done, self._total, left)
