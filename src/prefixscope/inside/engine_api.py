"""What a replay calls of vLLM, and where releases differ in it.

| what | 0.28 | 0.29 | 0.30–0.32 | 0.33 |
|---|---|---|---|---|
| interval | environment variable; unset is dense | `EngineArgs`, which resolves an unset one | same | same |
| block hasher | hash block, function | same | same | and the lookahead tokens of the config |
| speculator of the model runner | config, device | same | same, and the states of requests from 0.32 | same |
| kernels that are compiled early | – | – | 0.30: while the model is built | – |
| what a drafter's groups are | – | marked by their spec | 0.31: the last layer's group, too | marked by their layers |
| block sizes in the KV cache config | – | – | – | set by the engine core |
| platform | CPU build | CPU build | CPU build | GPU build: the CPU platform is put in its place |
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from . import versions

DENSE = "dense"
_VARIABLE = "VLLM_PREFIX_CACHE_RETENTION_INTERVAL"


def prepare() -> str:
    """Import vLLM ready for replays, and give its release.

    Raises
    ------
    versions.Unexpected
        for a release whose code is not known here.
    """
    import vllm

    release = str(vllm.__version__)
    if versions.parse(release) not in versions.KNOWN:
        raise versions.Unexpected(f"vLLM {release} is not one of the releases known here (0.28 to 0.33)")
    _use_cpu()
    _inspect_models_here()
    from vllm.plugins import load_general_plugins
    from vllm.v1.core.kv_cache_utils import init_none_hash

    load_general_plugins()  # the tracer, where it is on the path
    init_none_hash(_hash_function())
    return release


def _use_cpu() -> None:
    """A GPU build finds no platform on a machine without a GPU; the scheduler needs none in particular."""
    import vllm.platforms as platforms

    if platforms.current_platform.device_type == "":
        from vllm.platforms.cpu import CpuPlatform

        platforms._current_platform = CpuPlatform()


def _inspect_models_here() -> None:
    # vLLM looks at a model class in a process of its own, which imports vLLM again, to leave CUDA alone: here is none.
    from vllm.model_executor.models import registry

    registry._run_in_subprocess = lambda function: function()


def _hash_function() -> Callable[[Any], bytes]:
    from vllm.utils.hashing import get_hash_fn_by_name

    function: Callable[[Any], bytes] = get_hash_fn_by_name("sha256")
    return function


def interface() -> Any:
    """The module that holds the release's KV cache specs."""
    import vllm.v1.kv_cache_interface as found

    return found


def quant_mode(value: int) -> Any:
    """The release's own quantisation mode of that number."""
    return interface().KVQuantMode(value)


def engine_config(arguments: Mapping[str, Any], setting: Mapping[str, Any]) -> Any:
    """The ``VllmConfig`` that this release's ``EngineArgs`` resolves; ``setting["interval"]`` is null where unset."""
    from vllm.engine.arg_utils import EngineArgs

    wanted, given = setting.get("interval"), dict(arguments)
    if wanted is not None and versions.parse(release()) >= (0, 29):
        given["prefix_cache_retention_interval"] = None if wanted == DENSE else int(wanted)
    config = EngineArgs(**given).create_engine_config()
    if method := (setting.get("drafter") or {}).get("method"):
        config.speculative_config.method = method  # the model that stands in for the drafter is an MTP one
    return config


def release() -> str:
    """The release of this Python's vLLM, without what a build adds to it."""
    import vllm

    return str(vllm.__version__).split("+")[0]


def resolved_interval(config: Any, setting: Mapping[str, Any]) -> int | None:
    """The interval that the KV cache config gets; None is dense. In 0.28 it goes by the environment instead."""
    if versions.parse(release()) < (0, 29):
        os.environ.pop(_VARIABLE, None)
        wanted = setting.get("interval")
        if wanted is not None and wanted != DENSE:
            os.environ[_VARIABLE] = str(int(wanted))
        return None
    value: int | None = config.cache_config.prefix_cache_retention_interval
    return value


def as_given(groups: Sequence[tuple[Mapping[str, Any], Any]]) -> list[Any]:
    """Groups, each with its spec, as the release's ``KVCacheGroupSpec``, marked as the geometry has them."""
    return [
        interface().KVCacheGroupSpec(_layer_names(gid, group), spec, is_eagle_group=bool(group.get("drafter")))
        for gid, (group, spec) in enumerate(groups)
    ]


def _layer_names(gid: int, group: Mapping[str, Any]) -> list[str]:
    return list(group.get("layer_names") or [f"group.{gid}.layer.{n}" for n in range(int(group.get("layers") or 1))])


def kv_cache_config(pool_blocks: int, groups: Sequence[Any], interval: int | None) -> Any:
    """The scheduler's ``KVCacheConfig`` for groups."""
    given = {} if versions.parse(release()) < (0, 29) else {"prefix_cache_retention_interval": interval}
    return interface().KVCacheConfig(num_blocks=pool_blocks, kv_cache_tensors=[], kv_cache_groups=list(groups), **given)


def resolve_blocks(config: Any, made: Any, scheduler_block: int, hash_block: int) -> None:
    """Tell a ``KVCacheConfig`` its block sizes where this release's engine core does (0.33).

    Source: ``vllm.v1.engine.core.EngineCore._initialize_kv_caches``.
    """
    from vllm.v1.core import kv_cache_utils

    resolve = getattr(kv_cache_utils, "resolve_cache_hit_alignment_tokens", None)
    if resolve is not None:
        made.hash_block_size = hash_block
        made.cache_hit_alignment_tokens = resolve(made, config, scheduler_block, hash_block)


def hash_lookahead(config: Any) -> int:
    """Tokens past a block's end that enter its hash (0.33); 0 before."""
    return int(getattr(config, "num_hash_lookahead_tokens", 0) or 0)


def has_lookahead_hashes() -> bool:
    """Whether this release can hash tokens past a block's end, and be told not to."""
    from vllm.config import SpeculativeConfig

    return hasattr(SpeculativeConfig, "disable_lookahead_block_hashes")


def block_hasher(hash_block: int, lookahead: int) -> Callable[[Any], list[bytes]]:
    """vLLM's own hasher of a request's new full blocks."""
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher

    more = (lookahead,) if versions.parse(release()) >= (0, 33) else ()
    hasher: Callable[[Any], list[bytes]] = get_request_block_hasher(hash_block, _hash_function(), *more)
    return hasher


def make_request(
    name: str,
    tokens: list[int],
    *,
    max_tokens: int,
    salt: str | None,
    lora: str | None,
    hasher: Callable[[Any], list[bytes]],
) -> Any:
    """A ``vllm.v1.request.Request``."""
    from vllm.lora.request import LoRARequest
    from vllm.sampling_params import SamplingParams
    from vllm.v1.request import Request

    return Request(
        request_id=name,
        prompt_token_ids=tokens,
        sampling_params=SamplingParams(max_tokens=max_tokens, ignore_eos=True),
        pooling_params=None,
        lora_request=None if lora is None else LoRARequest(lora, 1 + len(lora), "/nowhere"),
        cache_salt=salt,
        block_hasher=hasher,
    )


def without_kernels(config: Any) -> Any:
    """The same config, told not to compile kernels while a model is built."""
    kernels: Any = getattr(config, "kernel_config", None)
    if hasattr(kernels, "enable_jit_warmup"):
        kernels.enable_jit_warmup = False
    return config


def add_drafter(config: Any, model: Any, device: Any) -> None:
    """Builds the drafter of a config beside its model, as the model runner does: its layers enter the config."""
    from vllm.v1.worker.gpu.spec_decode import init_speculator

    states = (None,) if versions.parse(release()) >= (0, 32) else ()
    init_speculator(config, device, *states).load_model(model)


class Evictions:
    """Counts the cached blocks that a pool gives away."""

    def __init__(self, pool: Any) -> None:
        self._count = 0
        evict = pool._maybe_evict_cached_block

        def counted(block: Any) -> bool:
            gone: bool = evict(block)
            if gone:
                self._count += 1
            return gone

        pool._maybe_evict_cached_block = counted

    def take(self) -> int:
        """How many since the last call."""
        count, self._count = self._count, 0
        return count


def block_bytes(groups: Sequence[Mapping[str, Any]], config: Any) -> list[int | None]:
    """Bytes of one block of each group: what the geometry says, else its spec's page times its layers."""
    if len(groups) != len(config.kv_cache_groups):  # grouped anew
        groups = [{}] * len(config.kv_cache_groups)
    return [
        int(group["bytes_per_block"])
        if group.get("bytes_per_block")
        else int(made.kv_cache_spec.page_size_bytes) * len(made.layer_names)
        for group, made in zip(groups, config.kv_cache_groups, strict=True)
    ]
