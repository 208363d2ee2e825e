"""A report about a server that runs already says how to fill its gaps without restarting what is not ours."""

from __future__ import annotations

import html
import json
import shutil
from pathlib import Path

import pytest

from prefixscope import material, notes, resources, sections
from prefixscope.report import render_html
from prefixscope.sections import Section

LEFT_OUT = {"status": "left out", "note": "needs a server that may be restarted: --serve-cmd 'vllm serve …'"}


@pytest.fixture(params=["left out", "skipped", "never asked"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The recorded baseline as if it were of a server that ran already and was not traced."""
    run = Path(shutil.copytree(resources.data_path("sample", "run"), tmp_path / "run"))
    for file in (*(run / "raw").glob("*.jsonl"), *(run / "trace").glob("*")):
        if file.name != "baseline.jsonl":
            file.unlink()
    manifest = json.loads((run / "run.json").read_text())
    manifest["target"] = {"kind": "attached", "url": "http://host:8000", "label": "attached server http://host:8000"}
    entry = {} if request.param == "never asked" else {**LEFT_OUT, "status": request.param}
    manifest["stages"] = {"baseline": manifest["stages"]["baseline"], "sweep": entry, "trace": entry}
    (run / "run.json").write_text(json.dumps(manifest))
    return run


def made(run: Path) -> dict[str, Section]:
    return {one.id: one for one in sections.sections(material.gather(run))}


def test_a_gap_of_a_server_that_runs_has_every_way_to_fill_it(run: Path) -> None:
    """A sweep is predicted from a trace or measured elsewhere; a lookup is traced from the server's next start on."""
    found = made(run)
    for name in ("sweep", "cost"):
        assert found[name].fills == "Either line fills the section"
        lines = found[name].command.splitlines()
        assert lines[0].startswith("prefixscope run -o RUN --resume --only sweep -p sweep.trace=FILE ")
        assert lines[1].startswith("prefixscope run --serve-cmd 'vllm serve MODEL …' ")
    for name in ("blocks", "crosscheck"):
        assert found[name].fills == "These lines fill the section, in a run of its own"
        starts = ["prefixscope trace kit", "prefixscope run --url", "cp TRACE_DIR", "prefixscope run -o NEW --resume"]
        assert all(map(str.startswith, found[name].command.splitlines(), starts))
    page = html.unescape(render_html(run))
    assert "Either line fills the section (RUN is this run's directory):" in page
    assert "This fills the section:</p><pre>prefixscope trace kit" not in page


def test_the_note_names_no_command_that_such_a_server_would_skip(run: Path) -> None:
    """What is open is named with what begins to settle it on a server that can't be restarted."""
    told = notes.write_incident(run).read_text()
    assert "(`prefixscope trace kit KIT`)" in told
    assert "(`prefixscope run -o RUN --resume --only sweep -p sweep.trace=FILE`)" in told
    assert "--only sweep`)" not in told
    assert "--only trace`)" not in told
    assert "(`prefixscope run -o RUN --resume --only equality`)" in told
