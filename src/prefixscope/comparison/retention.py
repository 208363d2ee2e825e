"""The retention sweeps of every side on each other: the same interval, the same prompt length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from prefixscope.comparison.side import Side

DEFAULT = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """One interval and prompt length: hit of send 2, blocks and bytes kept, of each side; None where it has none.

    ``interval`` is what was asked for; of the release's own default it says what that resolved to.
    """

    interval: str
    tokens: int
    hits: tuple[int | None, ...]
    blocks: tuple[int | None, ...]
    bytes: tuple[int | None, ...]
    measured: bool


def intervals(sides: Sequence[Side]) -> list[Interval]:
    """What at least two sides swept alike (same settings but the interval; measured, or all predicted), in order."""
    tables = [side.sweep for side in sides]
    families = {bool(len(table)) and (_family(table), bool(table["measured"].any())) for table in tables}
    if len([one for one in families if one]) != 1:
        return []
    measured = any(bool(len(table)) and bool(table["measured"].any()) for table in tables)
    found: dict[tuple[float, str, int], dict[int, dict[str, int | str | None]]] = {}
    for place, table in enumerate(tables):
        for row in table[table["hit_2"].notna()].to_dict("records"):
            label = str(row["interval"])
            own = label.endswith(f"({DEFAULT})") or label == DEFAULT
            key = (-1.0 if own else float(row["interval_order"]), DEFAULT if own else label, int(row["tokens"]))
            values = {name: None if pd.isna(row[name]) else int(row[name]) for name in ("hit_2", "blocks", "bytes")}
            found.setdefault(key, {})[place] = {**values, "label": label}
    many = range(len(sides))
    out = []
    for (_, name, tokens), rows in sorted(found.items()):
        labels = list(dict.fromkeys(str(row["label"]) for row in rows.values()))
        if len(rows) > 1:
            out.append(
                Interval(
                    interval=labels[0]
                    if len(labels) == 1
                    else f"{name} ({' / '.join(one.split(' ')[0] for one in labels)})",
                    tokens=tokens,
                    hits=tuple(_value(rows, place, "hit_2") for place in many),
                    blocks=tuple(_value(rows, place, "blocks") for place in many),
                    bytes=tuple(_value(rows, place, "bytes") for place in many),
                    measured=measured,
                )
            )
    return out


def _family(table: pd.DataFrame) -> str:
    """The swept servers' settings but the interval; of a prediction nothing is known of them."""
    return (
        str(table["config"].iloc[0]).partition(", interval")[0].partition(" · ")[0] if table["measured"].any() else ""
    )


def _value(rows: dict[int, dict[str, int | str | None]], place: int, name: str) -> int | None:
    value = rows.get(place, {}).get(name)
    return value if isinstance(value, int) else None
