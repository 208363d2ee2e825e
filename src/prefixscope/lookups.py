"""What did each lookup see? The block trace of one prompt with and without a drafter, or of a trace's worst miss."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from prefixscope import asked, frames
from prefixscope.baseline import settings
from prefixscope.diagnosis import explain
from prefixscope.geometry import BROUGHT, traced
from prefixscope.glossary import used
from prefixscope.investigation import Investigation, open_run
from prefixscope.measure import finished, measure
from prefixscope.quantities import count
from prefixscope.series import ALL_SENDS, REPEATS, Series
from prefixscope.setting import Setting
from prefixscope.trace import Lookup, Trace, files_of, read_trace

TOKENS = 6_446
Rows = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class View:
    """A trace, and which of its requests are looked at under which names.

    ``with_drafter`` and ``without`` are request id → name; ``repeat_of`` is a request id → the one it was meant to
    repeat, where rows say so. ``run`` is the run directory that the trace is of, None where it was brought alone;
    ``about`` says in Markdown which of the two it is.
    """

    trace: Trace
    with_drafter: Mapping[str, str]
    without: Mapping[str, str]
    repeat_of: Mapping[str, str]
    run: Path | None = None
    about: str = "**A trace from elsewhere**: nothing is sent."

    def _repr_markdown_(self) -> str:
        seen, engines = count(len(self.trace.lookups), "lookup"), count(len(self.trace.headers), "traced engine")
        return f"{self.about} {seen} of {engines}."


def view(run_dir: str = "", target: str = "sample", *, trace: str = "", tokens: int = TOKENS, seed: int = 1) -> View:
    """What the notebook draws: the sends of one prompt in a run, or the worst miss of a trace from any server.

    With a ``trace`` (a file, a folder or a run directory) nothing is sent and no run is opened; a run that is named
    too notes it and keeps a copy, so that its report can tell it.

    Raises
    ------
    TraceError
        where that trace can't be read.
    """
    asked.check("trace", {"trace": trace, "tokens": tokens, "seed": seed})
    if trace:
        source = Path(trace).expanduser()
        found = alone(read_trace(source))
        if run_dir:
            investigation = open_run(run_dir, target)
            with investigation.stage("trace", trace=trace) as stage:
                bring(source, investigation.path)
                stage.note = "the trace that was brought is copied and told; nothing was sent"
        return found
    investigation = open_run(run_dir, target)
    return of_run(investigation, run(investigation, tokens=tokens, seed=seed))


def bring(source: Path, run_dir: Path) -> None:
    """Copy a trace from elsewhere into a run directory, in place of one brought earlier."""
    folder = run_dir / BROUGHT
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for number, path in enumerate(files_of([source])):
        # Two folders may hold files of one name.
        shutil.copyfile(path, folder / f"{number}-{path.stem}.jsonl")


def of_run(investigation: Investigation, rows: Rows) -> View:
    """The first sends and repeats among the rows that were traced."""
    known = traced(investigation.path)
    names: dict[bool, dict[str, str]] = {True: {}, False: {}}
    for row in rows:
        if row["send"] in REPEATS and known.lookup(row["request_id"]) is not None:
            label = f"{row['setting']['label']}, {frames.send_label(row['send'], row['index'])}"
            names[bool(row["setting"]["drafter"])][row["request_id"]] = label
    first = frames.repeats(frames.sends(investigation.path))
    return View(known, names[True], names[False], first, investigation.path, investigation._repr_markdown_())


def alone(trace: Trace) -> View:
    """The worst miss of a trace with the sends of the same prompt around it, by whether its engine drafts."""
    worst = trace.worst()
    named = {} if worst is None else _names(trace, worst)
    drafts = worst is not None and worst.header.spec_method is not None
    other = max(
        (one for one in trace.lookups if (one.header.spec_method is None) == drafts and one.common_tokens),
        key=lambda one: (one.missed_tokens, worst is not None and one.tokens == worst.tokens, one.tokens),
        default=None,
    )
    opposite = {} if other is None else _names(trace, other)
    return View(trace, *((named, opposite) if drafts else (opposite, named)), {})


def _names(trace: Trace, lookup: Lookup) -> dict[str, str]:
    sends = trace.sends(lookup)
    return {one.engine_request_id: f"send {number}, {one.request_id}" for number, one in enumerate(sends, 1)}


def run(investigation: Investigation, *, tokens: int = TOKENS, seed: int = 1) -> Rows:
    """Make sure that the prompt was sent three times under each setting, and return the rows of those sends.

    Rows that the baseline made are used as they are: its servers were traced too.
    """
    with investigation.stage("trace", tokens=tokens, seed=seed) as stage:
        if investigation.target.kind == "attached":
            stage.outcome, stage.note = "skipped", "an attached server is not restarted, so it has no tracer"
            stage.warn(
                "no-trace",
                "block ranges need the tracer inside the engine, and an attached server is not restarted",
                "prefixscope run --serve-cmd 'vllm serve …'",
            )
            return []
        chosen = [s for s, role in settings(investigation) if role == "base" and not s.lora]
        return measure(
            investigation,
            stage,
            [Series(setting=s, tokens=tokens, seed=seed, sends=sends(investigation, s, tokens, seed)) for s in chosen],
        )


def sends(investigation: Investigation, setting: Setting, tokens: int, seed: int) -> tuple[str, ...]:
    """All sends where the baseline has them, else only the repeats."""
    whole = Series(setting=setting, tokens=tokens, seed=seed, sends=ALL_SENDS)
    return ALL_SENDS if finished(investigation, whole) else REPEATS


def groups(seen: View) -> pd.DataFrame:
    """One row per KV cache group of each kind of engine that was traced (``frames.groups``)."""
    return frames.groups(seen.trace.headers)


def blocks(seen: View, *, drafter: bool) -> pd.DataFrame:
    """``frames.blocks`` of the sends with or without a drafter."""
    names = seen.with_drafter if drafter else seen.without
    # Under the id it is named by: an id of ours may have been sent twice.
    found = [replace(one, request_id=request) for one, request in _lookups(seen, names)]
    return frames.blocks(found, labels=names)


def stored(seen: View, *, drafter: bool) -> pd.DataFrame:
    """``frames.stores`` of the same sends and of the one before the first, which filled the cache."""
    names = dict(seen.with_drafter if drafter else seen.without)
    first = next((one for one, _ in _lookups(seen, names)), None)
    if first is not None and first.closest_engine_id and first.closest_engine_id not in names:
        before = seen.trace.lookup(first.closest_engine_id)
        if before is not None and before.request_id not in names:
            label = f"before it, {before.request_id}"
            if before.request_id in seen.repeat_of.values():
                setting = next(iter(names.values())).rpartition(", ")[0]
                label = f"{setting}, {frames.send_label('cold', 1)}"
            names = {before.engine_request_id: label, **names}
    return frames.stores(seen.trace, names)


def missing(seen: View, text: str) -> str:
    """What to say of an empty figure: the text, where there is a trace to bear it out."""
    return text if seen.trace.headers or seen.trace.lookups else "Not known: nothing was traced."


def over_time(seen: View) -> pd.DataFrame:
    """``frames.lookups_over_time`` of the whole trace."""
    return frames.lookups_over_time(seen.trace)


def evictions(seen: View) -> pd.DataFrame:
    """``frames.evictions_over_time`` of the whole trace."""
    return frames.evictions_over_time(seen.trace)


def causes(seen: View) -> pd.DataFrame:
    """``frames.causes`` of the whole trace."""
    return frames.causes(seen.trace)


def words(seen: View) -> pd.DataFrame:
    """What the words in this notebook's figures and sentences mean, one row per term."""
    texts = [explain(seen.trace, request).sentence for request in (*seen.with_drafter, *seen.without)]
    texts += [view.group.kind for one in seen.trace.lookups[:1] for view in one.groups]
    found = used([*texts, "group scheduler block hit checkpoint replay boundary retention interval store side"])
    return pd.DataFrame({"word": list(found), "means": list(found.values())})


def summary(seen: View) -> pd.DataFrame:
    """``frames.lookups`` of the sends looked at: per group needed, stored and missing blocks, and the cause."""
    names = {**seen.without, **seen.with_drafter}
    return frames.lookups(
        (names[request], one, explain(seen.trace, request, repeat_of=seen.repeat_of.get(request)).cause)
        for one, request in _lookups(seen, names)
    )


def _lookups(seen: View, names: Mapping[str, str]) -> list[tuple[Lookup, str]]:
    found = [(seen.trace.lookup(request), request) for request in names]
    return [(one, request) for one, request in found if one is not None]
