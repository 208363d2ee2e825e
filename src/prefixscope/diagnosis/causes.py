"""The order in which causes are tried, and what is said where none fits."""

from __future__ import annotations

from collections.abc import Sequence

from prefixscope.diagnosis import admission, history, retention
from prefixscope.diagnosis.case import Case, Diagnosis
from prefixscope.diagnosis.evidence import tokens_text
from prefixscope.diagnosis.price import NO_PRICE
from prefixscope.trace import Trace, ranges_text


def explain(trace: Trace, request_id: str, *, repeat_of: str | None = None, others: Sequence[Trace] = ()) -> Diagnosis:
    """Why this request's hit is as long as it is.

    ``repeat_of`` is the earlier request that this one was meant to repeat: only with it can a prompt that turned out
    different, or went to another rank, be told from a first send.
    ``others`` are traces of the same prompts under other settings: with them the price compares what each setting
    keeps. A request that the trace never saw is ``cant_tell``.
    """
    lookup = trace.lookup(request_id)
    if lookup is None:
        engines = ", ".join(f"pid {header.pid}" for header in trace.headers) or "none"
        return Diagnosis(
            "cant_tell",
            f"Request {request_id} is not in the trace: no traced engine looked it up.",
            (f"Engines in the trace: {engines}.", *(f"{code}: {detail}" for code, detail in trace.warnings)),
            "Send it with X-Request-Id to a server started with the tracing kit, and read the trace of every process.",
            "Nothing to pay.",
        )
    case = Case(trace, lookup, tuple(others), trace.lookup(repeat_of) if repeat_of else None)
    for rule in _RULES:
        found = rule(case)
        if found is not None:
            return found
    return _cant_tell(case)


def _third_send(case: Case) -> Diagnosis | None:
    lookup, before = case.lookup, case.closest
    if before is None or before.junction_tokens is None:
        return None
    if not case.repeats and before.junction_tokens // case.unit * case.unit != lookup.hit_tokens:
        return None
    if lookup.hit_tokens <= before.hit_tokens or before.junction_tokens < lookup.hit_tokens:
        return None
    first = explain(case.trace, before.engine_request_id, others=case.others)
    return case.say(
        "third_send",
        f"This send hits {lookup.hit_tokens:,} tokens only because the one before it missed: request "
        f"{before.request_id} hit {before.hit_tokens:,}, vLLM noticed an uncached common prefix (a junction) "
        f"of {before.junction_tokens:,} tokens, and that request stored the blocks that end there.",
        first.remedy,
        first.price,
        f"Two sends are not enough to judge this server; the send before: {first.sentence}",
    )


def _cant_tell(case: Case) -> Diagnosis:
    lookup = case.lookup
    if lookup.scan != "full":
        why = "the tracer scanned only a part of this lookup's blocks to stay cheap; send it again on an idle server"
    elif lookup.closest_id is None:
        why = (
            "the earlier request that stored these blocks is not in the trace, so never stored and since evicted look "
            "alike; trace the server from its start and send the prompt twice"
        )
    else:
        why = (
            f"the missing blocks were neither stored by {lookup.closest_id} nor dropped by a rule seen here; "
            "restart with --prefix-cache-retention-interval set densely and send it twice: if it still misses, it is "
            "eviction"
        )
    missing = "; ".join(
        f"the {case.groups([view.group.gid])} lacks blocks {ranges_text(view.missing)}" for view in case.short[:1]
    )
    return case.say(
        "cant_tell",
        f"The hit of {lookup.hit_tokens:,} is short of {tokens_text(lookup.reachable_tokens)}"
        f"{': ' + missing if missing else ''}, and the trace does not decide why: {why}.",
        "Make that measurement.",
        NO_PRICE,
    )


_RULES = (
    admission.caching_off,
    admission.hit_not_used,
    admission.cannot_hit,
    admission.retried,
    _third_send,
    retention.as_far_as_possible,
    history.never_seen,
    history.cache_reset,
    history.evicted,
    retention.windows_dont_meet,
    retention.chunk_ends,
    retention.interval_too_long,
    retention.shared_part,
)
"""Each gives a diagnosis, or None where it is not this cause; the first that does is believed."""
