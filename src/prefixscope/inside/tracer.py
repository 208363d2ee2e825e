"""A vLLM general plugin that records what the prefix cache holds, what each lookup needed, and what was stored.

It does nothing unless PREFIXSCOPE_TRACE_DIR names a folder. PREFIXSCOPE_TRACE_MAX_MB bounds each file (default 256).
Events are JSON lines; ranges are half-open and count a group's own blocks. No token id and no text is ever written.

| event | one per | what it holds |
|---|---|---|
| header | engine (scheduler) | release, groups, block sizes, pool, interval, speculative method |
| lookup | request, and again when its outcome changes | steps of the fixed point, cached and needed blocks, hit |
| retry | request that was looked up and not admitted | the first time only; the count is on `admit` |
| admit | admission | the hit that was used, how many lookups and retries came before |
| store | request, when its prompt is stored and when it ends | kept and dropped blocks, the boundaries aimed at |
| preempt, reset, evict, gap, off | | evictions are counts per group since the last line |

Every hook is guarded: the first exception turns tracing off with one log line and never reaches the engine.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from . import versions
from .ranges import Ranges, from_flags, union
from .writer import Writer

DIRECTORY = "PREFIXSCOPE_TRACE_DIR"
LIMIT = "PREFIXSCOPE_TRACE_MAX_MB"

# Scanning may use this share of the wall clock; a burst is what an idle engine may spend at once.
_SHARE, _BURST_S = 0.01, 0.25
_RECENT_REQUESTS, _RECENT_HASHES = 128, 400_000
_OPEN_REQUESTS = 20_000
_MARK = "_prefixscope_trace"

logger = logging.getLogger("vllm.prefixscope")


def register() -> None:
    """Install the hooks in this process, once; vLLM calls it in every process that it starts, sometimes twice."""
    directory = os.environ.get(DIRECTORY)
    if not directory or _Tracer.current is not None:
        return
    tracer = _Tracer(directory, _limit_bytes())
    _Tracer.current = tracer
    try:
        tracer.install(versions.load())
    except Exception as error:
        # Whatever the reason, an engine must start as if no tracer were there.
        tracer.turn_off(str(error) if isinstance(error, versions.Unexpected) else repr(error))


def _limit_bytes() -> int:
    try:
        return int(float(os.environ.get(LIMIT, "256")) * 1024 * 1024)
    except ValueError:
        return 256 * 1024 * 1024


class _Request:
    """What is remembered of one request until it ends."""

    __slots__ = (
        "admitted",
        "boundaries",
        "dropped",
        "kept",
        "lookups",
        "prompt_stored",
        "retries",
        "signature",
        "unwritten",
    )

    def __init__(self) -> None:
        self.signature: object = None
        self.lookups = self.retries = 0
        self.admitted = self.prompt_stored = self.unwritten = False
        self.kept: dict[int, Ranges] = {}
        self.dropped: dict[int, Ranges] = {}
        self.boundaries: dict[int, list[int]] = {}


class _Engine:
    """One KV cache manager (one scheduler) and the requests it is busy with."""

    def __init__(self, manager: Any, vllm_config: Any = None) -> None:
        self.key = os.urandom(4).hex()
        self.vllm_config = vllm_config
        self.coordinator = manager.coordinator
        self.managers = tuple(self.coordinator.single_type_managers)
        groups = manager.kv_cache_config.kv_cache_groups
        self.kinds = [versions.kind(group.kv_cache_spec) for group in groups]
        self.pools = [getattr(one, "block_pool", manager.block_pool) for one in self.managers]
        self.block_sizes = [int(one.block_size) for one in self.managers]
        self.hash_block = int(manager.block_pool.hash_block_size)
        self.alignment = versions.alignment_tokens(self.coordinator)
        self.drop = set(versions.drop_groups(self.coordinator)) if manager.enable_caching else set()
        self.requests: dict[str, _Request] = {}
        self.recent: deque[tuple[str, Sequence[bytes]]] = deque()
        self.recent_hashes = 0
        self.evicted: dict[int, int] = {}
        self.reach: dict[int, int | None] = {}

    def request(self, request_id: str) -> _Request:
        found = self.requests.get(request_id)
        if found is None:
            found = self.requests[request_id] = _Request()
            if len(self.requests) > _OPEN_REQUESTS:
                # An engine that forgets to end requests must not make us grow without bound.
                self.requests.pop(next(iter(self.requests)))
        return found

    def reachable(self, tokens: int, *, ask: bool = True) -> int | None:
        """The hit that this release's own lookup gives a prompt of so many tokens when every block is cached.

        Without ``ask`` only a length that was asked before is answered.
        """
        units = (tokens - 1) // self.hash_block
        if units not in self.reach and ask:
            if len(self.reach) > 4096:
                self.reach.clear()
            self.reach[units] = versions.hit_if_all_cached(self.coordinator, tokens, self.hash_block)
        return self.reach.get(units)

    def shortest_that_hits(self) -> int | None:
        """Tokens of the shortest prompt that can hit at all; None where the first 64 alignments bring nothing."""
        for units in range(1, 64 * self.alignment // self.hash_block + 1):
            if self.reachable(units * self.hash_block + 1):
                return units * self.hash_block + 1
        return None

    def closest(self, request_id: str, hashes: Sequence[bytes]) -> tuple[str, int] | None:
        """The newest earlier request that shares the longest prefix with this one, and how many tokens of it.

        Hashes are chained, so equal hashes at one position mean equal prefixes up to there.
        """
        best: tuple[str, int] | None = None
        if not hashes:
            return None
        for other_id, other in reversed(self.recent):
            if other_id == request_id or not other or other[0] != hashes[0]:
                continue
            low, high = 1, min(len(hashes), len(other))
            while low < high:
                middle = (low + high + 1) // 2
                if other[middle - 1] == hashes[middle - 1]:
                    low = middle
                else:
                    high = middle - 1
            if best is None or low * self.hash_block > best[1]:
                best = (other_id, low * self.hash_block)
                if low == len(hashes):
                    break
        return best

    def remember(self, request_id: str, hashes: Sequence[bytes]) -> None:
        self.recent.append((request_id, hashes))
        self.recent_hashes += len(hashes)
        while len(self.recent) > _RECENT_REQUESTS or (self.recent_hashes > _RECENT_HASHES and len(self.recent) > 1):
            self.recent_hashes -= len(self.recent.popleft()[1])


class _Tracer:
    current: _Tracer | None = None

    def __init__(self, directory: str, limit_bytes: int) -> None:
        self.writer = Writer(directory, limit_bytes)
        self.on = False
        self.version = ""
        self.spent_s = 0.0
        self.thinned = 0
        self.allowance_s, self.refilled = _BURST_S, time.monotonic()
        self.per_block_s = 0.2e-6
        self.local = threading.local()
        self.contiguous: Callable[..., int] | None = None

    # ---- turning on and off

    def install(self, found: dict[str, Any]) -> None:
        self.version = found["version"]
        self.contiguous = found["SlidingWindowManager"]._contiguous_blocks_for_hit
        manager, pool, scheduler = found["KVCacheManager"], found["BlockPool"], found["Scheduler"]
        for owner, name, hook in (
            (scheduler, "__init__", self._scheduler_init),
            (scheduler, "_preempt_request", self._preempt),
            (manager, "get_computed_blocks", self._lookup),
            (manager, "allocate_slots", self._allocate),
            (manager, "free", self._free),
            (manager, "pop_blocks_for_free", self._free),
            (pool, "cache_full_blocks", self._store),
            (pool, "_maybe_evict_cached_block", self._evict),
            (pool, "reset_prefix_cache", self._reset),
        ):
            _replace(owner, name, hook)
        for one in found["managers"]:
            if "find_longest_cache_hit" in vars(one):
                _replace_classmethod(one, "find_longest_cache_hit", self._step)
            if "reachable_block_mask" in vars(one):
                _replace_classmethod(one, "reachable_block_mask", self._rule)
        self.on = True

    def turn_off(self, reason: str) -> None:
        """Stop recording; one log line, one `off` event."""
        self.on = False
        logger.warning("prefixscope: tracing is off: %s", reason)
        try:
            self.writer.write("off", {"reason": reason, "version": self.version})
        except Exception:
            # The log line above has said it; a full disk must not become the engine's problem.
            return

    def guarded(self, part: Callable[..., Any], *args: Any) -> Any:
        """Run one piece of recording; the first failure turns tracing off."""
        if not self.on:
            return None
        started = time.perf_counter()
        try:
            return part(*args)
        except Exception as error:
            # Recording is never worth an engine: whatever went wrong, stop recording.
            self.turn_off(f"{part.__name__}: {error!r}")
            return None
        finally:
            self.spent_s += time.perf_counter() - started

    def write(self, engine: _Engine, event: str, fields: dict[str, Any]) -> None:
        if engine.evicted:
            counts, engine.evicted = engine.evicted, {}
            rows = [{"gid": gid, "blocks": blocks} for gid, blocks in sorted(counts.items())]
            self.writer.write("evict", {"engine": engine.key, "groups": rows})
        self.writer.write(event, {"engine": engine.key, **fields})

    def engine(self, manager: Any, vllm_config: Any = None) -> _Engine:
        found: _Engine | None = getattr(manager, _MARK, None)
        if found is None:
            found = _Engine(manager, vllm_config)
            setattr(manager, _MARK, found)
            for pool in {id(one): one for one in [manager.block_pool, *found.pools]}.values():
                setattr(pool, _MARK, found)
            self._header(found, manager)
        return found

    # ---- hooks: each gets the original function and its arguments

    def _scheduler_init(self, original: Any, scheduler: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(scheduler, *args, **kwargs)
        self.guarded(self._note_scheduler, scheduler)
        return result

    def _note_scheduler(self, scheduler: Any) -> None:
        self.engine(scheduler.kv_cache_manager, scheduler.vllm_config)

    def _lookup(self, original: Any, manager: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        steps: list[dict[str, Any]] = []
        self.local.steps = steps if self.on else None
        try:
            result = original(manager, request, *args, **kwargs)
        finally:
            self.local.steps = None
        self.guarded(self._note_lookup, manager, request, steps, result)
        return result

    def _step(self, original: Any, cls: Any, *args: Any, **kwargs: Any) -> Any:
        steps = getattr(self.local, "steps", None)
        if steps is None:
            return original(cls, *args, **kwargs)
        # A manager that calls its parent's search must be recorded once.
        self.local.steps = None
        try:
            result = original(cls, *args, **kwargs)
        finally:
            self.local.steps = steps
        self.guarded(self._note_step, steps, kwargs, result)
        return result

    def _note_step(self, steps: list[dict[str, Any]], kwargs: dict[str, Any], result: Any) -> None:
        steps.append(
            {
                "gids": list(kwargs["kv_cache_group_ids"]),
                "max": int(kwargs["max_length"]),
                "drop": bool(kwargs["drop_eagle_block"]),
                "backs": int(result[1]),
            }
        )

    def _allocate(self, original: Any, manager: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(manager, request, *args, **kwargs)
        if self.on:
            self.guarded(self._note_allocate, manager, request, args, kwargs, result is not None)
        return result

    def _free(self, original: Any, manager: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        self.guarded(self._note_end, manager, request)
        return original(manager, request, *args, **kwargs)

    def _preempt(self, original: Any, scheduler: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        self.guarded(self._note_preempt, scheduler, request)
        return original(scheduler, request, *args, **kwargs)

    def _rule(self, original: Any, cls: Any, *args: Any, **kwargs: Any) -> Any:
        # The boundaries reach us here and the blocks in `cache_full_blocks`, called next on the same thread.
        self.local.boundaries = kwargs.get("reachable_boundaries")
        return original(cls, *args, **kwargs)

    def _store(self, original: Any, pool: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(pool, *args, **kwargs)
        boundaries, self.local.boundaries = getattr(self.local, "boundaries", None), None
        if self.on:
            self.guarded(self._note_store, pool, args, kwargs, boundaries)
        return result

    def _evict(self, original: Any, pool: Any, block: Any) -> Any:
        key = block.block_hash
        result = original(pool, block)
        if key is not None and result and self.on:
            self.guarded(self._note_evict, pool, key)
        return result

    def _reset(self, original: Any, pool: Any) -> Any:
        result = original(pool)
        self.guarded(self._note_reset, pool, bool(result))
        return result

    # ---- what each hook records

    def _header(self, engine: _Engine, manager: Any) -> None:
        config, coordinator = manager.kv_cache_config, engine.coordinator
        groups = []
        for gid, group in enumerate(config.kv_cache_groups):
            spec = group.kv_cache_spec
            groups.append(
                {
                    "gid": gid,
                    "kind": engine.kinds[gid],
                    "spec": type(spec).__name__,
                    "block_size": engine.block_sizes[gid],
                    "window": versions.window(spec),
                    "layers": len(group.layer_names),
                    "layer_names": list(group.layer_names),
                    "drafter": versions.is_drafter(group),
                    # One block of a group spans its layers' pages.
                    "bytes_per_block": int(spec.page_size_bytes) * (1 if _uniform(spec) else len(group.layer_names)),
                }
            )
        fields: dict[str, Any] = {
            "version": self.version,
            "caching": bool(manager.enable_caching),
            "groups": groups,
            "scheduler_block": int(coordinator.scheduler_block_size),
            "hash_block": engine.hash_block,
            "alignment": engine.alignment,
            "pool_blocks": int(config.num_blocks),
            "interval": versions.interval(coordinator),
            "drop_groups": sorted(engine.drop),
            "min_prompt_tokens": engine.shortest_that_hits() if manager.enable_caching else None,
            "spec_method": None,
            "spec_tokens": None,
            "dp_rank": None,
        }
        if engine.vllm_config is not None:
            speculative = engine.vllm_config.speculative_config
            if speculative is not None:
                fields["spec_method"] = str(speculative.method)
                fields["spec_tokens"] = int(speculative.num_speculative_tokens)
            parallel = engine.vllm_config.parallel_config
            fields["dp_rank"] = int(getattr(parallel, "data_parallel_index", parallel.data_parallel_rank))
        self.write(engine, "header", fields)

    def _note_lookup(self, manager: Any, request: Any, steps: list[dict[str, Any]], result: Any) -> None:
        started = time.perf_counter()
        engine = self.engine(manager)
        entry = engine.request(request.request_id)
        entry.lookups += 1
        hit, junction = int(result[1]), int(result[2])
        signature = (hit, junction, int(request.num_tokens), [tuple(map(str, step.values())) for step in steps])
        if entry.signature == signature:
            # A request stuck in the queue is looked up at every step: count it, don't scan again.
            return
        first = entry.signature is None
        entry.signature = signature
        ceiling = max((step["max"] for step in steps), default=0)
        candidate = int(request.num_tokens) - 1
        if steps and steps[0]["max"] < candidate:
            candidate = steps[0]["max"]
        ceiling = max(ceiling, candidate)
        limiting: list[int] = []
        limiting_candidate = None
        for step in steps:
            step["candidate"] = candidate
            rounded = candidate // engine.alignment * engine.alignment
            if step["backs"] < rounded:
                limiting, limiting_candidate = step["gids"], rounded
            candidate = min(candidate, step["backs"])
        hashes = request.block_hashes
        groups, scan = self._scan(engine, hashes, steps, limiting, ceiling)
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
        if first:
            closest = engine.closest(request.request_id, hashes)
            if closest is not None:
                fields["closest"] = {"request": closest[0], "common_tokens": closest[1]}
            engine.remember(request.request_id, hashes)
        fields["hook_us"] = round((time.perf_counter() - started) * 1e6)
        fields["hook_total_us"] = round(self.spent_s * 1e6)
        self.write(engine, "lookup", fields)

    def _scan(
        self,
        engine: _Engine,
        hashes: Sequence[bytes],
        steps: list[dict[str, Any]],
        limiting: list[int],
        ceiling: int,
    ) -> tuple[list[dict[str, Any]], str]:
        """Cached and needed blocks of every group; ``full``, ``narrow`` or ``none`` as the allowance permits."""
        needs = [self._needed(engine, gid, steps, gid in limiting, ceiling) for gid in range(len(engine.managers))]
        counts = [len(hashes) * engine.hash_block // size for size in engine.block_sizes]
        spans: list[list[int] | None] = [[0, count] for count in counts]
        scan = "full"
        if not self._afford(sum(counts)):
            # Look only around what the lookup needed.
            scan = "narrow"
            spans = []
            for need, count in zip(needs, counts, strict=True):
                width = 0 if need is None else min(need[1] - need[0], 256)
                spans.append(None if need is None else [max(0, need[1] - 2 * width), min(count, need[1] + width)])
            if not self._afford(sum(span[1] - span[0] for span in spans if span)):
                scan, spans = "none", [None] * len(counts)
        started, looked = time.perf_counter(), 0
        rows = []
        for gid, (span, need) in enumerate(zip(spans, needs, strict=True)):
            row: dict[str, Any] = {"gid": gid, "cached": None, "needed": need, "backs": _backs(steps, gid)}
            if span is not None:
                scale = engine.block_sizes[gid] // engine.hash_block
                keys, suffix = versions.cached_keys(engine.pools[gid]), versions.key_suffix(gid)
                start, stop = span
                found = [
                    hashes[index] + suffix in keys for index in range(start * scale + scale - 1, stop * scale, scale)
                ]
                looked += len(found)
                row["cached"] = from_flags(found, start)
                if scan != "full":
                    row["scanned"] = span
                if engine.alignment < engine.block_sizes[gid]:
                    # Fine-grained mode also finds blocks by a boundary inside them.
                    inside = [
                        index
                        for index in range(start * scale, min(len(hashes), stop * scale + scale))
                        if (index + 1) % scale and hashes[index] + suffix in keys
                    ]
                    row["partial_tokens"] = [(index + 1) * engine.hash_block for index in inside]
            rows.append(row)
        spent = time.perf_counter() - started
        self.allowance_s -= spent
        if looked > 200:
            self.per_block_s = 0.8 * self.per_block_s + 0.2 * spent / looked
        self.thinned += scan != "full"
        return rows, scan

    def _afford(self, blocks: int) -> bool:
        now = time.monotonic()
        self.allowance_s = min(_BURST_S, self.allowance_s + (now - self.refilled) * _SHARE)
        self.refilled = now
        return blocks * self.per_block_s <= self.allowance_s

    def _needed(
        self, engine: _Engine, gid: int, steps: list[dict[str, Any]], limiting: bool, ceiling: int
    ) -> list[int] | None:
        """Blocks that a hit at the group's own candidate takes: the one it could not back, else the last it was asked.

        | kind | blocks for a hit at c tokens |
        |---|---|
        | full | all up to c, one more where one is dropped, never past what the lookup may look at |
        | sliding | the window that ends at c, one more where one is dropped |
        | mamba | the one that ends at c |
        | chunked | from the start of c's chunk |
        """
        asked = [step for step in steps if gid in step["gids"] and step["candidate"] > 0]
        if not asked:
            return None
        kind, size = engine.kinds[gid], engine.block_sizes[gid]
        step = asked[-1]
        if limiting or kind == "full":
            for one in asked:
                if one["backs"] < one["candidate"] // engine.alignment * engine.alignment:
                    step = one
        extra = 1 if step["drop"] else 0
        if kind == "full":
            tokens = step["candidate"] if limiting else min(step["candidate"], step["backs"] or step["candidate"])
            return [0, min(tokens // size + extra, step["max"] // size)]
        end = step["candidate"] // engine.alignment * engine.alignment // size
        if kind == "sliding" and self.contiguous is not None:
            window = versions.window(engine.managers[gid].kv_cache_spec)
            if window is not None:
                stop = end + extra
                blocks = self.contiguous(window_size=window, block_size=size, use_eagle=step["drop"])
                return [max(0, stop - blocks), stop]
        if kind == "mamba":
            return [max(0, end - 1), end]
        if kind == "chunked":
            chunk = versions.window(engine.managers[gid].kv_cache_spec)
            if chunk is not None:
                return [step["candidate"] // chunk * chunk // size, end]
        return None

    def _note_allocate(
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

    def _note_store(self, pool: Any, args: tuple[Any, ...], kwargs: dict[str, Any], boundaries: Any) -> None:
        names = ("request", "blocks", "num_cached_blocks", "num_full_blocks", "block_size", "kv_cache_group_id")
        given = {**dict(zip((*names, "block_mask"), args, strict=False)), **kwargs}
        start, stop = int(given["num_cached_blocks"]), int(given["num_full_blocks"])
        engine: _Engine | None = getattr(pool, _MARK, None)
        if engine is None or start >= stop:
            return
        gid, mask = int(given["kv_cache_group_id"]), given.get("block_mask")
        blocks = given["blocks"]
        if mask is None:
            flags = [not blocks[index].is_null for index in range(start, stop)]
        else:
            flags = [bool(mask[index - start]) and not blocks[index].is_null for index in range(start, stop)]
        entry = engine.request(given["request"].request_id)
        entry.kept[gid] = union(entry.kept.get(gid, []), from_flags(flags, start))
        entry.dropped[gid] = union(entry.dropped.get(gid, []), from_flags([not flag for flag in flags], start))
        if boundaries is not None:
            entry.boundaries[gid] = sorted({int(one) for one in boundaries})
        entry.unwritten = True

    def _write_store(self, engine: _Engine, request_id: str, entry: _Request, when: str) -> None:
        rows = []
        for gid in sorted(entry.kept):
            row: dict[str, Any] = {"gid": gid, "kept": entry.kept[gid], "dropped": entry.dropped[gid]}
            if gid in entry.boundaries:
                row["boundaries"] = entry.boundaries[gid]
            rows.append(row)
        entry.unwritten = False
        entry.prompt_stored = True
        self.write(engine, "store", {"request": request_id, "when": when, "groups": _merged(rows)})

    def _note_end(self, manager: Any, request: Any) -> None:
        engine = self.engine(manager)
        entry = engine.requests.get(request.request_id)
        if entry is None:
            return
        if entry.unwritten:
            self._write_store(engine, request.request_id, entry, "end")
        if not entry.admitted:
            # Ended in the queue: nothing more will come of it.
            self.write(engine, "end", {"request": request.request_id, "lookups": entry.lookups})
        del engine.requests[request.request_id]

    def _note_preempt(self, scheduler: Any, request: Any) -> None:
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

    def _note_evict(self, pool: Any, key: bytes) -> None:
        engine: _Engine | None = getattr(pool, _MARK, None)
        if engine is not None:
            gid = versions.group_of_key(key)
            engine.evicted[gid] = engine.evicted.get(gid, 0) + 1

    def _note_reset(self, pool: Any, done: bool) -> None:
        engine: _Engine | None = getattr(pool, _MARK, None)
        if engine is not None:
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


def _backs(steps: list[dict[str, Any]], gid: int) -> int | None:
    backs = [step["backs"] for step in steps if gid in step["gids"]]
    return min(backs) if backs else None


def _uniform(spec: Any) -> bool:
    # A spec that bundles its layers already counts all their pages.
    return hasattr(spec, "kv_cache_specs")


def _replace(owner: Any, name: str, hook: Callable[..., Any]) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def traced(self: Any, *args: Any, **kwargs: Any) -> Any:
        return hook(original, self, *args, **kwargs)

    setattr(owner, name, traced)


def _replace_classmethod(owner: Any, name: str, hook: Callable[..., Any]) -> None:
    original = vars(owner)[name].__func__

    @functools.wraps(original)
    def traced(cls: Any, *args: Any, **kwargs: Any) -> Any:
        return hook(original, cls, *args, **kwargs)

    setattr(owner, name, classmethod(traced))
