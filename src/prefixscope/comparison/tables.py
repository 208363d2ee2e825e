"""A comparison as tables: settings, hit lengths, retention, rates, answers, and what only one side has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prefixscope.comparison.facts import Fact
from prefixscope.comparison.hits import Cell, Change
from prefixscope.comparison.rates import Rate
from prefixscope.comparison.retention import Interval
from prefixscope.comparison.whole import Comparison, Pair
from prefixscope.comparison.words import (
    alone_words,
    hit_words,
    judged_words,
    lengths_words,
    times_words,
    unpaired_words,
)
from prefixscope.quantities import count, number
from prefixscope.sections import Table


def runs(found: Comparison) -> Table:
    """Who is who."""
    rows = tuple(
        (
            side.letter,
            str((side.manifest.get("target") or {}).get("label") or "unknown"),
            str(side.manifest.get("created_at") or "unknown")[:16].replace("T", " "),
            str(side.manifest.get("run_id") or "unknown"),
            f"{side.verdict.code}: {side.verdict.headline}",
        )
        for side in found.sides
    )
    return Table(
        caption="Each run by itself; the first is the base.",
        columns=("run", "what was investigated", "started, UTC", "run id", "verdict of the run alone"),
        rows=rows,
    )


def settings(found: Comparison) -> Table | None:
    """What differs, and what is unknown somewhere; None where nothing does."""
    rank = {"cause": 0, "follows": 1, "about": 2}
    rows = sorted(
        (one for one in found.facts if one.state != "same"), key=lambda one: (one.state != "differs", rank[one.kind])
    )
    if not rows:
        return None
    remarks = [_remark(one) for one in rows]
    last = [(text,) if any(remarks) else () for text in remarks]
    return Table(
        caption="Settings that differ, or that not every run tells.",
        columns=("setting", *_letters(found), *(("remark",) if any(remarks) else ())),
        rows=tuple(
            (
                f"{one.name} (first server: {one.of})" if one.of else one.name,
                *(value or ("not compared" if one.partial else "unknown") for value in one.values),
                *more,
            )
            for one, more in zip(rows, last, strict=True)
        ),
    )


def _remark(one: Fact) -> str:
    if one.state == "unknown":
        return "not told by all"
    return {"cause": "", "follows": "worked out by vLLM", "about": "not a server setting"}[one.kind]


def same(found: Iterable[Fact]) -> tuple[str, ...]:
    """The facts that are the same on all sides, in a line; in another those that only one server was asked for."""
    alike: dict[str, list[str]] = {}
    for one in found:
        if one.state == "same":
            alike.setdefault(one.of, []).append(f"{one.name} {one.values[0]}")
    return tuple(
        f"{f'Asked of the first server alone ({of}), and the same there' if of else 'The same on all'}: "
        f"{'; '.join(named)}."
        for of, named in alike.items()
    )


def hits(found: Comparison) -> list[Table]:
    """Hit lengths that changed, those of which nothing can be told, and those that are the same."""
    by_cell: dict[Cell, dict[str, Change]] = {}
    for pair in found.pairs:
        for one in pair.hits:
            by_cell.setdefault(one.cell, {})[pair.other.letter] = one
    letters = [pair.other.letter for pair in found.pairs]
    kinds: dict[str, list[tuple[dict[str, Change], tuple[str, ...]]]] = {"changed": [], "untold": [], "same": []}
    for of in by_cell.values():
        codes = {one.code for one in of.values()}
        kind = "changed" if codes & {"lower", "higher"} else "same" if codes == {"same"} else "untold"
        first = next(iter(of.values()))
        seen = [hit_words(of[letter].other) if letter in of else "not asked" for letter in letters]
        said = [_said(of[letter]) for letter in letters if letter in of]
        row = (
            first.base.config, number(first.cell.tokens), first.cell.label, hit_words(first.base), *seen,
            "; ".join(dict.fromkeys(said)) if len(letters) == 1 else _each(of),
        )  # fmt: skip
        kinds[kind].append((of, row))
    columns = ("configuration", "prompt tokens", "send", *_letters(found), "change")
    captions = {
        "changed": "Hit lengths that changed.",
        "untold": "Hit lengths of which nothing can be told.",
        "same": "Hit lengths that are the same.",
    }
    numeric = frozenset(("prompt tokens", *_letters(found)))
    return [
        Table(
            caption=captions[kind],
            columns=columns,
            rows=tuple(row for _, row in rows),
            numeric=numeric,
            fold=kind == "same",
            bad=frozenset(n for n, (of, _) in enumerate(rows) if any(one.code == "lower" for one in of.values())),
        )
        for kind, rows in kinds.items()
        if rows
    ]


def _said(one: Change) -> str:
    if one.code in ("lower", "higher"):
        return f"{one.delta:+,}"
    return {
        "same": "same",
        "varies": "can't tell: repeats overlap",
        "not cold": "can't tell: its first send hit something",
        "not reported": "can't tell: not reported",
        "doubtful": "can't tell: its row says nothing possible",
        "failed": "can't tell: failed",
    }[one.code]


def _each(of: dict[str, Change]) -> str:
    return "; ".join(f"{letter} {_said(one)}" for letter, one in of.items())


def verdicts(pair: Pair) -> Table | None:
    """Verdicts over the prompt lengths that both sides answered."""
    if not pair.verdicts:
        return None
    return Table(
        caption="The verdict on second sends, over the prompt lengths that both answered.",
        columns=("configuration", "over", pair.base.letter, pair.other.letter, "change"),
        rows=tuple((v.config, lengths_words(v.lengths), v.base, v.other, v.code) for v in pair.verdicts),
        bad=frozenset(n for n, v in enumerate(pair.verdicts) if v.code == "worse"),
    )


def retention(found: Comparison, rows: Sequence[Interval]) -> Table:
    """What each interval brings back and keeps, on every side."""
    letters = _letters(found)
    columns = (
        "interval",
        "prompt tokens",
        *(f"{what}, {letter}" for what in ("send 2", "blocks", "MiB") for letter in letters),
    )
    return Table(
        caption="Tokens hit on send 2, and what one prompt keeps in the cache.",
        columns=columns,
        rows=tuple(
            (
                one.interval, number(one.tokens), *map(number, one.hits), *map(number, one.blocks),
                *("—" if size is None else f"{size / 2**20:,.1f}" for size in one.bytes),
            )
            for one in rows
        ),
        numeric=frozenset(columns[1:]),
    )  # fmt: skip


def rates(pair: Pair) -> list[Table]:
    """What varies, with its spread, its interval and what may be said; by shape apart."""
    parts = (("Times and rates", False), ("The same by prompt shape", True))
    return [
        Table(
            caption=f"{what}, {pair.other.letter} against {pair.base.letter}: medians with the range over requests. "
            "“Noise or change” counts in all that were looked at together (Holm), the 95 % interval is of each alone.",
            columns=(
                "quantity",
                "noise or change",
                "change (95 %)",
                "pairs",
                pair.base.letter,
                pair.other.letter,
            ),
            rows=tuple(_rate(one) for one in pair.rates if one.by_shape == by_shape),
            numeric=frozenset((pair.base.letter, pair.other.letter, "pairs")),
            fold=by_shape,
        )
        for what, by_shape in parts
        if any(one.by_shape == by_shape for one in pair.rates)
    ]


def _rate(one: Rate) -> tuple[str, ...]:
    return (
        one.name if one.unit != "ms" else f"{one.name}, ms",
        judged_words(one),
        times_words(one),
        number(one.effect.pairs if one.effect else 0),
        *(_spread(one.unit, side.median, side.low, side.high, side.count) for side in (one.base, one.other)),
    )


def _spread(unit: str, middle: float, low: float, high: float, many: int) -> str:
    def shown(value: float) -> str:
        if unit == "tokens":  # a step brings few
            return f"{value:,.2f}"
        return f"{value:.0%}" if unit == "share" else f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.1f}"

    return shown(middle) if many == 1 else f"{shown(middle)} ({shown(low)}–{shown(high)}, n = {many:,})"


def equality(pair: Pair) -> Table | None:
    """How many answers are equal on either side, and the paired test over common documents."""
    rows = tuple(
        (
            one.what, f"{one.base[0]} of {one.base[1]}", f"{one.other[0]} of {one.other[1]}",
            number(one.only_base), number(one.only_other), f"{one.p:.2g}",
        )
        for one in pair.answers.equal
    )  # fmt: skip
    if not rows:
        return None
    a, b = pair.base.letter, pair.other.letter
    columns = ("answers", a, b, f"equal on {a} alone", f"equal on {b} alone", "exact p")
    caption = "Equal answers over the documents that both were asked; void ones are left out."
    return Table(caption=caption, columns=columns, rows=rows, numeric=frozenset(columns[3:]))


def alone(found: Comparison) -> Table | None:
    """What some sides were not asked, prompts that were not the same, and answers without their like."""
    rows: dict[tuple[str, ...], None] = {
        (alone_words(one), one.config, lengths_words(one.lengths), count(one.sends, "send")): None
        for one in found.alone
    }
    for pair in found.pairs:
        for change in pair.changes:
            if change.code == "another prompt":
                lengths = [
                    " or ".join(number(n) for n in sorted(side.prompt_tokens)) for side in (change.base, change.other)
                ]
                same_length = lengths[0] == lengths[1]
                why = (
                    "they share another part of the first prompt"
                    if same_length
                    else f"{lengths[0]} tokens on {pair.base.letter}, {lengths[1]} on {pair.other.letter}"
                )
                what = f"{change.cell.label} of {number(change.cell.tokens)} tokens"
                rows["not the same prompt", change.base.config, what, why] = None
    rows |= dict.fromkeys(unpaired_words(found))
    if not rows:
        return None
    return Table(
        caption=f"Measured, and not compared{' with every run' if len(found.sides) > 2 else ''}.",
        columns=("who", "configuration", "prompts", "how many, or why"),
        rows=tuple(rows),
    )


def doubts(found: Comparison) -> Table | None:
    """What makes a side less than certain."""
    rows = tuple((side.letter, doubt) for side in found.sides for doubt in side.doubts)
    return Table(caption="What makes a run less than certain.", columns=("run", "what"), rows=rows) if rows else None


def _letters(found: Comparison) -> tuple[str, ...]:
    return tuple(side.letter for side in found.sides)
