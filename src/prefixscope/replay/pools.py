"""Pools to replay with, in blocks: the sizes that show an effect, and those that a person gives."""

from __future__ import annotations

import math
import re

from prefixscope.errors import ReplayError
from prefixscope.replay.geometry import Geometry
from prefixscope.replay.workload import Workload

MOST_BLOCKS = 20_000_000  # 10 GB of vLLM's block objects


def default_pools(workload: Workload, geometry: Geometry) -> tuple[int, ...]:
    """Four pool sizes that show the effect, from a thirty-second to a quarter of what keeping everything would take.

    The server's own pool takes the place of the nearest one, where the geometry knows it.
    """
    whole = sum(math.ceil(workload.distinct_tokens / group.block_size) for group in geometry.groups)
    # What one request takes while it runs: a window of a group that has one, else its whole prompt.
    longest = max(one.tokens for one in workload.requests)
    least = sum(math.ceil(min(longest, (group.window or longest) * 4) / group.block_size) for group in geometry.groups)
    pools = {max(_round(whole / part), _round(least * 1.1)) for part in (4, 8, 16, 32)}
    own = geometry.pool_blocks
    if own:
        pools -= {min(pools, key=lambda pool: abs(math.log(pool / own)))}
        pools.add(own)
    return tuple(sorted(pools))


def parse_pools(text: str, geometry: Geometry) -> tuple[int | None, ...]:
    """``"20000,20GiB,endless"`` as blocks; None is a pool that never evicts.

    Raises
    ------
    ReplayError
        for anything else, and for bytes where the geometry does not say what a block takes.
    """
    return tuple(dict.fromkeys(_pool(part.strip(), geometry) for part in text.split(",")))


def check_pools(text: str) -> None:
    """Refuse what is no pool whatever the geometry: :func:`parse_pools`, before one is known.

    Raises
    ------
    ReplayError
        for what is neither a number of blocks, nor bytes, nor ``endless``.
    """
    for part in map(str.strip, text.split(",")):
        if part != "endless":
            number, unit = _amount(part)
            if not unit:
                _bounded(part, int(number))


def _bounded(text: str, blocks: int) -> int:
    """vLLM makes an object of each block of a pool."""
    if blocks > MOST_BLOCKS:
        raise ReplayError(
            f"the pool {text} has {blocks:,} blocks; a replay takes up to {MOST_BLOCKS:,}",
            cause="each block of a pool is an object in memory",
            remedy="give the pool of one server, or endless",
        )
    return blocks


def _pool(text: str, geometry: Geometry) -> int | None:
    if text == "endless":
        return None
    number, unit = _amount(text)
    if not unit:
        return _bounded(text, int(number))
    size: float = float(number) * float(1024 if "I" in unit else 1000) ** " KMGT".index(
        unit.removesuffix("B")[:1] or " "
    )
    each = geometry.bytes_per_block
    if not each:
        raise ReplayError(
            f"the pool {text} can't be counted in blocks: this geometry does not say how many bytes a block takes",
            remedy="give a number of blocks: --pool-blocks 20000",
        )
    if size < each:
        raise ReplayError(f"the pool {text} holds no block: one takes {each:,} bytes", remedy="give a larger pool")
    return _bounded(text, int(size // each))


def _amount(text: str) -> tuple[str, str]:
    """A pool's number and its unit in capitals, empty for blocks."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([KMGT]i?B|B)?", text, re.IGNORECASE)
    if found is None or (not found[2] and "." in found[1]) or not float(found[1]):
        raise ReplayError(
            f"the pool {text!r} is no number of blocks and no size",
            remedy="for example --pool-blocks 20000,20GiB,endless",
        )
    return found[1], (found[2] or "").upper()


def _round(value: float) -> int:
    """Two digits, then zeros."""
    unit: int = 10 ** max(0, int(math.log10(max(value, 1))) - 1)
    return max(1, round(value / unit)) * unit
