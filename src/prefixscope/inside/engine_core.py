"""This release's engine core, as far as it sets up the KV cache: nothing of it runs, and it has no worker.

Source: ``vllm.v1.engine.core.EngineCore._initialize_kv_caches``.
"""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

_MEMORY_BYTES = 1 << 50  # so that no model is refused for its size


class _Executor:
    """Answers the engine core as one worker's would; ``specs`` of the layers, or those that a built model's have."""

    def __init__(self, config: Any, specs: dict[str, Any] | None) -> None:
        self._config, self._specs = config, specs
        self.kv_cache_configs: list[Any] = []

    def get_kv_cache_specs(self) -> list[Any]:
        from vllm.v1.worker.gpu.attn_utils import get_kv_cache_spec

        return [get_kv_cache_spec(self._config) if self._specs is None else self._specs]

    def get_supported_kv_cache_layouts(self) -> list[list[str]]:
        from vllm.v1.worker.worker_base import WorkerBase

        worker = WorkerBase.__new__(WorkerBase)
        worker.vllm_config = self._config
        return [worker.get_supported_kv_cache_layouts()]

    def determine_available_memory(self) -> list[int]:
        return [_MEMORY_BYTES]

    def initialize_from_config(self, kv_cache_configs: list[Any]) -> None:
        self.kv_cache_configs = kv_cache_configs

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: None


def kv_cache_configs(config: Any, specs: dict[str, Any] | None = None) -> tuple[Any, Any]:
    """The ``KVCacheConfig`` that the scheduler gets, and the worker's."""
    from vllm.config import set_current_vllm_config
    from vllm.platforms import current_platform
    from vllm.v1.engine.core import EngineCore

    core = EngineCore.__new__(EngineCore)
    core.vllm_config, core.model_executor = config, _Executor(config, specs)
    core.available_gpu_memory_for_kv_cache = -1
    with set_current_vllm_config(config):
        current_platform.update_block_size_for_backend(config)
        scheduler = core._initialize_kv_caches(config)
    return scheduler, core.model_executor.kv_cache_configs[0]


def regrouped(config: Any, groups: Sequence[tuple[Mapping[str, Any], Any]]) -> list[Any] | None:
    """The groups that this release makes of another's layers, and which it marks as its drafter's.

    ``groups`` are the other release's, each with its spec. The layers are told in the order of the numbers in their
    names, a drafter's own last, as they are registered. None where their names or specs are unknown, or this release
    would give them other block sizes.
    """
    if any(not group.get("layer_names") or hasattr(spec, "kv_cache_specs") for group, spec in groups):
        return None
    layers = {name: (bool(group.get("drafter")), spec) for group, spec in groups for name in group["layer_names"]}
    stems = Counter(name.split(".")[0] for name in layers)

    def registered(name: str) -> tuple[Any, ...]:
        numbers = [int(number) for number in re.findall(r"\d+", name)]
        return layers[name][0], -stems[name.split(".")[0]], numbers, name

    specs = {name: layers[name][1] for name in sorted(layers, key=registered)}
    config = copy.copy(config)
    config.cache_config = copy.copy(config.cache_config)
    made: list[Any] = kv_cache_configs(config, specs)[0].kv_cache_groups
    before, after = {spec.block_size for _, spec in groups}, {one.kv_cache_spec.block_size for one in made}
    return made if before == after else None
