"""``prefixscope predict``: what a server would hit, from vLLM's own scheduler."""

from __future__ import annotations

import argparse
import json
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

from prefixscope.cli import named, pressure
from prefixscope.cli.exits import DONE, file_to_write
from prefixscope.cli.screen import say
from prefixscope.errors import ReplayError

if TYPE_CHECKING:
    from prefixscope.cli.exits import Commands
    from prefixscope.replay import Geometry, Replayer

TOKENS = "1600,6446"
DEFAULT = "0.29.0"
"""The release that the answer is about where nothing says which one runs."""
PROGRESS_S = 4.0


def _predict(options: argparse.Namespace) -> int:
    from prefixscope import replay
    from prefixscope.prediction import Now, Prediction, render_prediction

    _refuse_unused(options)
    if options.out:
        options.out = file_to_write(options.out)
    if options.workload:
        geometry, drafter, header = named.workload_geometry(options)
        drafter = drafter if options.drafter is None else options.drafter or None
        swept = named.intervals(options.intervals or pressure.INTERVALS)
        return pressure.pressed(options, geometry=geometry, drafter=drafter, intervals=swept, header=header)
    if options.trace and _holds_cases(options.trace):
        return _replay_cases(options)
    if options.pool_blocks and "," in options.pool_blocks:
        raise ReplayError(
            f"--pool-blocks {options.pool_blocks}: several pools without a workload",
            remedy="give one pool, or traffic that competes for it: --workload example",
        )
    asked = replay.read_prompts(Path(options.prompts)) if options.prompts else replay.parse_tokens(options.tokens)
    shares = replay.thinned(asked)
    wanted = named.releases(options.vllm)
    intervals = None if options.intervals is None else named.intervals(options.intervals)
    given, drafter, header = (None, None, None) if options.config else named.geometry(options)
    if options.config:
        replay.geometries.read_config(options.config)  # a wrong file is refused before vLLM is imported
    if options.drafter is not None:
        drafter = options.drafter or None
    found, missing = replay.choose_releases(wanted, own=header.version if header is not None else "")
    if header is not None:
        if wanted is None and header.version not in found:
            found, missing = replay.choose_releases([*replay.RELEASES, header.version])
        chosen = replay.default_intervals(given) if intervals is None and given is not None else intervals or ()
        if header.interval not in chosen:
            intervals = (*chosen, header.interval)  # the server's own
    # The first that was named, though tables tell the oldest first.
    here = next((name for name in wanted or [DEFAULT] if name in found), found[0])

    def geometry_on(replayer: Replayer) -> Geometry:
        if given is not None:
            return given.on(replayer.release, drafter=drafter is not None)
        speculation = None if drafter is None else replay.geometries.Drafter(method="mtp", tokens=drafter)
        return replay.geometries.from_config(replayer, options.config, drafter=speculation)

    say(f"asking vLLM {', '.join(found)}" + (f"; not installed here: {', '.join(missing)}" if missing else ""))
    with replay.open_release(here) as replayer:
        geometry = geometry_on(replayer)
    grid = replay.Grid(
        geometry=geometry,
        lengths=tuple(sorted({one.tokens for one in shares})),
        # Defaults first: what they resolve to is not asked again.
        intervals=None if intervals is None else tuple(sorted(intervals, key=lambda one: one is not None)),
        drafters=(drafter,),
        pool_blocks=named.pool(options, geometry),
    )
    answers = replay.survey(grid, found, heat=bool(options.out), geometry_on=geometry_on, told=_Told())
    now = Now(release=here) if header is None else Now(release=header.version, interval=header.interval, known=True)
    prediction = Prediction(grid=grid, survey=answers, asked=asked, shares=shares, now=now, missing=tuple(missing))
    if options.out:
        say(f"wrote {render_prediction(prediction, options.out)}")
    if options.json:
        print(json.dumps(prediction.to_json(), indent=2))
    else:
        print(prediction.text(min(shutil.get_terminal_size((100, 24)).columns, 120)))
    return DONE


def _refuse_unused(options: argparse.Namespace) -> None:
    """What this kind of question does not look at is refused: an option without effect is a wrong answer."""
    cases = bool(options.trace) and _holds_cases(options.trace) and not options.workload
    given = {
        "-o": options.out,
        "--tokens": options.tokens != TOKENS,
        "--prompts": options.prompts,
        "--pool-blocks": options.pool_blocks,
        "--drafter": options.drafter is not None,
        "--concurrency": options.concurrency != 1,
    }
    unused = ["-o", "--tokens", "--prompts", "--pool-blocks", "--drafter", "--concurrency"] if cases else []
    unused = unused or (["--tokens", "--prompts"] if options.workload else ["--concurrency"])
    wrong = [name for name in unused if given[name]]
    if wrong:
        what = "a report or a run replays its own requests" if cases else "a workload has its own prompts"
        raise ReplayError(
            f"{', '.join(wrong)} has no effect here",
            cause=what if cases or options.workload else "without a workload requests go one after another",
            remedy="leave it out" if cases or options.workload else "add --workload FILE, or leave it out",
        )


def _holds_cases(name: str) -> bool:
    """Whether this is a report, a cases file or a run directory, and not a trace alone."""
    path = Path(name).expanduser()
    return (path / "run.json").exists() or path.suffix in (".html", ".htm", ".json")


def _replay_cases(options: argparse.Namespace) -> int:
    """Someone's measured requests again, on each release and at each interval that is asked for."""
    from prefixscope import replay
    from prefixscope.prediction import replayed
    from prefixscope.replay.travel import load

    cases = load(Path(options.trace).expanduser())
    wanted = named.releases(options.vllm)
    intervals = (replayed.AS_MEASURED,) if options.intervals is None else named.intervals(options.intervals)
    measured = list(dict.fromkeys(case.release for case in cases))
    releases, missing = replay.choose_releases(wanted if wanted is not None else measured)
    if missing:
        say(f"not installed here: {', '.join(missing)}. Next: {replay.install_line(missing)}")
    found = []
    for release in releases:
        with replay.open_release(release) as replayer:
            found += replayed.replay_cases(replayer, cases, intervals, say)
    print(json.dumps(replayed.to_json(found), indent=2) if options.json else replayed.table(found))
    return DONE


class _Told:
    """Says on stderr how far the releases are, every few seconds."""

    def __init__(self) -> None:
        self._at = time.monotonic()

    def __call__(self, done: int, total: int, left_s: float | None) -> None:
        if time.monotonic() - self._at > PROGRESS_S:
            self._at = time.monotonic()
            left = "" if left_s is None else f", about {left_s:,.0f} s left"
            say(f"  {done:,} of {total:,} sends{left}")


def add(commands: Commands) -> None:
    """Its options and its help."""
    predict = commands.add_parser(
        "predict",
        help="what a server would hit, from vLLM's own scheduler: no GPU, no weights, no restart",
        description="Ask the schedulers of several vLLM releases what prompts would hit at each retention interval, "
        "and what each keeps in the cache.",
    )
    where = predict.add_mutually_exclusive_group()
    where.add_argument("--geometry", metavar="NAME|FILE", help="a model's KV cache groups: a shipped one, or a file")
    where.add_argument(
        "--config", metavar="DIR|FILE", help="a model's config.json: each release groups its layers itself"
    )
    where.add_argument(
        "--trace",
        metavar="FILE",
        help="a server's own groups and settings, from its trace; of a report or a run the measured requests too",
    )
    what = predict.add_mutually_exclusive_group()
    what.add_argument(
        "--tokens",
        default=TOKENS,
        metavar="N,N…",
        help=f"prompt lengths, Nx3: three times as often (default: {TOKENS})",
    )
    what.add_argument("--prompts", metavar="FILE", help="prompt lengths from a file: a number or a JSON object a line")
    predict.add_argument(
        "--intervals",
        metavar="I,I…",
        help="retention intervals in tokens, dense or default (default: those of the sweep, from 0 to dense)",
    )
    predict.add_argument(
        "--vllm",
        metavar="V,V…",
        help="releases, told oldest first; the recommendation is for the first that is named, or for the trace's "
        f"(default: those of 0.28.0 to 0.33.0 installed here, for {DEFAULT})",
    )
    predict.add_argument(
        "--drafter",
        type=named.drafter,
        metavar="K|off",
        help="draft tokens of speculative decoding (default: as served)",
    )
    predict.add_argument(
        "--pool-blocks",
        type=named.pools,
        metavar="N",
        help="blocks of the pool, or a size such as 20GiB (default: one that never evicts); N,N… with --workload",
    )
    predict.add_argument("-o", "--out", metavar="FILE", help="write a page with charts, the heat map among them")
    pressure.add_options(predict)
    predict.add_argument("--json", action="store_true", help="every row as JSON on stdout")
    predict.set_defaults(call=_predict)
