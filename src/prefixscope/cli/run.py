"""``prefixscope run``: the whole investigation."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prefixscope.cli.exits import DONE
from prefixscope.cli.screen import Screen

if TYPE_CHECKING:
    from prefixscope.cli.exits import Commands


def _run(options: argparse.Namespace) -> int:
    from prefixscope import planned, runner

    going_on = bool(options.resume and options.out)
    if going_on:
        runner.refuse_other_target(options)
    target = runner.target_of(options)
    only = options.only or (planned.going_on(Path(options.out), options.parameter) if going_on else [])
    plan = planned.plan(target, quick=options.quick, only=only, assignments=options.parameter)
    if going_on:
        planned.add_stored(plan, Path(options.out))
    if options.dry_run:
        if target.kind == "embedded":
            _refuse_embedded(target.engine, plan.parameters.get("sweep", {}).get("intervals", ()))
        print(json.dumps(plan.to_json(), indent=2) if options.json else plan.text())
        return DONE
    screen = Screen()
    result = runner.run(
        target, plan, out=options.out, resume=options.resume, screen=screen, collect=options.collect_env
    )
    if options.json:
        print(json.dumps(result.to_json(), indent=2))
    else:
        print(result.text())
    return result.exit_code


def _refuse_embedded(version: str, intervals: Sequence[Any]) -> None:
    """What the embedded engine would refuse, or its scheduler, once they are there."""
    from prefixscope import engine
    from prefixscope.geometry import check_intervals
    from prefixscope.setting import parse_interval

    engine.refuse_unservable(version)
    check_intervals([parse_interval(one) for one in intervals], engine.SCHEDULER_BLOCK)


STAGES = """\
stages, in the order they run (--only takes the name on the left), and what some of them need:
  baseline     00-baseline         does it reuse prefixes, with and without drafter, adapter and interval?
  trace        10-block-trace      which blocks did each lookup need, and which were there?      a restart or a trace
  speculation  40-speculation      what does the drafter gain, and what do its lost hits cost?   a restart or two URLs
  equality     30-output-equality  do warm answers equal cold ones?
  sweep        20-retention-sweep  which retention interval brings the hit back, at what price?  a restart or a trace
  report       90-report           all of it on one page; always made
"""
EXAMPLES = """\
examples:
  prefixscope run                                          a real vLLM on this machine's CPU, 5 to 10 minutes
  prefixscope run --quick -o first                         the same in 2 to 4, into ./first
  prefixscope run --url http://localhost:8000              a running server: what needs a restart is left out
  prefixscope run --serve-cmd 'vllm serve MODEL --port {port} …'
  prefixscope run --serve-cmd 'docker run --rm --name ps …' --stop-cmd 'docker stop ps'
  prefixscope run --only sweep -p 'sweep.intervals=[0, 1024, "dense"]' -p 'sweep.lengths=[6392]'
  prefixscope run --only trace -p trace.trace=trace-1234.jsonl   a trace from elsewhere: nothing is sent
  prefixscope run -o RUN --resume                          go on: what is measured stays
  prefixscope run --dry-run                                every stage with every parameter, its default and meaning

exit codes: 0 done · 1 a stage failed · 2 usage, unreachable, refused · 3 can't tell · 130 interrupted
"""


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
        description="Run the notebooks headless into a run directory and render the report. With no target named, a\n"
        "real vLLM on this machine's CPU is investigated (installed into your cache folder first, about 4 GB).",
        epilog=f"{STAGES}\n{EXAMPLES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    run.add_argument("-o", "--out", metavar="RUN", help="run directory (default: a new prefixscope-run-… here)")
    run.add_argument(
        "--quick", action="store_true", help="fewer lengths, intervals and documents: about a third of the time"
    )
    where = run.add_mutually_exclusive_group()
    where.add_argument(
        "--url", help="a running server's root, http://host:8000: nothing is restarted, one request at a time"
    )
    where.add_argument(
        "--serve-cmd",
        metavar="CMD",
        help="'vllm serve MODEL …' or 'docker run …': we start and stop it, once a setting; {port} becomes a free port",
    )
    run.add_argument("--stop-cmd", metavar="CMD", help="ends what --serve-cmd started (for a container)")
    run.add_argument(
        "--engine",
        metavar="VERSION",
        help="vLLM release of the embedded engine, installed if need be (default: 0.29.0)",
    )
    run.add_argument("--model", type=served_name, help="served name to ask (default: the first base model)")
    run.add_argument(
        "--key-env", default="", metavar="NAME", help="name of the environment variable that holds the API key"
    )
    run.add_argument(
        "--start-timeout",
        type=float,
        default=600.0,
        metavar="S",
        help="seconds a managed server may take to start (default: 600)",
    )
    run.add_argument(
        "--resume",
        action="store_true",
        help="go on with the run in -o: what is measured is kept, what failed is redone",
    )
    run.add_argument(
        "--only", action="append", default=[], metavar="STAGE", help="only this stage, and the report; may be repeated"
    )
    run.add_argument(
        "-p",
        "--parameter",
        action="append",
        default=[],
        metavar="STAGE.NAME=VALUE",
        help="a notebook's parameter, its value as in Python; may be repeated; --dry-run lists them all",
    )
    run.add_argument(
        "--no-collect-env",
        dest="collect_env",
        action="store_false",
        help="leave vLLM's collect-env out of the report (it takes seconds, once nothing is measured any more)",
    )
    run.add_argument(
        "--dry-run", action="store_true", help="list stages and parameters, refuse what is wrong, and do nothing"
    )
    run.add_argument("--json", action="store_true", help="the result as JSON on stdout; progress stays on stderr")
    run.set_defaults(call=_run)
