"""Which retention interval brings the hit back, and what does each keep?"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from prefixscope import asked, frames
from prefixscope.geometry import check_intervals, default_header, has_sparse_groups, traced
from prefixscope.investigation import Investigation
from prefixscope.measure import finished, measure
from prefixscope.runs import Stage
from prefixscope.series import REPEATS, Series, lengths_or_error
from prefixscope.setting import Interval, Setting, interval_label, parse_interval
from prefixscope.trace import Header

INTERVALS: tuple[str | int, ...] = (0, 64, 512, 1024, 2048, 4096, "dense")
LENGTHS = (1_600, 6_446)
SENDS = REPEATS


def run(
    investigation: Investigation,
    *,
    intervals: Sequence[str | int] = INTERVALS,
    lengths: Sequence[int] = LENGTHS,
    seed: int = 1,
    then: Setting | None = None,
    trace: str = "",
) -> pd.DataFrame:
    """Measure hits, first-token latency and blocks kept at each interval; return ``frames.sends``.

    A server is started for each interval that no earlier stage has measured. An interval whose server fails is a
    row with its reason. An attached server is not restarted; with a ``trace`` of it ``crosscheck.swept`` predicts.

    Raises
    ------
    RunError
        for an interval that the scheduler block rules out, before any server is started for it.
    """
    asked.check("sweep", {"intervals": intervals, "lengths": lengths, "seed": seed})
    wanted = [parse_interval(value) for value in intervals]
    with investigation.stage(
        "sweep", intervals=[interval_label(i) for i in wanted], lengths=list(lengths), seed=seed
    ) as stage:
        tokens = lengths_or_error(lengths)
        if investigation.target.kind == "attached" and trace:
            stage.note = "predicted from a trace; the attached server was not restarted"
            return frames.sends(investigation.path)
        if investigation.target.kind == "attached":
            stage.outcome, stage.note = "skipped", "a sweep restarts the server, and an attached server is not ours"
            stage.warn(
                "no-sweep",
                "the retention sweep restarts the server for each interval; an attached server is not restarted",
                "prefixscope run --serve-cmd 'vllm serve …', or with a trace of it -p sweep.trace=FILE (predicted)",
            )
            return frames.sends(investigation.path)
        drafter = investigation.target.offers()[0]
        first = Setting(drafter=drafter)
        if default_header(investigation) is None:
            measure(investigation, stage, _plan(first, tokens, seed))
        header = default_header(investigation)
        if header is not None:
            if not has_sparse_groups(header):
                stage.outcome, stage.note = "skipped", "no KV cache group of this model is thinned out by an interval"
                stage.warn(
                    "interval-does-nothing",
                    "the model has no sliding-window or Mamba group, so a retention interval has no effect, and vLLM "
                    "refuses to start with one",
                    "nothing to do: full attention keeps every block",
                )
                return frames.sends(investigation.path)
            check_intervals(wanted, header.scheduler_block)
        chosen = [setting_for(interval, drafter, header) for interval in wanted]
        measure(
            investigation,
            stage,
            [s for setting in dict.fromkeys(chosen) for s in _plan(setting, tokens, seed)],
            then=then,
        )
        record_kept(investigation, stage, chosen, tokens, seed)
    return frames.sends(investigation.path)


def _plan(setting: Setting, tokens: Sequence[int], seed: int) -> list[Series]:
    return [Series(setting=setting, tokens=n, seed=seed, sends=SENDS) for n in tokens]


def setting_for(interval: Interval, drafter: bool, header: Header | None) -> Setting:
    """The setting that measures an interval: the release's own default is measured without the flag."""
    default = header.interval if header is not None else None
    return Setting(drafter=drafter, interval=None if header is not None and interval == default else interval)


def first_unmeasured(investigation: Investigation) -> Setting | None:
    """The first setting that a planned sweep still has to start a server for; None where no sweep is to come."""
    manifest = investigation.run.manifest
    if "sweep" not in manifest.get("plan", ()) or not investigation.target.restarts:
        return None
    given = manifest["parameters"].get("sweep", {})
    header, drafter = default_header(investigation), investigation.target.offers()[0]
    for interval in map(parse_interval, given.get("intervals", INTERVALS)):
        setting = setting_for(interval, drafter, header)
        plan = _plan(setting, given.get("lengths", LENGTHS), given.get("seed", 1))
        if any(finished(investigation, series) is None for series in plan):
            return setting
    return None


def record_kept(
    investigation: Investigation, stage: Stage, settings: Sequence[Setting], tokens: Sequence[int], seed: int
) -> None:
    """Blocks and bytes that the first send of each prompt left in the cache, per group, from the trace."""
    trace = traced(investigation.path)
    known = {(row["series"], row["gid"]) for row in investigation.run.rows("sweep") if row.get("kind") == "kept"}
    for setting in dict.fromkeys(settings):
        for series in _plan(setting, tokens, seed):
            rows = finished(investigation, series)
            lookup = trace.lookup(rows[0]["request_id"]) if rows else None
            if not rows or lookup is None:
                continue
            groups = {view.group.gid: view.group for view in lookup.groups}
            for kept in trace.kept(rows[0]["request_id"]):
                if (rows[0]["series"], kept.gid) in known:
                    continue
                stage.append(
                    {
                        "kind": "kept",
                        "series": rows[0]["series"],
                        "request_id": rows[0]["request_id"],
                        "setting": rows[0]["setting"],
                        "interval": lookup.header.interval,
                        "prompt": rows[0]["prompt"],
                        "gid": kept.gid,
                        "group_kind": groups[kept.gid].kind,
                        "block_size": groups[kept.gid].block_size,
                        "blocks": kept.blocks,
                        "bytes": kept.bytes,
                    }
                )
