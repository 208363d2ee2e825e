"""Which version, commit and machine a run says it was made by, and what of vLLM's collect-env is kept."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from data.make_run import make_run

from prefixscope import collect_env, command, provenance, redact
from prefixscope.frames import load_run
from prefixscope.report import render_html
from prefixscope.runs import Run
from prefixscope.target import Target

PRINTED = """\
Collecting environment information...
==============================
        System Info
==============================
OS                           : Ubuntu 22.04.5 LTS (x86_64)
GCC version                  : Could not collect
==============================
       PyTorch Info
==============================
PyTorch version              : 2.13.0+cu130
Python platform              : Linux-6.8.0-x86_64-with-glibc2.35
==============================
       CUDA / GPU Info
==============================
GPU models and configuration :
GPU 0: NVIDIA H200
GPU 1: NVIDIA H200

Nvidia driver version        : 580.65.06
Hostname of this             : gpu-node-17
Model name:                           Intel(R) Xeon(R)
[pip3] numpy==2.2.6
[pip3] torch==2.13.0+cu130
[pip3] secretlib==1.0
vLLM Version                 : 0.29.0
==============================
     Environment Variables
==============================
HF_TOKEN=hf_abcdefghijklmnop
OS: not from here
"""


def program(place: Path, text: str, first: str = f"#!{sys.executable}") -> Path:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(f"{first}\n{text}")
    place.chmod(place.stat().st_mode | stat.S_IXUSR)
    return place


def test_a_checkout_says_its_version_and_commit() -> None:
    """Run from source, prefixscope says the version of its pyproject.toml and the commit, never “unknown”."""
    assert re.fullmatch(r"\d+\.\d+\.\d+", provenance.package_version())
    known = provenance.commit()
    if (Path(provenance.__file__).parents[2] / ".git").exists():
        assert known is not None
        assert re.fullmatch(r"[0-9a-f]{12}(-dirty)?", known)
    else:
        assert known is None or re.fullmatch(r"[0-9a-f]{12}", known)


def test_gpus_and_driver_are_what_nvidia_smi_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GPUs of one name are counted, the driver is named; without nvidia-smi no GPU was seen, and that is said."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert provenance.gpus() == ("no GPU seen", "")
    program(tmp_path / "nvidia-smi", "print('NVIDIA H200, 580.65.06\\nNVIDIA H200, 580.65.06')")
    assert provenance.gpus() == ("2 × NVIDIA H200", "580.65.06")
    assert provenance.environment()["driver"] == "580.65.06"
    program(tmp_path / "nvidia-smi", "raise SystemExit('no devices were found')")
    assert provenance.gpus() == ("no GPU seen", "")


def test_an_unknown_version_is_not_shown() -> None:
    """A run recorded by a prefixscope that did not know its version shows none, rather than “0+unknown”."""
    told = redact.manifest({"prefixscope_version": "0+unknown", "environment": {"prefixscope": "0+unknown", "cpus": 2}})
    assert "prefixscope_version" not in told
    assert told["environment"] == {"cpus": "2"}


def test_collect_env_keeps_named_lines_alone() -> None:
    """Of what collect-env prints only named lines are kept: no variable, no host name, no unknown package."""
    assert collect_env.parse(PRINTED) == {
        "OS": "Ubuntu 22.04.5 LTS (x86_64)",
        "PyTorch version": "2.13.0+cu130",
        "Python platform": "Linux-6.8.0-x86_64-with-glibc2.35",
        "Nvidia driver version": "580.65.06",
        "Model name": "Intel(R) Xeon(R)",
        "vLLM Version": "0.29.0",
        "GPUs": "2 × NVIDIA H200",
        "packages": "numpy==2.2.6, torch==2.13.0+cu130",
    }


@pytest.fixture
def managed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Target:
    """A serve command whose console script names an interpreter that answers for vLLM's module."""
    answer = f"import os, sys\nassert sys.argv[1:] == ['-m', 'vllm.collect_env']\nprint({PRINTED!r})\n"
    python = program(tmp_path / "env" / "bin" / "python3", answer + "print('SECRET' if 'MY_KEY' in os.environ else '')")
    program(tmp_path / "env" / "bin" / "vllm", "", f"#!{python}")
    monkeypatch.setenv("PATH", f"{tmp_path / 'env' / 'bin'}{os.pathsep}{os.environ['PATH']}")
    return Target(kind="managed", serve_cmd="CUDA_VISIBLE_DEVICES=0 vllm serve some/model --port 8000")


def test_a_serve_command_shows_its_interpreter(managed: Target) -> None:
    """The interpreter of ``vllm serve`` is the one in its first line; a container's is not known."""
    found = command.interpreter(managed.serve_cmd)
    assert found is not None
    assert (Path(found[0]).name, dict(found[1])) == ("python3", {"CUDA_VISIBLE_DEVICES": "0"})
    direct = command.interpreter(f"{sys.executable} -m vllm.entrypoints.openai.api_server --model m")
    assert direct == (sys.executable, {})
    assert command.interpreter("docker run --rm --name ps vllm/vllm-openai:v0.29.0 m") is None
    assert command.interpreter("no-such-program serve m") is None


def test_collect_env_is_asked_once_and_shown(managed: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine's Python is asked once, without our secrets; the report shows its lines and their source."""
    monkeypatch.setenv("MY_KEY", "a-key-that-is-long-enough")
    run = Run.create(tmp_path / "run", target=managed.to_json(), parameters={})
    collect_env.keep(run, managed)
    assert run.manifest["collect_env"]["lines"]["GPUs"] == "2 × NVIDIA H200"
    monkeypatch.setattr(subprocess, "run", None)
    collect_env.keep(run, managed)
    monkeypatch.undo()
    page = render_html(run.path)
    assert "2 × NVIDIA H200" in page
    assert page.count("vLLM&#39;s collect-env") == 8


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (Target(kind="attached", url="http://127.0.0.1:1"), "run vllm collect-env there"),
        (Target(kind="managed", serve_cmd="docker run --rm --name ps i m"), "does not show the Python"),
        (Target(kind="managed", serve_cmd=f"{sys.executable} -m vllm.x"), "ended with code 1: "),
        (Target(kind="embedded", engine="0.1.0"), "vLLM 0.1.0 is not installed here"),
    ],
    ids=["attached", "container", "no vllm", "not installed"],
)
def test_what_cannot_be_collected_is_said(
    target: Target, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there is no interpreter of ours to ask, or it has no answer, the report says why."""
    monkeypatch.setenv("PREFIXSCOPE_CACHE", str(tmp_path / "cache"))
    run = Run.create(tmp_path / "run", target=target.to_json(), parameters={})
    collect_env.keep(run, target)
    assert words in load_run(run.path)["collect_env"]["absent"]
    assert "not collected: " in render_html(run.path)


def test_a_run_that_did_not_ask_says_so(tmp_path: Path) -> None:
    """A run made without collect-env says that nobody asked."""
    assert "not collected: this run did not ask for it" in render_html(make_run(tmp_path, stages=()))
