"""Runs compared: what was set, what came out, and what may be said about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prefixscope.comparison.answers import Answers, Equal, answers
from prefixscope.comparison.facts import STARTED, Fact, facts, joined, labels, span
from prefixscope.comparison.hits import SURE, Cell, Change, Judged, Seen, changes, counted, judged, seen
from prefixscope.comparison.rates import Rate, Spread, rates
from prefixscope.comparison.side import Side, load
from prefixscope.comparison.unpaired import Unpaired, unpaired

AS_STARTED = "as started"
WORSE, BETTER, MIXED, SAME, CANNOT_TELL = "worse", "better", "better and worse", "unchanged", "can't tell"


@dataclass(frozen=True, slots=True, kw_only=True)
class Alone:
    """Cells of one setting and name that the sides ``letters`` answered and ``without`` were not asked."""

    letters: tuple[str, ...]
    without: tuple[str, ...]
    config: str
    lengths: tuple[int, ...]
    sends: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The base and one other side. ``facts`` are of these two; ``why`` says what nothing could be compared for."""

    base: Side
    other: Side
    span: str
    facts: tuple[Fact, ...]
    changes: tuple[Change, ...]
    verdicts: tuple[Judged, ...]
    rates: tuple[Rate, ...]
    answers: Answers
    alone: tuple[Alone, ...]
    unpaired: tuple[Unpaired, ...]
    why: str = ""

    @property
    def hits(self) -> list[Change]:
        """The hit lengths that were compared or should have been."""
        return counted(self.changes)

    @property
    def lower(self) -> list[Change]:
        return [one for one in self.hits if one.code == "lower"]

    @property
    def higher(self) -> list[Change]:
        return [one for one in self.hits if one.code == "higher"]

    @property
    def untold(self) -> list[Change]:
        """Hit lengths of which nothing can be told, though both sides asked."""
        return [one for one in self.hits if one.code not in SURE]

    @property
    def code(self) -> str:
        """worse · better · better and worse · unchanged · can't tell, by hit lengths and verdicts alone.

        Of two runs without a hit length, of which neither was asked for them, by what they were asked for.
        """
        codes = {one.code for one in self.verdicts}
        worse, better = bool(self.lower) or "worse" in codes, bool(self.higher) or "better" in codes
        if worse or better:
            return MIXED if worse and better else WORSE if worse else BETTER
        if self.elsewhere:
            return SAME if self.steady and not self.unfinished else CANNOT_TELL
        return CANNOT_TELL if self.untold or not self.hits or "can't tell" in codes or self.unfinished else SAME

    @property
    def unfinished(self) -> bool:
        """Whether one of the two was not measured to its end: what is missing may differ."""
        return bool(self.base.standing.unfinished or self.other.standing.unfinished)

    @property
    def asked(self) -> bool:
        """Whether one of the two was asked for hit lengths."""
        return self.base.asked or self.other.asked

    @property
    def elsewhere(self) -> bool:
        """Whether neither has a hit length, as neither was asked for them, and something else was compared."""
        return _elsewhere(self.base) and _elsewhere(self.other) and bool(self.compared)

    @property
    def compared(self) -> list[Rate | Equal]:
        """What was compared that is no hit length, nor its time."""
        return [*(one for one in self.rates if one.of and not one.by_shape), *self.answers.equal]

    @property
    def steady(self) -> bool:
        """Whether all of that is the same, or within noise."""
        rates = [one.code in ("same", "noise") for one in self.compared if isinstance(one, Rate)]
        return all(rates) and not any(one.only_base or one.only_other for one in self.answers.equal)

    @property
    def unsure(self) -> bool:
        """Whether something that the base could tell can't be told on the other side."""
        if self.unfinished:
            return True
        if self.elsewhere:
            return not self.steady
        return not self.hits or bool(self.untold) or any(one.code == "can't tell" for one in self.verdicts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All sides, the base first; ``labels`` is what each is called, ``alone`` what some were not asked."""

    sides: tuple[Side, ...]
    facts: tuple[Fact, ...]
    labels: tuple[str, ...]
    pairs: tuple[Pair, ...]
    alone: tuple[Alone, ...]

    @property
    def exit_code(self) -> int:
        """0 nothing worse · 1 a hit length is lower or a verdict worse · 3 can't tell."""
        if any(pair.code in (WORSE, MIXED) for pair in self.pairs):
            return 1
        return 3 if any(pair.unsure for pair in self.pairs) else 0


def compare(names: Sequence[str]) -> Comparison:
    """Compare run directories and reports with the first of them.

    Raises
    ------
    RunError
        for what can't be read, another schema, and the same run twice.
    """
    sides = load(names)
    started: tuple[Fact, ...] = ()
    if len({side.settings for side in sides}) > 1 and all(len(side.settings) == 1 for side in sides):
        # Runs of one setting each are before and after whatever the setting is; it is then a fact that differs.
        started = (Fact(name=STARTED, values=tuple(side.settings[0] for side in sides)),)
        sides = tuple(side.renamed(AS_STARTED) for side in sides)
    found = (*started, *facts(sides, _common(sides)))
    tables = [seen(side) for side in sides]
    pairs = []
    for place, (side, table) in enumerate(zip(sides[1:], tables[1:], strict=True), start=1):
        own = tuple(Fact(name=one.name, values=(one.values[0], one.values[place])) for one in started)
        pairs.append(_pair(sides[0], side, tables[0], table, own))
    return Comparison(
        sides=sides,
        facts=joined(found, [pair.facts for pair in pairs]),
        labels=labels(sides, found),
        pairs=tuple(pairs),
        alone=_alone(sides, tables),
    )


def _common(sides: Sequence[Side]) -> list[str]:
    return [setting for setting in sides[0].settings if all(setting in side.settings for side in sides)]


def _pair(
    base: Side, other: Side, mine: Mapping[Cell, Seen], theirs: Mapping[Cell, Seen], started: tuple[Fact, ...]
) -> Pair:
    two = (base, other)
    found = (*started, *facts(two, _common(two)))
    changed = changes(mine, theirs)
    return Pair(
        base=base,
        other=other,
        span=span(two, found),
        facts=found,
        changes=changed,
        verdicts=judged(changed),
        rates=rates(base, other, changed),
        answers=answers(base, other),
        alone=_alone(two, (mine, theirs)),
        unpaired=unpaired(base, other),
        why="" if counted(changed) else _why(base, other, mine, theirs, changed),
    )


def _alone(sides: Sequence[Side], tables: Sequence[Mapping[Cell, Seen]]) -> tuple[Alone, ...]:
    groups: dict[tuple[tuple[str, ...], tuple[str, ...], str], list[Cell]] = {}
    for cell in dict.fromkeys(cell for table in tables for cell in table):
        answered = [(side.letter, table[cell]) for side, table in zip(sides, tables, strict=True) if cell in table]
        answered = [(letter, one) for letter, one in answered if one.prompt_tokens]
        without = tuple(side.letter for side, table in zip(sides, tables, strict=True) if cell not in table)
        if answered and without:
            letters = tuple(letter for letter, _ in answered)
            groups.setdefault((letters, without, answered[0][1].config), []).append(cell)
    return tuple(
        Alone(
            letters=letters, without=without, config=config,
            lengths=tuple(sorted({cell.tokens for cell in cells})), sends=len(cells),
        )
        for (letters, without, config), cells in groups.items()
    )  # fmt: skip


def _why(
    base: Side, other: Side, mine: Mapping[Cell, Seen], theirs: Mapping[Cell, Seen], changed: Sequence[Change]
) -> str:
    """Why not one hit length of two sides can be compared."""
    if not all(len(side.sent) for side in (base, other)) and all(_unasked(side) for side in (base, other)):
        return "neither run was asked for hit lengths"
    for side in (base, other):
        if not len(side.sent):
            held = "was not asked for hit lengths" if _unasked(side) else "holds no measured request"
            return f"run {side.letter} {held}"
        if not side.settings:
            first = side.sent["error"].dropna().head(1).tolist()
            return f"every request of run {side.letter} failed" + (f" ({first[0].splitlines()[0]})" if first else "")
    if not {cell.setting for cell in mine} & {cell.setting for cell in theirs}:
        return f"no server of theirs was started alike ({base.letter}: {_list(base)}; {other.letter}: {_list(other)})"
    lengths = [sorted({cell.tokens for cell in table}) for table in (mine, theirs)]
    if not set(lengths[0]) & set(lengths[1]):
        named = ["; ".join([", ".join(f"{n:,}" for n in many)]) for many in lengths]
        return f"they have no prompt length in common ({base.letter}: {named[0]}; {other.letter}: {named[1]})"
    if any(one.code == "another prompt" for one in changed):
        return "prompts of equal name came out at other lengths, as the servers counted them"
    return "no prompt was sent again on both sides under the same settings"


def _elsewhere(side: Side) -> bool:
    """Whether it has no hit length because it was asked for something else."""
    return not len(side.sent) and _unasked(side)


def _unasked(side: Side) -> bool:
    """Whether it was asked for something else than hit lengths, though long prompts may tell some all the same."""
    return not side.asked and bool(len(side.generations) or len(side.comparisons))


def _list(side: Side) -> str:
    return ", ".join(f"“{setting}”" for setting in side.settings)


def to_json(found: Comparison, sentence: str) -> dict[str, Any]:
    """The comparison for a script; names of runs are those that the caller gave."""
    return {
        "sentence": sentence,
        "exit_code": found.exit_code,
        "runs": [
            {
                "letter": side.letter, "label": label, "run": side.name, "run_id": side.manifest.get("run_id"),
                "created_at": side.manifest.get("created_at"), "doubts": list(side.doubts),
                "unfinished": side.standing.unfinished or None,
            }
            for side, label in zip(found.sides, found.labels, strict=True)
        ],
        "settings": [
            {"name": one.name, "values": list(one.values), "state": one.state, "kind": one.kind}
            | ({"asked_of": one.of} if one.of else {})
            for one in found.facts
        ],
        "pairs": [_pair_json(pair) for pair in found.pairs],
    }  # fmt: skip


def _pair_json(pair: Pair) -> dict[str, Any]:
    def spread(one: Spread) -> dict[str, float]:
        return {"median": one.median, "low": one.low, "high": one.high, "count": one.count}

    return {
        "base": pair.base.letter,
        "other": pair.other.letter,
        "verdict": pair.code,
        "why_not": pair.why or None,
        "hits": [
            {
                "configuration": one.base.config, "tokens": one.cell.tokens, "send": one.cell.label,
                "base": list(one.base.cached), "other": list(one.other.cached), "change": one.code,
            }
            for one in pair.changes
        ],
        "verdicts": [
            {"configuration": v.config, "lengths": list(v.lengths), "base": v.base, "other": v.other, "change": v.code}
            for v in pair.verdicts
        ],
        "rates": [
            {
                "what": one.name, "unit": one.unit, "change": one.code, "p": one.p, "pairs_needed": one.needed,
                "base": spread(one.base), "other": spread(one.other),
                "effect": None if one.effect is None else one.effect.value,
                "low": None if one.effect is None else one.effect.low,
                "high": None if one.effect is None else one.effect.high,
                "pairs": None if one.effect is None else one.effect.pairs,
            }
            for one in pair.rates
        ],
        "equality": [
            {"what": one.what, "base": list(one.base), "other": list(one.other), "p": one.p}
            for one in pair.answers.equal
        ],
        "answers": None if pair.answers.across is None else pair.answers.across.sentence,
        "only": [
            {"run": letter, "configuration": one.config, "lengths": list(one.lengths), "sends": one.sends}
            for one in pair.alone
            for letter in one.letters
        ],
        "unpaired": [
            {
                "what": one.what, "configuration": one.config, "runs": list(one.have), "answers": one.many,
                "why": one.why or None,
            }
            for one in pair.unpaired
        ],
    }  # fmt: skip
