"""One side of a comparison: a run directory, or the report of one, read once."""

from __future__ import annotations

import json
import string
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from prefixscope import frames, redact, standing
from prefixscope.comparison.engines import engines
from prefixscope.errors import ReplayError, RunError
from prefixscope.frames.drafting import BURST_MS
from prefixscope.material import shareable
from prefixscope.quantities import count
from prefixscope.replay import travel
from prefixscope.replay.case import Case
from prefixscope.runs import SCHEMA_VERSION
from prefixscope.standing import Standing
from prefixscope.verdict import SPECULATION, Verdict, of_frames

MOST = len(string.ascii_uppercase)
_BLOCK = "scheduler block of the embedded case"
_TRACE = "embedded-trace"
"""Where a report's trace goes: only the settings of its engines are read from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """A run, called by a letter.

    ``name`` is what the caller named it; it and the raw ``rows`` never leave this machine as they are. ``manifest`` and
    the frames hold nothing that may not leave. ``commands`` are start commands by setting, ``engines`` what traced
    engines resolved, by setting; ``answers`` holds the cold answers (token ids, or text) by role, document and prompt;
    ``doubts`` is what makes this side less than certain, ``standing`` how far the run got.
    """

    letter: str
    name: str
    manifest: Mapping[str, Any]
    rows: tuple[Mapping[str, Any], ...]
    sent: pd.DataFrame
    sweep: pd.DataFrame
    comparisons: pd.DataFrame
    generations: pd.DataFrame
    roles: Mapping[str, str]
    answers: Mapping[tuple[str, str, str], Any]
    commands: Mapping[str, str]
    engines: Mapping[str, Case]
    verdict: Verdict
    doubts: tuple[str, ...]
    standing: Standing

    @property
    def version(self) -> str | None:
        """The release of vLLM that served; None where nobody says."""
        found = (self.manifest.get("engine") or {}).get("version")
        return None if found in (None, "None", "") else str(found)

    @property
    def settings(self) -> tuple[str, ...]:
        """How its servers were started, as far as they answered."""
        for table in (self.sent, self.generations):
            if len(found := table.loc[table["status"] == "ok", "setting"].drop_duplicates()):
                return tuple(found)
        return tuple(self.comparisons["setting"].dropna().drop_duplicates())

    @property
    def asked(self) -> bool:
        """Whether it was asked for hit lengths; what a run of speculation alone sent again tells some all the same."""
        return bool(self.sent["stage"].ne(SPECULATION).any())

    def renamed(self, name: str) -> Side:
        """The same run with its one setting under another name."""
        old = self.settings[0]
        config = [str(one).replace(old, name, 1) for one in self.sent["config"]]
        label = self.generations["label"].replace(old, name)
        return replace(
            self,
            sent=self.sent.assign(setting=name, config=pd.Series(config, index=self.sent.index, dtype="string")),
            comparisons=self.comparisons.assign(setting=name),
            generations=self.generations.assign(label=label),
            commands={name: self.commands[old]} if old in self.commands else {},
            engines={name: self.engines[old]} if old in self.engines else {},
        )


def load(names: Sequence[str]) -> tuple[Side, ...]:
    """Read run directories and reports, in order.

    Raises
    ------
    RunError
        for fewer than two, for what is neither, for a run of another schema, and for the same run twice, a changed
        copy of it too.
    """
    if not 2 <= len(names) <= MOST:
        raise RunError(
            f"{count(len(names), 'run')} to compare", cause=f"a comparison takes 2 to {MOST}", remedy="name each run"
        )
    with tempfile.TemporaryDirectory(prefix="prefixscope-") as scratch:
        sides = []
        for letter, name in zip(string.ascii_uppercase, names, strict=False):
            path = Path(name).expanduser()
            if path.is_dir():
                if not (path / "run.json").exists() and not (path / "raw").is_dir():
                    raise RunError(
                        f"{path} is not a run directory: it has neither run.json nor raw/",
                        remedy="name a run directory or a report.html",
                    )
                sides.append(_read(path, letter, name))
            else:
                sides.append(_read(_unpack(path, Path(scratch) / letter), letter, name))
    _refuse_the_same(sides)
    return tuple(sides)


def _unpack(report: Path, to: Path) -> Path:
    """The rows and the manifest that a report holds, as a run directory."""
    try:
        text = report.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise RunError(f"{report} can't be read: {error.strerror}", remedy="name a run or a report.html") from None
    try:
        manifest, rows = travel.embedded(text, "run.json"), travel.embedded(text, "rows.jsonl")
        trace = travel.embedded(text, "trace.jsonl")
        run = None if manifest is None else json.loads(manifest)
    except (ValueError, OSError, EOFError) as error:
        raise RunError(f"the data in {report} is damaged: {error}", remedy="download the report again") from None
    if not isinstance(run, dict):
        raise RunError(
            f"{report} holds no run",
            cause="it is no report.html of prefixscope",
            remedy="name a run directory, or what prefixscope report RUN wrote",
        )
    if rows is None and "rows.jsonl" in text:
        raise RunError(
            f"{report} does not hold its rows", cause="there were too many to embed", remedy="name the run directory"
        )
    try:
        cases = travel.load(report)
    except ReplayError:
        cases = []
    if cases:
        # A report leaves the trace behind; how far a good hit may fall short depends on its block.
        known = run.get("facts")
        block = {"name": _BLOCK, "value": cases[0].geometry.scheduler_block, "source": travel.NAME}
        run["facts"] = [*(known if isinstance(known, list) else ()), block]
        (to / "cases").mkdir(parents=True)
        (to / "cases" / travel.NAME).write_text(travel.to_text(cases), encoding="utf-8")
    if trace is not None:
        (to / _TRACE).mkdir(parents=True)
        (to / _TRACE / "trace.jsonl").write_text(trace, encoding="utf-8")
    (to / "raw").mkdir(parents=True, exist_ok=True)
    (to / "raw" / "rows.jsonl").write_text(rows or "", encoding="utf-8")
    (to / "run.json").write_text(json.dumps(run), encoding="utf-8")
    return to


def _read(folder: Path, letter: str, name: str) -> Side:
    run = frames.load_run(folder)
    rows, problems = frames.read_rows(folder)
    schema = run.get("schema_version", SCHEMA_VERSION)
    if schema != SCHEMA_VERSION or (not rows and any("unknown schema" in one for one in problems)):
        raise RunError(
            f"{name}: {f'schema {schema!r}' if schema != SCHEMA_VERSION else 'rows of another schema'}, this "
            f"prefixscope compares {SCHEMA_VERSION}",
            cause="another version of prefixscope wrote it",
            remedy="compare with that version, or measure again with this one",
        )
    run["facts"] = [one for one in run.get("facts", []) if not isinstance(one, Mapping) or one.get("name") != _BLOCK]
    sent, kept = shareable(frames.sends(folder)), shareable(frames.kept(folder))
    case_file = folder / "cases" / travel.NAME
    cases = travel.load(case_file) if case_file.exists() else travel.of_run(folder)
    trace = next((one for one in (folder / "trace", folder / _TRACE) if one.is_dir()), folder / "trace")
    streamed = shareable(frames.generations(folder))
    swept, roles = frames.sweep(sent, kept), _roles(rows)
    return Side(
        letter=letter,
        name=name,
        manifest=redact.manifest(run),
        rows=tuple(rows),
        sent=sent,
        sweep=swept if len(swept) else frames.predicted_sweep(folder),
        comparisons=shareable(frames.comparisons(folder)),
        generations=streamed,
        roles=roles,
        answers=_answers(rows, roles),
        commands=_commands(run),
        engines=engines(sent, cases, rows, trace),
        verdict=of_frames(folder, sent, kept, None),
        doubts=(*_doubts(folder, run, sent, problems), *_held(streamed)),
        standing=standing.of_run(run),
    )


def _roles(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    return {
        redact.clean(row["model"], limit=120): str(row["role"]) for row in rows if row.get("model") and row.get("role")
    }


def _answers(rows: Sequence[Mapping[str, Any]], roles: Mapping[str, str]) -> dict[tuple[str, str, str], Any]:
    found = {}
    for row in rows:
        prompt, said = row.get("prompt"), row.get("token_ids") or row.get("text")
        if row.get("kind") == "answer" and row.get("arm") == "cold" and row.get("status") == "ok" and said:
            role = row.get("role") or roles.get(redact.clean(row.get("model"), limit=120), "base")
            digest = str(prompt.get("digest")) if isinstance(prompt, Mapping) else ""
            found[str(role), str(row.get("document")), digest] = said
    return found


def _commands(run: Mapping[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for server in run.get("servers", []):
        setting = server.get("setting") if isinstance(server, Mapping) else None
        if isinstance(setting, Mapping) and isinstance(server.get("command"), str):
            found.setdefault(redact.clean(setting.get("label"), limit=120), server["command"])
    return found


def _doubts(folder: Path, run: Mapping[str, Any], sent: pd.DataFrame, problems: Sequence[str]) -> tuple[str, ...]:
    told = run.get("problems")  # of a report: what was wrong with the rows that it was made from
    doubts = [redact.clean(one) for one in told] if isinstance(told, list) else frames.doubts(folder)
    found = [*doubts, *problems]
    for stage, state in (run.get("stages") or {}).items():
        said = standing.STATES.get(str(state.get("status"))) if isinstance(state, Mapping) else None
        if said is not None:
            why = redact.clean(state.get("error") or state.get("note") or "").strip()
            found.append(f"stage {redact.clean(stage)} {said[0]}" + (f": {why}" if why else ""))
    failed = sent[sent["status"] == "failed"]
    if len(failed):
        first = failed["error"].dropna().head(1).tolist()
        found.append(
            f"{count(len(failed), 'request')} failed" + (f", the first: {first[0].splitlines()[0]}" if first else "")
        )
    for column, who in (
        ("metrics_agree", "the server's own counters"),
        ("predicted_agrees", "the release's scheduler"),
    ):
        known = sent[column].dropna()
        wrong = int((~known).sum())
        if wrong:
            found.append(f"in {wrong:,} of {count(len(known), 'send')} {who} gave another hit length than the answer")
    return tuple(found)


def _held(streamed: pd.DataFrame) -> tuple[str, ...]:
    held = int((streamed["step_ms"] < BURST_MS).sum())
    if not held:
        return ()
    all_of = count(len(streamed), "streamed answer")
    return (f"{held:,} of {all_of} came in one burst, so their tokens a second are not known and not compared",)


def _refuse_the_same(sides: Sequence[Side]) -> None:
    for place, side in enumerate(sides):
        for other in sides[:place]:
            ids = [one.manifest.get("run_id") for one in (other, side)]
            asked = [set(one.sent["request_id"].dropna()) for one in (other, side)]
            if ids[0] == ids[1] if None not in ids else asked[0] & asked[1]:
                what = f" ({ids[1]})" if ids[1] else ""
                alike = "requests in common" if None in ids else f"the same run id{what}"
                apart = _rows_apart(other, side)
                raise RunError(
                    f"{other.name} and {side.name} "
                    + (f"have {alike}, but their rows differ: {apart}" if apart else f"are the same run{what}"),
                    cause="one is a copy of the other: its rows were changed, or the run went on after it was copied"
                    if apart
                    else "what was measured once can't differ from itself",
                    remedy="measure again: prefixscope run -o DIR, or prefixscope report RUN for one alone",
                )


def _rows_apart(first: Side, second: Side) -> str:
    """``stage baseline: 2 rows differ``; empty where the rows of both are the same."""
    found: dict[str, list[int]] = {}
    # A report holds less of a row than its run does.
    whole = all(Path(side.name).expanduser().is_dir() for side in (first, second))
    tallies = [
        Counter((str(row["stage"]), _line(row if whole else redact.row(row))) for row in side.rows)
        for side in (first, second)
    ]
    for place, (mine, theirs) in enumerate((tallies, tallies[::-1])):
        for (stage, _), many in (mine - theirs).items():
            found.setdefault(stage, [0, 0])[place] += many
    parts = []
    for stage, (own, others) in sorted(found.items()):
        both = min(own, others)
        told = [f"{count(both, 'row')} {'differs' if both == 1 else 'differ'}"] if both else []
        told += [f"{count(own - both, 'row')} only in {first.name}"] if own > both else []
        told += [f"{count(others - both, 'row')} only in {second.name}"] if others > both else []
        parts.append(f"stage {redact.clean(stage)}: {', '.join(told)}")
    return "; ".join(parts)


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(row, sort_keys=True, default=str)
