"""The command that starts the embedded engine with one setting."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from prefixscope.command import INTERVAL_FLAG, ServerCommand, interval_value, joined
from prefixscope.flags import Flags
from prefixscope.processes import free_port
from prefixscope.setting import Setting


class EmbeddedModel(Protocol):
    """The part of an embedded model that a command needs."""

    @property
    def drafter(self) -> Path: ...
    @property
    def lora(self) -> Path: ...
    @property
    def lora_name(self) -> str: ...


class EmbeddedEngine(Protocol):
    """The part of an embedded engine that a command needs."""

    @property
    def model(self) -> EmbeddedModel: ...
    def serve_command(self) -> tuple[str, ...]: ...
    def drafting_flags(self) -> tuple[str, ...]: ...
    def environment(self) -> dict[str, str]: ...


def embedded_command(
    engine: EmbeddedEngine, setting: Setting, *, port: int | None = None, trace_env: Mapping[str, str] | None = None
) -> ServerCommand:
    """The embedded engine's command with this setting's flags: small enough for two to run side by side."""
    number = free_port() if port is None else port
    flags = Flags(list(engine.serve_command()))
    flags.set("--dtype", setting.dtype)
    if setting.drafter:
        config = {"method": "mtp", "model": str(engine.model.drafter), "num_speculative_tokens": 3}
        flags.set("--speculative-config", json.dumps(config))
        flags.words += engine.drafting_flags()
    if setting.lora:
        flags.set("--enable-lora")
        flags.set("--lora-modules", f"{engine.model.lora_name}={engine.model.lora}")
        flags.set("--max-lora-rank", "8")
    if setting.interval is not None:
        flags.set(INTERVAL_FLAG, interval_value(setting.interval))
    flags.set("--host", "127.0.0.1")
    flags.set("--port", str(number))
    own = engine.environment()
    return ServerCommand(
        argv=tuple(flags.words), env={**own, **joined(trace_env or {}, own)}, url=f"http://127.0.0.1:{number}",
        # vLLM 0.29.0 still takes the interval from a variable, for one; the caller's settings are not this engine's.
        drops=("VLLM_", "HF_", "TORCH", "OMP_", "PYTHON"), port=number, alone=False, start_timeout_s=240.0,
    )  # fmt: skip
