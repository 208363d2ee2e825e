"""What the options of ``predict`` name: a geometry, prompts, intervals, releases, a drafter, pools."""

from __future__ import annotations

import argparse
import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prefixscope.cli import pressure
from prefixscope.cli.screen import say
from prefixscope.errors import ReplayError

if TYPE_CHECKING:
    from prefixscope.replay import Geometry
    from prefixscope.setting import Interval
    from prefixscope.trace import Header


def geometry(options: argparse.Namespace) -> tuple[Geometry, int | None, Header | None]:
    """The geometry that was asked for, the draft tokens that go with it, and the running server's header."""
    from prefixscope.replay import Geometry
    from prefixscope.setting import interval_label
    from prefixscope.trace import read_trace

    if options.trace:
        trace = read_trace(options.trace)
        headers = trace.headers
        if not headers:
            raise ReplayError(f"{options.trace} has no header", remedy="give a trace with the engine's first line")
        worst = trace.worst() if len(headers) > 1 else None
        header = worst.header if worst is not None else headers[-1]
        if len(headers) > 1:
            which = "that of the worst miss" if worst is not None and worst.missed_tokens else "one without a miss"
            say(
                f"{options.trace} holds {len(headers)} engines; taken is {which}, vLLM {header.version} at interval "
                f"{interval_label(header.interval)}; for another one name its file"
            )
        return Geometry.from_header(header), header.spec_tokens, header
    if options.geometry is None:
        raise ReplayError("nothing says whose prefix cache this is", remedy="add --geometry NAME|FILE or --trace FILE")
    path = geometry_file(options.geometry)
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"it is no JSON ({error})"
        raise ReplayError(
            f"the geometry {path} can't be read: {reason}", remedy="give a JSON file with groups, or --trace FILE"
        ) from error
    if isinstance(value, dict) and "architectures" in value:
        raise ReplayError(
            f"{path} is no geometry", cause="it holds a model's config", remedy=f"--config {shlex.quote(str(path))}"
        )
    return Geometry.from_json(value), draft_tokens(value), None


def workload_geometry(options: argparse.Namespace) -> tuple[Geometry, int | None, Header | None]:
    """As `geometry`; the incident's where none is named."""
    if not options.trace and options.geometry is None:
        options = argparse.Namespace(**{**vars(options), "geometry": pressure.INCIDENT})
    return geometry(options)


def pool(options: argparse.Namespace, geometry: Geometry) -> int | None:
    from prefixscope.replay import parse_pools

    return parse_pools(options.pool_blocks, geometry)[0] if options.pool_blocks else None


def draft_tokens(value: Any) -> int | None:
    """What a geometry's file says of its drafter."""
    tokens = value.get("drafter_tokens") if isinstance(value, dict) else None
    return tokens if isinstance(tokens, int) and tokens > 0 else None


def geometry_file(name: str) -> Path:
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


def intervals(text: str) -> tuple[Interval, ...]:
    from prefixscope.setting import parse_interval

    try:
        found: list[Interval] = [parse_interval(part.strip()) for part in text.split(",")]
    except ValueError as error:
        raise ReplayError(f"--intervals {text}: {error}", remedy="for example --intervals 0,1024,dense") from None
    return tuple(dict.fromkeys(found))


def releases(text: str | None) -> list[str] | None:
    return None if text is None else [part.strip().removeprefix("v") for part in text.split(",")]


def drafter(text: str) -> int:
    if text == "off":
        return 0
    if not text.isascii() or not text.isdigit() or not 0 < int(text) <= 64:
        raise argparse.ArgumentTypeError(f"{text!r} is neither off nor a number of draft tokens from 1 to 64")
    return int(text)


def pools(text: str) -> str:
    from prefixscope.replay import check_pools

    try:
        check_pools(text)
    except ReplayError as error:
        raise argparse.ArgumentTypeError(f"{error.what}; {error.remedy}") from None
    return text
