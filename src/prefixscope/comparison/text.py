"""A comparison in lines for a terminal."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path

from prefixscope.comparison import tables
from prefixscope.comparison.side import Side
from prefixscope.comparison.whole import Comparison, Pair
from prefixscope.comparison.words import (
    alone_words,
    chief,
    headline,
    judged_words,
    lead,
    lengths_words,
    times_words,
    unpaired_words,
)
from prefixscope.quantities import count
from prefixscope.standing import GO_ON

MOST = 10
LEAST = 12
"""Characters that a column keeps, however narrow the terminal."""


def to_text(found: Comparison, width: int = 100) -> str:
    """What is unfinished, the sentences, who is who, the settings that differ, the results, what was not compared."""
    blocks = [_unfinished(side, width) for side in found.sides if side.standing.unfinished]
    blocks += [textwrap.wrap(headline(pair), width) for pair in found.pairs]
    width_of = max(len(label) for label in found.labels)
    names = []
    for label, side in zip(found.labels, found.sides, strict=True):
        names.append(f"  {label:{width_of}}  {side.name}")
    blocks.append(names)
    table = tables.settings(found)
    if table is None:
        blocks.append(["settings that differ", "  none, of all that the runs tell"])
    else:
        rows = [["", *table.columns[1:]], *map(list, table.rows)]
        blocks.append(["settings that differ", *_aligned(rows, width)])
    for pair in found.pairs:
        blocks += _results(pair, width, named=len(found.pairs) > 1)
    rest = [
        f"{alone_words(one)}: {one.config}, {lengths_words(one.lengths)}, {count(one.sends, 'send')}"
        for one in found.alone
    ]
    rest += [f"{who}: {config}, {what} ({why})" for who, config, what, why in unpaired_words(found)]
    rest += [f"{side.letter}: {doubt}" for side in found.sides for doubt in side.doubts]
    blocks.append([line for text in rest for line in _wrapped(text, width)])
    return "\n\n".join("\n".join(line.rstrip() for line in block) for block in blocks if block)


def _unfinished(side: Side, width: int) -> list[str]:
    """What of a run is not done, and the command that goes on, which no line break cuts; of a report it names RUN."""
    told = textwrap.wrap(f"{side.letter}: {side.standing.unfinished}", width)
    folder = Path(side.name).expanduser()
    way = f"prefixscope run -o {shlex.quote(str(folder))} --resume" if folder.is_dir() else GO_ON
    return [*told, f"  go on with: {way}" if side.standing.command else "  it is still at work"]


def _results(pair: Pair, width: int, *, named: bool) -> list[list[str]]:
    """Paragraphs and tables; ``named`` says of each paragraph which runs it is about."""
    who = f"{pair.other.letter} against {pair.base.letter}"
    said = " ".join(lead(pair))
    blocks = [textwrap.wrap(f"{who}: {said}" if named and said else said, width)]
    changed = chief(pair, MOST)
    lines = []
    if changed:
        lines.append(f"hit lengths, {who}: those that changed most")
        lines += _aligned([[f"{before} → {after}", what] for what, before, after in changed], width, right=True)
    if any(not one.by_shape for one in pair.rates):
        lines += textwrap.wrap(
            f"times and rates, {who} (95 % interval of each alone; what is said counts in all that were looked at "
            "together, by Holm)",
            width,
        )
        lines += _aligned(
            [[one.name, times_words(one), judged_words(one)] for one in pair.rates if not one.by_shape], width
        )
    return [*blocks, lines]


def _aligned(rows: Sequence[Sequence[str]], width: int, *, right: bool = False) -> list[str]:
    """The rows under each other within the width; a cell too long for its column goes on in the next line."""
    columns = list(zip(*rows, strict=True))
    sizes = [max(len(cell) for cell in column) for column in columns]
    words = [max(len(word) for cell in column for word in cell.split() or [""]) for column in columns]
    least = [min(size, max(LEAST, min(word, width // 4))) for size, word in zip(sizes, words, strict=True)]
    while sum(sizes) + 2 * len(sizes) > width and sizes != least:
        widest = max(range(len(sizes)), key=lambda place: (sizes[place] > least[place], sizes[place]))
        sizes[widest] -= 1
    lines = []
    for row in rows:
        parts = [textwrap.wrap(cell, size) or [""] for cell, size in zip(row, sizes, strict=True)]
        for cells in zip_longest(*parts, fillvalue=""):
            shown = [
                f"{cell:>{size}}" if right and not n else f"{cell:{size}}"
                for n, (cell, size) in enumerate(zip(cells, sizes, strict=True))
            ]
            lines.append("  " + "  ".join(shown))
    return lines


def _wrapped(text: str, width: int, indent: str = "  ") -> list[str]:
    return textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=f"{indent}  ")
