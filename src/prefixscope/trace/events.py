"""From one event of the tracer to one record; what an event should hold and does not raises."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from prefixscope.trace.ranges import Ranges, intersect, subtract
from prefixscope.trace.records import Evicted, Group, GroupView, Header, Lookup, Step, Stored

Views = tuple[tuple[GroupView, ...], tuple[int, ...]]

_ENGINE_ID = re.compile(r"^(?:chatcmpl|cmpl)-(?P<ours>.+)-[0-9a-f]{8}$")


def our_id(engine_request_id: str) -> str:
    """Our X-Request-Id inside the engine's own id (``chatcmpl-OURS-8hex``); other ids stay as they are."""
    match = _ENGINE_ID.match(engine_request_id)
    return match["ours"] if match else engine_request_id


def read_header(event: Mapping[str, Any]) -> Header:
    """One engine, as its first event says."""
    groups = tuple(
        Group(
            gid=int(row["gid"]),
            kind=str(row["kind"]),
            block_size=int(row["block_size"]),
            window=_optional(row["window"]),
            layers=int(row["layers"]),
            drafter=bool(row["drafter"]),
            bytes_per_block=_optional(row["bytes_per_block"]),
            spec=str(row.get("spec", "")),
            fields=json.dumps(row["fields"], sort_keys=True) if row.get("fields") else "",
            layer_names=tuple(map(str, row.get("layer_names", ()))),
        )
        for row in event["groups"]
    )
    interval = event["interval"]
    return Header(
        version=str(event["version"]),
        groups=groups,
        scheduler_block=int(event["scheduler_block"]),
        hash_block=int(event["hash_block"]),
        pool_blocks=int(event["pool_blocks"]),
        interval=interval if isinstance(interval, str) else _optional(interval),
        spec_method=event["spec_method"],
        spec_tokens=_optional(event["spec_tokens"]),
        pid=int(event["pid"]),
        dp_rank=_optional(event["dp_rank"]),
        engine=str(event["engine"]),
        t=float(event["t"]),
        caching=bool(event["caching"]),
        alignment=int(event["alignment"]),
        drop_groups=tuple(int(gid) for gid in event["drop_groups"]),
        min_prompt_tokens=_optional(event.get("min_prompt_tokens")),
        max_batched_tokens=_optional(event.get("max_batched_tokens")),
        max_seqs=_optional(event.get("max_seqs")),
    )


def read_views(header: Header, event: Mapping[str, Any]) -> Views:
    """Every group as one lookup found it, in group order, and the groups that limit the hit."""
    rows = {int(gid): row for row in event["groups"] for gid in row["gids"]}
    missing = {gid: _missing(row, _group(header, gid)) for gid, row in rows.items()}
    asked = {int(gid) for gid in event["limiting"]}
    # Groups searched together fail together; those that lack a block are the ones to name.
    limiting = {gid for gid in asked if missing[gid]} or asked
    read = []
    for gid, row in sorted(rows.items()):
        needed, scanned = row["needed"], row.get("scanned")
        read.append(
            GroupView(
                group=_group(header, gid),
                cached=_ranges(row["cached"] or ()),
                needed=None if needed is None else _span(needed),
                missing=missing[gid],
                backs_tokens=_optional(row["backs"]),
                limiting=gid in limiting,
                known=row["cached"] is not None,
                scanned=None if scanned is None else _span(scanned),
                partial_tokens=tuple(row.get("partial_tokens", ())),
                evicted=_ranges(row.get("evicted", ())),
            )
        )
    return tuple(read), tuple(sorted(limiting))


def read_steps(event: Mapping[str, Any]) -> tuple[Step, ...]:
    """The steps of a lookup's fixed point."""
    return tuple(
        Step(tuple(one["gids"]), one["candidate"], one["max"], one["drop"], one["backs"]) for one in event["steps"]
    )


def read_lookup(header: Header, event: Mapping[str, Any], found: Views, steps: tuple[Step, ...]) -> Lookup:
    """One lookup, its groups and steps already read: both repeat themselves over a trace and are shared."""
    closest, near = event.get("closest"), event.get("near")
    engine_id = str(event["request"])
    views, limiting = found
    return Lookup(
        request_id=our_id(engine_id),
        t=float(event["t"]),
        prompt_tokens=int(event["prompt_tokens"]),
        hit_tokens=int(event["hit_tokens"]),
        candidate_tokens=_optional(event["candidate_tokens"]),
        junction_tokens=_optional(event["junction_tokens"]),
        groups=views,
        limiting=limiting,
        steps=steps,
        admitted_tokens=None,
        header=header,
        engine_request_id=engine_id,
        number=int(event["n"]),
        tokens=int(event["tokens"]),
        max_hit_tokens=int(event["max_hit_tokens"]),
        reachable_tokens=_optional(event.get("reachable_tokens")),
        closest_id=our_id(str(closest["request"])) if closest else None,
        closest_engine_id=str(closest["request"]) if closest else None,
        common_tokens=int(closest["common_tokens"]) if closest else 0,
        exact_tokens=_optional(closest.get("exact_tokens")) if closest else None,
        near_id=our_id(str(near["request"])) if near else None,
        near_tokens=int(near["common_tokens"]) if near else 0,
        near_scope=bool(near["same_scope"]) if near else True,
        skipped=bool(event["skipped"]),
        scan=str(event["scan"]),
        free_blocks=_optional(event.get("free_blocks")),
        hook_us=_optional(event.get("hook_us")),
        evicted_s=(float(gone[0]), float(gone[1])) if (gone := event.get("evicted_s")) else None,
    )


def read_evicted(header: Header, event: Mapping[str, Any]) -> tuple[Evicted, ...]:
    """What was evicted, per group."""
    return tuple(
        Evicted(
            t=float(event["t"]),
            engine=header.engine,
            gid=_group(header, row["gid"]).gid,
            blocks=int(row["blocks"]),
            ranges=_ranges(row.get("ranges", ())),
        )
        for row in event["groups"]
    )


def read_stored(header: Header, event: Mapping[str, Any]) -> tuple[Stored, ...]:
    """The store side of one request, in group order."""
    rows: list[Stored] = []
    for row in event["groups"]:
        kept, dropped, null = _ranges(row["kept"]), _ranges(row["dropped"]), _ranges(row.get("null", ()))
        boundaries = tuple(int(one) for one in row.get("boundaries", ()))
        rows += [Stored(_group(header, gid), kept, dropped, boundaries, null) for gid in row["gids"]]
    return tuple(sorted(rows, key=lambda one: one.group.gid))


def _group(header: Header, gid: Any) -> Group:
    if int(gid) < 0:
        raise IndexError(f"no group {gid}")  # which a list would take for its last one
    return header.groups[int(gid)]


def _missing(row: Mapping[str, Any], group: Group) -> Ranges:
    needed, cached, scanned = row["needed"], row["cached"], row.get("scanned")
    if needed is None or cached is None:
        return ()
    inside = [needed] if scanned is None else intersect([needed], [scanned])
    if group.kind == "mamba" and (_optional(row["backs"]) or 0) > needed[0] * group.block_size:
        # Backed by a state inside the block.
        return ()
    return subtract(inside, cached)


def _span(pair: Sequence[Any]) -> tuple[int, int]:
    start, stop = (int(one) for one in pair)
    if not 0 <= start <= stop:
        raise ValueError(f"not a block range: {start}, {stop}")
    return start, stop


def _ranges(rows: Iterable[Sequence[int]]) -> Ranges:
    found = tuple((int(start), int(stop)) for start, stop in rows)
    if any(start < 0 or stop <= start for start, stop in found):
        raise ValueError(f"not block ranges: {found}")
    return found


def _optional(value: Any) -> int | None:
    return None if value is None else int(value)
