"""The README and CONTRIBUTING say what the code does."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from importlib.metadata import requires
from pathlib import Path

import nbformat
import pytest

from prefixscope import notebooks
from prefixscope.cli.run import STAGES

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
TEST_LINE = "apt-get update && apt-get install -y chromium openssl && pip install '.[test]' && pytest"


def test_ci_runs_the_readmes_test_line() -> None:
    """The line in the README is, to the letter, the one that CI runs."""
    assert TEST_LINE in README
    assert TEST_LINE in (ROOT / ".ci" / "run").read_text().splitlines()


def test_each_notebook_is_in_the_readme() -> None:
    """Every notebook has its row, which begins with its question, on the first screen."""
    first_screen = README.partition("## Using it")[0]
    for stage, name in notebooks.FILES.items():
        title = nbformat.read(notebooks.path(stage), as_version=4).cells[0].source.splitlines()[0].removeprefix("# ")
        row = next(line for line in first_screen.splitlines() if f"| `{name}` |" in line)
        assert stage == "report" or row.startswith(f"| {title} |")


@pytest.mark.parametrize(
    "command",
    sorted(set(re.findall(r"prefixscope ((?:engine |trace |notebooks )?[a-z]+(?:-[a-z]+)*)", README)) - {"sends"}),
)
def test_each_command_of_the_readme_exists(command: str) -> None:
    """Every command that the README names prints its help."""
    done = helped(*command.split())
    assert done.returncode == 0, done.stderr


@functools.cache
def helped(*words: str) -> subprocess.CompletedProcess[str]:
    """What a command's help says."""
    command = [sys.executable, "-m", "prefixscope.cli", *words, "--help"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("option", sorted(set(re.findall(r"(?<![\w-])(--[a-z][a-z-]+)", README))))
def test_each_option_of_the_readme_exists(option: str) -> None:
    """Every option that the README shows is one of ours, or one of vLLM's or docker's that it explains."""
    theirs = {
        "--enable-prefix-caching", "--enable-prompt-tokens-details", "--speculative-config",
        "--prefix-cache-retention-interval", "--gpus", "--rm", "--name", "--host", "--port",
        "--per-request-spec-decode-metrics",
    }  # fmt: skip
    commands = (["run"], ["check"], ["predict"], ["compare"], ["trace", "show"], ["report"], ["lab"])
    shown = "".join(helped(*command).stdout for command in commands)
    assert option in shown or option in theirs


def test_a_stage_is_explained_where_it_is_named() -> None:
    """``run --help`` has a line for each stage, in the order they run, with its notebook."""
    named = re.findall(r"^  (\w+) +(\d\d-[\w-]+) ", STAGES, re.MULTILINE)
    assert named == [(stage, notebooks.FILES[stage]) for stage in notebooks.ORDER]


GIVEN = sorted({quoted or bare for quoted, bare in re.findall(r"-p (?:'([^']+)'|([a-z]+\.[^\s`']+))", README)})


@pytest.mark.parametrize("assignment", [one for one in GIVEN if one != "stage.name=value"])
def test_each_parameter_of_the_readme_exists(assignment: str) -> None:
    """Every ``-p`` that the README shows is taken."""
    notebooks.parse_assignment(assignment)


def test_each_module_is_in_the_layout() -> None:
    """CONTRIBUTING draws every module: the package's own, and on a line for each folder what is in it."""
    package = ROOT / "src" / "prefixscope"
    for file in package.glob("*.py"):
        if not file.stem.startswith("__"):
            assert re.search(rf"\b{file.stem}\b", CONTRIBUTING), file.name
    for folder in sorted({init.parent for init in package.glob("*/__init__.py")}):
        drawn = re.search(rf"^  {folder.name}/  +(\w+(?: \w+)*)$", CONTRIBUTING, re.MULTILINE)
        assert drawn, folder.name
        assert sorted(drawn[1].split()) == sorted({file.stem for file in folder.glob("[!_]*.py")})


def test_left_never_imports_right() -> None:
    """Within a folder of modules each imports only those that CONTRIBUTING draws to its left."""
    package = ROOT / "src" / "prefixscope"
    for folder in sorted(init.parent.name for init in package.glob("*/__init__.py")):
        drawn = re.search(rf"^  {folder}/  +(\w+(?: \w+)*)$", CONTRIBUTING, re.MULTILINE)
        assert drawn, folder
        order = drawn[1].split()
        for name in order:
            text = (ROOT / "src" / "prefixscope" / folder / f"{name}.py").read_text()
            found = set(re.findall(rf"^from (?:prefixscope\.{folder}\.|\.)(\w+) import", text, re.MULTILINE))
            for line in re.findall(rf"^from (?:prefixscope\.{folder}|\.) import (.+)$", text, re.MULTILINE):
                found |= {name.split(" as ")[0] for name in line.split(", ")}
            assert found <= set(order[: order.index(name)]), f"{folder}/{name}.py"


def test_each_dependency_has_its_reason() -> None:
    """CONTRIBUTING gives one line of reason for every dependency."""
    for requirement in [r for r in requires("prefixscope") or [] if "extra ==" not in r]:
        name = re.split(r"[><=!~]", requirement)[0]
        assert f"| {name} |" in CONTRIBUTING, name


def test_the_package_never_imports_vllm() -> None:
    """Outside ``inside/`` no module imports vllm or torch."""
    package = ROOT / "src" / "prefixscope"
    for file in set(package.rglob("*.py")) - set((package / "inside").glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(name.split(".")[0] in ("vllm", "torch") for name in names), file.name


def test_links_of_the_readme_lead_somewhere() -> None:
    """Every relative link and picture of the README exists."""
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", README):
        assert (ROOT / target).exists(), target
