"""Lines of a trace that is still being written."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from prefixscope.diagnosis import explain
from prefixscope.terminal.as_json import engine_json, lookup_json
from prefixscope.terminal.summary import (
    HEADING,
    engine_lines,
    lookup_line,
    printable,
    warning_line,
)
from prefixscope.trace import Follower, Lookup


class Following:
    """What to print of a growing trace; each look gives the lines that are new.

    A first look lists at most ``limit`` of the lookups that were there already (0: all that are remembered).
    ``request`` picks the lookups whose id begins like that. With ``as_json`` each line is one JSON object, whose
    ``what`` is engine, warning or lookup.
    """

    def __init__(
        self, sources: Iterable[Path | str], *, request: str = "", limit: int = 40, as_json: bool = False
    ) -> None:
        self.follower = Follower(sources)
        self.request, self.limit, self.as_json = request, limit, as_json
        self._engines: set[str] = set()
        self._warned: set[str] = set()
        self._headed = False

    def lines(self) -> list[str]:
        """What came since the last look.

        Raises
        ------
        TraceError
            where a path does not exist, or holds no trace that this version can read.
        """
        return list(self._lines())

    def _lines(self) -> Iterator[str]:
        first = not self._engines
        trace, fresh = self.follower.look()
        for header in trace.headers:
            if header.engine not in self._engines:
                self._engines.add(header.engine)
                self._headed = False
                if self.as_json:
                    yield json.dumps({"what": "engine", **engine_json(header)})
                else:
                    yield printable(engine_lines(header, "Engine"))
        for code, detail in trace.warnings:
            # Said once: its count goes on growing.
            if code not in self._warned:
                self._warned.add(code)
                told = {"what": "warning", "code": code, "detail": detail}
                yield json.dumps(told) if self.as_json else printable([warning_line((code, detail))])
        wanted = [one for one in fresh if self._wanted(one)]
        for lookup in wanted[-self.limit :] if first and self.limit else wanted:
            cause = explain(trace, lookup.engine_request_id).cause
            if self.as_json:
                yield json.dumps({"what": "lookup", **lookup_json(lookup, cause)})
                continue
            if not self._headed:
                self._headed = True
                yield HEADING
            yield printable([lookup_line(lookup, cause)])

    def _wanted(self, lookup: Lookup) -> bool:
        return any(name.startswith(self.request) for name in (lookup.request_id, lookup.engine_request_id))
