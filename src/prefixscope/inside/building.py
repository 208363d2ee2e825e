"""A scheduler as this release's own engine core would build it, from KV cache groups that came from anywhere.

Source: ``vllm.engine.arg_utils.EngineArgs.create_engine_config`` resolves every default, ``vllm.v1.engine.core``'s
``EngineCore.__init__`` shows what is handed to ``Scheduler`` and to the block hasher. Nothing of either is repeated.
"""

from __future__ import annotations

import copy
import json
import math
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from . import engine_api, engine_core, versions
from .specs import build_spec

_MAX_MODEL_LEN = 1_048_576
# What the scheduler reads of a model's config is its context length and whether it has Mamba layers.
_HYBRID = {
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "num_hidden_layers": 4,
    "full_attention_interval": 4,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
    "max_position_embeddings": 262144,
    "vocab_size": 1024,
}


class Refused(Exception):
    """This release refuses what it was asked to build; ``about`` says what: ``interval``, ``geometry``, ``setting``."""

    def __init__(self, about: str, message: str) -> None:
        super().__init__(message)
        self.about = about


class Built:
    """One scheduler with an empty cache, and what belongs to it."""

    def __init__(self, scheduler: Any, config: Any, hash_block: int, left_out: list[str], *, regrouped: bool) -> None:
        self.scheduler, self.hash_block, self.regrouped = scheduler, hash_block, regrouped
        self.pool = scheduler.kv_cache_manager.block_pool
        self.lookahead = engine_api.hash_lookahead(config)
        self.left_out = left_out
        speculative = config.speculative_config
        self.spec_tokens = 0 if speculative is None else int(speculative.num_speculative_tokens)


class Builder:
    """Builds schedulers for one release; configs are made once per setting."""

    def __init__(self, model_dir: Path) -> None:
        self._model_dir = model_dir
        self._configs: dict[str, Any] = {}
        self._scratch: tempfile.TemporaryDirectory[str] | None = None

    def build(
        self, geometry: Mapping[str, Any], setting: Mapping[str, Any], pool: Callable[[Sequence[int]], int]
    ) -> Built:
        """One scheduler.

        Parameters
        ----------
        geometry : ``groups``, ``scheduler_block``, ``hash_block``, as a trace header has them, and the ``release`` that
            made the groups; another one groups and marks the layers anew, where their names are known.
        setting : ``interval`` (absent or null: the release's default; tokens; ``"dense"``), ``drafter`` (``tokens``,
            ``method`` and ``lookahead_hashes``, or null), ``caching``, ``max_batched_tokens``, ``max_seqs``.
        pool : blocks of the one pool that all groups share, from the groups' block sizes.

        Raises
        ------
        Refused
            with the release's own words.
        """
        from vllm.v1.structured_output import StructuredOutputManager

        specs, left_out = [], []
        for group in geometry["groups"]:
            try:
                spec, names = build_spec(group)
            except versions.Unexpected as error:
                raise Refused("geometry", str(error)) from error
            specs.append((group, spec))
            left_out += [f"{group.get('spec')}.{name}" for name in names]
        states = [spec.block_size for _, spec in specs if versions.kind(spec) == "mamba"]
        config = self._config(setting, hybrid=bool(states))
        interval = engine_api.resolved_interval(config, setting)
        config.cache_config.block_size = max([geometry["hash_block"], *states])
        if states:
            modes = {getattr(spec, "mamba_cache_mode", None) for _, spec in specs} - {None}
            config.cache_config.mamba_cache_mode = modes.pop() if len(modes) == 1 else "align"
        groups, regrouped = engine_api.as_given(specs), False
        if geometry.get("release") and versions.parse(geometry["release"]) != versions.parse(engine_api.release()):
            try:
                own = engine_core.regrouped(config, specs)
            except Exception as error:
                raise Refused("geometry", f"{type(error).__name__}: {error}") from error
            groups, regrouped = own or groups, own is not None
        pool_blocks = pool([one.kv_cache_spec.block_size for one in groups])
        config.cache_config.num_gpu_blocks = pool_blocks
        kv_cache_config = engine_api.kv_cache_config(pool_blocks, groups, interval)
        engine_api.resolve_blocks(config, kv_cache_config, geometry["scheduler_block"], geometry["hash_block"])
        try:
            made = config.scheduler_config.get_scheduler_cls()(
                vllm_config=config,
                kv_cache_config=kv_cache_config,
                structured_output_manager=StructuredOutputManager(config),
                block_size=geometry["scheduler_block"],
                hash_block_size=geometry["hash_block"],
                log_stats=False,
            )
        except Exception as error:
            about = "interval" if "retention_interval" in str(error) else "geometry"
            raise Refused(about, f"{type(error).__name__}: {error}") from error
        return Built(made, config, int(geometry["hash_block"]), left_out, regrouped=regrouped)

    def _config(self, setting: Mapping[str, Any], *, hybrid: bool) -> Any:
        """A copy of the release's own engine config for a setting; making one anew takes 40 ms, the first 1 s."""
        key = json.dumps([sorted(setting.items(), key=str), hybrid], default=str, sort_keys=True)
        if key not in self._configs:
            try:
                self._configs[key] = engine_api.engine_config(self._arguments(setting, hybrid), setting)
            except Exception as error:
                about = "interval" if "retention_interval" in str(error) else "setting"
                raise Refused(about, f"{type(error).__name__}: {error}") from error
        config = copy.copy(self._configs[key])
        config.cache_config = copy.copy(config.cache_config)
        return config

    def _arguments(self, setting: Mapping[str, Any], hybrid: bool) -> dict[str, Any]:
        arguments: dict[str, Any] = {
            "model": str(self._hybrid() if hybrid else self._model_dir / "target"),
            "skip_tokenizer_init": True,
            "max_model_len": _MAX_MODEL_LEN,
            "dtype": "bfloat16",
            "enable_prefix_caching": bool(setting.get("caching", True)),
            "max_num_batched_tokens": int(setting.get("max_batched_tokens") or 2048),
            "max_num_seqs": int(setting.get("max_seqs") or 16),
            "async_scheduling": False,
        }
        if drafter := setting.get("drafter"):
            arguments["speculative_config"] = {
                "method": "mtp",
                "model": str(self._model_dir / "drafter") if not hybrid else arguments["model"],
                "num_speculative_tokens": int(drafter["tokens"]),
            }
            if not drafter.get("lookahead_hashes", True) and engine_api.has_lookahead_hashes():
                arguments["speculative_config"]["disable_lookahead_block_hashes"] = True
        return arguments

    def _hybrid(self) -> Path:
        """A folder with the config of a small model that has Mamba layers."""
        if self._scratch is None:
            self._scratch = tempfile.TemporaryDirectory(prefix="prefixscope-")
            Path(self._scratch.name, "config.json").write_text(json.dumps(_HYBRID), encoding="utf-8")
        return Path(self._scratch.name)


def endless_pool(sizes: Sequence[int], stretches: Sequence[Sequence[int]], together: int) -> int:
    """Blocks with which nothing is ever evicted: every request's blocks of every group, and room to work in.

    ``sizes`` are the groups' block sizes, ``stretches`` are the tokens of the requests between two resets of
    the prefix cache: the pool holds one of them.
    """

    def blocks(tokens: int) -> int:
        return sum(math.ceil(tokens / size) + 2 for size in sizes)

    most = max(sum(map(blocks, tokens)) for tokens in stretches)
    largest = blocks(max((one for tokens in stretches for one in tokens), default=1))
    return most + largest * together + 64


def quiet() -> None:
    """What keeps vLLM from asking the network or talking much; before it is imported."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ["VLLM_ALLOW_LONG_MAX_MODEL_LEN"] = "1"
    os.environ.pop("VLLM_PREFIX_CACHE_RETENTION_INTERVAL", None)
