"""Embedded engines: a real vLLM per version, kept in the user's cache folder (``engine_folders``).

CPU builds serve and predict; of a release that has none, the scheduler alone is installed, which predicts.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version

from prefixscope import engine_folders
from prefixscope.engine_folders import Progress
from prefixscope.errors import EngineError
from prefixscope.installer import Installer
from prefixscope.model import Model
from prefixscope.trained import embedded_model

DEFAULT_VERSION = "0.29.0"


@dataclass(frozen=True, slots=True)
class Engine:
    """One installed vLLM, ready to serve the embedded model without a network.

    ``python`` has this vLLM on its own. ``pythonpath`` is what PYTHONPATH needs besides: nothing today.
    ``can_serve`` is False for a release without a CPU build: its scheduler runs here and predicts hits, its model not.
    """

    version: str
    python: Path
    pythonpath: tuple[Path, ...]
    model: Model
    can_serve: bool = True

    @property
    def folder(self) -> Path:
        """This version's own folder; everything the engine writes stays in it."""
        return self.python.parents[2]

    def environment(self) -> dict[str, str]:
        """The variables this engine needs, to be laid over the caller's own environment."""
        own = self.folder / "cache"
        threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return {
            # Only this engine's packages: nothing of the caller's environment, home or current folder gets in.
            "PYTHONPATH": os.pathsep.join(map(str, self.pythonpath)),
            "PYTHONNOUSERSITE": "1",
            "PYTHONSAFEPATH": "1",
            "PYTHONDONTWRITEBYTECODE": "",  # the first start compiles what later ones load
            # No network.
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            # No files elsewhere. The model-info cache below VLLM_CACHE_ROOT, filled at install, saves a subprocess that
            # imports vLLM for each model class: 14 s of a first start with a drafter on two cores.
            "VLLM_CACHE_ROOT": str(own / "vllm"),
            "VLLM_CONFIG_ROOT": str(own / "config"),
            "HF_HOME": str(own / "huggingface"),
            "XDG_CACHE_HOME": str(own / "xdg"),
            "XDG_CONFIG_HOME": str(own / "config"),
            "TORCHINDUCTOR_CACHE_DIR": str(own / "inductor"),
            "TRITON_CACHE_DIR": str(own / "triton"),
            # A few samplers and embeddings are compiled with the machine's C++ compiler even in eager mode. Without:
            # no compiler is needed and the first request takes 0.5 s, not 6 s.
            "TORCHDYNAMO_DISABLE": "1",
            # With `--distributed-executor-backend uni` below: the worker lives in the engine process, so two processes
            # import vLLM, not three (14 s a start, not 23 s). vLLM then leaves the threads to us; its own default keeps
            # one core idle whatever the machine.
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            # Half of the cores: the others are the client's and the next server's. Where a thread has to wait for its
            # core, each step of a decode does (45 ms, not 11), and a drafter, with fewer steps, seems to gain more.
            "OMP_NUM_THREADS": str(min(max(threads // 2, 1), 4)),
            # Threads that spin at a barrier while the core is someone else's took one answer from 2 s to minutes.
            "OMP_WAIT_POLICY": "PASSIVE",
            "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB: about 270,000 tokens of the embedded model
        }

    def require_serving(self) -> None:
        """Raise EngineError, with what to use instead, where this engine can't serve."""
        if not self.can_serve:
            raise EngineError(_NO_SERVING.format(self.version), remedy=_serving_instead())

    def serve_command(self) -> tuple[str, ...]:
        """The API server on the embedded target model, without a port, drafter, adapter or retention interval.

        Raises
        ------
        EngineError
            where this engine can't serve.
        """
        self.require_serving()
        return (
            str(self.python),
            "-m",
            "vllm.entrypoints.openai.api_server",
            *("--model", str(self.model.target), "--served-model-name", self.model.name),
            *("--host", "127.0.0.1"),
            *("--dtype", "float32"),  # in bfloat16 near ties flip between cold and warm answers
            *("--max-model-len", "32768"),
            *("--block-size", "32"),  # the CPU attention kernels take multiples of 32
            "--enable-prefix-caching",
            "--enable-prompt-tokens-details",
            "--enforce-eager",
            *("--distributed-executor-backend", "uni"),
        )

    def drafting_flags(self) -> tuple[str, ...]:
        """What makes a server with a drafter say in each answer what was accepted; nothing before vLLM 0.29.0."""
        return ("--per-request-spec-decode-metrics", "detailed") if Version(self.version) >= Version("0.29.0") else ()


@dataclass(frozen=True, slots=True)
class Installed:
    """What `engine list` shows of one version; ``can_serve`` as in ``Engine``.

    ``base`` is the environment with PyTorch that it shares with other versions, of ``base_bytes``.
    """

    version: str
    size_bytes: int
    path: Path
    can_serve: bool
    base: Path
    base_bytes: int


def installed() -> list[Installed]:
    """Every complete engine, oldest version first."""
    found = []
    for path, facts in engine_folders.versions():
        base = engine_folders.base_of(facts)
        shared = int(engine_folders.facts_of(base).get("size_bytes", 0))
        serves = engine_folders.can_serve(facts)
        found.append(Installed(facts["version"], facts["size_bytes"], path, serves, base, shared))
    return found


def find(version: str) -> Engine | None:
    """The installed engine of that version, or None. Touches no network; a missing model is generated again."""
    for path, facts in engine_folders.versions():
        if facts["version"] == version:
            model = embedded_model(engine_folders.cache_folder() / "models")
            return Engine(version, engine_folders.python_of(path / "env"), (), model, engine_folders.can_serve(facts))
    return None


def check_version(version: str) -> None:
    """Raise EngineError, with what is installed, where this is no version of three numbers."""
    if not re.fullmatch(r"\d+\.\d+\.\d+(?:\.?(?:post|rc)\d+)?", version):
        have = ", ".join(one.version for one in installed()) or "none"
        raise EngineError(
            f"{version!r} is no vLLM version (installed: {have})",
            cause="a release is named by three numbers",
            remedy=f"give a release such as {DEFAULT_VERSION}; known are 0.28.0 to 0.33.0",
        )


def ensure(version: str = DEFAULT_VERSION, *, progress: Progress, to_serve: bool = False) -> Engine:
    """The engine of that version, installed first where it isn't yet.

    Parameters
    ----------
    version : a release of vLLM, ``"0.29.0"``; one without a CPU build can predict hits but not serve.
    progress : takes one line of text per step, and one every ten seconds within a long one.
    to_serve : refuse an engine that can't serve.

    Raises
    ------
    EngineError
        where the install fails (what it had written is gone again) or the engine can't do what is wanted.
    """
    check_version(version)
    engine = find(version)
    if engine is None:
        with engine_folders.lock(progress):
            engine = find(version)  # another process may have installed it while this one waited
            if engine is None:
                engine_folders.sweep()
                bases = [
                    (path, engine_folders.facts_of(path))
                    for path in engine_folders.folders("base")
                    if engine_folders.alive(path)
                ]
                Installer(engine_folders.home(), version, progress).run(bases, engine_folders.finish, to_serve=to_serve)
                engine = find(version)
    if engine is None:
        raise EngineError(
            f"vLLM {version} was installed into {engine_folders.home()} and is gone again",
            cause="another process removed it",
            remedy=f"prefixscope engine install {version}",
        )
    if to_serve:
        engine.require_serving()
    return engine


SCHEDULER_BLOCK = 64
"""Of the embedded model, tokens, on every release that serves it: its full-attention group's block."""
NO_CPU_BUILD = frozenset({"0.33.0"})
"""Releases known in November 2026 to have none; of others an install tells."""


def refuse_unservable(version: str) -> None:
    """Refuse what ``ensure(version, to_serve=True)`` would, as far as it is known without a network.

    Raises
    ------
    EngineError
        where it is no version, or one that can't serve.
    """
    check_version(version)
    known = next((one.can_serve for one in installed() if one.version == version), version not in NO_CPU_BUILD)
    if not known:
        raise EngineError(_NO_SERVING.format(version), remedy=_serving_instead())


_NO_SERVING = "vLLM {} has no CPU build: it can predict hits here but not serve"


def _serving_instead() -> str:
    others = [each.version for each in installed() if each.can_serve]
    return (
        f"use --engine {others[-1] if others else DEFAULT_VERSION}, or --url or --serve-cmd with a server of your own"
    )


def remove(version: str) -> int:
    """Deletes an installed version, and its base environment once no version needs it; gives the bytes freed.

    Raises
    ------
    EngineError
        where that version is not installed.
    """
    with engine_folders.lock(lambda line: None):
        found = [path for path, facts in engine_folders.versions() if facts["version"] == version]
        if not found:
            have = ", ".join(item.version for item in installed()) or "none"
            raise EngineError(f"vLLM {version} is not installed (installed: {have})", remedy="prefixscope engine list")
        freed = sum(map(engine_folders.delete, found))
        needed = {engine_folders.base_of(facts) for _, facts in engine_folders.versions()}
        return freed + sum(engine_folders.delete(path) for path in engine_folders.folders("base") if path not in needed)
