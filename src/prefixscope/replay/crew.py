"""Several replays at the same time, one process a core."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, Protocol, TypeVar

from prefixscope.replay.worker import Replayer, open_release

_WORTH_A_WORKER_S = 15.0  # importing vLLM takes half of that


class Replayed(Protocol):
    """What a crew has to know of a row."""

    @property
    def release(self) -> str: ...


Row = TypeVar("Row", bound=Replayed)


class Crew(Generic[Row]):
    """Threads that take one row after another, each with a replayer of its own.

    Parameters
    ----------
    rows : what is to be replayed.
    replay : fills a row in with a replayer of its release, and tells how many more requests are done.
    work_s : seconds that all of it takes one process, about.
    workers : processes at the same time; None is one per core, fewer where the work is not worth their start.
    warm : a replayer that is asked alone and left open; None starts and ends processes.

    Raises
    ------
    ReplayError
        where a release is not installed, before anything is started.
    """

    def __init__(
        self,
        rows: Sequence[Row],
        replay: Callable[[Replayer, Row, Callable[[int], None]], Row],
        *,
        work_s: float,
        workers: int | None,
        warm: Replayer | None,
    ) -> None:
        self._rows, self._replay, self._warm = list(rows), replay, warm
        self._told: queue.Queue[Row | int | BaseException] = queue.Queue()
        self._stop, self._lock = threading.Event(), threading.Lock()
        for release in dict.fromkeys(row.release for row in rows):
            if warm is None or warm.release != release:
                open_release(release).close()
        most = max(1, min(len(os.sched_getaffinity(0)), int(work_s / _WORTH_A_WORKER_S)))
        self._threads = [
            threading.Thread(target=self._work, daemon=True, name=f"pressure {number}")
            for number in range(1 if warm is not None else min(workers or most, len(rows)))
        ]

    def told(self) -> Iterator[Row | int]:
        """Each row as it is made, and in between how many more requests are done."""
        left = len(self._rows)
        for thread in self._threads:
            thread.start()
        try:
            while left:
                told = self._told.get()
                if isinstance(told, BaseException):
                    raise told
                if not isinstance(told, int):
                    left -= 1
                yield told
        finally:
            self._stop.set()
            for thread in self._threads:
                thread.join(timeout=10)

    def _work(self) -> None:
        replayer = self._warm
        try:
            while not self._stop.is_set():
                with self._lock:
                    if not self._rows:
                        return
                    # A worker goes on with its own release as long as there is work for it.
                    mine = [row for row in self._rows if replayer is not None and row.release == replayer.release]
                    row = mine[0] if mine else self._rows[0]
                    self._rows.remove(row)
                if replayer is None or replayer.release != row.release:
                    if replayer is not None and replayer is not self._warm:
                        replayer.close()
                    replayer = open_release(row.release)
                self._told.put(self._replay(replayer, row, self._progress))
        except _Stopped:
            return
        except BaseException as error:
            self._told.put(error)
        finally:
            if replayer is not None and replayer is not self._warm:
                replayer.close()

    def _progress(self, requests: int) -> None:
        if self._stop.is_set():
            raise _Stopped
        self._told.put(requests)


class _Stopped(Exception):
    """Nobody waits for the rows any more."""
