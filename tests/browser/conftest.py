"""What the browser tests share: one Chromium, and the pages that people open."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from cdp import Chromium, NoChromium
from data.answers import GEMMA, NEW, OLD, PROBES, heat_cells, prediction
from data.make_run import make_run
from data.workload import ROWS, pressure

from prefixscope import frames, resources
from prefixscope.prediction import render_prediction, render_pressed
from prefixscope.replay import Grid, Survey
from prefixscope.report import render_report
from prefixscope.sections import pressed


@pytest.fixture(scope="session")
def chromium() -> Iterator[Chromium]:
    """A browser; without one these tests fail, since a report that nobody opened is not tested."""
    try:
        browser = Chromium()
    except NoChromium as error:
        pytest.fail(str(error))
    with browser:
        yield browser


@pytest.fixture(scope="session")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a whole synthetic run."""
    return render_report(make_run(tmp_path_factory.mktemp("run")))


@pytest.fixture(scope="session")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of the recorded sample."""
    return render_report(resources.data_path("sample", "run"), out=tmp_path_factory.mktemp("sample") / "report.html")


@pytest.fixture(scope="session")
def predicted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a prediction."""
    grid = Grid(geometry=GEMMA, lengths=(1600, 6392), intervals=(None, 1024, 2048), drafters=(7,))
    survey = Survey(cells=[*OLD, *NEW], probes=PROBES, heat=heat_cells())
    return render_prediction(prediction(grid=grid, survey=survey), tmp_path_factory.mktemp("predicted") / "page.html")


@pytest.fixture(scope="session")
def under_pressure(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a workload in several pools, on two releases."""
    rows = [*ROWS, *(replace(row, release="0.33.0") for row in ROWS)]
    section = pressed(frames.pressed(rows, own_pool=50_000), pressure())
    return render_pressed(section, {"rows": []}, tmp_path_factory.mktemp("pressed") / "page.html")
