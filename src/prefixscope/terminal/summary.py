"""What a trace says, in lines for a terminal or as JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from typing import Any

from prefixscope import glossary
from prefixscope.diagnosis import Diagnosis, cause_words, explain, shared_text
from prefixscope.errors import TraceError
from prefixscope.terminal.as_json import engine_json, lookup_json, shown_json
from prefixscope.terminal.ruler import fold, ruler
from prefixscope.trace import Header, Lookup, Trace, ranges_text

_NAMED = 5
"""Ids that an error names."""
_ID = 20
"""Characters of an id; our own have 19."""
HEADING = f"{'time, UTC':12}  {'request':{_ID}}  {'prompt':>9}  {'hit':>9}  {'missing blocks':26}  cause"
_COMMON = frozenset({"hit", "pool", "rank", "dense", "evicted", "first send", "drafter", "KV cache group"})
NO_LOOKUP = "No lookup yet: send the server a request."
NO_HEADER = "No lookup can be told without its engine's first line: give the whole file, from its beginning."


@dataclass(frozen=True, slots=True)
class Summary:
    """A trace, the newest of its lookups with their causes, and one lookup shown in full.

    ``shown`` and ``diagnosis`` are None in a trace without lookups; ``earlier`` lookups are left out of ``rows``.
    """

    trace: Trace
    rows: tuple[tuple[Lookup, str], ...]
    earlier: int
    shown: Lookup | None
    diagnosis: Diagnosis | None

    @property
    def decided(self) -> bool:
        """Whether the trace told the cause of what is shown."""
        return self.diagnosis is not None and self.diagnosis.cause != "cant_tell"

    def text(self, *, width: int = 100) -> str:
        """All of it, for reading."""
        lines = [*_span(self.trace)]
        drawn: dict[tuple[str, ...], int] = {}
        for number, header in enumerate(self.trace.headers, 1):
            like = drawn.setdefault(tuple(_kinds(header)), number)
            title = f"Engine {number} of {len(self.trace.headers)}"
            lines += engine_lines(header, title, groups_of=f"engine {like}" if like != number else "")
        lines += [*map(warning_line, self.trace.warnings), ""]
        if not self.trace.lookups and self.diagnosis is None:
            lost = any(code == "no_header" for code, _ in self.trace.warnings)
            return printable([*lines, NO_HEADER if lost else NO_LOOKUP])
        if self.rows:
            engines = self.trace.headers
            told = [lookup_line(lookup, cause) for lookup, cause in self.rows]
            if len(engines) > 1:
                numbers = [engines.index(lookup.header) + 1 for lookup, _ in self.rows]
                told = [f"{number:>6,}  {line}" for number, line in zip(numbers, told, strict=True)]
            lines += [f"engine  {HEADING}" if len(engines) > 1 else HEADING, *told]
        if self.earlier:
            lines.append(f"{self.earlier:,} earlier lookups are not listed (--limit 0 lists all)")
        if self.shown is not None:
            lines += ["", *_shown_lines(self.shown, width)]
        if self.diagnosis is not None:
            lines += ["", *diagnosis_lines(self.diagnosis, width), *glossary_lines(self.diagnosis, width)]
        return printable(lines)

    def to_json(self) -> dict[str, Any]:
        """The same for a script: JSON values alone."""
        return {
            "engines": [engine_json(header) for header in self.trace.headers],
            "warnings": [{"code": code, "detail": detail} for code, detail in self.trace.warnings],
            "lookups_total": len(self.trace.lookups),
            "lookups": [lookup_json(lookup, cause) for lookup, cause in self.rows],
            "shown": None if self.shown is None else shown_json(self.shown),
            "diagnosis": None
            if self.diagnosis is None
            else {**asdict(self.diagnosis), "words": cause_words(self.diagnosis.cause)},
        }


def summarise(trace: Trace, *, request: str = "", limit: int = 40) -> Summary:
    """The newest ``limit`` lookups (0: all), and of one request (none named: of the worst miss) all that is known.

    ``request`` is our id or the engine's, or the beginning of one, cut with ``…`` the way a line shows it.

    Raises
    ------
    TraceError
        where no request begins like that, or several do.
    """
    listed = trace.lookups[-limit:] if limit else trace.lookups
    rows = tuple((one, explain(trace, one.engine_request_id).cause) for one in listed)
    if request:
        shown = trace.lookup(find(trace, request))
        if shown is None and trace.lookups:
            raise _nobody(trace, request)
    else:
        shown = trace.worst()
    diagnosis = None if shown is None else explain(trace, shown.engine_request_id)
    return Summary(trace, rows, len(trace.lookups) - len(listed), shown, diagnosis)


def _nobody(trace: Trace, request: str) -> TraceError:
    """The error for a request that is in no lookup, with some that are."""
    known = list(dict.fromkeys(one.request_id for one in reversed(trace.lookups)))
    more = f" … ({len(known):,} in all)" if len(known) > _NAMED else ""
    return TraceError(
        f"no request in this trace begins with {request}",
        cause="it was sent without that X-Request-Id, or answered by a process whose trace is not among these files",
        remedy=f"--request with one of these, the newest first: {', '.join(known[:_NAMED])}{more}",
    )


def find(trace: Trace, request: str) -> str:
    """The id of the request that is meant; the text itself where none is."""
    if trace.lookup(request) is not None:
        return request
    start, _, end = request.partition("…")
    found = {}
    for one in trace.lookups:
        for name in (one.request_id, one.engine_request_id):
            if name.startswith(start) and name.endswith(end):
                found[one.engine_request_id] = name
    if len(found) > 1:
        raise TraceError(
            f"{len(found):,} requests begin with {request}",
            remedy=f"write more of it: {', '.join(list(found.values())[:4])}{' …' if len(found) > 4 else ''}",
        )
    return next(iter(found), request)


# --- lines -------------------------------------------------------------------------------------------------------


def printable(lines: Iterable[str]) -> str:
    """The lines as one text without control characters: ids come from whoever sent the request."""
    return "\n".join("".join(one if one.isprintable() else "�" for one in line).rstrip() for line in lines)


def engine_lines(header: Header, title: str, *, groups_of: str = "") -> list[str]:
    """One engine: its release, groups (or the engine that has the same ones), and the lengths that decide a hit."""
    drafter = f", {header.spec_method} with {header.spec_tokens} tokens" if header.spec_method else ""
    rank = "" if header.dp_rank is None else f", rank {header.dp_rank}"
    interval = f"{header.interval:,}" if isinstance(header.interval, int) else header.interval or "not known"
    shortest = header.min_prompt_tokens
    least = "not known" if shortest is None else f"{shortest:,} tokens"
    lines = [f"{title}: vLLM {header.version}, pid {header.pid}{rank}{drafter}"]
    lines += [f"  groups as in {groups_of}"] if groups_of else [f"  {text}" for text in _kinds(header)]
    lines.append(
        f"  scheduler block {header.scheduler_block:,} · retention interval {interval} · minimum cacheable prompt "
        f"{least} · pool {header.pool_blocks:,} blocks"
    )
    if not header.caching:
        lines.append("  prefix caching is off: nothing is looked up")
    return lines


def _kinds(header: Header) -> list[str]:
    kinds: dict[str, int] = {}
    for group in header.groups:
        window = f" · window {group.window:,}" if group.window else ""
        drafter = " · drafter" if group.drafter else ""
        layers = f"{group.layers} layer{'' if group.layers == 1 else 's'}"
        name = f"{group.kind}{window} · {group.block_size:,}-token blocks · {layers}{drafter}"
        kinds[name] = kinds.get(name, 0) + 1
    return [f"{number:,} × {name}" for name, number in kinds.items()]


def lookup_line(lookup: Lookup, cause: str) -> str:
    """One lookup under ``HEADING``."""
    return (
        f"{clock(lookup.t)}  {short_id(lookup.request_id):{_ID}}  {lookup.prompt_tokens:>9,}  {lookup.hit_tokens:>9,}  "
        f"{missing_text(lookup):26}  {cause_words(cause)}"
    )


def missing_text(lookup: Lookup) -> str:
    """``166–167 in 5 sliding``: of the groups that end the hit, or else of the first that lack a block."""
    if all(view.known and not view.cached for view in lookup.groups):
        return "all: nothing is stored" if lookup.groups else "–"
    for views in fold(lookup):
        if views[0].missing:
            return f"{ranges_text(views[0].missing, limit=1)} in {len(views):,} {views[0].group.kind}"
    return "–"


def warning_line(warning: tuple[str, str]) -> str:
    code, detail = warning
    return f"warning, {code.replace('_', ' ')}: {detail}"


def diagnosis_lines(diagnosis: Diagnosis, width: int) -> list[str]:
    """The cause, what brings the hit back, and at what price."""
    words = cause_words(diagnosis.cause)
    parts = [(f"Cause: {words}.", diagnosis.sentence)]
    parts += [("Seen:", text) for text in diagnosis.evidence]
    parts += [("Remedy:", diagnosis.remedy), ("Price:", diagnosis.price)]
    return [line for head, text in parts for line in _wrapped(f"{head} {text}", width)]


def glossary_lines(diagnosis: Diagnosis, width: int) -> list[str]:
    """What the less common words of a diagnosis mean, under a heading; nothing where it has none."""
    found = glossary.used([diagnosis.sentence, diagnosis.remedy])
    told = [
        line for term, meaning in found.items() if term not in _COMMON for line in _wrapped(f"{term}: {meaning}", width)
    ]
    return ["", "Words", *told] if told else []


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_on_hyphens=False, subsequent_indent="  ")


def _shown_lines(lookup: Lookup, width: int) -> list[str]:
    asked = f"; not every group could back a hit of {lookup.candidate_tokens:,}" if lookup.candidate_tokens else ""
    closest = (
        f"; the closest earlier request, {short_id(lookup.closest_id)}, {shared_text(lookup)}"
        if lookup.closest_id
        else ""
    )
    head = (
        f"{lookup.request_id} at {clock(lookup.t)}: hit {lookup.hit_tokens:,} of {lookup.tokens:,} tokens{asked}"
        f"{closest}"
    )
    return [*textwrap.wrap(head, width), *ruler(lookup, width=width)]


def _span(trace: Trace) -> list[str]:
    if not trace.lookups:
        return []
    first, last = trace.lookups[0].t, trace.lookups[-1].t
    misses = sum(one.missed_tokens > 0 for one in trace.lookups)
    count = len(trace.lookups)
    return [
        f"{count:,} lookup{'' if count == 1 else 's'} from {_moment(first):%Y-%m-%d %H:%M:%S} UTC on, in "
        f"{last - first:,.1f} s; {misses:,} missed what an earlier request had brought"
    ]


def clock(t: float) -> str:
    """``22:47:39.277``, UTC."""
    return f"{_moment(t):%H:%M:%S.%f}"[:-3]


def _moment(t: float) -> datetime:
    return datetime.fromtimestamp(t, tz=timezone.utc)


def short_id(request_id: str) -> str:
    """The id, or its two ends: ``ps-51952…2db2748``."""
    return request_id if len(request_id) <= _ID else f"{request_id[: _ID - 9]}…{request_id[-8:]}"
