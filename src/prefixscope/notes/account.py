"""What a note is told from: a run's material, and the one lookup that explains its verdict."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from prefixscope import frames, geometry, shared
from prefixscope.diagnosis import Diagnosis, explain
from prefixscope.errors import ReportError
from prefixscope.material import Material, gather
from prefixscope.trace import Lookup, Stored, Trace
from prefixscope.verdict import Verdict

FAULTS = ("none", "short")
"""Verdict codes that a remedy is looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """One run, ready to be told.

    ``main`` is the lookup that is explained: the second send of the longest traced prompt of the verdict's
    configuration, or a brought trace's worst miss; ``first`` the send that stored for it, ``stored`` what that one kept
    and dropped. ``plain`` is the same send without a drafter, ``helped`` with the remedy. Each is None, or empty, where
    nothing was traced.
    """

    run_dir: Path
    material: Material
    trace: Trace
    main: Lookup | None = None
    diagnosis: Diagnosis | None = None
    first: Lookup | None = None
    stored: tuple[Stored, ...] = ()
    plain: Lookup | None = None
    helped: Lookup | None = None

    @property
    def verdict(self) -> Verdict:
        return self.material.verdict

    @property
    def faulty(self) -> bool:
        """Whether the verdict is one that something is to be done about."""
        return self.verdict.code in FAULTS

    @property
    def version(self) -> str | None:
        """The release that was investigated."""
        if self.main is not None:
            return self.main.header.version
        engine = self.material.run.get("engine") or {}
        return str(engine["version"]) if engine.get("version") else None

    def second(self, config: Any) -> pd.DataFrame:
        """Rows of ``frames.hits`` for the second sends of one configuration with a known hit, the longest last."""
        hits = self.material.hits
        rows = hits[(hits["config"] == config) & (hits["send"] == "repeat") & (hits["index"] == 2)]
        return rows[rows["cached_tokens"].notna()].sort_values("tokens", kind="stable")


@contextmanager
def shared_account(run_dir: Path) -> Iterator[Account]:
    """The account of what may leave a run directory, and of nothing else; its folder is gone afterwards.

    Raises
    ------
    ReportError
        where there is no such directory, or its schema is another.
    """
    if not run_dir.is_dir():
        raise ReportError(f"{run_dir} is not a directory", remedy="prefixscope run -o DIR")
    with tempfile.TemporaryDirectory(prefix="prefixscope-note-") as folder:
        shared.share(run_dir, Path(folder))
        frames.forget()  # a huge run is in memory once only
        yield account(Path(folder))
        frames.forget()


def account(run_dir: Path) -> Account:
    """Read a run directory, a half-finished one too."""
    material = gather(run_dir)
    if material.brought:
        trace = geometry.brought(run_dir) or Trace()
        main = trace.worst()
        return _explained(Account(run_dir=run_dir, material=material, trace=trace, main=main), None)
    trace = geometry.traced(run_dir)
    sent, found = material.sent, material.verdict
    main = _second(trace, sent, found.config, code=found.code)
    tokens = _asked(sent, main)
    seconds = material.hits[(material.hits["send"] == "repeat") & (material.hits["index"] == 2)]
    plain = seconds[~seconds["drafter"].fillna(True) & ~seconds["as_served"].fillna(False)]["config"].head(1).tolist()
    made = Account(
        run_dir=run_dir,
        material=material,
        trace=trace,
        main=main,
        plain=_second(trace, sent, plain[0], tokens) if plain and plain[0] != found.config else None,
        helped=_second(trace, sent, found.remedy_config, tokens) if found.remedy_config else None,
    )
    return _explained(made, frames.repeats(sent).get(main.request_id) if main is not None else None)


def _explained(made: Account, repeat_of: str | None) -> Account:
    """The account with its lookup's cause, and the store side that the lookup met."""
    if made.main is None:
        return made
    main, trace = made.main, made.trace
    closest = main.closest_engine_id
    return Account(
        run_dir=made.run_dir,
        material=made.material,
        trace=trace,
        main=main,
        diagnosis=explain(trace, main.engine_request_id, repeat_of=repeat_of),
        first=trace.lookup(closest) if closest else None,
        stored=trace.stored(closest) if closest else (),
        plain=made.plain,
        helped=made.helped,
    )


def _second(
    trace: Trace, sent: pd.DataFrame, config: Any, tokens: int | None = None, *, code: str = ""
) -> Lookup | None:
    """The traced second send of a configuration: of one prompt length, or else the longest that got this verdict."""
    rows = sent[(sent["config"] == config) & (sent["send"] == "repeat") & (sent["index"] == 2)]
    rows = rows[(rows["status"] == "ok") & rows["request_id"].notna()]
    if tokens is not None:
        rows = rows[rows["tokens"] == tokens]
    rows = rows.assign(told=rows["verdict"].eq(code).fillna(False))
    for request in rows.sort_values(["told", "tokens"], ascending=False, kind="stable")["request_id"]:
        found = trace.lookup(str(request))
        if found is not None:
            return found
    return None


def _asked(sent: pd.DataFrame, lookup: Lookup | None) -> int | None:
    """The prompt length that a lookup's request was asked for."""
    if lookup is None:
        return None
    tokens = sent.loc[sent["request_id"] == lookup.request_id, "tokens"].dropna()
    return int(tokens.iloc[0]) if len(tokens) else None
