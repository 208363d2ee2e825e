"""A prediction as text for a terminal and as JSON for a script."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd

from prefixscope import frames
from prefixscope.charts.titles import spans
from prefixscope.prediction.advice import OTHERS, UNPRESSURED, Advice, advise, evicts, ranked, upgrade
from prefixscope.prediction.changes import changes
from prefixscope.quantities import count, listing, number
from prefixscope.replay import Geometry, Grid, Share, Survey, install_line
from prefixscope.replay.releases import age
from prefixscope.setting import Interval

MOST_COLUMNS = 3
"""Prompt lengths that a table has columns for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Now:
    """The server as it runs: its release, and its interval (None: the release's default); ``known`` from a trace."""

    release: str
    interval: Interval = None
    known: bool = False

    @property
    def order(self) -> float | None:
        if self.interval is None:
            return None
        return math.inf if self.interval == "dense" else float(self.interval)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What several releases answered, with what they were asked for.

    ``asked`` are all prompts that were given, ``shares`` those that stand for them. ``missing`` are releases that were
    asked for and are not installed here.
    """

    grid: Grid
    survey: Survey
    asked: tuple[Share, ...]
    shares: tuple[Share, ...]
    now: Now
    missing: tuple[str, ...] = ()

    @property
    def geometry(self) -> Geometry:
        return self.grid.geometry

    def cases(self) -> pd.DataFrame:
        """``frames.predicted_cases`` with the weights of these prompts."""
        weights = pd.DataFrame(
            [(one.pattern, one.tokens, one.weight) for one in self.shares], columns=["pattern", "tokens", "weight"]
        )
        weights = weights.astype({"pattern": "string", "tokens": "Int64"})
        return frames.predicted_cases(frames.predicted(self.survey.cells), weights)

    def advice(self, cases: pd.DataFrame) -> Advice | None:
        """The recommendation for the server as it runs; for the oldest release where that one was not asked."""
        releases = cases["release"].drop_duplicates().tolist()
        release = self.now.release if self.now.release in releases else releases[0]
        return advise(cases, release, now_order=self._order_on(release))

    def totals(self, cases: pd.DataFrame, release: str) -> tuple[pd.DataFrame, float]:
        """The intervals of one release, what is recommended first, and how many prompts are behind them."""
        return ranked(cases, release, self._order_on(release))[:2]

    def _order_on(self, release: str) -> float | None:
        return self.now.order if release == self.now.release else None

    def pressure(self, cases: pd.DataFrame) -> str:
        """What is said of the pool beside every number."""
        if not evicts(cases):
            return UNPRESSURED
        return f"in a pool of {number(self.grid.pool_blocks)} blocks that evicts"

    def found(self) -> list[tuple[str, str]]:
        """What changed between releases."""
        table = frames.predicted_versions(self.survey.probes)
        return changes(table, drafter_group=any(group.drafter for group in self.geometry.groups))

    def notes(self) -> list[str]:
        """What was left out or is a guess, each in a sentence."""
        found = []
        if len(self.shares) < len(self.asked):
            found.append(
                f"{count(len(self.shares), 'prompt length')} stand for {number(len(self.asked))}, by quantiles."
            )
        releases = [cell.release for cell in self.survey.cells]
        if releases and self.now.release not in releases:
            found.append(
                f"vLLM {self.now.release} was not asked: the recommendation is for vLLM {min(releases, key=age)}."
            )
        for release, error in self.survey.refused.items():
            found.append(f"Left out: vLLM {release}. {error.what}.")
        if self.missing:
            found.append(f"Not installed here: vLLM {listing(self.missing)}. Next: {install_line(self.missing)}")
        if self.geometry.inferred:
            found.append(f"Inferred in this geometry, not known: {'; '.join(self.geometry.inferred)}.")
        return found

    def to_json(self) -> dict[str, Any]:
        cases = self.cases()
        advice, pressure = self.advice(cases), self.pressure(cases)
        totals = {name: _records(self.totals(cases, name)[0]) for name in cases["release"].drop_duplicates().tolist()}
        return {
            "pressure": pressure,
            "geometry": self.geometry.to_json(),
            "drafter_tokens": self.grid.drafters[0],
            "pool_blocks": self.grid.pool_blocks,
            "now": asdict(self.now),
            "prompts": [asdict(one) for one in self.shares],
            "recommendation": None if advice is None else {"pressure": pressure, **_advised(advice)},
            "upgrade": "" if advice is None else upgrade(cases, advice),
            "intervals": totals,
            "changes": [{"about": about, "found": text} for about, text in self.found()],
            "releases": [asdict(probe) for probe in self.survey.probes],
            "refused": {release: str(error) for release, error in self.survey.refused.items()},
            "not_installed": [{"release": name, "install": install_line([name])} for name in self.missing],
            "rows": [cell.to_json() for cell in self.survey.cells],
        }

    def heading(self) -> str:
        """What was asked, in one line."""
        drafter = self.grid.drafters[0]
        speculation = "no drafter" if drafter is None else f"a drafter of {count(drafter, 'token')}"
        pool = "" if self.grid.pool_blocks is None else f", a pool of {number(self.grid.pool_blocks)} blocks"
        return f"{describe(self.geometry)}; {speculation}{pool}"

    def text(self, width: int = 100) -> str:
        """For a terminal: a line per release and interval, then what to do and what changed between releases."""
        cases = self.cases()
        advice = self.advice(cases)
        said = [self.answer(cases)]
        if advice is not None:
            said += [" ".join(part for part in (advice.sentence, advice.why) if part), upgrade(cases, advice)]
        said += [f"{about}: {text}" for about, text in self.found()] + self.notes()
        heading = f"Predicted by vLLM's own scheduler, {self.pressure(cases)}: {self.heading()}."
        blocks = [
            textwrap.fill(heading, width),
            "\n".join(lines(cases)) + "\n" + textwrap.fill(columns_about(cases), width),
        ]
        return "\n\n".join([*blocks, *(textwrap.fill(part, width) for part in said if part)])

    def answer(self, cases: pd.DataFrame) -> str:
        """What the server would hit now."""
        mine = cases[(cases["release"] == self.now.release) & (cases["pattern"] == "repeat")]
        order = self.now.order
        mine = mine[mine["default"]] if order is None else mine[mine["interval_order"] == order]
        if not len(mine):
            return ""
        row = mine.sort_values("tokens").iloc[-1]
        who = "Your server now" if self.now.known else "A server as it is started without the flag"
        interval = str(row["interval"]).removesuffix(" (default)")
        who = f"{who} (vLLM {self.now.release}, interval {interval})"
        third = "" if row["hit_3"] == row["hit_2"] else f" and its third {number(row['hit_3'])}"
        hits = f"the second send of {number(row['tokens'])} tokens hits {number(row['hit_2'])}{third}"
        if not row["hit_2"] and not row["hit_3"]:
            hits = f"no resend of {number(row['tokens'])} tokens hits, neither the second send nor the third"
        share = ""
        if self.geometry.pool_blocks and not pd.isna(row["blocks"]):
            part = float(row["blocks"]) / self.geometry.pool_blocks
            share = f", {part:.1%} of its pool of {number(self.geometry.pool_blocks)}"
        return f"{who}: {hits}; its first send keeps {number(row['blocks'])} blocks{share}."


def describe(geometry: Geometry) -> str:
    """``5 sliding groups (window 1,024, 16-token blocks) and 1 full group (64-token blocks), hits in steps of 64``."""
    kinds: dict[tuple[Any, ...], int] = {}
    for group in geometry.groups:
        key = (group.kind, group.window, group.block_size, group.drafter)
        kinds[key] = kinds.get(key, 0) + 1
    parts = []
    for (kind, window, size, drafter), many in kinds.items():
        inside = [f"window {window:,}"] if window else []
        inside += [f"{size:,}-token blocks", *(["the drafter's"] if drafter else [])]
        parts.append(f"{count(many, f'{kind} group')} ({', '.join(inside)})")
    origin = f"{geometry.origin}, " if geometry.origin else ""
    return f"{origin}{listing(parts)}, scheduler block {geometry.scheduler_block:,}"


def table_rows(cases: pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    """Headings and text cells: a row per release and run of intervals that come to the same.

    Hits of sends 2 and 3 of a repeat for up to three lengths; send 2 of the other patterns and what is kept for the
    longest.
    """
    repeat = cases[cases["pattern"] == "repeat"]
    lengths = sorted(repeat["tokens"].unique().tolist())
    shown = lengths if len(lengths) <= MOST_COLUMNS else [lengths[0], lengths[len(lengths) // 2], lengths[-1]]
    head = ["vLLM", "interval"]
    for n in shown:
        head += [f"{n:,} send 2", "send 3"]
    others = [name for name in OTHERS if name in set(cases["pattern"])]
    in_bytes = bool(repeat["bytes"].notna().all())
    head += [*(OTHERS[name] for name in others), "blocks", *(["MiB"] if in_bytes else [])]
    rows: list[list[str]] = []
    for release, part in cases.groupby("release", sort=False):
        names = part.sort_values("interval_order")["interval"].drop_duplicates().tolist()
        same: dict[tuple[str, ...], list[str]] = {}
        for name in names:
            mine = part[part["interval"] == name]
            by = {(row.pattern, row.tokens): row for row in mine.itertuples()}
            cells: list[str] = []
            for n in shown:
                cells += [number(by["repeat", n].hit_2), number(by["repeat", n].hit_3)]
            cells += [number(by[other, lengths[-1]].hit_2) for other in others]
            longest = by["repeat", lengths[-1]]
            cells += [number(longest.blocks), *([f"{longest.bytes / 2**20:,.1f}"] if in_bytes else [])]
            same.setdefault(tuple(cells), []).append(str(name))
        rows += [[str(release), spans(who, names), *cells] for cells, who in same.items()]
    return head, rows


def lines(cases: pd.DataFrame) -> list[str]:
    """`table_rows` in columns: numbers to the right, and a release's name once."""
    head, rows = table_rows(cases)
    for place in range(len(rows) - 1, 0, -1):
        if rows[place][0] == rows[place - 1][0]:
            rows[place] = ["", *rows[place][1:]]
    wide = [max(len(row[place]) for row in [head, *rows]) for place in range(len(head))]
    return [
        "  ".join(
            cell.ljust(size) if place < 2 else cell.rjust(size)
            for place, (cell, size) in enumerate(zip(row, wide, strict=True))
        )
        for row in [head, *rows]
    ]


def columns_about(cases: pd.DataFrame) -> str:
    """What the columns of `table_rows` are. A follow-up's prompt is longer than the one it follows."""
    tokens = cases["tokens"].max()
    longest = cases[cases["tokens"] == tokens].drop_duplicates("pattern").set_index("pattern")["prompt_2"]
    told = {
        "new_ending": f"new ending: send 2 of {number(tokens)} tokens",
        "follow_up": f"follow-up: its next turn, {number(longest.get('follow_up'))} tokens",
    }
    parts = [text for name, text in told.items() if name in longest]
    parts.append("blocks: kept after its first send")
    return f"Tokens hit. {'; '.join(parts)[:1].upper()}{'; '.join(parts)[1:]}."


def _advised(advice: Advice) -> dict[str, Any]:
    """A recommendation as JSON; its place in the order is no number where it is dense."""
    found = asdict(advice)
    del found["order"]
    return found


def _records(totals: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows of ``frames.interval_totals`` as JSON: infinity, which JSON lacks, is ``"dense"``."""

    def plain(value: Any) -> Any:
        if value is None or pd.isna(value):
            return None
        return value.item() if hasattr(value, "item") else value

    return [_record({key: plain(value) for key, value in row.items()}) for row in totals.to_dict("records")]


def _record(row: Mapping[str, Any]) -> dict[str, Any]:
    order = row["interval_order"]
    kept = {key: row[key] for key in ("short", "blocks", "bytes", "front")}
    return {"interval": "dense" if order == math.inf else int(order), **kept}
