"""A worker in an engine's Python that answers with what that vLLM's own scheduler would hit: JSON lines in and out.

A request line is ``{"id": n, "op": "replay", "geometry": …, "setting": …, "requests": […], …}``; the answers are
``{"id": n, "rows": […]}`` as they come, then ``{"id": n, "done": {…}}``, or ``{"id": n, "error": {…}}``. One line
comes first: ``{"ready": "0.29.0"}``. It ends when its input does. ``{"id": n, "op": "group", "model": {…}}`` is
answered with the geometry of a model, see `grouping`.

| request field | meaning |
|---|---|
| id | any text; the row carries it |
| segments | the prompt: ``[content, length]`` pairs, see `contents` |
| salt, lora | what else tells its blocks apart |
| answer | ``[content, length]``: the tokens generated; one token of its own without |
| accepted | draft tokens accepted in each step, 0 unless given |
| tally | true: its row has ``kept``, too |
| reset | true: no request, the prefix cache is reset here |

A row: ``id``, ``prompt_tokens``, ``hit``, ``preempted``, ``evicted`` (blocks, since the row before), ``cached_blocks``
(in the pool, after it), ``kept`` (the same of each group).
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from . import engine_api, versions
from .building import Builder, Built, Refused, endless_pool, quiet
from .contents import Contents
from .grouping import Grouper

_ROWS_EVERY_S = 0.25
_STEPS_WITHOUT_PROGRESS = 1000


class Replay:
    """Requests through one scheduler, one after another or ``concurrency`` at once."""

    def __init__(self, built: Built, contents: Contents, sizes: Sequence[int]) -> None:
        from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput

        self._output, self._drafts = ModelRunnerOutput, DraftTokenIds
        self._built, self._scheduler, self._contents = built, built.scheduler, contents
        self._evictions, self._sizes = engine_api.Evictions(built.pool), sizes
        self._live: dict[str, _Live] = {}
        self._number = 0

    def run(self, wanted: Sequence[Mapping[str, Any]], concurrency: int, row: Callable[[dict[str, Any]], None]) -> None:
        """Drives the scheduler until every request is done; ``row`` takes each when it is."""
        waiting = deque(wanted)
        idle = 0
        while waiting or self._live:
            while waiting and len(self._live) < concurrency:
                if waiting[0].get("reset"):
                    if self._live:
                        break
                    waiting.popleft()
                    self._scheduler.reset_prefix_cache()
                    continue
                self._add(waiting.popleft())
            if not self._live:
                continue
            longest = max(len(live.tokens) + len(live.answer) for live in self._live.values())
            done = self._step()
            for one in done:
                row(self._row(one))
            idle = 0 if done else idle + 1
            if idle > _STEPS_WITHOUT_PROGRESS + longest:
                names = ", ".join(f"{one.wanted['id']} ({len(one.tokens):,} tokens)" for one in self._live.values())
                blocks = int(self._scheduler.kv_cache_manager.kv_cache_config.num_blocks)
                raise Refused("pool", f"with a pool of {blocks:,} blocks its scheduler never ends request {names}")

    def _add(self, wanted: Mapping[str, Any]) -> None:
        segments = [(str(name), int(length)) for name, length in wanted["segments"]]
        scope = (wanted.get("salt"), wanted.get("lora"))
        self._number += 1
        answer = wanted.get("answer") or [f"answer {self._number} of {wanted['id']}", 1]
        live = _Live(wanted, self._contents.tokens(segments), self._contents.tokens([(str(answer[0]), int(answer[1]))]))
        request = engine_api.make_request(
            f"chatcmpl-{wanted['id']}-{self._number:08x}",
            live.tokens,
            max_tokens=len(live.answer),
            salt=wanted.get("salt"),
            lora=wanted.get("lora"),
            hasher=self._contents.hasher(segments, scope),
        )
        live.request = request
        self._live[request.request_id] = live
        self._scheduler.add_request(request)

    def _step(self) -> list[_Live]:
        """One step of the scheduler; the requests that it ended."""
        output = self._scheduler.schedule()
        for new in output.scheduled_new_reqs:
            live = self._live[new.req_id]
            if live.hit is None:  # a preempted request is looked up again: its usage keeps the first
                live.hit = int(new.num_computed_tokens)
        ids = list(output.num_scheduled_tokens)
        sampled: list[list[int]] = []
        drafted = []
        for name in ids:
            live = self._live[name]
            request = live.request
            # A preempted request computes its answer's tokens again before it gets another.
            if request.num_computed_tokens < request.num_tokens:
                sampled.append([])
                continue
            drafts = len(output.scheduled_spec_decode_tokens.get(name, ()))
            accepted = min(int(live.wanted.get("accepted", 0)), drafts)
            place = len(request.output_token_ids)
            sampled.append(live.answer[place : place + 1 + accepted] or [0])
            drafted.append(name)
        self._scheduler.update_from_output(
            output,
            self._output(
                req_ids=ids,
                req_id_to_index={name: index for index, name in enumerate(ids)},
                sampled_token_ids=sampled,
                logprobs=None,
                prompt_logprobs_dict={},
                pooler_output=[],
            ),
        )
        ended = [name for name in ids if self._live[name].request.is_finished()]
        if self._built.spec_tokens and len(drafted) > len(ended):
            running = [name for name in drafted if name not in ended]
            self._scheduler.update_draft_token_ids(
                self._drafts(running, [[0] * self._built.spec_tokens for _ in running])
            )
        return [self._live.pop(name) for name in ended]

    def _row(self, live: _Live) -> dict[str, Any]:
        keys = versions.cached_keys(self._built.pool)
        found = {
            "id": live.wanted["id"],
            "prompt_tokens": len(live.tokens),
            "hit": live.hit,
            "preempted": int(live.request.num_preemptions),
            "evicted": self._evictions.take(),
            "cached_blocks": len(keys),
        }
        if live.wanted.get("tally"):
            found["kept"] = versions.whole_blocks(keys, self._sizes)
        return found


class _Live:
    """A request on its way."""

    __slots__ = ("answer", "hit", "request", "tokens", "wanted")

    def __init__(self, wanted: Mapping[str, Any], tokens: list[int], answer: list[int]) -> None:
        self.wanted, self.tokens, self.answer = wanted, tokens, answer
        self.request: Any = None
        self.hit: int | None = None


class Worker:
    """Answers one line after another."""

    def __init__(self, model_dir: Path, answers: TextIO) -> None:
        self._builder, self._answers = Builder(model_dir), answers
        self._contents: dict[tuple[int, int], Contents] = {}
        self._grouper = Grouper()

    def answer(self, line: str) -> None:
        asked = json.loads(line)
        name = asked.get("id")
        try:
            done = self._grouper.ask(asked["model"]) if asked["op"] == "group" else self._replay(asked, name)
        except Refused as error:
            self.say({"id": name, "error": {"about": error.about, "message": str(error)}})
        except (KeyError, TypeError, ValueError) as error:
            self.say({"id": name, "error": {"about": "request", "message": f"{type(error).__name__}: {error}"}})
        else:
            self.say({"id": name, "done": done})

    def say(self, answer: Mapping[str, Any]) -> None:
        self._answers.write(json.dumps(answer, separators=(",", ":")) + "\n")
        self._answers.flush()

    def _replay(self, asked: Mapping[str, Any], name: object) -> dict[str, Any]:
        began = time.perf_counter()
        geometry, requests = asked["geometry"], asked["requests"]
        concurrency = int(asked.get("concurrency", 1))
        given, stretches = asked["setting"].get("pool_blocks"), _stretches(requests)
        built = self._builder.build(
            geometry, asked["setting"], lambda sizes: int(given or endless_pool(sizes, stretches, concurrency))
        )
        key = (built.hash_block, built.lookahead)
        if key not in self._contents:
            self._contents[key] = Contents(engine_api.block_hasher(*key), *key)
        rows: list[dict[str, Any]] = []
        told = time.monotonic()

        def row(one: dict[str, Any]) -> None:
            nonlocal told
            rows.append(one)
            if time.monotonic() - told >= _ROWS_EVERY_S:
                self.say({"id": name, "rows": rows})
                rows.clear()
                told = time.monotonic()

        sizes = [int(one.block_size) for one in built.scheduler.kv_cache_manager.coordinator.single_type_managers]
        Replay(built, self._contents[key], sizes).run(requests, concurrency, row)
        self.say({"id": name, "rows": rows})
        manager = built.scheduler.kv_cache_manager
        kept = versions.whole_blocks(versions.cached_keys(built.pool), sizes)
        return {
            "pool_blocks": int(manager.kv_cache_config.num_blocks),
            "interval": versions.interval(manager.coordinator),
            "drop_groups": versions.drop_groups(manager.coordinator),
            "lookahead_tokens": built.lookahead,
            "cached_blocks": {str(gid): blocks for gid, blocks in enumerate(kept)},
            "bytes_per_block": engine_api.block_bytes(geometry["groups"], built.scheduler.kv_cache_config),
            "left_out": built.left_out,
            "regrouped": built.regrouped,
            "seconds": round(time.perf_counter() - began, 4),
        }


def _stretches(requests: Sequence[Mapping[str, Any]]) -> list[list[int]]:
    """The tokens of each request, answer and drafts included, from one reset of the prefix cache to the next."""
    found: list[list[int]] = [[]]
    for one in requests:
        if one.get("reset"):
            found.append([])
        else:
            answer = one["answer"][1] if one.get("answer") else 1
            found[-1].append(sum(length for _, length in one["segments"]) + answer + 64)
    return found


def _end_with_parent() -> None:
    """A parent that is killed closes our input, but a long replay does not look at it."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def main() -> None:
    _end_with_parent()
    # vLLM prints to stdout: the answers get the real one, everything else goes to stderr.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    quiet()
    worker: Worker | None = None
    try:
        release = engine_api.prepare()
        worker = Worker(Path(sys.argv[1]), answers)
        worker.say({"ready": release})
    except versions.Unexpected as error:
        answers.write(json.dumps({"refused": str(error)}) + "\n")
        answers.flush()
        return
    for line in sys.stdin:
        worker.answer(line)


if __name__ == "__main__":
    main()
