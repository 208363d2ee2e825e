"""A workload through finite pools: the hit rate by interval, release and pool size, when the pool evicts.

The requests of a workload go one after another (or ``concurrency`` at once) through a scheduler with an empty cache.
Each pool, interval and release is a replay of its own, so that several run at the same time, one process a core.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from prefixscope.errors import ReplayError
from prefixscope.replay.case import ServerSetting
from prefixscope.replay.crew import Crew
from prefixscope.replay.geometry import Geometry
from prefixscope.replay.outcome import Outcome
from prefixscope.replay.worker import Replayer
from prefixscope.replay.workload import Workload
from prefixscope.setting import Interval, digest, interval_label

WARM_SHARE = 0.5
"""A follow-up is warm where its hit covers at least this share of the earlier turn that it repeats."""

_TOKENS_PER_S = 1_000_000.0
_STORE_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PressureRow:
    """One replay of a whole workload.

    ``interval`` is the one asked for, ``resolved`` what the release made of it. ``pool_blocks`` None is a pool that
    never evicts; ``blocks`` its size. ``retained_blocks`` are cached at the end, ``evicted_blocks`` lost their content
    on the way. ``warm`` of ``follow_ups`` still hit their earlier turn. Where the release refuses the setting,
    ``refused`` says why, ``remedy`` what to do, and every number is None.
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
    remedy: str = ""

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
        yield from filter(None, rows.values())
        left = [cell for cell, row in rows.items() if row is None]
        if not left:
            return
        watch = _Watch(len(cells), len(left), len(self.workload.requests), progress)
        work_s = len(left) * self.workload.tokens / _TOKENS_PER_S
        for told in Crew(left, self._replayed, work_s=work_s, workers=workers, warm=replayer).told():
            if isinstance(told, int):
                watch.requests(told)
                continue
            watch.row(told)
            if told.refused:
                refused.append(told)
            else:
                known.add(told)
            yield told
        if len(refused) == len(cells):
            raise ReplayError(f"no setting could be replayed: {refused[0].refused}", remedy=refused[0].remedy)

    def _replayed(self, replayer: Replayer, cell: PressureRow, progress: Callable[[int], None]) -> PressureRow:
        setting = replace(self.setting, interval=cell.interval, pool_blocks=cell.pool_blocks)
        try:
            outcome = replayer.replay(
                self.geometry, setting, self.workload.requests, concurrency=self.concurrency, progress=progress
            )
        except ReplayError as error:
            return replace(cell, refused="; ".join(filter(None, (error.what, error.cause))), remedy=error.remedy)
        return _counted(cell, outcome, self.workload)


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
