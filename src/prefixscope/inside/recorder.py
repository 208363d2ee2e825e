"""What each hook records: events of one engine, written as they happen."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from .gone import MOST_UNWRITTEN
from .header import header_fields
from .ranges import from_flags, union
from .scan import Scanner
from .state import Engine, Recent, Request
from .writer import Writer

_MARK = "_prefixscope_trace"
_INVERTED = bytes([1, *[0] * 255])


class Recorder:
    """Turns what the hooks saw into events; ``spent_s`` is the time that all hooks have taken so far."""

    def __init__(self, writer: Writer) -> None:
        self.writer = writer
        self.scanner = Scanner()
        self.version = ""
        self.spent_s = 0.0

    def write(self, engine: Engine, event: str, fields: dict[str, Any]) -> None:
        """One event of an engine, after what was evicted since its last one."""
        self._write_evicted(engine)
        self.writer.write(event, {"engine": engine.key, **fields})

    def _write_evicted(self, engine: Engine) -> None:
        if engine.gone.unwritten:
            self.writer.write("evict", {"engine": engine.key, "groups": engine.gone.rows(engine.block_sizes)})

    def engine(self, manager: Any, vllm_config: Any = None) -> Engine:
        """The engine that a KV cache manager belongs to; its header is written when it is first seen."""
        found: Engine | None = getattr(manager, _MARK, None)
        if found is None:
            found = Engine(manager, vllm_config)
            setattr(manager, _MARK, found)
            for pool in {id(one): one for one in [manager.block_pool, *found.pools]}.values():
                setattr(pool, _MARK, found)
                setattr(pool.free_block_queue, _MARK, found)
            self.write(found, "header", header_fields(found, manager, self.version))
        return found

    def note_scheduler(self, scheduler: Any) -> None:
        self.engine(scheduler.kv_cache_manager, scheduler.vllm_config)

    def note_lookup(self, manager: Any, request: Any, asked: list[tuple[dict[str, Any], int]], result: Any) -> None:
        started = time.perf_counter()
        engine = self.engine(manager)
        entry = engine.request(request.request_id)
        entry.lookups += 1
        signature = (result[1], result[2], request.num_tokens, [backs for _, backs in asked])
        if entry.signature == signature:
            # A request stuck in the queue is looked up at every step: count it, don't scan again.
            return
        first = entry.signature is None
        entry.signature = signature
        hit, junction = int(result[1]), int(result[2])
        steps: list[dict[str, Any]] = [
            {
                "gids": list(given["kv_cache_group_ids"]),
                "max": int(given["max_length"]),
                "drop": bool(given["drop_eagle_block"]),
                "backs": int(backs),
            }
            for given, backs in asked
        ]
        ceiling = max((step["max"] for step in steps), default=0)
        candidate: int = int(request.num_tokens) - 1
        if steps and steps[0]["max"] < candidate:
            candidate = steps[0]["max"]
        ceiling = max(ceiling, candidate)
        limiting: list[int] = []
        limiting_candidate = None
        for step in steps:
            step["candidate"] = candidate
            rounded = candidate // engine.alignment * engine.alignment
            if step["backs"] < rounded:
                limiting, limiting_candidate = step["gids"], self.scanner.possible(engine, step, rounded)
            candidate = min(candidate, step["backs"])
        hashes = request.block_hashes
        groups, scan, gone = self.scanner.scan(engine, hashes, steps, limiting)
        fields: dict[str, Any] = {
            "request": request.request_id,
            "n": entry.lookups,
            "prompt_tokens": int(request.num_prompt_tokens),
            "tokens": int(request.num_tokens),
            "max_hit_tokens": ceiling,
            "hit_tokens": hit,
            "reachable_tokens": engine.reachable(int(request.num_tokens), ask=scan == "full") if steps else None,
            "candidate_tokens": limiting_candidate,
            "junction_tokens": junction or None,
            "skipped": not steps,
            "steps": steps,
            "limiting": limiting,
            "groups": _merged(groups),
            "scan": scan,
            "free_blocks": int(manager.block_pool.get_num_free_blocks()),
        }
        if gone:
            now = time.monotonic()
            # The newest and the oldest of the evictions that this prompt met, in seconds before now.
            fields["evicted_s"] = [round(now - max(gone), 3), round(now - min(gone), 3)]
        if first:
            mine = Recent(request)
            closest = engine.closest(mine)
            if closest is not None:
                fields["closest"] = {
                    "request": closest[0],
                    "common_tokens": closest[1],
                    "exact_tokens": closest[2],
                }
            elif near := engine.near(mine):
                fields["near"] = {"request": near[0], "common_tokens": near[1], "same_scope": near[2]}
            engine.remember(mine)
        fields["hook_us"] = round((time.perf_counter() - started) * 1e6)
        fields["hook_total_us"] = round(self.spent_s * 1e6)
        self.write(engine, "lookup", fields)

    def note_allocate(
        self, manager: Any, request: Any, args: tuple[Any, ...], kwargs: dict[str, Any], admitted: bool
    ) -> None:
        engine = self.engine(manager)
        entry = engine.requests.get(request.request_id)
        if entry is None:
            return
        if entry.admitted:
            if not entry.prompt_stored and entry.unwritten and request.num_computed_tokens >= request.num_prompt_tokens:
                self._write_store(engine, request.request_id, entry, "prompt")
            return
        if entry.signature is None:
            return
        if not admitted:
            entry.retries += 1
            if entry.retries == 1:
                self.write(engine, "retry", {"request": request.request_id})
            return
        entry.admitted = True
        # allocate_slots(request, num_new_tokens, num_new_computed_tokens, …)
        new = kwargs.get("num_new_computed_tokens", args[1] if len(args) > 1 else 0)
        fields = {
            "request": request.request_id,
            "hit_tokens": int(request.num_computed_tokens) + int(new),
            "external_tokens": int(kwargs.get("num_external_computed_tokens", 0)),
            "lookups": entry.lookups,
            "retries": entry.retries,
        }
        self.write(engine, "admit", fields)

    def note_store(self, pool: Any, args: tuple[Any, ...], kwargs: dict[str, Any], boundaries: Any) -> None:
        names = ("request", "blocks", "num_cached_blocks", "num_full_blocks", "block_size", "kv_cache_group_id")
        given = {**dict(zip((*names, "block_mask"), args, strict=False)), **kwargs}
        start, stop = int(given["num_cached_blocks"]), int(given["num_full_blocks"])
        engine: Engine | None = getattr(pool, _MARK, None)
        if engine is None or start >= stop:
            return
        gid, mask = int(given["kv_cache_group_id"]), given.get("block_mask")
        blocks = given["blocks"]
        if engine.kinds[gid] != "mamba" and not blocks[start].is_null:
            # Outside Mamba only blocks that a window has left behind are null, and those come first.
            null = bytes(stop - start)
        else:
            null = bytes([block.is_null for block in blocks[start:stop]])
        if mask is None:
            flags = null.translate(_INVERTED)
        else:
            flags = bytes(mask[: stop - start])
            if any(null):
                flags = bytes([want and not empty for want, empty in zip(flags, null, strict=True)])
        entry = engine.request(given["request"].request_id)
        entry.kept[gid] = union(entry.kept.get(gid, []), from_flags(flags, start))
        entry.dropped[gid] = union(entry.dropped.get(gid, []), from_flags(flags.translate(_INVERTED), start))
        if engine.kinds[gid] == "mamba" and any(null):
            # Prefill ended no chunk there, so there was no state to keep or drop.
            entry.null[gid] = union(entry.null.get(gid, []), from_flags(null, start))
        if boundaries is not None:
            entry.boundaries[gid] = sorted({int(one) for one in boundaries})
        entry.unwritten = True

    def _write_store(self, engine: Engine, request_id: str, entry: Request, when: str) -> None:
        rows = []
        for gid in sorted(entry.kept):
            row: dict[str, Any] = {"gid": gid, "kept": entry.kept[gid], "dropped": entry.dropped[gid]}
            if entry.null.get(gid):
                row["null"] = entry.null[gid]
            if gid in entry.boundaries:
                row["boundaries"] = entry.boundaries[gid]
            rows.append(row)
        entry.unwritten = False
        entry.prompt_stored = True
        self.write(engine, "store", {"request": request_id, "when": when, "groups": _merged(rows)})

    def note_end(self, manager: Any, request: Any) -> None:
        engine = self.engine(manager)
        entry = engine.requests.get(request.request_id)
        if entry is None:
            return
        if entry.requeueing:
            return
        if entry.unwritten:
            self._write_store(engine, request.request_id, entry, "end")
        if not entry.admitted:
            # Ended in the queue: nothing more will come of it.
            self.write(engine, "end", {"request": request.request_id, "lookups": entry.lookups})
        del engine.requests[request.request_id]

    def note_preempt(self, scheduler: Any, request: Any) -> None:
        engine = self.engine(scheduler.kv_cache_manager, scheduler.vllm_config)
        entry = engine.request(request.request_id)
        if entry.unwritten:
            self._write_store(engine, request.request_id, entry, "preempt")
        self.write(
            engine,
            "preempt",
            {"request": request.request_id, "computed_tokens": int(request.num_computed_tokens)},
        )
        # It will be looked up and admitted afresh, against a cache that may have changed.
        entry.signature = None
        entry.admitted = False
        entry.retries = 0
        # Its blocks are freed now, as if it ended.
        entry.requeueing = True

    def note_requeued(self, scheduler: Any, request: Any) -> None:
        entry = self.engine(scheduler.kv_cache_manager).requests.get(request.request_id)
        if entry is not None:
            entry.requeueing = False

    def note_evict(self, owner: Any, blocks: Iterable[Any]) -> None:
        engine: Engine | None = getattr(owner, _MARK, None)
        if engine is None:
            return
        engine.gone.take(blocks, time.monotonic())
        if engine.gone.unwritten > MOST_UNWRITTEN:
            self._write_evicted(engine)

    def note_evict_ids(self, pool: Any, block_ids: list[int]) -> None:
        self.note_evict(pool, [pool.blocks[one] for one in block_ids])

    def note_reset(self, pool: Any, done: bool) -> None:
        engine: Engine | None = getattr(pool, _MARK, None)
        if engine is not None:
            if done:
                engine.gone.forget()
            self.write(engine, "reset", {"done": done})


def _merged(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Groups with equal content share one row: most models have many groups and few kinds."""
    found: list[dict[str, Any]] = []
    for row in rows:
        content = {name: value for name, value in row.items() if name != "gid"}
        for other in found:
            if all(other[name] == value for name, value in content.items()) and len(other) == len(row):
                other["gids"].append(row["gid"])
                break
        else:
            found.append({"gids": [row["gid"]], **content})
    return found
