"""What is in a vLLM wheel: what it requires, and the part of it that runs without a GPU."""

from __future__ import annotations

import platform
import re
import zipfile
from email.parser import Parser
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement

from prefixscope.errors import EngineError

NOT_NEEDED = {"torchaudio", "torchvision", "torchcodec"}
"""A text model needs none of them, and a torchvision built for another torch stops vLLM from importing."""
_GPU_ONLY = re.compile(r"\.(so|hpp|cuh|cu|h|inl)$|/vllm-rs$")


def unpack_python(wheel: Path, folder: Path) -> None:
    """Unpack what runs without a GPU: a tenth of a GPU wheel, and all that its scheduler needs."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder, [name for name in archive.namelist() if not _GPU_ONLY.search(name)])


def requirements(wheel: Path, python: str) -> tuple[str, list[Requirement]]:
    """The torch version a vLLM wheel pins, and what else it needs here: extras and unneeded packages left out.

    Parameters
    ----------
    wheel : the downloaded wheel.
    python : ``"3.11"``, the version that will run it.
    """
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        lines = Parser().parsestr(archive.read(name).decode("utf-8")).get_all("Requires-Dist") or []
    torch, others = "", []
    for line in lines:
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            continue  # pip will not understand it either
        marker = requirement.marker
        if marker is not None and not marker.evaluate({"extra": "", "python_version": python}):
            continue
        if requirement.name == "torch":
            torch = next((each.version for each in requirement.specifier if each.operator == "=="), "")
        elif canonical(requirement.name) not in NOT_NEEDED:
            others.append(requirement)
    if not torch:
        raise EngineError(
            f"{wheel.name} pins no PyTorch version for Python {python} on {platform.machine()}",
            cause="the CPU build does not support this platform",
            remedy="choose another version, or use --url or --serve-cmd with a server of your own",
        )
    return torch, others


def without_marker(requirement: Requirement) -> str:
    """The requirement as pip takes it, its marker already evaluated."""
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    return f"{requirement.name}{extras}{requirement.specifier}"


def canonical(name: str) -> str:
    """A package's name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()
