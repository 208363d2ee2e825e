"""What is investigated, and what it can do.

Three kinds: **attached** (a URL; nothing is restarted), **managed** (a serve command; we start and stop it) and
**embedded** (a real vLLM on this machine's CPU with a small Gemma-4-shaped model). A fourth, **sample**, is a recorded
run: its rows answer, and nothing is sent.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from prefixscope import command
from prefixscope import engine as engines
from prefixscope.embedded_command import embedded_command
from prefixscope.errors import RunError, TargetError, Unsupported, mask
from prefixscope.setting import Setting, digest

KINDS = ("embedded", "managed", "attached", "sample")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What is investigated.

    Attributes
    ----------
    url, model, key_env : of an attached server; ``key_env`` is the NAME of the variable that holds the key.
    serve_cmd, stop_cmd : of a managed one, in the form of ``vllm bench sweep serve``.
    engine : vLLM version of the embedded one.
    start_timeout_s : how long a managed server may take to become ready.
    """

    kind: str = "embedded"
    url: str = ""
    model: str = ""
    key_env: str = ""
    serve_cmd: str = ""
    stop_cmd: str = ""
    engine: str = engines.DEFAULT_VERSION
    start_timeout_s: float = 600.0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise RunError(f"unknown kind of target {self.kind!r}", remedy=f"use one of {', '.join(KINDS)}")
        if self.kind == "attached" and not self.url:
            raise TargetError("an attached target needs a URL", remedy="--url http://host:8000")
        if self.kind == "managed" and not self.serve_cmd.strip():
            raise TargetError("a managed target needs a command", remedy='--serve-cmd "vllm serve MODEL …"')
        for name in ("url", "serve_cmd", "stop_cmd"):
            # It would be kept in the run directory, which people send to each other.
            if mask(getattr(self, name)) != getattr(self, name):
                raise TargetError(
                    f"--{name.replace('_', '-')} holds a key or password in clear text: {mask(getattr(self, name))}",
                    remedy="export VLLM_API_KEY=… (vllm serve reads it) and pass its name: --key-env VLLM_API_KEY",
                )

    @classmethod
    def parse(cls, text: str, **options: Any) -> Target:
        """``sample``, ``embedded``, a URL, or a serve command: the one-line form that notebooks take."""
        text = text.strip()
        if text in ("sample", "embedded"):
            return cls(kind=text, **options)
        if text.startswith(("http://", "https://")):
            return cls(kind="attached", url=text, **options)
        if " " in text:
            return cls(kind="managed", serve_cmd=text, **options)
        raise RunError(
            f"can't tell what the target {text!r} is",
            remedy="use 'sample', 'embedded', a URL (http://host:8000) or a serve command (vllm serve MODEL …)",
        )

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Target:
        return cls(**{name: value[name] for name in cls.__slots__ if name in value})

    def to_json(self) -> dict[str, Any]:
        """As kept in a run, with the label a person reads; a target never holds a key."""
        values = asdict(self)
        return {**values, "label": self.label}

    @property
    def label(self) -> str:
        if self.kind == "embedded":
            return f"embedded vLLM {self.engine} (CPU, small Gemma-4-shaped model)"
        if self.kind == "attached":
            return f"attached server {self.url}"
        if self.kind == "managed":
            return f"managed server: {self.serve_cmd}"
        return "recorded sample"

    @property
    def id(self) -> str:
        """Identity of what rows of equal cells may be shared between: engine or command or address."""
        # The sample is a recorded run of the embedded engine: its rows keep the identity that they were made under.
        kind = "embedded" if self.kind == "sample" else self.kind
        what = {"embedded": self.engine, "managed": self.serve_cmd, "attached": self.url}[kind]
        return digest([kind, what, self.model], 8)

    @property
    def restarts(self) -> bool:
        """Whether we may start servers for it."""
        return self.kind in ("embedded", "managed")

    def offers(self) -> tuple[bool, bool]:
        """Whether a server of this target can have a drafter, and a LoRA adapter."""
        if self.kind == "managed":
            return command.capabilities(self.serve_cmd)
        return (True, True) if self.kind in ("embedded", "sample") else (False, False)

    def command(
        self, setting: Setting, trace_env: Mapping[str, str], *, port: int | None = None
    ) -> command.ServerCommand:
        """The command that starts it with these settings.

        Raises
        ------
        Unsupported
            for a target that is not ours to start.
        """
        if self.kind == "managed":
            return command.managed_command(
                self.serve_cmd, setting, port=port, stop_cmd=self.stop_cmd or None, trace_env=trace_env
            )
        if self.kind == "embedded":
            installed = engines.ensure(self.engine, progress=lambda line: None, to_serve=True)
            return embedded_command(installed, setting, port=port, trace_env=trace_env)
        raise Unsupported(
            f"a server would have to be started ({setting.label}), and {self.label} is not ours to start",
            remedy="use --serve-cmd 'vllm serve …' or the embedded engine",
        )

    def check_environment(self) -> None:
        """Raise now, not in mid-run, where a named key is not there."""
        if self.key_env and not os.environ.get(self.key_env):
            raise TargetError(
                f"the environment variable {self.key_env!r}, named as the place of the API key, is not set",
                remedy=f"export {self.key_env}=… and run again",
            )
