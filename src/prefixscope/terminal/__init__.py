"""A trace as a terminal shows it: engines, lookups, the blocks of one, its cause in words. Nothing here prints."""

from __future__ import annotations

from prefixscope.terminal.following import Following
from prefixscope.terminal.ruler import ruler
from prefixscope.terminal.summary import Summary, summarise

__all__ = ["Following", "Summary", "ruler", "summarise"]
