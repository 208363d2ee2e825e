"""What was ruled out, each by what was measured; and what is open, each with what would settle it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prefixscope import conclusions, frames, redact, standing
from prefixscope.charts import with_configs
from prefixscope.geometry import BROUGHT
from prefixscope.notes import remedy, symptom, upstream
from prefixscope.notes.account import Account
from prefixscope.notes.context import on_gpu
from prefixscope.quantities import count, number
from prefixscope.sections.section import begin

_STAGES = {
    "baseline": "hit lengths by configuration",
    "trace": "the blocks of each lookup",
    "sweep": "what each retention interval brings back and keeps",
    "equality": "whether warm answers equal cold ones",
    "speculation": "what the drafter gains and loses",
}
_OPEN = {"left out": "was left out", "skipped": "was skipped"}


def ruled_out(told: Account) -> list[str]:
    """One sentence for each suspicion that something measured speaks to."""
    return [text for text in _suspicions(told) if text]


def equality(told: Account) -> str:
    """Whether warm answers equal cold ones, and with which configuration; empty where none were compared."""
    settings = told.material.comparisons["setting"].dropna().unique()
    if not len(told.material.comparisons):
        return ""
    where = f" {with_configs(list(settings))}" if len(settings) else ""
    return f"The answers{where}: {conclusions.equality(told.run_dir).text}"


def _suspicions(told: Account) -> Iterator[str]:
    hits = told.material.hits
    yield symptom.adapter(told)
    controls = hits[(hits["send"] == "control") & hits["cached_tokens"].notna()]
    if len(controls):
        worst = int(controls["cached_tokens"].max())
        yield (
            f"Somebody else's cache: another text of the same length hits {number(worst)} tokens at most."
            if worst
            else "Somebody else's cache: another text of the same length hits nothing, so hits are its own."
        )
    counters = frames.agreed(told.material.sent, "metrics_agree")
    if counters.compared:
        rest = f"; {number(counters.untold)} could not be compared" if counters.untold else ""
        yield (
            f"A wrong count: the server's own counters (/metrics) give the hit of the answer's usage in "
            f"{counters.same:,} of {count(counters.answered, 'request')}{rest}."
        )
    yield _eviction(told)


def _eviction(told: Account) -> str:
    """Whether blocks that are missing had been evicted; empty where the trace does not clear the suspicion."""
    if not len(told.material.sent) or not told.trace.lookups:
        return ""
    evicted = sum(one.blocks for one in told.trace.evictions)
    if not evicted:
        return "Eviction: no block left the cache during the run."
    if told.main is None or any(view.evicted for view in told.main.groups):
        return ""
    return f"Eviction: {count(evicted, 'block')} left the cache during the run; none is among those missing."


def still_open(told: Account) -> list[str]:
    """What this run does not tell, each with what would."""
    return [text for text in _questions(told) if text]


def _questions(told: Account) -> Iterator[str]:
    run, material = told.material.run, told.material
    for stage, what in _STAGES.items():
        state = (run.get("stages") or {}).get(stage)
        if material.brought or (stage == "trace" and told.main is not None):
            continue
        status = state.get("status") if isinstance(state, Mapping) else None
        if status == "done":
            continue
        why = _OPEN.get(str(status)) or standing.STATES.get(str(status), ("has not run",))[0]
        reason = redact.clean(state.get("note") or state.get("error") or "") if isinstance(state, Mapping) else ""
        reason = f": {reason.splitlines()[0]}" if reason else ""
        if stage == "baseline" and told.material.resent:
            what = "hit lengths of other prompts and configurations than those above"
        yield f"Not measured: {what}. Stage {stage} {why}{reason} (`{begin(material, stage)}`)."
    failed = int((material.sent["status"] == "failed").sum())
    if failed:
        yield f"{count(failed, 'request')} failed and {'is' if failed == 1 else 'are'} in no number above."
    warnings = [item for item in run.get("warnings", []) if isinstance(item, Mapping)]
    doubts = len(warnings) + len(material.problems)
    if doubts:
        yield f"{count(doubts, 'warning')} of the run {'is' if doubts == 1 else 'are'} listed in its report."
    yield next((f"{one['detail']}." for one in warnings if one.get("code") == "no-manifest"), "")
    if on_gpu(told) is False:
        yield (
            "No GPU was recorded: hit lengths are the scheduler's, the same code as on a GPU; times are those of a CPU."
        )
    if told.faulty and told.verdict.price:
        yield (
            "The remedy was measured with one request at a time. In a busy, small pool an interval that fixes the "
            "resend can lower the hit rate of other traffic: `prefixscope predict --workload` replays yours."
        )
    if told.faulty and told.version:
        yield _other_releases(told)


def _other_releases(told: Account) -> str:
    later = upstream.fixed_in(remedy.topics(told), told.version)
    text = f"Only vLLM {told.version} was measured; what other releases do is predicted or cited."
    if later is None or told.main is None:
        return text
    # A run's own requests are replayed server by server; a trace from elsewhere has one that its worst miss names.
    asked = ("this server's groups", f"RUN/{BROUGHT}") if told.material.brought else ("this run's requests", "RUN")
    return (
        f"{text} Before an upgrade ask the later release's scheduler with {asked[0]} (`prefixscope predict "
        f"--trace {asked[1]} --vllm {told.version},{later}`)."
    )
