"""Engine-side events, read from outside: block ranges per group and lookup, joined with our rows by request id.

A trace is what the tracer (`prefixscope.inside.tracer`) wrote: JSON lines, one file per process. Ranges are half-open,
in a group's own blocks. What can't be read becomes a warning, never a range.

| warning code | when |
|---|---|
| truncated | the last line of a file is cut off |
| unreadable | a line in the middle is not an event |
| newer_schema | lines of a schema that this version does not know |
| gap | the tracer stopped writing (size limit) |
| thinned | lookups whose blocks were scanned only in part, to bound the tracer's cost |
| off | the tracer turned itself off, and why |
| no_header | events of an engine whose header is missing |
| clock | a process's clock went backwards |
| repeated_id | one id of ours on several requests: ask by the engine's id |
"""

from __future__ import annotations

from prefixscope.trace.events import our_id
from prefixscope.trace.files import files_of
from prefixscope.trace.follow import Follower
from prefixscope.trace.ranges import Range, Ranges, count, intersect, ranges_text, subtract, union
from prefixscope.trace.reader import read_trace
from prefixscope.trace.records import (
    Evicted,
    Group,
    GroupView,
    Header,
    Incident,
    Kept,
    Lookup,
    Step,
    Stored,
)
from prefixscope.trace.whole import Trace

__all__ = [
    "Evicted",
    "Follower",
    "Group",
    "GroupView",
    "Header",
    "Incident",
    "Kept",
    "Lookup",
    "Range",
    "Ranges",
    "Step",
    "Stored",
    "Trace",
    "count",
    "files_of",
    "intersect",
    "our_id",
    "ranges_text",
    "read_trace",
    "subtract",
    "union",
]
