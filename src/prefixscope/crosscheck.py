"""What vLLM's own scheduler says each measured request should have hit: predicted beside measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from prefixscope import engine as engines
from prefixscope import frames
from prefixscope.errors import ReplayError, RunError, TraceError
from prefixscope.geometry import check_intervals, has_sparse_groups, traced
from prefixscope.investigation import Investigation
from prefixscope.replay import Case, Geometry, Replayer, ServerSetting, open_release, repeats
from prefixscope.replay.measured import cases, release
from prefixscope.runs import Stage
from prefixscope.sent import sent_rows
from prefixscope.setting import Interval, interval_label, parse_interval
from prefixscope.trace import Header, read_trace

STAGE = "crosscheck"
_START_S, _REQUESTS_PER_S = 8.0, 200.0


def run(investigation: Investigation) -> pd.DataFrame:
    """Predict every traced send that is not predicted yet, and return ``frames.sends`` with both numbers.

    The release is the engine's own, the geometry and settings are those of its trace; nothing is sent. Where that
    release is not installed here, or nothing was traced, the predictions are missing and a warning says why.
    """
    with investigation.stage(STAGE) as stage:
        known = {row["request_id"] for row in investigation.run.rows(STAGE) if row.get("kind") == "predicted"}
        every = investigation.run.rows()
        rows = [row for row in sent_rows(every) if row.get("status") == "ok"]
        wanted = [case for case in cases(rows, traced(investigation.path)) if set(case.measured) - known]
        if not wanted and not known:
            stage.outcome, stage.note = "skipped", "no request was traced, so the engine's geometry is not known"
            if not rows:
                other = any(row.get("kind") in ("generation", "answer") for row in every)
                measured = "no hit length was measured to predict it beside"
                stage.note = "this run was not asked for hit lengths" if other else measured
        by_id = {row.get("request_id"): row for row in rows}
        stage.progress.plan(
            _START_S * len({case.release for case in wanted}) + sum(len(c.requests) for c in wanted) / _REQUESTS_PER_S,
            len(wanted),
        )
        for version in dict.fromkeys(case.release for case in wanted):
            of_release = [case for case in wanted if case.release == version]
            _predict(stage, version, of_release, by_id, known)
    return frames.sends(investigation.path)


def _predict(
    stage: Stage, version: str, wanted: Sequence[Case], by_id: Mapping[Any, Mapping[str, Any]], known: set[str]
) -> None:
    try:
        with _open(version) as replayer:
            for case in wanted:
                stage.progress.say(f"predicting {case.name} with the scheduler of vLLM {version}")
                outcome = replayer.case(case)
                for row in outcome.rows:
                    if row.id in case.measured and row.id not in known:
                        sent = by_id[row.id]
                        picked = ("cell", "series", "attempt", "role", "setting", "model", "prompt", "send", "index")
                        stage.append(
                            {
                                "kind": "predicted",
                                **{name: sent[name] for name in picked},
                                "request_id": row.id,
                                "release": outcome.release,
                                "interval": outcome.interval,
                                "prompt_tokens": row.prompt_tokens,
                                "predicted_tokens": row.hit_tokens,
                                "cached_tokens": sent["cached_tokens"],
                            }
                        )
                stage.progress.advance(len(case.requests) / _REQUESTS_PER_S)
    except ReplayError as error:
        stage.outcome = "partial"
        stage.warn("not-predicted", f"the hits can't be predicted: {error.what}", error.remedy)


def _open(version: str) -> Replayer:
    if engines.find(version) is None:
        # Said here, not left to the replayer: the run itself needs no engine of that release.
        raise ReplayError(
            f"vLLM {version}, which answered, is not installed here",
            remedy=f"prefixscope engine install {version}, then prefixscope run -o RUN --resume",
        )
    return open_release(version)


def swept(
    investigation: Investigation,
    *,
    intervals: Sequence[str | int],
    lengths: Sequence[int],
    trace: str = "",
) -> pd.DataFrame:
    """``frames.sweep`` with predictions beside what was measured.

    Of an attached server, which is not restarted, the predictions alone (``frames.predicted_sweep``), from its trace;
    empty where there is no trace, or its release is not installed here: a warning says which.

    Parameters
    ----------
    trace : a trace file or folder of an attached server; empty takes the run's own.
    """
    if investigation.target.kind == "attached":
        _sweep_attached(investigation, intervals, lengths, trace)
        return frames.predicted_sweep(investigation.path)
    return frames.sweep(run(investigation), frames.kept(investigation.path))


def _sweep_attached(
    investigation: Investigation, intervals: Sequence[str | int], lengths: Sequence[int], trace: str
) -> None:
    try:
        wanted = [parse_interval(value) for value in intervals]
    except ValueError as error:
        raise RunError(str(error), remedy="for example -p 'sweep.intervals=[0, 1024, \"dense\"]'") from None
    with investigation.stage(STAGE) as stage:
        header = _header(investigation.path, trace)
        if header is None:
            stage.outcome, stage.note = "skipped", "there is no trace of the attached server, so no geometry to replay"
            return
        if not has_sparse_groups(header):
            stage.outcome, stage.note = "skipped", "no KV cache group of this model is thinned out by an interval"
            return
        check_intervals(wanted, header.scheduler_block)
        done = {(row["interval_asked"], row["tokens"]) for row in investigation.run.rows(STAGE) if _swept(row)}
        left = [(i, n) for i in wanted for n in lengths if (interval_label(i), n) not in done]
        try:
            if left:
                with _open(release(header)) as replayer:
                    for interval in dict.fromkeys(interval for interval, _ in left):
                        tokens = [n for one, n in left if one == interval]
                        _sweep_rows(stage, replayer, header, interval, tokens)
        except ReplayError as error:
            stage.outcome = "partial"
            stage.warn("not-predicted", f"the sweep can't be predicted: {error.what}", error.remedy)


def _swept(row: Mapping[str, Any]) -> bool:
    return row.get("kind") == "predicted_sweep"


def _sweep_rows(stage: Stage, replayer: Replayer, header: Header, interval: Interval, lengths: Sequence[int]) -> None:
    geometry, setting = Geometry.from_header(header), ServerSetting.from_header(header)
    for tokens in lengths:
        case = Case(geometry=geometry, setting=setting, requests=tuple(repeats(tokens, 3))).under(interval=interval)
        hits = [row.hit_tokens for row in replayer.case(case).rows]
        first = replayer.replay(geometry, case.setting, case.requests[:1])
        sizes = [size for size in first.kept_bytes if size is not None]
        stage.append(
            {
                "kind": "predicted_sweep",
                "release": replayer.release,
                "interval_asked": interval_label(interval),
                "interval": first.interval,
                "tokens": tokens,
                "hits": hits,
                "blocks": sum(first.kept_blocks),
                "bytes": sum(sizes) if len(sizes) == len(first.kept_bytes) else None,
            }
        )


def _header(run_dir: Path, trace: str) -> Header | None:
    """The newest engine of a trace."""
    try:
        headers = read_trace(Path(trace).expanduser()).headers if trace else traced(run_dir).headers
    except TraceError as error:
        raise RunError(error.what, cause=error.cause, remedy=error.remedy) from error
    return max(headers, key=lambda one: one.t, default=None)
