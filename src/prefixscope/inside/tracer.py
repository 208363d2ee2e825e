"""A vLLM general plugin that records what the prefix cache holds, what each lookup needed, and what was stored.

It does nothing unless PREFIXSCOPE_TRACE_DIR names a folder. PREFIXSCOPE_TRACE_MAX_MB bounds each file (default 256).
Events are JSON lines; ranges are half-open and count a group's own blocks. No token id and no text is ever written.

| event | one per | what it holds |
|---|---|---|
| header | engine (scheduler) | release, groups, block sizes, pool, interval, speculative method |
| lookup | request, and again when its outcome changes | steps of the fixed point, cached, needed, evicted blocks, hit |
| retry | request that was looked up and not admitted | the first time only; the count is on `admit` |
| admit | admission | the hit that was used, how many lookups and retries came before |
| store | request, when its prompt is stored and when it ends | kept and dropped blocks, the boundaries aimed at |
| evict | line after evictions | blocks per group, with their positions in their prompts |
| preempt, reset, gap, off | | |

Where each field comes from. vLLM's own account is read where it has one; a hook only says when to read it.

| field | source (vLLM 0.28–0.33) |
|---|---|
| groups, block sizes, windows, bytes, pool | read: `KVCacheManager.kv_cache_config` and the managers' specs |
| interval, scheduler block, groups that drop | read: the coordinator, after it resolved them |
| speculative method and k, rank | read: `VllmConfig` |
| shortest prompt that hits, reachable hit | asked: `find_longest_cache_hit` of the coordinator, over a full pool |
| steps: candidate, what a group backs | hooked: each manager's `find_longest_cache_hit`; the coordinator's |
| | `find_longest_cache_hit_per_group` would look everything up a second time |
| hit, junction | the return value of `KVCacheManager.get_computed_blocks` |
| needed blocks of a sliding window | asked: `SlidingWindowManager._contiguous_blocks_for_hit` |
| cached blocks | read: the block pool's hash map (KV events tell the same, but a server has to be started with them) |
| admission, external tokens, retries | the arguments and the result of `KVCacheManager.allocate_slots` |
| kept and dropped blocks, boundaries | the arguments of `BlockPool.cache_full_blocks` and `reachable_block_mask` |
| evicted blocks | `FreeKVCacheBlockQueue.popleft_n`, positions from each block's `_block_hash_num_tokens` |
| needed blocks of full, Mamba and chunked groups, limiting group, closest request | ours, from the above |

Every hook is guarded: the first exception turns tracing off with one log line and never reaches the engine.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from . import versions
from .recorder import Recorder
from .writer import Writer

DIRECTORY = "PREFIXSCOPE_TRACE_DIR"
LIMIT = "PREFIXSCOPE_TRACE_MAX_MB"

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
        tracer.turn_off(str(error) if isinstance(error, versions.Unexpected) else _told(error))


def _limit_bytes() -> int:
    try:
        return int(float(os.environ.get(LIMIT, "256")) * 1024 * 1024)
    except ValueError:
        return 256 * 1024 * 1024


class _Local(threading.local):
    """What one call leaves for the next on its thread: a lookup's steps, a store's boundaries."""

    steps: list[tuple[dict[str, Any], int]] | None = None
    boundaries: Any = None


def _told(error: BaseException) -> str:
    """Kind and words of an error: an ``OSError``'s words name the file, its representation does not."""
    return f"{type(error).__name__}: {error}"


class _Tracer:
    """The hooks of one process, and the guard around everything that they record."""

    current: _Tracer | None = None

    def __init__(self, directory: str, limit_bytes: int) -> None:
        self.writer = Writer(directory, limit_bytes)
        self.recorder = Recorder(self.writer)
        self.on = False
        self.local = _Local()

    # ---- turning on and off

    def install(self, found: dict[str, Any]) -> None:
        self.recorder.version = found["version"]
        self.recorder.scanner.contiguous = found["SlidingWindowManager"]._contiguous_blocks_for_hit
        manager, pool, scheduler = found["KVCacheManager"], found["BlockPool"], found["Scheduler"]
        for owner, name, hook in (
            (scheduler, "__init__", self._scheduler_init),
            (scheduler, "_preempt_request", self._preempt),
            (manager, "get_computed_blocks", self._lookup),
            (manager, "allocate_slots", self._allocate),
            (manager, "free", self._free),
            (manager, "pop_blocks_for_free", self._free),
            (pool, "cache_full_blocks", self._store),
            (pool, "evict_blocks", self._evict),
            (found["FreeKVCacheBlockQueue"], "popleft_n", self._take),
            (pool, "reset_prefix_cache", self._reset),
        ):
            _replace(owner, name, hook)
        for one in found["managers"]:
            if "find_longest_cache_hit" in vars(one):
                _record_steps(one, self.local)
            if "reachable_block_mask" in vars(one):
                _replace_classmethod(one, "reachable_block_mask", self._rule)
        self.on = True

    def turn_off(self, reason: str) -> None:
        """Stop recording; one log line, one `off` event."""
        self.on = False
        logger.warning("prefixscope: tracing is off: %s", reason)
        try:
            self.writer.write("off", {"reason": reason, "version": self.recorder.version})
        except (OSError, ValueError, TypeError):
            # The log line above has said it; a full disk or a closed file must not become the engine's problem.
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
            self.turn_off(f"{part.__name__}: {_told(error)}")
            return None
        finally:
            self.recorder.spent_s += time.perf_counter() - started

    # ---- hooks: each gets the original function and its arguments

    def _scheduler_init(self, original: Any, scheduler: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(scheduler, *args, **kwargs)
        self.guarded(self.recorder.note_scheduler, scheduler)
        return result

    def _lookup(self, original: Any, manager: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        if not self.on:
            return original(manager, request, *args, **kwargs)
        steps: list[tuple[dict[str, Any], int]] = []
        self.local.steps = steps
        try:
            result = original(manager, request, *args, **kwargs)
        finally:
            self.local.steps = None
        self.guarded(self.recorder.note_lookup, manager, request, steps, result)
        return result

    def _allocate(self, original: Any, manager: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(manager, request, *args, **kwargs)
        if self.on:
            self.guarded(self.recorder.note_allocate, manager, request, args, kwargs, result is not None)
        return result

    def _free(self, original: Any, manager: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        self.guarded(self.recorder.note_end, manager, request)
        return original(manager, request, *args, **kwargs)

    def _preempt(self, original: Any, scheduler: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        self.guarded(self.recorder.note_preempt, scheduler, request)
        result = original(scheduler, request, *args, **kwargs)
        self.guarded(self.recorder.note_requeued, scheduler, request)
        return result

    def _rule(self, original: Any, cls: Any, *args: Any, **kwargs: Any) -> Any:
        # The boundaries reach us here and the blocks in `cache_full_blocks`, called next on the same thread.
        self.local.boundaries = kwargs.get("reachable_boundaries")
        return original(cls, *args, **kwargs)

    def _store(self, original: Any, pool: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(pool, *args, **kwargs)
        boundaries, self.local.boundaries = self.local.boundaries, None
        if self.on:
            self.guarded(self.recorder.note_store, pool, args, kwargs, boundaries)
        return result

    def _take(self, original: Any, queue: Any, *args: Any, **kwargs: Any) -> Any:
        # Free blocks about to be used again: one call for all of them, where evicting is one call for each.
        result = original(queue, *args, **kwargs)
        self.guarded(self.recorder.note_evict, queue, result)
        return result

    def _evict(self, original: Any, pool: Any, block_ids: Any) -> Any:
        block_ids = list(block_ids)
        self.guarded(self.recorder.note_evict_ids, pool, block_ids)
        return original(pool, set(block_ids))

    def _reset(self, original: Any, pool: Any) -> Any:
        result = original(pool)
        self.guarded(self.recorder.note_reset, pool, bool(result))
        return result


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


def _record_steps(owner: Any, local: _Local) -> None:
    """Let a manager's search leave what it was asked and what it backed; run at every step of every lookup."""
    original = vars(owner)["find_longest_cache_hit"].__func__

    @functools.wraps(original)
    def traced(cls: Any, *args: Any, **kwargs: Any) -> Any:
        steps = local.steps
        if steps is None:
            return original(cls, *args, **kwargs)
        # A manager that calls its parent's search must be recorded once.
        local.steps = None
        result = original(cls, *args, **kwargs)
        local.steps = steps
        # Read only where the answer is new: a queued request is looked up at every step of the engine.
        steps.append((kwargs, result[1]))
        return result

    owner.find_longest_cache_hit = classmethod(traced)
