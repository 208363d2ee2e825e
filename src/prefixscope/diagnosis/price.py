"""What a remedy costs: the blocks that one cold prompt keeps, under each setting that was traced."""

from __future__ import annotations

from collections.abc import Iterable

from prefixscope.diagnosis.case import Case
from prefixscope.trace import Header, Kept

Alternative = tuple[Header, tuple[Kept, ...]]
NO_PRICE = "The price was not measured."


def price(case: Case) -> str:
    """Blocks and bytes that one cold prompt of this length keeps, under each setting that was traced."""
    mine = case.trace.cold_kept(case.header, case.lookup.prompt_tokens)
    rows = [(header, kept) for header, kept in _alternatives(case) if header.interval != case.header.interval]
    if mine is None:
        return NO_PRICE
    text = f"A cold prompt of {case.lookup.prompt_tokens:,} tokens keeps {_amount(mine)} at {_label(case.header)}"
    if not rows:
        return f"{text}; what the remedy keeps was not measured."
    base = sum(one.blocks for one in mine)
    parts = []
    for same in _equal_amounts(rows):
        blocks = sum(one.blocks for one in same[0][1])
        factor = f": {blocks / base:.1f} times as many" if base else ""
        parts.append(f"{_amount(same[0][1])} at {_labels([header for header, _ in same])}{factor}")
    return f"{text}; {'; '.join(parts)}. Extra blocks are evictable, and crowd out others when the cache is full."


def _equal_amounts(rows: list[Alternative]) -> list[list[Alternative]]:
    """The alternatives of one release that keep the same, together; the cheapest first."""
    found: dict[tuple[str, str], list[Alternative]] = {}
    for header, kept in rows:
        found.setdefault((header.version, _amount(kept)), []).append((header, kept))
    return list(found.values())


def _label(header: Header) -> str:
    return f"interval {_interval(header)} (vLLM {header.version})"


def _labels(headers: list[Header]) -> str:
    ordered = sorted(headers, key=lambda h: h.interval if isinstance(h.interval, int) else float("inf"))
    if len(ordered) == 1:
        return _label(ordered[0])
    names = [_interval(header) for header in ordered]
    return f"intervals {', '.join(names[:-1])} and {names[-1]} (vLLM {ordered[0].version})"


def _interval(header: Header) -> str:
    return f"{header.interval:,}" if isinstance(header.interval, int) else str(header.interval)


def _amount(kept: Iterable[Kept]) -> str:
    rows = list(kept)
    blocks = sum(one.blocks for one in rows)
    if any(one.bytes is None for one in rows):
        return f"{blocks:,} blocks"
    return f"{blocks:,} blocks ({sum(one.bytes or 0 for one in rows) / 2**20:,.1f} MiB)"


def _alternatives(case: Case) -> list[Alternative]:
    found: dict[tuple[object, str], Alternative] = {}
    for trace in (case.trace, *case.others):
        for header in trace.headers:
            if header.groups != case.header.groups or header.drop_groups != case.header.drop_groups:
                continue
            kept = trace.cold_kept(header, case.lookup.prompt_tokens)
            if kept is not None:
                found.setdefault((header.interval, header.version), (header, kept))
    return sorted(found.values(), key=lambda row: (str(row[0].version), sum(one.blocks for one in row[1])))
