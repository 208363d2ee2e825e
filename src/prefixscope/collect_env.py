"""vLLM's own ``collect-env`` about the machine that served: asked once, while a run is made, and by its lines' names.

Of what it prints only named lines are kept, and never the part with environment variables.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from typing import Any

from prefixscope import command, engine
from prefixscope.errors import PrefixscopeError, secrets
from prefixscope.runs import Run
from prefixscope.target import Target

SOURCE = "vLLM's collect-env"
MOST_S = 90.0
_MODULE = ("-m", "vllm.collect_env")
_LINES = {
    "OS", "GCC version", "Libc version", "PyTorch version", "CUDA used to build PyTorch", "ROCM used to build PyTorch",
    "Python version", "Python platform", "Is CUDA available", "CUDA runtime version", "Nvidia driver version",
    "cuDNN version", "HIP runtime version", "MIOpen runtime version", "Is XNNPACK available", "Architecture", "CPU(s)",
    "Model name", "ROCM Version", "vLLM Version",
}  # fmt: skip
_GPU = re.compile(r"^GPU (\d+): ([\w .()/+-]{1,80})$")
_PACKAGE = re.compile(
    r"^\[(?:pip3?|conda)\] ((?:torch|triton|transformers|numpy|flashinfer-python|pyzmq|nvidia-[a-z0-9-]+)==\S{1,40})$"
)
_NOTHING = ("", "Could not collect", "N/A", "None")


def keep(run: Run, target: Target) -> None:
    """Ask for it and keep it in the manifest, unless it is there; where it can't be had, the reason."""
    if "lines" in run.manifest.get("collect_env", {}):
        return
    found = collect(target)
    run.update(lambda m: m.update({"collect_env": found}))


def collect(target: Target) -> dict[str, Any]:
    """``lines`` (name → value), or ``absent``, a sentence on why there is none. Takes seconds, asks no server."""
    try:
        asked = _asked(target)
    except (PrefixscopeError, OSError) as error:
        return {"absent": f"the engine's Python could not be found: {error}"}
    if isinstance(asked, str):
        return {"absent": asked}
    python, environment = asked
    unsaid = secrets()
    inherited = {name: value for name, value in os.environ.items() if name not in unsaid}
    try:
        done = subprocess.run(
            [python, *_MODULE], env={**inherited, **environment}, capture_output=True, text=True, errors="replace",
            timeout=MOST_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        return {"absent": f"python -m vllm.collect_env gave nothing: {type(error).__name__}"}
    lines = parse(done.stdout)
    if not lines:
        last = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        return {"absent": f"python -m vllm.collect_env ended with code {done.returncode}: {last[:200]}"}
    return {"lines": lines}


def parse(text: str) -> dict[str, str]:
    """The lines that are kept, by name, from what collect-env prints; nothing of its environment variables."""
    found: dict[str, str] = {}
    devices: list[str] = []
    packages: list[str] = []
    for line in text.partition("Environment Variables")[0].splitlines():
        name, colon, value = (part.strip() for part in line.partition(":"))
        if device := _GPU.match(line.strip()):
            devices.append(device[2].strip())
        elif package := _PACKAGE.match(line.strip()):
            packages.append(package[1])
        elif colon and name in _LINES and value not in _NOTHING:
            found.setdefault(name, value[:200])
    if devices:
        found["GPUs"] = ", ".join(f"{devices.count(one)} × {one}" for one in dict.fromkeys(devices))
    if packages:
        found["packages"] = ", ".join(packages)
    return found


def told(run: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(name, value) for the report; one row that says why where there is nothing."""
    known = run.get("collect_env")
    known = known if isinstance(known, Mapping) else {}
    lines = known.get("lines")
    if isinstance(lines, Mapping) and lines:
        for name, value in lines.items():
            yield str(name), str(value)
    else:
        yield "collect-env", f"not collected: {known.get('absent') or 'this run did not ask for it'}"


def _asked(target: Target) -> tuple[str, Mapping[str, str]] | str:
    """The engine's Python and the variables it needs, or why there is none to ask."""
    if target.kind == "embedded":
        installed = engine.find(target.engine)
        if installed is None:
            return f"vLLM {target.engine} is not installed here"
        return str(installed.python), installed.environment()
    if target.kind == "managed":
        found = command.interpreter(target.serve_cmd)
        return found or "the serve command does not show the Python that vLLM runs in (a container, or a script)"
    if target.kind == "attached":
        return "an attached server's machine is not asked; run vllm collect-env there"
    return "a recorded sample serves nothing"
