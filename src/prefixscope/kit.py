"""A folder that makes any vLLM write a trace: put it on PYTHONPATH, name an output folder, start the server."""

from __future__ import annotations

import shutil
from pathlib import Path

PACKAGE = "prefixscope_inside"
TRACE_DIRECTORY = "PREFIXSCOPE_TRACE_DIR"
TRACE_LIMIT = "PREFIXSCOPE_TRACE_MAX_MB"

_METADATA = "Metadata-Version: 2.1\nName: prefixscope-inside\nVersion: 1\n"
_ENTRY_POINTS = f"[vllm.general_plugins]\nprefixscope = {PACKAGE}.tracer:register\n"


def write_kit(directory: Path | str) -> Path:
    """The folder to put on PYTHONPATH; writing it again replaces what was there of it and nothing else.

    It holds `prefixscope_inside/` (standard library and vllm only) and the `.dist-info` by which vLLM's loader of
    general plugins finds it, so it needs no pip install and can be mounted read-only into a container.
    """
    kit = Path(directory).resolve()
    package, info = kit / PACKAGE, kit / f"{PACKAGE}-1.dist-info"
    for folder in (package, info):
        if folder.exists():
            shutil.rmtree(folder)
    shutil.copytree(Path(__file__).parent / "inside", package, ignore=shutil.ignore_patterns("__pycache__"))
    info.mkdir()
    (info / "METADATA").write_text(_METADATA, encoding="utf-8")
    (info / "entry_points.txt").write_text(_ENTRY_POINTS, encoding="utf-8")
    return kit


def kit_environment(
    kit: Path | str, trace_dir: Path | str, *, pythonpath: str = "", limit_mb: int | None = None
) -> dict[str, str]:
    """The environment variables that turn the tracer on; ``pythonpath`` is what PYTHONPATH already holds."""
    path = str(Path(kit).resolve())
    environment = {
        "PYTHONPATH": f"{path}:{pythonpath}" if pythonpath else path,
        TRACE_DIRECTORY: str(Path(trace_dir).resolve()),
    }
    if limit_mb is not None:
        environment[TRACE_LIMIT] = str(limit_mb)
    return environment


def kit_lines(kit: Path | str, trace_dir: Path | str) -> tuple[str, str]:
    """What to type: the `vllm serve` line on the host, and the `docker run` line with the kit mounted read-only."""
    path, output = Path(kit).resolve(), Path(trace_dir).resolve()
    serve = f"PYTHONPATH={path} {TRACE_DIRECTORY}={output} vllm serve MODEL"
    docker = (
        f"docker run -v {path}:/prefixscope:ro -v {output}:/trace "
        f"-e PYTHONPATH=/prefixscope -e {TRACE_DIRECTORY}=/trace vllm/vllm-openai:v0.29.0 MODEL"
    )
    return serve, docker
