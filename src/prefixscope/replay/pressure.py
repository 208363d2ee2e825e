"""A workload through finite pools: the hit rate by interval, release and pool size, when the pool evicts.

The requests of a workload go one after another (or ``concurrency`` at once) through a scheduler with an empty cache.
Each pool, interval and release is a replay of its own, so that several run at the same time, one process a core.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import queue
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from prefixscope.errors import ReplayError
from prefixscope.replay.case import ServerSetting
from prefixscope.replay.geometry import Geometry
from prefixscope.replay.outcome import Outcome
from prefixscope.replay.worker import Replayer, open_release
from prefixscope.replay.workload import Workload
from prefixscope.setting import Interval, digest, interval_label

WARM_SHARE = 0.5
"""A follow-up is warm where its hit covers at least this share of the earlier turn that it repeats."""

_TOKENS_PER_S = 1_000_000.0
_WORTH_A_WORKER_S = 15.0  # importing vLLM takes half of that
_STORE_VERSION = 1
MOST_BLOCKS = 20_000_000  # 10 GB of vLLM's block objects


@dataclass(frozen=True, slots=True, kw_only=True)
class PressureRow:
    """One replay of a whole workload.

    ``interval`` is the one asked for, ``resolved`` what the release made of it. ``pool_blocks`` None is a pool that
    never evicts; ``blocks`` its size. ``retained_blocks`` are cached at the end, ``evicted_blocks`` lost their content
    on the way. ``warm`` of ``follow_ups`` still hit their earlier turn. Where the release refuses the setting,
    ``refused`` says why and every number is None.
    """

    release: str
    interval: Interval
    pool_blocks: int | None
    resolved: int | str | None = None
    blocks: int | None = None
    requests: int = 0
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    retained_blocks: int | None = None
    evicted_blocks: int | None = None
    preemptions: int | None = None
    follow_ups: int | None = None
    warm: int | None = None
    refused: str = ""

    @property
    def hit_rate(self) -> float | None:
        """Cached tokens over prompt tokens."""
        if self.cached_tokens is None or not self.prompt_tokens:
            return None
        return self.cached_tokens / self.prompt_tokens

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "hit_rate": self.hit_rate}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pressure:
    """What is asked: every combination of ``pools``, ``intervals`` and ``releases``.

    ``setting`` gives everything else. A pool is a number of blocks, None one that never evicts.
    """

    workload: Workload
    geometry: Geometry
    setting: ServerSetting
    pools: tuple[int | None, ...]
    intervals: tuple[Interval, ...]
    releases: tuple[str, ...]
    concurrency: int = 1

    def cells(self) -> list[PressureRow]:
        """A row without numbers for every combination, release by release, the largest pool first."""
        pools = sorted(set(self.pools), key=lambda pool: -math.inf if pool is None else -pool)
        return [
            PressureRow(release=release, interval=interval, pool_blocks=pool)
            for release in dict.fromkeys(self.releases)
            for pool in pools
            for interval in dict.fromkeys(self.intervals)
        ]

    def replay(
        self,
        *,
        workers: int | None = None,
        replayer: Replayer | None = None,
        store: Path | None = None,
        progress: Callable[[dict[str, Any]], None] | None = None,
    ) -> Iterator[PressureRow]:
        """Each row as it is made, in no particular order.

        Parameters
        ----------
        workers : processes at the same time; None is one per core, fewer where the work is not worth their start.
        replayer : a warm one, which is asked alone and left open; None starts and ends processes.
        store : a JSONL file of finished rows. What is in it is not replayed again; new rows are added at once.
        progress : takes a snapshot (stage, step, steps, text, elapsed_s, left_s) every now and then.

        Raises
        ------
        ReplayError
            where a release is not installed, or refuses every setting.
        """
        cells = self.cells()
        known = _Store(store, self)
        rows = {cell: known.find(cell) for cell in cells}
        refused: list[PressureRow] = []
        for row in filter(None, rows.values()):
            yield row
        left = [cell for cell, row in rows.items() if row is None]
        if not left:
            return
        watch = _Watch(len(cells), len(left), len(self.workload.requests), progress)
        for row in _Crew(self, left, workers, replayer).rows(watch):
            if row.refused:
                refused.append(row)
            else:
                known.add(row)
            yield row
        if len(refused) == len(cells):
            raise ReplayError(f"no setting could be replayed: {refused[0].refused}")


def default_pools(workload: Workload, geometry: Geometry) -> tuple[int, ...]:
    """Four pool sizes that show the effect, from a thirty-second to a quarter of what keeping everything would take.

    The server's own pool takes the place of the nearest one, where the geometry knows it.
    """
    whole = sum(math.ceil(workload.distinct_tokens / group.block_size) for group in geometry.groups)
    # What one request takes while it runs: a window of a group that has one, else its whole prompt.
    longest = max(one.tokens for one in workload.requests)
    least = sum(math.ceil(min(longest, (group.window or longest) * 4) / group.block_size) for group in geometry.groups)
    pools = {max(_round(whole / part), _round(least * 1.1)) for part in (4, 8, 16, 32)}
    own = geometry.pool_blocks
    if own:
        pools -= {min(pools, key=lambda pool: abs(math.log(pool / own)))}
        pools.add(own)
    return tuple(sorted(pools))


def parse_pools(text: str, geometry: Geometry) -> tuple[int | None, ...]:
    """``"20000,20GiB,endless"`` as blocks; None is a pool that never evicts.

    Raises
    ------
    ReplayError
        for anything else, and for bytes where the geometry does not say what a block takes.
    """
    return tuple(dict.fromkeys(_pool(part.strip(), geometry) for part in text.split(",")))


def _bounded(text: str, blocks: int) -> int:
    """vLLM makes an object of each block of a pool."""
    if blocks > MOST_BLOCKS:
        raise ReplayError(
            f"the pool {text} has {blocks:,} blocks; a replay takes up to {MOST_BLOCKS:,}",
            cause="each block of a pool is an object in memory",
            remedy="give the pool of one server, or endless",
        )
    return blocks


def _pool(text: str, geometry: Geometry) -> int | None:
    if text == "endless":
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([KMGT]i?B|B)?", text, re.IGNORECASE)
    if found is None or (not found[2] and "." in found[1]) or not float(found[1]):
        raise ReplayError(
            f"the pool {text!r} is no number of blocks", remedy="for example --pool-blocks 20000,20GiB,endless"
        )
    if not found[2]:
        return _bounded(text, int(found[1]))
    unit = found[2].upper()
    size: float = float(found[1]) * float(1024 if "I" in unit else 1000) ** " KMGT".index(
        unit.removesuffix("B")[:1] or " "
    )
    each = geometry.bytes_per_block
    if not each:
        raise ReplayError(
            f"the pool {text} can't be counted in blocks: this geometry does not say how many bytes a block takes",
            remedy="give a number of blocks: --pool-blocks 20000",
        )
    if size < each:
        raise ReplayError(f"the pool {text} holds no block: one takes {each:,} bytes", remedy="give a larger pool")
    return _bounded(text, int(size // each))


def _round(value: float) -> int:
    """Two digits, then zeros."""
    unit: int = 10 ** max(0, int(math.log10(max(value, 1))) - 1)
    return max(1, round(value / unit)) * unit


class _Crew:
    """Threads that take one cell after another, each with a replayer of its own."""

    def __init__(
        self, asked: Pressure, cells: Sequence[PressureRow], workers: int | None, warm: Replayer | None
    ) -> None:
        self._asked, self._cells, self._warm = asked, list(cells), warm
        self._told: queue.Queue[PressureRow | int | BaseException] = queue.Queue()
        self._stop, self._lock = threading.Event(), threading.Lock()
        for release in dict.fromkeys(cell.release for cell in cells):
            if warm is None or warm.release != release:
                open_release(release).close()  # one that is not installed is refused before anything is started
        work_s = len(cells) * asked.workload.tokens / _TOKENS_PER_S
        most = max(1, min(len(os.sched_getaffinity(0)), int(work_s / _WORTH_A_WORKER_S)))
        self._threads = [
            threading.Thread(target=self._work, daemon=True, name=f"pressure {number}")
            for number in range(1 if warm is not None else min(workers or most, len(cells)))
        ]

    def rows(self, watch: _Watch) -> Iterator[PressureRow]:
        left = len(self._cells)
        for thread in self._threads:
            thread.start()
        try:
            while left:
                told = self._told.get()
                if isinstance(told, BaseException):
                    raise told
                if isinstance(told, int):
                    watch.requests(told)
                    continue
                left -= 1
                watch.row(told)
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
                    if not self._cells:
                        return
                    # A worker goes on with its own release as long as there is work for it.
                    mine = [cell for cell in self._cells if replayer is not None and cell.release == replayer.release]
                    cell = mine[0] if mine else self._cells[0]
                    self._cells.remove(cell)
                if replayer is None or replayer.release != cell.release:
                    if replayer is not None and replayer is not self._warm:
                        replayer.close()
                    replayer = open_release(cell.release)
                self._told.put(self._row(replayer, cell))
        except _Stopped:
            return
        except BaseException as error:
            self._told.put(error)
        finally:
            if replayer is not None and replayer is not self._warm:
                replayer.close()

    def _row(self, replayer: Replayer, cell: PressureRow) -> PressureRow:
        asked = self._asked
        setting = replace(asked.setting, interval=cell.interval, pool_blocks=cell.pool_blocks)
        try:
            outcome = replayer.replay(
                asked.geometry,
                setting,
                asked.workload.requests,
                concurrency=asked.concurrency,
                progress=self._progress,
            )
        except ReplayError as error:
            return replace(cell, refused=" ".join(part for part in (error.what, error.cause) if part))
        return _counted(cell, outcome, asked.workload)

    def _progress(self, requests: int) -> None:
        if self._stop.is_set():
            raise _Stopped
        self._told.put(requests)


class _Stopped(Exception):
    """Nobody waits for the rows any more."""


def _counted(cell: PressureRow, outcome: Outcome, workload: Workload) -> PressureRow:
    hits = {row.id: row.hit_tokens for row in outcome.rows}
    followed = [
        (hits[one.id], tokens) for one, tokens in zip(workload.requests, workload.repeats, strict=True) if tokens
    ]
    return replace(
        cell,
        resolved=outcome.interval,
        blocks=outcome.pool_blocks,
        requests=len(outcome.rows),
        prompt_tokens=sum(row.prompt_tokens for row in outcome.rows),
        cached_tokens=sum(hits.values()),
        retained_blocks=sum(outcome.kept_blocks),
        evicted_blocks=sum(row.evicted_blocks for row in outcome.rows),
        preemptions=sum(row.preempted for row in outcome.rows),
        follow_ups=len(followed),
        warm=sum(1 for hit, tokens in followed if hit >= WARM_SHARE * tokens),
    )


class _Watch:
    """How far all replays are, and an estimate from the pace since the first answer."""

    def __init__(self, rows: int, left: int, each: int, tell: Callable[[dict[str, Any]], None] | None) -> None:
        self._rows, self._row, self._tell = rows, rows - left, tell
        self._total, self._done = left * each, 0
        self._began, self._first = time.monotonic(), (0.0, 0)
        self._text = "starting vLLM's scheduler"
        self._say()

    def requests(self, count: int) -> None:
        self._done += count
        if not self._first[1]:
            self._first = time.monotonic(), self._done
        self._say()

    def row(self, row: PressureRow) -> None:
        pool = "endless" if row.pool_blocks is None else f"{row.pool_blocks:,} blocks"
        rate = "refused" if row.hit_rate is None else f"{row.hit_rate:.1%} hit"
        self._text = f"vLLM {row.release}, {pool}, interval {interval_label(row.interval)}: {rate}"
        self._row += 1
        self._say()

    def _say(self) -> None:
        if self._tell is None:
            return
        now, (since, before) = time.monotonic(), self._first
        pace = (now - since) / (self._done - before) if self._done > before else None
        self._tell(
            {
                "stage": "pressure",
                "step": self._row,
                "steps": self._rows,
                "text": self._text,
                "elapsed_s": round(now - self._began, 1),
                "left_s": None if pace is None else round(pace * max(0, self._total - self._done), 1),
            }
        )


class _Store:
    """Finished rows in a file, by what they answer."""

    def __init__(self, path: Path | None, asked: Pressure) -> None:
        self._path, self._asked = path, asked
        self._same = [
            _STORE_VERSION, asked.workload.id, asked.workload.repeats, asked.geometry.to_json(), asked.concurrency,
            _inside_digest(),
        ]  # fmt: skip
        self._known: dict[str, dict[str, Any]] = {}
        if path is not None and path.exists():
            for line in path.read_text("utf-8", errors="replace").splitlines():
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    row = json.loads(line)
                    self._known[row["key"]] = row["row"]

    def find(self, cell: PressureRow) -> PressureRow | None:
        found = self._known.get(self._key(cell))
        if found is None:
            return None
        names = {one.name for one in fields(PressureRow)}
        return PressureRow(**{name: value for name, value in found.items() if name in names})

    def add(self, row: PressureRow) -> None:
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"key": self._key(row), "row": row.to_json()}) + "\n")

    def _key(self, cell: PressureRow) -> str:
        setting = replace(self._asked.setting, interval=cell.interval, pool_blocks=cell.pool_blocks)
        return digest([self._same, setting.to_json(), cell.release], 24)


def _inside_digest() -> str:
    """Identity of the code that drives the scheduler: another one may count otherwise."""
    from prefixscope import inside

    folder = Path(inside.__file__).parent
    return digest([file.read_text("utf-8") for file in sorted(folder.glob("*.py"))])
