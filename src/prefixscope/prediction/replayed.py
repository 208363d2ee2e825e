"""Someone else's measured requests under other releases and intervals: what each send hit, and what it would hit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from prefixscope import redact
from prefixscope.quantities import count, number
from prefixscope.replay import Case, Outcome, Replayer
from prefixscope.setting import Interval, interval_label

AS_MEASURED = "as measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """One case under one release and interval; ``interval`` is `AS_MEASURED`, or as in a server's setting."""

    case: Case
    release: str
    interval: Interval
    outcome: Outcome

    @property
    def comparable(self) -> bool:
        """Whether release and interval are those that were measured."""
        return self.release == self.case.release and self.outcome.interval == self.case.setting.interval

    @property
    def same(self) -> int:
        """Sends that hit what was measured."""
        known = {name: hit for name, hit in self.case.measured.items() if hit is not None}
        return sum(known[row.id] == row.hit_tokens for row in self.outcome.rows if row.id in known)


def replay_cases(
    replayer: Replayer, cases: Sequence[Case], intervals: Sequence[Interval], told: Callable[[str], None]
) -> list[Replayed]:
    """Every case at the interval that it was measured with or at others, on one release."""
    found = []
    for case in cases:
        for interval in intervals:
            told(f"vLLM {replayer.release}: {_name(case)}; interval {interval_label(interval)}")
            asked = case if interval == AS_MEASURED else case.under(interval=interval)
            outcome = replayer.case(asked)
            found.append(Replayed(case=case, release=replayer.release, interval=interval, outcome=outcome))
    return found


def table(found: Sequence[Replayed]) -> str:
    """A line per case, release and interval, and what they add up to."""
    head = ("measured as", "vLLM", "interval", "sends", "cached", "measured", "same")
    rows = []
    for one in found:
        known = {name for name, hit in one.case.measured.items() if hit is not None}
        mine = [row for row in one.outcome.rows if row.id in known]
        rows.append(
            (
                _name(one.case),
                one.release,
                interval_label(one.outcome.interval),
                number(len(mine)),
                number(sum(row.hit_tokens for row in mine)),
                number(sum(one.case.measured[row.id] or 0 for row in mine)),
                f"{one.same:,} of {len(mine):,}" if one.comparable else "",
            )
        )
    wide = [max(len(row[place]) for row in (head, *rows)) for place in range(len(head))]
    lines = [
        "  ".join(
            cell.rjust(size) if place > 2 else cell.ljust(size) for place, (cell, size) in enumerate(cells)
        ).rstrip()
        for cells in (list(zip(row, wide, strict=True)) for row in (head, *rows))
    ]
    return "\n".join([*lines, "", sentence(found)])


def _name(case: Case) -> str:
    """A case's name as a terminal may show it: it comes from a file that anyone may have written."""
    return redact.clean(case.name, limit=60).replace("\n", " ") or "case"


def sentence(found: Sequence[Replayed]) -> str:
    """What the table says: whether the measuring release agrees, and what was kept of its groups."""
    own = [one for one in found if one.comparable]
    as_they_were = {one.release for one in found if not one.outcome.regrouped} - {one.case.release for one in found}
    note = "Each release grouped the model's layers itself and marked those of its drafter."
    if as_they_were:
        note = (
            f"On vLLM {', '.join(sorted(as_they_were))} the KV cache groups are those of the measured release, since "
            "the case does not name their layers: a release that groups or marks them otherwise differs."
        )
    if not own:
        return f"Tokens, summed over the sends of a case. {note}"
    total = sum(sum(hit is not None for hit in one.case.measured.values()) for one in own)
    same = sum(one.same for one in own)
    text = f"vLLM {own[0].release}, which was measured, gives the measured hit in {same:,} of {count(total, 'send')}"
    return (
        f"{text}. Tokens, summed over the sends of a case; “same” compares only where release and interval are the "
        f"measured ones. {note}"
    )


def to_json(found: Sequence[Replayed]) -> dict[str, Any]:
    """Every send of every case, with its measured hit."""
    return {
        "rows": [
            {
                "case": one.case.name,
                "release": one.release,
                "measured_on": one.case.release,
                "interval": one.outcome.interval,
                "request": row.id,
                "prompt_tokens": row.prompt_tokens,
                "hit_tokens": row.hit_tokens,
                "measured_tokens": one.case.measured[row.id],
            }
            for one in found
            for row in one.outcome.rows
            if row.id in one.case.measured
        ]
    }
