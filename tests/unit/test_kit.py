"""The tracing kit: a folder that works by being on PYTHONPATH."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

from prefixscope.kit import PACKAGE, kit_environment, kit_lines, write_kit


def test_loader_finds_the_plugin_through_pythonpath_alone(tmp_path: Path) -> None:
    """An isolated Python with nothing but the kit on its path finds the entry point and can load it."""
    kit = write_kit(tmp_path / "kit")
    code = (
        "from importlib.metadata import entry_points\n"
        "found, = [one for one in entry_points(group='vllm.general_plugins') if one.name == 'prefixscope']\n"
        "found.load()()\n"
        "import sys\n"
        "assert 'vllm' not in sys.modules and 'prefixscope' not in sys.modules\n"
        "print(found.value)"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PREFIXSCOPE"))}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**environment, "PYTHONPATH": str(kit)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == f"{PACKAGE}.tracer:register"


def test_kit_stands_alone(tmp_path: Path) -> None:
    """Nothing in the kit imports anything but the standard library, vllm and itself."""
    kit = write_kit(tmp_path)
    allowed = {*sys.stdlib_module_names, "vllm", "torch"}
    for path in (kit / PACKAGE).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                assert {name.name.split(".")[0] for name in node.names} <= allowed, path.name
            elif isinstance(node, ast.ImportFrom) and not node.level:
                assert (node.module or "").split(".")[0] in allowed, path.name


def test_writing_again_replaces_the_kit_only(tmp_path: Path) -> None:
    """A second writing renews the kit's own files and leaves other files in the folder alone."""
    kit = write_kit(tmp_path)
    (kit / "mine.txt").write_text("mine")
    (kit / PACKAGE / "stale.py").write_text("stale")
    assert write_kit(tmp_path) == kit
    assert (kit / "mine.txt").exists()
    assert not (kit / PACKAGE / "stale.py").exists()


def test_environment(tmp_path: Path) -> None:
    """The variables name the kit first, keep the caller's path, and say where to write and how much."""
    variables = kit_environment(tmp_path / "kit", tmp_path / "trace", pythonpath="/other", limit_mb=8)
    assert variables == {
        "PYTHONPATH": f"{tmp_path / 'kit'}:/other",
        "PREFIXSCOPE_TRACE_DIR": str(tmp_path / "trace"),
        "PREFIXSCOPE_TRACE_MAX_MB": "8",
    }


def test_lines_to_type(tmp_path: Path) -> None:
    """The host line and the container line name the same kit, read-only in the container."""
    serve, docker = kit_lines(tmp_path / "kit", tmp_path / "trace")
    assert serve.startswith(f"PYTHONPATH={tmp_path / 'kit'} ")
    assert f"{tmp_path / 'kit'}:/prefixscope:ro" in docker
