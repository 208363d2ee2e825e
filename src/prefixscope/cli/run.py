"""``prefixscope run``: the whole investigation."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from prefixscope.cli.exits import DONE
from prefixscope.cli.screen import Screen

if TYPE_CHECKING:
    from prefixscope.cli.exits import Commands


def _run(options: argparse.Namespace) -> int:
    from prefixscope import runner

    going_on = bool(options.resume and options.out)
    if going_on:
        runner.refuse_other_target(options)
    target = runner.target_of(options)
    plan = runner.plan(target, quick=options.quick, only=options.only, assignments=options.parameter)
    if going_on:
        runner.add_stored(plan, Path(options.out))
    if options.dry_run:
        print(json.dumps(plan.to_json(), indent=2) if options.json else plan.text())
        return DONE
    screen = Screen()
    result = runner.run(target, plan, out=options.out, resume=options.resume, screen=screen)
    if options.json:
        print(json.dumps(result.to_json(), indent=2))
    else:
        print(result.text())
    return result.exit_code


def served_name(text: str) -> str:
    """A model's name, as an option takes it."""
    if not text.strip():
        raise argparse.ArgumentTypeError(
            "the name is empty, as it is where a variable of the shell is not set: leave the option out, or give one "
            "of the names at the server's /v1/models"
        )
    return text


def add(commands: Commands) -> None:
    """Its options and its help."""
    run = commands.add_parser(
        "run",
        help="the whole investigation, into one HTML report",
        description="Run the notebooks headless into a run directory and render the report. With no target named, a "
        "real vLLM on this machine's CPU is investigated (installed into your cache folder first, about 4 GB).",
    )
    run.add_argument("-o", "--out", metavar="RUN", help="run directory (default: a new one here)")
    run.add_argument("--quick", action="store_true", help="fewer lengths, intervals and documents")
    where = run.add_mutually_exclusive_group()
    where.add_argument("--url", help="a running server: nothing is restarted, little is sent")
    where.add_argument(
        "--serve-cmd", metavar="CMD", help="'vllm serve MODEL …' or 'docker run …': we start and stop it"
    )
    run.add_argument("--stop-cmd", metavar="CMD", help="ends what --serve-cmd started (for a container)")
    run.add_argument("--engine", metavar="VERSION", help="vLLM version of the embedded engine (default: 0.29.0)")
    run.add_argument("--model", type=served_name, help="served name to ask (default: the first base model)")
    run.add_argument(
        "--key-env", default="", metavar="NAME", help="name of the environment variable that holds the API key"
    )
    run.add_argument(
        "--start-timeout",
        type=float,
        default=600.0,
        metavar="S",
        help="seconds a managed server may take (default: 600)",
    )
    run.add_argument(
        "--resume", action="store_true", help="go on with the run in -o: done cells are kept, failed ones redone"
    )
    run.add_argument(
        "--only", action="append", default=[], metavar="STAGE", help="only this stage, and the report; may be repeated"
    )
    run.add_argument(
        "-p", "--parameter", action="append", default=[], metavar="STAGE.NAME=VALUE", help="a notebook's parameter"
    )
    run.add_argument("--dry-run", action="store_true", help="list stages and parameters, and do nothing")
    run.add_argument("--json", action="store_true", help="the result as JSON on stdout")
    run.set_defaults(call=_run)
