"""A folder that makes any vLLM write a trace: put it on PYTHONPATH, name an output folder, start the server."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

from prefixscope.inside.versions import KNOWN

PACKAGE = "prefixscope_inside"
TRACE_DIRECTORY = "PREFIXSCOPE_TRACE_DIR"
TRACE_LIMIT = "PREFIXSCOPE_TRACE_MAX_MB"

README = "README.txt"
_TITLE = "prefixscope's tracer for vLLM"
_README = f"""\
{_TITLE}

This folder makes a vLLM server record its prefix-cache lookups: which blocks each one needed, and which were there.
It takes effect when the server starts, and needs no installation: vLLM finds it on PYTHONPATH as a plugin.

Set two variables where the server is started (in a container: with the kit mounted, read-only will do):

  PYTHONPATH                this folder, before what the variable already holds
  {TRACE_DIRECTORY}     the folder to write to; it is made where it is missing
  {TRACE_LIMIT}  a third one, if you like: the most that each file may hold, in MB (256)

Each process of the server writes one trace-PID.jsonl there, a JSON object a line. To read them, on any machine:

  prefixscope trace show FOLDER

Releases: vLLM {{releases}}. On any other, and at its first error, the tracer turns itself off with one line in the
server's log; it never stops the server.

It holds no text and no token ids, neither this folder nor a trace: lengths, block numbers, times, the server's
settings and layer names, and the ids of requests as the clients sent them.
"""

_METADATA = "Metadata-Version: 2.1\nName: prefixscope-inside\nVersion: 1\n"
_ENTRY_POINTS = f"[vllm.general_plugins]\nprefixscope = {PACKAGE}.tracer:register\n"


def write_kit(directory: Path | str) -> Path:
    """The folder to put on PYTHONPATH; writing it again replaces what was there of it and nothing else.

    It holds `prefixscope_inside/` (standard library and vllm only) and the `.dist-info` by which vLLM's loader of
    general plugins finds it, so it needs no pip install and can be mounted read-only into a container. A README.txt
    explains it to whoever finds the folder; one that is not ours is left alone.
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
    readme = kit / README
    if not readme.exists() or readme.read_text(encoding="utf-8", errors="replace").startswith(_TITLE):
        oldest, newest = (".".join(map(str, release)) for release in (KNOWN[0], KNOWN[-1]))
        readme.write_text(_README.format(releases=f"{oldest} to {newest}"), encoding="utf-8")
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
    path, output = str(Path(kit).resolve()), str(Path(trace_dir).resolve())
    serve = f"PYTHONPATH={shlex.quote(path)} {TRACE_DIRECTORY}={shlex.quote(output)} vllm serve MODEL"
    docker = (
        f"docker run -v {shlex.quote(f'{path}:/prefixscope:ro')} -v {shlex.quote(f'{output}:/trace')} "
        f"-e PYTHONPATH=/prefixscope -e {TRACE_DIRECTORY}=/trace vllm/vllm-openai:v0.29.0 MODEL"
    )
    return serve, docker
