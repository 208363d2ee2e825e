"""What a trace says first of an engine: release, KV cache groups, pool and settings, as the engine resolved them."""

from __future__ import annotations

from typing import Any

from . import versions
from .specs import spec_fields
from .state import Engine


def header_fields(engine: Engine, manager: Any, version: str) -> dict[str, Any]:
    """The fields of the header event."""
    config, coordinator = manager.kv_cache_config, engine.coordinator
    groups = []
    for gid, group in enumerate(config.kv_cache_groups):
        spec = group.kv_cache_spec
        groups.append(
            {
                "gid": gid,
                "kind": engine.kinds[gid],
                "spec": type(spec).__name__,
                "fields": spec_fields(spec),
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
        "version": version,
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
        "max_batched_tokens": None,
        "max_seqs": None,
    }
    if engine.vllm_config is not None:
        speculative = engine.vllm_config.speculative_config
        if speculative is not None:
            fields["spec_method"] = str(speculative.method)
            fields["spec_tokens"] = int(speculative.num_speculative_tokens)
        scheduling = engine.vllm_config.scheduler_config
        fields["max_batched_tokens"] = int(scheduling.max_num_batched_tokens)
        fields["max_seqs"] = int(scheduling.max_num_seqs)
        parallel = engine.vllm_config.parallel_config
        fields["dp_rank"] = int(getattr(parallel, "data_parallel_index", parallel.data_parallel_rank))
    return fields


def _uniform(spec: Any) -> bool:
    # A spec that bundles its layers already counts all their pages.
    return hasattr(spec, "kv_cache_specs")
