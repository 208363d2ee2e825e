"""Several releases asked side by side; one that refuses is named, and the others go on."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from prefixscope.errors import ReplayError
from prefixscope.replay.geometry import Geometry
from prefixscope.replay.grid import Cell, Grid, ask, heat_grid
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
    grid: Grid,
    releases: Sequence[str],
    *,
    heat: bool = False,
    geometry_on: Callable[[Replayer], Geometry] | None = None,
    told: Told | None = None,
) -> Survey:
    """Ask every release for the grid, for what tells releases apart, and for the heat map.

    Parameters
    ----------
    heat : ask for the heat map, too.
    geometry_on : the geometry of the same server on that release; the grid's own without.

    Raises
    ------
    ReplayError
        where every release refuses; it is the first one's.
    """
    together = max(1, min(len(releases), os.cpu_count() or 1, MOST_TOGETHER))
    clock = _Clock(
        len(releases) * (grid.total_sends + (heat_grid(grid).total_sends if heat else 0)), len(releases), together, told
    )

    def one(replayer: Replayer) -> Survey:
        with replayer:
            replayer.start()
            clock.started()
            geometry = grid.geometry if geometry_on is None else geometry_on(replayer)
            mine = replace(grid, geometry=geometry)
            found = Survey(cells=ask(replayer, mine, told=clock.more))
            for drafter in grid.drafters:
                found.probes += ask_probes(replayer, geometry, tokens=max(grid.lengths), drafter=drafter)
            if heat:
                found.heat = ask(replayer, heat_grid(mine), told=clock.more)
            return found

    workers = [open_release(release) for release in releases]
    result = Survey()
    with ThreadPoolExecutor(together) as pool:
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
    """Sends done over all workers, and what is left at the pace since the first one, imports to come included."""

    def __init__(self, total: int, workers: int, together: int, told: Told | None) -> None:
        self._total, self._waiting, self._together, self._told = total, workers, together, told
        self._done, self._lock = 0, threading.Lock()
        self._began = self._first = time.monotonic()

    def started(self) -> None:
        """A worker has imported vLLM."""
        with self._lock:
            self._waiting -= 1
            if not self._done:
                self._first = time.monotonic()

    def more(self, count: int) -> None:
        with self._lock:
            self._done += count
            if self._told is not None:
                left = None
                if self._done * 20 >= self._total:  # the first sends also make configs and hash prompts
                    pace = (time.monotonic() - self._first) / self._done
                    imports = (self._first - self._began) * self._waiting / self._together
                    left = pace * (self._total - self._done) + imports
                self._told(self._done, self._total, left)
