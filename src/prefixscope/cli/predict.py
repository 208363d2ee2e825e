"""``prefixscope predict``: what a server would hit, from vLLM's own scheduler."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from prefixscope.cli.exits import DONE
from prefixscope.errors import ReplayError

if TYPE_CHECKING:
    from prefixscope.cli.exits import Commands
    from prefixscope.replay import Geometry
    from prefixscope.setting import Interval

TOKENS = "1600,6446"
INTERVALS = "default,0,64,512,1024,2048,4096,dense"


def _predict(options: argparse.Namespace) -> int:
    from prefixscope import replay
    from prefixscope.prediction import Prediction

    intervals = _intervals(options.intervals)
    given = replay.read_prompts(Path(options.prompts)) if options.prompts else replay.parse_tokens(options.tokens)
    shares = replay.thinned(given)
    geometry, drafter = _geometry(options)
    if options.drafter is not None:
        drafter = options.drafter or None
    found, missing = replay.choose_releases(_releases(options.vllm))
    if missing:
        _say(f"left out, not installed here: vLLM {', '.join(missing)}. Next: {replay.install_line(missing)}")
    lengths = tuple(sorted({one.tokens for one in shares}))
    grid = replay.Grid(geometry=geometry, lengths=lengths, intervals=intervals, drafters=(drafter,))
    cells = []
    for release in found:
        with replay.open_release(release) as replayer:
            cells += replay.ask(replayer, grid, told=_Told(release))
    prediction = Prediction(grid=grid, cells=tuple(cells), shares=shares, missing=tuple(missing))
    print(json.dumps(prediction.to_json(), indent=2) if options.json else prediction.text())
    return DONE


class _Told:
    """Says on stderr how far a release is."""

    def __init__(self, release: str) -> None:
        self._release, self._at = release, time.monotonic()

    def __call__(self, done: int, total: int, left_s: float | None) -> None:
        if time.monotonic() - self._at > 2:
            self._at = time.monotonic()
            left = "" if left_s is None else f", about {left_s:.0f} s left"
            _say(f"vLLM {self._release}: {done:,} of {total:,} sends{left}")


def _geometry(options: argparse.Namespace) -> tuple[Geometry, int | None]:
    """The geometry that was asked for, and the draft tokens that its server uses."""
    from prefixscope.replay import Geometry
    from prefixscope.trace import read_trace

    if options.trace:
        header = read_trace(options.trace).headers[-1]
        return Geometry.from_header(header), header.spec_tokens
    path = _geometry_file(options.geometry)
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ReplayError(
            f"the geometry {path} can't be read: {error}", remedy="give a JSON file with groups, or --trace FILE"
        ) from error
    return Geometry.from_json(value), None


def _geometry_file(name: str) -> Path:
    """The file of that name, or the shipped geometry of it."""
    from prefixscope.resources import data_path

    if "/" in name or name.endswith(".json") or Path(name).is_file():
        return Path(name)
    shipped = {path.stem: path for path in data_path("geometries").glob("*.json")}
    if name not in shipped:
        raise ReplayError(
            f"there is no geometry {name!r}",
            remedy=f"use one of {', '.join(sorted(shipped))}, a file, or --trace FILE",
        )
    return shipped[name]


def _intervals(text: str) -> tuple[Interval, ...]:
    from prefixscope.setting import parse_interval

    try:
        found: list[Interval] = [parse_interval(part.strip()) for part in text.split(",")]
    except ValueError as error:
        raise ReplayError(f"--intervals {text}: {error}", remedy="for example --intervals 0,1024,dense") from None
    return tuple(dict.fromkeys(found))


def _releases(text: str | None) -> list[str] | None:
    return None if text is None else [part.strip() for part in text.split(",")]


def _drafter(text: str) -> int:
    if text == "off":
        return 0
    if not text.isascii() or not text.isdigit() or not 0 < int(text) <= 64:
        raise argparse.ArgumentTypeError(f"{text!r} is neither off nor a number of draft tokens from 1 to 64")
    return int(text)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def add(commands: Commands) -> None:
    """Its options and its help."""
    predict = commands.add_parser(
        "predict",
        help="what a server would hit, from vLLM's own scheduler: no GPU, no weights, no restart",
        description="Ask the schedulers of several vLLM releases what prompts would hit at each retention interval, "
        "and what each keeps in the cache.",
    )
    where = predict.add_mutually_exclusive_group(required=True)
    where.add_argument("--geometry", metavar="NAME|FILE", help="a model's KV cache groups: a shipped one, or a file")
    where.add_argument("--trace", metavar="FILE", help="a server's own groups and settings, from its trace")
    what = predict.add_mutually_exclusive_group()
    what.add_argument(
        "--tokens",
        default=TOKENS,
        metavar="N,N…",
        help=f"prompt lengths, Nx3: three times as often (default: {TOKENS})",
    )
    what.add_argument("--prompts", metavar="FILE", help="prompt lengths from a file: a number or a JSON object a line")
    predict.add_argument(
        "--intervals", default=INTERVALS, metavar="I,I…", help=f"retention intervals, tokens (default: {INTERVALS})"
    )
    predict.add_argument("--vllm", metavar="V,V…", help="releases (default: those of 0.28.0 to 0.33.0 installed here)")
    predict.add_argument(
        "--drafter",
        type=_drafter,
        metavar="K|off",
        help="draft tokens of speculative decoding (default: as the geometry)",
    )
    predict.add_argument("--json", action="store_true", help="every row as JSON on stdout")
    predict.set_defaults(call=_predict)
