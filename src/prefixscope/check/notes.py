"""Beside the verdict: doubts that do not change it, and what the counters say where usage says nothing."""

from __future__ import annotations

from prefixscope.check.evidence import FIRST, Evidence
from prefixscope.check.outcome import counted_alone
from prefixscope.preflight import Finding


def by_counters(e: Evidence) -> str:
    found = counted_alone(e)
    if found is None:
        return ""
    if found["alone"] is None:
        return (
            f" Its counters took {found['hits']:,} of {found['queries']:,} tokens from the cache around the second "
            "send; whether all of them were ours can't be told."
        )
    if not found["alone"]:
        return f" Its counters moved by {found['queries']:,} tokens around the second send: other requests ran too."
    reuse = f"{found['hits']:,} of {found['queries']:,}"
    return f" By its counters, which nothing else moved meanwhile, the second send took {reuse} tokens from the cache."


def notes(e: Evidence) -> tuple[Finding, ...]:
    found: list[Finding] = []
    retries = sum(s.retries for s in e.sends)
    if retries:
        found.append(
            Finding(
                "retried",
                f"the server said 429 or 503 {retries} times, and blocks may have been evicted meanwhile",
                "check again when the server is less busy",
            )
        )
    if e.clipped:
        cold = e.send(FIRST, 1)
        asked = (
            f"the prompt sent has {cold.prompt_tokens:,}" if cold and cold.prompt_tokens else "a shorter one was sent"
        )
        found.append(
            Finding(
                "prompt-clipped",
                f"a prompt of {e.clipped:,} tokens does not fit the served context; {asked}",
                "use a --tokens that fits, or start the server with a larger --max-model-len",
            )
        )
    if e.several_servers:
        found.append(
            Finding(
                "several-servers",
                "several servers answer behind this address, so a hit takes luck, or a router that knows the prefix",
                "check each server at its own address, and the router's affinity",
            )
        )
    if e.template_time:
        found.append(
            Finding(
                "template-clock",
                "the chat template writes the time into every prompt, so a prompt is cold again a minute later",
                "take the clock out of the chat template, or give the time as the conversation's last part",
            )
        )
    elif e.template_date:
        found.append(
            Finding(
                "template-date",
                "the chat template writes today's date into every prompt, so all of them are cold after midnight",
                "take the date out of the chat template, or give it as the conversation's last part",
            )
        )
    if e.template_changes:
        found.append(
            Finding(
                "template-changes", "two renderings of one message differ", "take the clock out of the chat template"
            )
        )
    found += _disagreement(e)
    if e.left_out:
        found.append(
            Finding(
                "probes-left-out",
                f"the cap of {e.spending.most_requests} requests and {e.spending.most_tokens:,} prompt tokens kept "
                "further probes back",
                "a shorter --tokens makes each probe cheaper",
            )
        )
    return tuple(found)


def totals(e: Evidence) -> tuple[int, int] | None:
    """Cached tokens of all sends by usage and by the counters; None where the two can't be compared."""
    known = [s for s in e.sends if s.cached_tokens is not None and s.prompt_tokens is not None]
    if e.total is None or e.total.queries is None or e.total.hits is None or len(known) < len(e.sends):
        return None
    if e.total.queries != sum(s.prompt_tokens or 0 for s in known):
        return None  # other requests ran too, or fillers of ours
    return sum(s.cached_tokens or 0 for s in known), e.total.hits


def _disagreement(e: Evidence) -> list[Finding]:
    found = totals(e)
    if found is None or found[0] == found[1]:
        return []
    return [
        Finding(
            "metrics-disagree",
            f"usage adds up to {found[0]:,} cached tokens, the server's counters to {found[1]:,}",
            "trust usage",
        )
    ]
