"""The KV cache groups that this release's engine core makes of a model, from its ``config.json`` alone.

vLLM's own code does all of it: its model class, built without memory (PyTorch's ``meta`` device), says what each layer
caches, its speculator adds the drafter's layers, its platform sets the block sizes, and its engine core groups the
layers. Only the executor is ours, which has no worker. It runs in a process of its own, because vLLM has one platform
in a process, and this one is `pretend`'s.

A request is ``{"config": {…}, "dtype": …, "tensor_parallel": 1, "kv_cache_dtype": …, "block_size": null,
"drafter": null | {"method": …, "tokens": …, "config": {…} | null}}``; the answer is a geometry, or ``{"error": …}``.

Source: ``vllm.v1.engine.core.EngineCore._initialize_kv_caches``, ``vllm.v1.worker.gpu.attn_utils.get_kv_cache_spec``,
``vllm.v1.worker.gpu.spec_decode.init_speculator``, ``Platform.update_block_size_for_backend``.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import engine_api, engine_core, pretend, versions
from .building import Refused, quiet
from .specs import spec_fields

_SHAPING = (
    "num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "layer_types",
    "sliding_window",
)  # fmt: skip


class Grouper:
    """The process that groups, started when it is first asked; it ends with the one that asks."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def ask(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """The geometry of a model.

        Raises
        ------
        Refused
            with the release's own words.
        """
        if self._process is None or self._process.poll() is not None:
            # Its tracebacks go where the worker's go.
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(asked) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except OSError:
            line = ""
        if not line:
            raise Refused("model", f"vLLM ended over this config (exit status {self._process.wait()})")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise Refused("model", answer["error"])
        return answer


def group(asked: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The geometry of a model; ``folder`` takes its config."""
    config = _engine_config(asked, folder)
    pretend.one_rank(config.parallel_config.tensor_parallel_size)
    try:
        _build(config)
    except AttributeError as error:
        # A part of the model that is None fails where it is read.
        parts = vars(config.model_config.hf_config).items()
        lacks = [name for name, value in parts if name.endswith("_config") and value is None]
        raise Refused("model", _words(error) + (f"; it has no {' and no '.join(lacks)}" if lacks else "")) from error
    scheduler, worker = engine_core.kv_cache_configs(config)
    return _geometry(config, scheduler, worker)


def _engine_config(asked: Mapping[str, Any], folder: Path) -> Any:
    from vllm.engine.arg_utils import EngineArgs

    given: dict[str, Any] = {
        "model": _write(folder / "model", asked["config"]),
        "skip_tokenizer_init": True,
        "enforce_eager": True,
        "load_format": "dummy",
        "enable_prefix_caching": True,
        "dtype": asked.get("dtype") or "auto",
        "kv_cache_dtype": asked.get("kv_cache_dtype") or "auto",
        "tensor_parallel_size": int(asked.get("tensor_parallel") or 1),
        "distributed_executor_backend": "mp",
    }
    if asked.get("block_size"):
        given["block_size"] = int(asked["block_size"])
    if drafter := asked.get("drafter"):
        own = drafter.get("config")
        given["speculative_config"] = {
            "method": drafter["method"],
            "model": _write(folder / "drafter", own) if own else given["model"],
            "num_speculative_tokens": int(drafter["tokens"]),
        }
    return engine_api.without_kernels(EngineArgs(**given).create_engine_config())


def _write(folder: Path, config: Mapping[str, Any]) -> str:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return str(folder)


def _build(config: Any) -> None:
    """The model and its drafter, as modules that know their shapes: each layer that caches enters the config."""
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.model_executor import model_loader
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.utils.torch_utils import set_default_torch_dtype

    def build(vllm_config: Any, model_config: Any = None, **_: object) -> Any:
        model_config = model_config or vllm_config.model_config
        with set_default_torch_dtype(model_config.dtype), torch.device("meta"):
            return initialize_model(vllm_config, model_config=model_config)

    model_loader.get_model = build  # before the speculators take theirs
    with set_current_vllm_config(config):
        model = build(config)
        if config.speculative_config is not None:
            engine_api.add_drafter(config, model, torch.device("meta"))


def _geometry(config: Any, scheduler: Any, worker: Any) -> dict[str, Any]:
    from vllm.v1.core.kv_cache_utils import resolve_kv_cache_block_sizes

    scheduler_block, hash_block = resolve_kv_cache_block_sizes(scheduler, config)
    groups = []
    for made, of_worker in zip(scheduler.kv_cache_groups, worker.kv_cache_groups, strict=True):
        spec = made.kv_cache_spec
        bundled = hasattr(of_worker.kv_cache_spec, "kv_cache_specs")  # such a spec already counts its layers' pages
        groups.append(
            {
                "kind": versions.kind(spec),
                "block_size": int(spec.block_size),
                "window": versions.window(spec),
                "layers": len(made.layer_names),
                "drafter": versions.is_drafter(made),
                "bytes_per_block": int(of_worker.kv_cache_spec.page_size_bytes)
                * (1 if bundled else len(made.layer_names)),
                "spec": type(spec).__name__,
                "fields": _told(spec),
            }
        )
    import vllm

    backends = {layer.get_attn_backend().get_name() for layer in _layers(config)}
    return {
        "groups": groups,
        "scheduler_block": int(scheduler_block),
        "hash_block": int(hash_block),
        "pool_blocks": None,
        "release": str(vllm.__version__).split("+")[0],
        "inferred": [
            f"as on an {pretend.DEVICE}: attention backends {', '.join(sorted(backends))}",
            *_defaults(config),
        ],
    }


def _defaults(config: Any) -> list[str]:
    """The fields that shape a KV cache and that the config leaves to its class, with what the class says."""
    given = json.loads((Path(config.model_config.model) / "config.json").read_text("utf-8"))
    given = {**given, **(given.get("text_config") or {})}
    known = vars(config.model_config.hf_text_config)
    values = {name: known.get(name) for name in _SHAPING if given.get(name) is None}
    told = [f"{name} {value:,}" if isinstance(value, int) else name for name, value in values.items() if value]
    return [f"not in the config, as its class has it: {', '.join(told)}"] if told else []


def _told(spec: Any) -> dict[str, Any]:
    """The fields of a spec that are not as they are anyway: another release may lack those, or call them otherwise."""
    usual = {one.name: one.default for one in dataclasses.fields(spec)}
    return {name: value for name, value in spec_fields(spec).items() if getattr(spec, name) != usual[name]}


def _layers(config: Any) -> list[Any]:
    from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase

    found = config.compilation_config.static_forward_context.values()
    return [layer for layer in found if isinstance(layer, AttentionLayerBase)]


def _words(error: Exception) -> str:
    """What went wrong, without the counts and links that a validator puts around it."""
    if isinstance(error, Refused):
        return str(error)
    told = getattr(error, "errors", None)
    return "; ".join(str(one["msg"]) for one in told()) if callable(told) else f"{type(error).__name__}: {error}"


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # vLLM prints to stdout
    quiet()
    pretend.cuda()
    from vllm.model_executor.models import registry

    registry._run_in_subprocess = lambda function: function()
    for line in sys.stdin:
        with tempfile.TemporaryDirectory(prefix="prefixscope-") as folder:
            try:
                answer = group(json.loads(line), Path(folder))
            except Exception as error:  # whatever vLLM says of a config is an answer
                traceback.print_exc()
                answer = {"error": _words(error).replace(f"{folder}/model", "this config").replace(f"{folder}/", "")}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
