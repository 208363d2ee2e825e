"""Find out why a vLLM server's prefix cache stays cold.

``open_run`` opens an investigation, ``show`` draws a chart and ``table`` a frame in a notebook; everything else is
one module per question.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prefixscope.display import show
    from prefixscope.investigation import open_run
    from prefixscope.tables import table

__all__ = ["open_run", "show", "table"]


def __getattr__(name: str) -> Any:
    # Imported on first use: `prefixscope --help` must not wait for pandas.
    if name == "open_run":
        from prefixscope.investigation import open_run

        return open_run
    if name == "show":
        from prefixscope.display import show

        return show
    if name == "table":
        from prefixscope.tables import table

        return table
    raise AttributeError(f"module 'prefixscope' has no attribute {name!r}")
