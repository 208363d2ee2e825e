"""Run inside an engine's Python: drives vLLM's own scheduler, with no weights, so that the tracer has something to see.

Reads JSON from stdin: a list of scenarios, each with a geometry, settings and sends. Writes JSON to the file that the
input names (vLLM logs to stdout): per scenario the hits by request id, as the scheduler used them.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "1")

import torch
import vllm
from vllm.config import (
    CacheConfig,
    DeviceConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    SpeculativeConfig,
    VllmConfig,
)
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, SupportsHMA
from vllm.plugins import load_general_plugins
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

RELEASE = tuple(int(part) for part in vllm.__version__.split("+")[0].split(".")[:2])


def sliding(size: int, window: int = 1024, heads: int = 8) -> Any:
    return SlidingWindowSpec(
        block_size=size, num_kv_heads=heads, head_size=256, dtype=torch.bfloat16, sliding_window=window
    )


def full(size: int, heads: int = 1) -> Any:
    return FullAttentionSpec(block_size=size, num_kv_heads=heads, head_size=512, dtype=torch.bfloat16)


def mamba(size: int) -> Any:
    return MambaSpec(block_size=size, shapes=((1, size * 512),), dtypes=(torch.bfloat16,), mamba_cache_mode="align")


GEOMETRIES: dict[str, tuple[list[Any], int, int]] = {
    # name: group specs, scheduler block, hash block
    "gemma-16-64": ([sliding(16)] * 5 + [full(64)], 64, 16),
    "gemma-32-64": ([sliding(32)] * 5 + [full(64)], 64, 32),
    "single": ([full(16)], 16, 16),
    "two-full": ([full(16, 4), full(64), sliding(16)], 64, 16),
    "hybrid-64": ([mamba(64), mamba(64), full(64)], 64, 64),
}


def geometry(given: str | dict[str, Any]) -> tuple[list[tuple[Any, bool]], int, int]:
    """Group specs with their drafter flags, scheduler block and hash block, by a name above or as described."""
    if isinstance(given, str):
        specs, block, hash_block = GEOMETRIES[given]
        return [(spec, False) for spec in specs], block, hash_block
    rows: list[tuple[Any, bool]] = []
    for heads, group in enumerate(given["groups"], start=1):
        size, flag = group["block_size"], group.get("drafter", False)
        # Head counts differ, so that groups with equal blocks stay apart as they do in the models.
        if group["kind"] == "mamba":
            spec = mamba(size)
        elif group["kind"] == "sliding":
            spec = sliding(size, group["window"], heads)
        else:
            spec = full(size, heads)
        rows += [(spec, flag)] * group.get("count", 1)
    return rows, given["scheduler_block"], given["hash_block"]


def scheduler(scenario: dict[str, Any], model_dir: Path) -> Any:
    from vllm.v1.core.sched.scheduler import Scheduler

    specs, block, hash_block = geometry(scenario["geometry"])
    interval, pool = scenario.get("interval", 0), scenario.get("pool", 20000)
    states = [spec.block_size for spec, _ in specs if isinstance(spec, MambaSpec)]
    retention = {} if RELEASE < (0, 29) else {"prefix_cache_retention_interval": interval}
    if RELEASE < (0, 29):
        os.environ.pop("VLLM_PREFIX_CACHE_RETENTION_INTERVAL", None)
        if interval is not None:
            os.environ["VLLM_PREFIX_CACHE_RETENTION_INTERVAL"] = str(interval)
    groups = [KVCacheGroupSpec([f"layer.{gid}"], spec, is_eagle_group=flag) for gid, (spec, flag) in enumerate(specs)]
    target = str(model_dir / "target")
    model = ModelConfig(model=target, tokenizer=target, max_model_len=131072, dtype="bfloat16", seed=0)
    parallel = ParallelConfig()
    speculative = None
    if scenario.get("mtp", True):
        speculative = SpeculativeConfig(
            method="mtp",
            model=str(model_dir / "drafter"),
            num_speculative_tokens=scenario.get("spec_tokens", 7),
            target_model_config=model,
            target_parallel_config=parallel,
        )
    parallel.data_parallel_rank = parallel.data_parallel_index = scenario.get("rank", 0)
    cache = CacheConfig(
        block_size=max([hash_block, *states]), enable_prefix_caching=scenario.get("caching", True), **retention
    )
    cache.num_gpu_blocks = pool
    if states:
        # What vLLM resolves for such a model: prefill then stops at block ends, where a state can be kept.
        cache.mamba_cache_mode = "align"
    config = VllmConfig(
        scheduler_config=SchedulerConfig(
            max_num_seqs=16,
            max_num_batched_tokens=scenario.get("batch", 2048),
            max_model_len=131072,
            enable_chunked_prefill=True,
            is_encoder_decoder=False,
        ),
        model_config=model,
        cache_config=cache,
        speculative_config=speculative,
        parallel_config=parallel,
        device_config=DeviceConfig(device="cpu"),
    )
    made = Scheduler(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(num_blocks=pool, kv_cache_tensors=[], kv_cache_groups=groups, **retention),
        structured_output_manager=StructuredOutputManager(config),
        block_size=block,
        hash_block_size=hash_block,
        log_stats=False,
    )
    if "remote_tokens" in scenario:
        # A KV connector that always has so many tokens past the local blocks, and loads them at once.
        shape = type("Remote", (KVConnectorBase_V1, SupportsHMA), {})
        made.connector = MagicMock(shape, supports_divergent_local_hybrid_hits=False, requires_kv_delivery=False)
        made.connector.get_num_new_matched_tokens.return_value = (scenario["remote_tokens"], False)
        made.connector.request_finished.return_value = (False, None)
        made.connector.request_finished_all_groups.return_value = (False, None)
        made.connector.get_kv_connector_stats.return_value = None
        made.connector.take_events.return_value = ()
    lookahead = getattr(config, "num_hash_lookahead_tokens", None)
    made.driver_hasher = get_request_block_hasher(hash_block, sha256, *(() if lookahead is None else (lookahead,)))
    return made


def request(made: Any, send: dict[str, Any]) -> Any:
    base = send.get("base", 0)
    tokens = [base + index for index in range(send["tokens"])]
    # From `differs_at` on the prompt is another one.
    if "differs_at" in send:
        tokens[send["differs_at"] :] = [300000 + index % 1000 for index in range(send["tokens"] - send["differs_at"])]
    return Request(
        request_id=f"chatcmpl-{send['id']}-0123abcd",
        prompt_token_ids=tokens,
        sampling_params=SamplingParams(max_tokens=send.get("max_tokens", 1), ignore_eos=True),
        pooling_params=None,
        cache_salt=send.get("salt"),
        block_hasher=made.driver_hasher,
    )


def step(made: Any, requests: dict[str, Any]) -> dict[str, int]:
    """One step of the scheduler; the hits of the requests that it admitted."""
    output = made.schedule()
    ids = list(output.num_scheduled_tokens)
    # A preempted request computes its answer's tokens again before it gets another.
    sampled = [[7] if requests[one].num_computed_tokens >= requests[one].num_tokens else [] for one in ids]
    made.update_from_output(
        output,
        ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={one: index for index, one in enumerate(ids)},
            sampled_token_ids=sampled,
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
        ),
    )
    return {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}


def drive(made: Any, sends: list[dict[str, Any]]) -> dict[str, int]:
    """Send these at once and run the scheduler until they are done; the hit that each was admitted with."""
    requests = {one.request_id: one for one in (request(made, send) for send in sends)}
    for one in requests.values():
        made.add_request(one)
    hits: dict[str, int] = {}
    for _ in range(20000):
        if not made.has_unfinished_requests():
            return hits
        hits.update(step(made, requests))
    raise RuntimeError(f"the scheduler does not come to an end with {sorted(requests)}")


def main() -> None:
    load_general_plugins()
    # A second call is what vLLM itself does in some processes.
    load_general_plugins()
    init_none_hash(sha256)
    wanted = json.load(sys.stdin)
    results = []
    for scenario in wanted["scenarios"]:
        made = scheduler(scenario, Path(wanted["model_dir"]))
        hits: dict[str, int] = {}
        for together in scenario["sends"]:
            if together == "reset":
                made.reset_prefix_cache()
                continue
            hits.update(drive(made, together if isinstance(together, list) else [together]))
        results.append({name.removeprefix("chatcmpl-").removesuffix("-0123abcd"): hit for name, hit in hits.items()})
    Path(wanted["result"]).write_text(json.dumps({"version": vllm.__version__, "hits": results}), encoding="utf-8")


if __name__ == "__main__":
    os.chdir(tempfile.mkdtemp())
    main()
