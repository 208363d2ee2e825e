"""A comparison in lines for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from prefixscope.comparison import tables
from prefixscope.comparison.whole import Comparison, Pair
from prefixscope.comparison.words import chief, headline, judged_words, lead, lengths_words, times_words

MOST = 10


def to_text(found: Comparison, width: int = 100) -> str:
    """The sentences, who is who, the settings that differ, the results, and what was not compared."""
    lines: list[str] = []
    for pair in found.pairs:
        lines += [*textwrap.wrap(headline(pair), width), ""]
    width_of = max(len(label) for label in found.labels)
    lines += [f"  {label:{width_of}}  {side.name}" for label, side in zip(found.labels, found.sides, strict=True)]
    table = tables.settings(found)
    lines += ["", "settings that differ"]
    if table is None:
        lines.append("  none, of all that the runs tell")
    else:
        lines += _aligned([["", *table.columns[1:]], *map(list, table.rows)], width)
    for pair in found.pairs:
        lines += _results(pair, width)
    for pair in found.pairs:
        for one in pair.alone:
            lines += _wrapped(
                f"only in {one.letter}: {one.config}, {lengths_words(one.lengths)}, {one.sends} sends", width
            )
    lines += [
        line for side in found.sides for doubt in side.doubts for line in _wrapped(f"{side.letter}: {doubt}", width)
    ]
    return "\n".join(line.rstrip() for line in lines)


def _results(pair: Pair, width: int) -> list[str]:
    named = f"{pair.other.letter} against {pair.base.letter}"
    lines = ["", *textwrap.wrap(" ".join(lead(pair)), width), ""]
    changed = chief(pair, MOST)
    if changed:
        lines.append(f"hit lengths, {named}: those that changed most")
        lines += _aligned([[f"{before} → {after}", what] for what, before, after in changed], width, right=True)
    if any(not one.by_shape for one in pair.rates):
        lines.append(f"times and rates, {named} (95 % interval)")
        lines += _aligned(
            [[one.name, times_words(one), judged_words(one)] for one in pair.rates if not one.by_shape], width
        )
    return [*lines, ""]


def _aligned(rows: Sequence[Sequence[str]], width: int, *, right: bool = False) -> list[str]:
    columns = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    most = max(width // max(len(columns) - 1, 1), 16)
    sizes = [min(size, most) for size in columns]
    lines = []
    for row in rows:
        cells = [_short(cell, size) for cell, size in zip(row, sizes, strict=True)]
        shown = [
            f"{cell:>{size}}" if right and not n else f"{cell:{size}}"
            for n, (cell, size) in enumerate(zip(cells, sizes, strict=True))
        ]
        lines.append("  " + "  ".join(shown))
    return lines


def _short(cell: str, size: int) -> str:
    return cell if len(cell) <= size else cell[: size - 1] + "…"


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, initial_indent="  ", subsequent_indent="    ")
