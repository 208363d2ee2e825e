"""``prefixscope predict --workload``: the hit rate of real traffic when the pool evicts."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from prefixscope.cli.exits import DONE
from prefixscope.cli.screen import Screen, say

if TYPE_CHECKING:
    from prefixscope.replay import Geometry
    from prefixscope.sections import Section
    from prefixscope.setting import Interval
    from prefixscope.trace import Header

INTERVALS = "default,1024,2048,4096,8192,dense"
RELEASE = "0.29.0"
INCIDENT = "gemma-4-12b"
"""The geometry in which a workload is replayed where none is named."""


def pressed(
    options: argparse.Namespace,
    *,
    geometry: Geometry,
    drafter: int | None,
    intervals: Sequence[Interval],
    header: Header | None,
) -> int:
    """Replay the workload through each pool at each interval, and print what came out."""
    from prefixscope import engine_folders, frames, replay, sections
    from prefixscope.prediction import render_pressed

    workload = replay.read_workload(options.workload)
    for warning in workload.warnings:
        say(f"warning: {warning}")
    say(f"geometry: {geometry.origin or 'as given'}")
    own = geometry.pool_blocks
    given = options.pool_blocks
    pools = replay.parse_pools(given, geometry) if given else replay.default_pools(workload, geometry)
    asked = replay.Pressure(
        workload=workload,
        geometry=geometry,
        setting=replace(
            replay.ServerSetting() if header is None else replay.ServerSetting.from_header(header),
            drafter_tokens=drafter,
        ),
        pools=tuple(pools),
        intervals=tuple(intervals),
        releases=tuple(_releases(options, geometry)),
        concurrency=options.concurrency,
    )
    screen = Screen()
    rows = list(
        asked.replay(store=engine_folders.cache_folder() / "predictions" / "pressure.jsonl", progress=screen.progress)
    )
    if screen.live:
        screen.line("")
    table = frames.pressed(rows, own_pool=own)
    section = sections.pressed(table, asked)
    found = {
        "pressure": "finite pools",
        "workload": {"name": workload.name, "id": workload.id, "warnings": list(workload.warnings)},
        "geometry": geometry.to_json(),
        "setting": asked.setting.to_json(),
        "concurrency": options.concurrency,
        "rows": [row.to_json() for row in rows],
        "sentences": list(section.after),
    }
    if options.out:
        say(f"wrote {render_pressed(section, found, options.out)}")
    if options.json:
        print(json.dumps(found, indent=2))
    else:
        print(_text(section))
    return DONE


def _releases(options: argparse.Namespace, geometry: Geometry) -> list[str]:
    from prefixscope import replay

    wanted = [part.strip() for part in options.vllm.split(",")] if options.vllm else None
    found, missing = replay.choose_releases(wanted, own=geometry.release or "")
    if missing and wanted:
        say(f"left out, not installed here: vLLM {', '.join(missing)}")
    if wanted:
        return found
    # Every release would take minutes: the server's own, else the one in which the workaround matters.
    return [next((name for name in (geometry.release, RELEASE) if name in found), found[-1])]


def _text(section: Section) -> str:
    from prefixscope.display import title_of

    lines = [title_of(figure.chart) for figure in section.figures] + [*section.before, ""]
    for table in section.tables:
        wide = [max(len(row[place]) for row in (table.columns, *table.rows)) for place in range(len(table.columns))]
        for row in (table.columns, *table.rows):
            cells = [
                cell.rjust(size) if name in table.numeric else cell.ljust(size)
                for name, cell, size in zip(table.columns, row, wide, strict=True)
            ]
            lines.append("  ".join(cells).rstrip())
        lines += [table.caption, ""]
    return "\n".join([*lines, *section.after])


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 on")
    return int(text)


def add_options(predict: argparse.ArgumentParser) -> None:
    """What predict takes beside a workload."""
    pressure = predict.add_argument_group("under pressure")
    pressure.add_argument(
        "--workload",
        metavar="FILE|example",
        help="replay traffic in pools that evict: a Mooncake-format JSONL file, a run directory, a trace, or the "
        f"stored example (intervals: {INTERVALS})",
    )
    pressure.add_argument(
        "--concurrency",
        type=_count,
        default=1,
        metavar="N",
        help="requests in flight together (default: 1, one after another)",
    )
