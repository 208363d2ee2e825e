"""Every frame of a run as CSV files."""

from __future__ import annotations

from pathlib import Path

from prefixscope.frames.cache import kept
from prefixscope.frames.clock import timeline
from prefixscope.frames.drafting import by_shape, generations, positions
from prefixscope.frames.outputs import answers, comparisons
from prefixscope.frames.requests import sends
from prefixscope.frames.rows import load_run
from prefixscope.frames.summaries import hits, latency, sweep


def frames_to_csv(run_dir: Path, out_dir: Path) -> list[Path]:
    """Every frame of a run as CSV files in ``out_dir``; answers without their text."""
    out_dir.mkdir(parents=True, exist_ok=True)
    run, sent, stored, streamed = load_run(run_dir), sends(run_dir), kept(run_dir), generations(run_dir)
    tables = {
        "sends": sent,
        "hits": hits(sent),
        "latency": latency(sent),
        "kept": stored,
        "sweep": sweep(sent, stored),
        "answers": answers(run_dir).drop(columns="text"),
        "comparisons": comparisons(run_dir),
        "generations": streamed,
        "by_shape": by_shape(streamed),
        "positions": positions(run_dir),
        "timeline": timeline(run),
    }
    paths = []
    for name, table in tables.items():
        paths.append(out_dir / f"{name}.csv")
        table.to_csv(paths[-1], index=False)
    return paths
