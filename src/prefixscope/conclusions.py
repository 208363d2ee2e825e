"""What each notebook found, computed from its rows, and which notebook to open next."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Any

import pandas as pd

from prefixscope import frames, noise, standing, streaming, trade, verdict
from prefixscope.diagnosis import Diagnosis, cause_words, explain
from prefixscope.geometry import traced
from prefixscope.investigation import beside
from prefixscope.lookups import View
from prefixscope.quantities import count, listing, wilson
from prefixscope.redact import inert
from prefixscope.remedy import choose_interval
from prefixscope.run_files import is_ours
from prefixscope.trace import Trace


@dataclass(frozen=True, slots=True)
class Conclusion:
    """A sentence or two, and where to go from here; shows itself in a notebook.

    ``unfinished`` says which stages of the run are not done, and what goes on with it.
    """

    text: str
    next: str = ""
    unfinished: str = ""

    def _repr_markdown_(self) -> str:
        first, stop, rest = inert(self.text).partition(". ")
        shown = [f"**{first}{stop.strip()}** {rest}", self.unfinished, f"Next: {self.next}" if self.next else ""]
        return "\n\n".join(part for part in shown if part)

    def __repr__(self) -> str:
        return self.text


TRACE, SWEEP, EQUALITY, SPECULATION, REPORT = (
    f"[{name}]({name}.ipynb)"
    for name in ("10-block-trace", "20-retention-sweep", "30-output-equality", "40-speculation", "90-report")
)
"""The notebooks that lie beside the one that names them."""

_AGAIN: Mapping[str, str] = {
    "not reported": "once it reports them, this notebook again with a new `run_dir`.",
    "cannot hit": "this notebook again with longer `lengths`.",
    "inconclusive": "this notebook again, once the server answers.",
}


def _told(find: Callable[..., Conclusion]) -> Callable[..., Conclusion]:
    """The conclusion, with which stages of the run are not done; not while the run is on its way to them."""

    @wraps(find)
    def found(run: Path, *more: Any) -> Conclusion:
        coming = find.__name__ != "report" and is_ours(run / standing.LOCK)
        return replace(find(run, *more), unfinished="" if coming else standing.of_run(frames.load_run(run)).markdown)

    return found


def _verdict(run: Path) -> verdict.Verdict:
    """The run's verdict, without what a conclusion says of every run."""
    return replace(verdict.of_run(run), unfinished="")


@_told
def baseline(run: Path) -> Conclusion:
    """Does it reuse prefixes?"""
    found = _verdict(run)
    if found.code in ("none", "short"):
        return Conclusion(found.sentence, f"{TRACE} shows which blocks are missing{_by_kit(run)}.")
    return Conclusion(found.sentence, _AGAIN.get(found.code, f"{EQUALITY} checks that warm answers equal cold ones."))


@_told
def report(run: Path, page: Path | None = None) -> Conclusion:
    """What does the run say as a whole, and what is it still without? ``page`` is its report; the run's own if None."""
    found, stages = _verdict(run), frames.load_run(run).get("stages") or {}
    open_to = {"baseline": "[00-baseline](00-baseline.ipynb)", "trace": TRACE, "sweep": SWEEP, "equality": EQUALITY,
               "speculation": SPECULATION}  # fmt: skip
    left = [link for name, link in open_to.items() if (stages.get(name) or {}).get("status") not in ("done", "skipped")]
    where = f"{', '.join(left)}: the report still lacks what it would show." if left else (
        f"read or send the report; `prefixscope export-test {shlex.quote(str(beside(page or run / 'report.html')))}` "
        "makes its fault a test for vLLM's own tree."
    )  # fmt: skip
    return Conclusion(found.sentence, where)


def _by_kit(run: Path) -> str:
    """How a server that is not ours to restart gets a trace."""
    attached = (frames.load_run(run).get("target") or {}).get("kind") == "attached"
    return ": record a trace of it first, `prefixscope trace kit DIR` says how" if attached else ""


@_told
def trace(run: Path) -> Conclusion:
    """Which group ended the hit, and what is missing?"""
    known = traced(run)
    sends = frames.sends(run)
    repeats = sends[(sends["send"] == "repeat") & (sends["status"] == "ok") & (~sends["lora"].fillna(False))]
    # The notebook's question is about the miss; where nothing missed, the longest repeat tells why not.
    ordered = repeats.sort_values(["cached_tokens", "tokens", "index"], ascending=[True, False, True], kind="stable")
    seen = [rid for rid in ordered["request_id"].dropna() if known.lookup(rid) is not None]
    if not seen:
        return Conclusion(
            "No lookup of this run was traced, so no cause can be named.",
            f"a serve command as `target`, or a trace of the running server{_by_kit(run)}.",
        )
    request = _longest(ordered, seen)
    found = explain(known, request, repeat_of=frames.repeats(sends).get(request))
    other = missed_most(known, frames.causes(known), [found])
    text = " ".join(part for part in (found.sentence, found.remedy, other) if part)
    return Conclusion(text, f"{SWEEP} measures what each retention interval brings back, and keeps.")


def block_trace(seen: View) -> Conclusion:
    """Of a run as :func:`trace`; of a trace alone why its worst miss missed, what brings it back, and at what price."""
    if seen.run is not None:
        return trace(seen.run)
    worst = seen.trace.worst()
    if worst is None:
        return Conclusion(
            "The trace holds no lookup, so no cause can be named.", "send the traced server the same prompt twice."
        )
    found = explain(seen.trace, worst.engine_request_id)
    missed = "" if worst.missed_tokens else "Nothing missed in this trace. "
    other = missed_most(seen.trace, frames.causes(seen.trace), [found])
    text = " ".join(part for part in (f"{missed}{found.sentence}", found.remedy, found.price, other) if part)
    return Conclusion(text, "`prefixscope run --serve-cmd '…'` measures each remedy on this server.")


def _longest(ordered: pd.DataFrame, traced: list[str]) -> str:
    """The longest prompt's request among those that missed most."""
    rows = ordered[ordered["request_id"].isin(traced)]
    least = rows[rows["cached_tokens"] == rows["cached_tokens"].min()]
    with_length = least if len(least) else rows
    return str(with_length.sort_values("tokens", ascending=False, kind="stable")["request_id"].iloc[0])


def missed_most(known: Trace, tally: pd.DataFrame, told: Iterable[Diagnosis]) -> str:
    """What missed most over a whole trace, and what brings it back, where that is none of the causes told already.

    ``tally`` is ``frames.causes`` of the trace.
    """
    if tally.empty or not tally["missed_tokens"].iloc[0]:
        return ""
    top = tally.iloc[0]
    if top["cause"] in {cause_words(one.cause) for one in told}:
        return ""
    return (
        f"Over the whole trace another cause missed more: {top['cause']} ({count(int(top['lookups']), 'lookup')}, "
        f"{top['missed_tokens']:,} tokens). {top['meaning']} {explain(known, str(top['request_id'])).remedy}"
    )


@_told
def sweep(run: Path) -> Conclusion:
    """Which interval is the cheapest that brings the hit back?"""
    table = frames.sweep(frames.sends(run), frames.kept(run))
    by = ""
    if table["hit_2"].isna().all():
        table, by = frames.predicted_sweep(run), "Predicted by the release's own scheduler from a trace, not measured: "
    table = table[table["hit_2"].notna()]
    if table.empty:
        return Conclusion(
            "No interval was measured.",
            "a serve command as `target`: a sweep restarts the server; or `trace`, a trace of the running one.",
        )
    best = choose_interval(table)
    assert best is not None  # the table has rows
    tokens = int(best["tokens"])
    if best["hit_2"] == 0:
        return Conclusion(
            f"{by}No interval brings a hit on the second send of {tokens:,} tokens.", f"{TRACE} shows why."
        )
    lengths = table["tokens"].nunique()
    over = f" over all {lengths} prompt lengths" if lengths > 1 else ""
    text = (
        f"{by}Of {count(table['interval'].nunique(), 'interval')}, {best['interval']} leaves the fewest tokens short"
        f"{over} at the lowest price. At {tokens:,} tokens its second send hits {int(best['hit_2']):,}"
        f"{_kept(table, best)}"
    )
    return Conclusion(text + ". Unpressured: the pool never evicted here.", f"{EQUALITY} checks the answers at it.")


def _kept(table: pd.DataFrame, best: pd.Series[Any]) -> str:
    """What the best interval keeps of its longest prompt, and what each other one does that hits as much of it."""
    good = table[(table["tokens"] == best["tokens"]) & (table["hit_2"] == best["hit_2"])]
    others = good[good["interval_order"] != best["interval_order"]]
    if pd.isna(best["blocks"]):
        return f"; {_hit(others)} the same" if len(others) else ""
    every = frames.keeps_all(table, best["interval_order"]) and best["interval"] != "dense"
    whole = ", which is every block, as much as dense retention" if every else ""
    text = f", and it keeps {int(best['blocks']):,} blocks of the prompt{whole}"
    alike = others[others["blocks"] == best["blocks"]]
    if len(alike):
        text += f"; {_hit(alike)} the same and {'keeps' if len(alike) == 1 else 'keep'} the same"
    for row in others[(others["blocks"] != best["blocks"]) & others["blocks"].notna()].itertuples():
        text += f"; {row.interval} hits the same there and keeps {row.blocks:,}"
        mine, chosen = (
            table[table["interval_order"] == order] for order in (row.interval_order, best["interval_order"])
        )
        both = mine.merge(chosen, on="tokens", suffixes=("", "_best"))
        worse = both.loc[both["hit_2"] < both["hit_2_best"], "tokens"]
        text += f", but hits less of {listing([f'{one:,}' for one in worse])} tokens" if len(worse) else ""
    return text


def _hit(rows: pd.DataFrame) -> str:
    """``64, 512 and dense hit``."""
    return f"{listing(rows['interval'].tolist())} {'hits' if len(rows) == 1 else 'hit'}"


@_told
def equality(run: Path) -> Conclusion:
    """Did the cache change an answer?"""
    pairs = frames.comparisons(run)
    warm, control = (pairs[pairs["pair"] == name] for name in ("cold-warm", "cold-control"))
    judged = warm[warm["identical"].notna()]
    if judged.empty:
        why = f"{len(warm)} warm answers took nothing from the cache" if len(warm) else "no answers were compared"
        return Conclusion(f"Void: {why}, so equality can't be judged.", f"{SWEEP}: find an interval that hits.")
    same, total = int(judged["identical"].sum()), len(judged)
    low, high = wilson(same, total)
    noise = int((~control["identical"].dropna().astype(bool)).sum())
    text = f"{same} of {total} warm answers equal the cold ones (95 % interval {low:.0%} to {high:.0%})"
    if len(control):
        text += f"; between two cold sends {len(control) - noise} of {len(control)} are equal"
    if same < total and not len(control):
        text += "; without the control no difference can be blamed on the cache"
    elif same < total and noise:
        text += "; the server's own noise is of that kind, so the cache is not to blame on this evidence"
    elif same < total:
        text += "; two cold sends never differed, so the cache path changes answers"
    void = len(warm) - total
    text += f"; {void} void (no hit)" if void else ""
    return Conclusion(text + ".", f"{SPECULATION} weighs what a drafter gains against the hits that it costs.")


@_told
def speculation(run: Path) -> Conclusion:
    """What does the drafter buy, and what does it cost?"""
    generations = frames.generations(run)
    if frames.by_shape(generations).empty:
        return Conclusion(
            "No answer was streamed, so nothing can be said of speculative decoding.",
            "a server as `target`; the recorded sample may be older than this notebook.",
        )
    found = trade.of_run(run)
    parts = [trade.sentence(found)] if found else []
    parts += [text for text in (streaming.too_fast(generations), streaming.held_back(generations)) if text]
    parts += streaming.drafted(frames.by_shape(generations))
    if generations["arm"].nunique() > 1:
        parts.append(noise.judge(frames.output_pairs(run), frames.arm_labels(generations)).sentence)
    else:
        parts.append("One server alone shows no trade: give a second one to compare it with.")
    where = f"{REPORT} puts everything on one page; {SWEEP} measures what brings lost hits back."
    return Conclusion(" ".join(parts), where)
