"""A trace that is still being written: what came since the last look, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from prefixscope.errors import TraceError
from prefixscope.trace.files import LONGEST_LINE, files_of, lines_of
from prefixscope.trace.reader import Reader
from prefixscope.trace.records import Lookup
from prefixscope.trace.whole import Trace

_OFTEN = 10_000
"""Lines between two clean-ups."""


class Follower:
    """Reads trace files as they grow; of each engine about the newest ``keep`` lookups are remembered.

    A line without its end is left for the next look. New files of a folder are found; a file that got shorter was
    begun anew, and is read from its start.
    """

    def __init__(self, sources: Iterable[Path | str], *, keep: int = 2_000) -> None:
        self.sources, self.keep = [Path(one) for one in sources], keep
        self.reader = Reader()
        self._at: dict[Path, int] = {}
        self._told: dict[str, int] = {}

    def look(self) -> tuple[Trace, list[Lookup]]:
        """The trace as it is remembered, and its lookups that an earlier look did not give, in time order.

        Raises
        ------
        TraceError
            where a path does not exist, or what was written so far is no trace that this version can read.
        """
        news = False
        for path in files_of(self.sources):
            news |= self._read_on(path)
        if not self.reader.events and any(one.newer or one.unreadable for one in self.reader.files.values()):
            self.reader.finish(list(self.reader.files))
        if not news:
            return Trace(), []
        self.reader.forget(self.keep)
        trace = self.reader.trace()
        fresh: list[Lookup] = []
        for engine, building in self.reader.engines.items():
            told = self._told.get(engine, 0)
            new = building.taken - told if building.taken >= told else building.taken
            self._told[engine] = building.taken
            if new:
                own = [one for one in trace.lookups if one.header.engine == engine]
                fresh += own[-new:]
        return trace, sorted(fresh, key=lambda one: one.t)

    def _read_on(self, path: Path) -> bool:
        """Whether whole lines came to a file since the last look."""
        at = start = self._at.get(path, 0)
        try:
            if path.stat().st_size < at:
                at = start = 0
            with path.open("rb") as file:
                file.seek(at)
                for number, line in enumerate(lines_of(file), 1):
                    if not line.endswith(b"\n") and len(line) < LONGEST_LINE:
                        break
                    self.reader.take(path, line)
                    at += len(line)
                    if number % _OFTEN == 0:
                        self.reader.forget(self.keep)
        except FileNotFoundError:
            return False  # taken away between the listing and here
        except OSError as error:
            raise TraceError(
                f"{path} can't be read: {error.strerror}", remedy="make it readable for this user"
            ) from error
        self._at[path] = at
        return at > start
