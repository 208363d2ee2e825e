"""The tracing kit: a folder that works by being on PYTHONPATH."""

from __future__ import annotations

import ast
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from prefixscope import cli
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


def test_lines_to_type_survive_a_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A shell reads each printed path as one word, whatever is in it."""
    monkeypatch.chdir(tmp_path)
    assert cli.main(["trace", "kit", "my kit", "--trace-dir", "my 'traces'"]) == 0
    serve, docker, show = (line.strip() for line in capsys.readouterr().out.splitlines() if line.startswith("  "))
    kit, traces = tmp_path / "my kit", tmp_path / "my 'traces'"
    assert shlex.split(serve) == [f"PYTHONPATH={kit}", f"PREFIXSCOPE_TRACE_DIR={traces}", "vllm", "serve", "MODEL"]
    assert {f"{kit}:/prefixscope:ro", f"{traces}:/trace"} <= set(shlex.split(docker))
    assert shlex.split(show) == ["prefixscope", "trace", "show", "my 'traces'"]


def test_the_folder_explains_itself(tmp_path: Path) -> None:
    """Its README names both variables, the command that reads a trace, the releases, and what it does not hold; a
    README of the folder's owner stays."""
    text = (write_kit(tmp_path / "kit") / "README.txt").read_text()
    for words in ("PYTHONPATH", "PREFIXSCOPE_TRACE_DIR", "prefixscope trace show", "0.28 to 0.33", "no token ids"):
        assert words in text
    (tmp_path / "kit" / "README.txt").write_text(text.replace("0.28", "0.1"))
    write_kit(tmp_path / "kit")
    assert (tmp_path / "kit" / "README.txt").read_text() == text
    (tmp_path / "README.txt").write_text("mine")
    assert (write_kit(tmp_path) / "README.txt").read_text() == "mine"
