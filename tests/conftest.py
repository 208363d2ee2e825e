"""What the tests share: one option, the engine, stub servers and run directories."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from stub import StubServer

from prefixscope.run_files import TOKEN_ENV
from prefixscope.runs import OWNER_ENV, Run

if TYPE_CHECKING:
    from prefixscope.engine import Engine
    from prefixscope.investigation import Investigation
    from prefixscope.setting import Setting
    from prefixscope.target import Target

_deselected = pytest.StashKey[int]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--no-browser", action="store_true", help="leave out the tests that need a Chromium")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--no-browser"):
        return
    left_out = [item for item in items if item.get_closest_marker("browser")]
    config.stash[_deselected] = len(left_out)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("browser")]


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if config.getoption("--no-browser"):
        count = config.stash.get(_deselected, 0)
        terminalreporter.write_line(f"--no-browser left out {count} browser test{'' if count == 1 else 's'}")


@pytest.fixture(autouse=True)
def _no_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    # A test session that is itself started from a kernel of a run must not write under that run's token.
    for name in (TOKEN_ENV, OWNER_ENV):
        monkeypatch.delenv(name, raising=False)


# --- the engine --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def engine(request: pytest.FixtureRequest) -> Engine:
    """The default embedded engine, installed on first use; the install shows its progress."""
    from prefixscope import engine as engines

    capture = request.config.pluginmanager.getplugin("capturemanager")

    def show(line: str) -> None:
        # A first install takes minutes; a silent one looks like a hang.
        with capture.global_and_fixture_disabled():
            print(f"\n  engine: {line}", end="", flush=True)

    return engines.ensure(engines.DEFAULT_VERSION, progress=show)


@pytest.fixture(scope="session")
def engine_python(engine: Engine) -> str:
    """The Python that has vLLM."""
    return str(engine.python)


@pytest.fixture(scope="session")
def model_dir(engine: Engine) -> Path:
    """The folder that holds target/, drafter/ and lora/."""
    return Path(engine.model.target).parent


# --- the notebooks -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Executed:
    """A notebook as plain papermill left it, and the processor time of its kernel."""

    path: Path
    cpu_s: float


@pytest.fixture(scope="session")
def executed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Executed]:
    """Runs a stage's notebook on the recorded sample with its own defaults, once a session."""
    from prefixscope import notebooks

    folder, done = tmp_path_factory.mktemp("executed"), dict[str, Executed]()

    def execute(stage: str) -> Executed:
        if stage not in done:
            import papermill

            out, before = folder / f"{notebooks.FILES[stage]}.ipynb", os.times()
            with pytest.MonkeyPatch.context() as patch:  # kernels import the package that the tests import
                patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
                papermill.execute_notebook(str(notebooks.path(stage)), str(out), progress_bar=False, cwd=str(folder))
            after = os.times()
            spent = after.children_user + after.children_system - before.children_user - before.children_system
            done[stage] = Executed(out, spent)
        return done[stage]

    return execute


# --- stub servers and run directories ----------------------------------------------------------------------------


@pytest.fixture
def stub() -> Iterator[StubServer]:
    """A small OpenAI-compatible server with a prefix cache; its attributes make it behave oddly."""
    with StubServer() as server:
        yield server


@pytest.fixture
def run_factory(tmp_path: Path) -> Callable[..., Run]:
    """Makes run directories: ``run_factory("name", target=Target(…))``."""

    def make(name: str = "run", *, target: Target | None = None, **parameters: Any) -> Run:
        named = target.to_json() if target else {"kind": "attached", "url": "http://127.0.0.1:9"}
        return Run.create(tmp_path / name, target=named, parameters=parameters)

    return make


@pytest.fixture
def attach(tmp_path: Path, stub: StubServer) -> Callable[..., Investigation]:
    """Opens an investigation of the stub as an attached server; the same name opens the same run again."""

    def make(name: str = "run", **options: Any) -> Investigation:
        from prefixscope.investigation import Investigation
        from prefixscope.target import Target

        target = Target(kind="attached", url=stub.url, **options)
        place = tmp_path / name
        run = Run(place) if place.exists() else Run.create(place, target=target.to_json(), parameters={})
        return Investigation(run, target)

    return make


@pytest.fixture
def started(stub: StubServer, monkeypatch: pytest.MonkeyPatch) -> list[Setting]:
    """Every server of ours is the stub; what was started, in order."""
    from prefixscope.client import Client
    from prefixscope.investigation import Investigation

    found: list[Setting] = []

    @contextmanager
    def server(
        self: Investigation, setting: Setting, stage: Any, *, keep: bool = False
    ) -> Iterator[tuple[Client, str]]:
        found.append(setting)
        with Client(stub.url) as client:
            yield client, f"s{len(found):02d}"

    monkeypatch.setattr(Investigation, "server", server)
    monkeypatch.setattr(Investigation, "start_ahead", lambda self, setting: None)
    return found
