"""Runs a loop in an engine's Python, with the kit on its path: what the benchmarks of tracer and replay share."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from prefixscope import engine as engines
from prefixscope.kit import write_kit


def measured(
    loop: str, about: str | None, *, repeats: int, environment: Callable[[engines.Engine, Path], Mapping[str, str]]
) -> dict[str, Any]:
    """What the loop of that file name measured, under the options of the command line.

    ``environment`` takes engine and kit; ``about`` is what ``--help`` says, ``repeats`` the default of its option.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--release", default=engines.DEFAULT_VERSION)
    parser.add_argument("--repeats", type=int, default=repeats)
    arguments = parser.parse_args()
    engine = engines.ensure(arguments.release, progress=print)
    with tempfile.TemporaryDirectory() as place:
        kit, result = write_kit(Path(place) / "kit"), Path(place) / "result.json"
        wanted = {
            "model_dir": str(Path(engine.model.target).parent),
            "repeats": arguments.repeats,
            "result": str(result),
        }
        subprocess.run(
            [str(engine.python), str(Path(__file__).with_name(loop))],
            input=json.dumps(wanted),
            text=True,
            check=True,
            env={**os.environ, **environment(engine, kit)},
        )
        found: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    return found
