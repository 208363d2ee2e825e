"""A trace's engines and lookups as JSON, for scripts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from prefixscope.diagnosis import cause_words
from prefixscope.terminal.ruler import fold
from prefixscope.trace import Header, Lookup


def engine_json(header: Header) -> dict[str, Any]:
    """The engine's first line; a group's ``fields`` as an object, null where the trace has none."""
    found = asdict(header)
    for group in found["groups"]:
        group["fields"] = json.loads(group["fields"]) if group["fields"] else None
    return found


def lookup_json(lookup: Lookup, cause: str) -> dict[str, Any]:
    return {
        "t": lookup.t,
        "engine": lookup.header.engine,
        "request_id": lookup.request_id,
        "engine_request_id": lookup.engine_request_id,
        "prompt_tokens": lookup.prompt_tokens,
        "hit_tokens": lookup.hit_tokens,
        "admitted_tokens": lookup.admitted_tokens,
        "external_tokens": lookup.external_tokens,
        "missed_tokens": lookup.missed_tokens,
        "closest_id": lookup.closest_id,
        "common_tokens": lookup.common_tokens,
        "exact_tokens": lookup.exact_tokens,
        "cause": cause,
        "words": cause_words(cause),
        "missing": [
            {"gids": [view.group.gid for view in views], "ranges": _lists(views[0].missing)}
            for views in fold(lookup)
            if views[0].missing
        ],
    }


def shown_json(lookup: Lookup) -> dict[str, Any]:
    return {
        "request_id": lookup.request_id,
        "candidate_tokens": lookup.candidate_tokens,
        "reachable_tokens": lookup.reachable_tokens,
        "groups": [
            {
                "gids": [view.group.gid for view in views],
                "limiting": views[0].limiting,
                "known": views[0].known,
                "stored": _lists(views[0].cached),
                "needed": None if views[0].needed is None else list(views[0].needed),
                "missing": _lists(views[0].missing),
                "evicted": _lists(views[0].evicted),
            }
            for views in fold(lookup)
        ],
    }


def _lists(ranges: Iterable[Sequence[int]]) -> list[list[int]]:
    return [list(one) for one in ranges]
