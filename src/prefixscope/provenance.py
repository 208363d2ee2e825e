"""Which prefixscope this is, and on what machine: versions, commit, processors; no name and no path of it."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from typing import Any

UNKNOWN = "0+unknown"
NO_GPU = "no GPU seen"
_ROOT = Path(__file__).resolve().parents[2]
_QUERY_S = 10.0


def package_version() -> str:
    """The version of the installed package; run from a checkout, the one that its pyproject.toml states."""
    stated = _ROOT / "pyproject.toml"
    if stated.is_file():
        found = re.search(r'^name = "prefixscope"\nversion = "([^"]+)"', stated.read_text(encoding="utf-8"), re.M)
        if found:
            return found[1]
    try:
        return version("prefixscope")
    except PackageNotFoundError:
        return UNKNOWN


def commit() -> str | None:
    """The commit of the checkout that runs, ``-dirty`` where files differ from it, or that was installed from git."""
    if (_ROOT / ".git").exists():
        return _said("git", "-C", str(_ROOT), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*")
    try:
        text = distribution("prefixscope").read_text("direct_url.json")
        found = json.loads(text or "{}").get("vcs_info", {}).get("commit_id")
    except (PackageNotFoundError, ValueError, AttributeError):
        return None
    return str(found)[:12] if found else None


def gpus() -> tuple[str, str]:
    """The machine's GPUs in words, and their driver's version (empty where there is none), as nvidia-smi says."""
    told = _said("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
    rows = [[cell.strip() for cell in line.split(",")] for line in (told or "").splitlines()]
    rows = [row for row in rows if len(row) == 2]
    if not rows:
        return NO_GPU, ""
    names = [name for name, _ in rows]
    return ", ".join(f"{names.count(name)} × {name}" for name in dict.fromkeys(names)), rows[0][1]


def environment() -> dict[str, Any]:
    """The investigating machine, without its name or paths."""
    gpu, driver = gpus()
    found = {
        "prefixscope": package_version(),
        "commit": commit(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "gpu": gpu,
        "driver": driver,
    }
    return {name: value for name, value in found.items() if value not in (None, "")}


def _said(*argv: str) -> str | None:
    """What a program prints; None where there is no such program, or it fails."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=_QUERY_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
