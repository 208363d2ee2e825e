"""Runs in the engine's Python: a scheduler driven by a bare loop and by the replay worker, in one process.

Reads what is wanted as JSON from stdin and writes the times there named; the kit is on ``PYTHONPATH``. Times are CPU
seconds of this process: others on the machine do not count.
"""

from __future__ import annotations

import gc
import io
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from prefixscope_inside import building, engine_api, replayer

GEOMETRY = {
    "groups": [
        *[{"kind": "sliding", "block_size": 16, "window": 1024, "layers": 8}] * 5,
        {"kind": "full", "block_size": 64, "layers": 8},
    ],
    "scheduler_block": 64,
    "hash_block": 16,
}
INTERVALS = (0, 64, 512, 1024, 2048, 4096, "dense")
LENGTHS = (1000, 2000, 4000, 6392, 9887)
SENDS = 3


def setting(interval: Any) -> dict[str, Any]:
    return {"interval": interval, "drafter": {"tokens": 7}}


def bare(builder: building.Builder, interval: Any) -> list[int]:
    """The spike's loop: one request after another, each hashed by vLLM, nothing else noted than its hit."""
    from vllm.sampling_params import SamplingParams
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.request import Request

    pool = building.endless_pool(GEOMETRY, [[n + 65] * SENDS for n in LENGTHS], 1)
    built = builder.build(GEOMETRY, setting(interval), pool)
    scheduler, hits = built.scheduler, []
    more = (built.lookahead,) if built.lookahead else ()
    hasher = get_request_block_hasher(16, engine_api._hash_function(), *more)
    for length in LENGTHS:
        scheduler.reset_prefix_cache()
        for send in range(SENDS):
            request = Request(
                request_id=f"{length} {send}",
                prompt_token_ids=list(range(length)),
                sampling_params=SamplingParams(max_tokens=1, ignore_eos=True),
                pooling_params=None,
                block_hasher=hasher,
            )
            scheduler.add_request(request)
            first = None
            while scheduler.has_unfinished_requests():
                output = scheduler.schedule()
                for new in output.scheduled_new_reqs:
                    first = new.num_computed_tokens if first is None else first
                ids = list(output.num_scheduled_tokens)
                done = request.num_computed_tokens >= request.num_prompt_tokens
                scheduler.update_from_output(
                    output,
                    ModelRunnerOutput(
                        req_ids=ids,
                        req_id_to_index={name: place for place, name in enumerate(ids)},
                        sampled_token_ids=[[7] if done else []],
                        logprobs=None,
                        prompt_logprobs_dict={},
                        pooler_output=[],
                    ),
                )
            hits.append(first)
    return hits


def ours(worker: replayer.Worker, interval: Any, salt: str) -> None:
    """The same prompts through the worker, JSON in and out; ``salt`` makes them new to it."""
    requests: list[dict[str, Any]] = []
    for length in LENGTHS:
        requests.append({"id": f"reset {length}", "reset": True})
        requests += [
            {
                "id": f"{length} {send}",
                "segments": [["text", length]],
                "salt": salt,
                **({} if send else {"tally": True}),
            }
            for send in range(SENDS)
        ]
    asked = {"id": 1, "op": "replay", "geometry": GEOMETRY, "setting": setting(interval), "requests": requests}
    worker.answer(json.dumps(asked))


def cpu(call: Any) -> float:
    """CPU seconds of this process, without a garbage collection that falls to whoever comes at its time."""
    gc.collect()
    gc.disable()
    began = time.process_time()
    call()
    spent = time.process_time() - began
    gc.enable()
    return spent


def main() -> None:
    wanted = json.load(sys.stdin)
    building.quiet()
    release = engine_api.prepare()
    answers = io.StringIO()
    worker = replayer.Worker(Path(wanted["model_dir"]), answers)
    # Configs are made once a setting: both ways use the same.
    for interval in INTERVALS:
        ours(worker, interval, "warm")
        bare(worker._builder, interval)
    answers.seek(0)
    answers.truncate()
    ours(worker, 1024, "check")
    mine = [row["hit"] for line in answers.getvalue().splitlines() for row in json.loads(line).get("rows", ())]
    if mine != bare(worker._builder, 1024):
        sys.exit(f"the two ways do not hit the same: {mine}")
    rounds = []
    for number in range(wanted["repeats"]):
        plain = sum(cpu(lambda each=each: bare(worker._builder, each)) for each in INTERVALS)
        first = cpu(lambda number=number: ours(worker, INTERVALS[0], f"round {number}"))
        swept = first + sum(
            cpu(lambda each=each, number=number: ours(worker, each, f"round {number}")) for each in INTERVALS[1:]
        )
        rounds.append((plain, swept, swept / plain))
    contents = next(iter(worker._contents.values()))
    hasher, hashed = contents._hasher, 0

    def counted(request: Any) -> list[bytes]:
        nonlocal hashed
        found: list[bytes] = hasher(request)
        hashed += 0 if request.num_output_tokens else len(found)  # an answer fills up its prompt's last block at times
        return found

    contents._hasher = counted
    for interval in INTERVALS:
        ours(worker, interval, "hashed")
    Path(wanted["result"]).write_text(
        json.dumps(
            {
                "version": release,
                "bare_s": statistics.median(row[0] for row in rounds),
                "ours_s": statistics.median(row[1] for row in rounds),
                "ratio": statistics.median(row[2] for row in rounds),
                "hashed": hashed,
                "blocks": sum(length // GEOMETRY["hash_block"] for length in LENGTHS),
            }
        ),
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
