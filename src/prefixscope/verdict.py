"""The run's verdict: a code for scripts, sentences for people, and the counts that both rest on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from prefixscope import preflight, standing, streaming, trade
from prefixscope.charts import as_subject, speed_title
from prefixscope.diagnosis import explain
from prefixscope.frames import (
    agreed,
    by_shape,
    comparisons,
    effect,
    hits,
    kept,
    load_run,
    predicted_sweep,
    sends,
    sweep,
    worst,
)
from prefixscope.frames import generations as streamed
from prefixscope.frames.drafting import measured
from prefixscope.frames.rows import dict_in
from prefixscope.geometry import brought
from prefixscope.quantities import count, number
from prefixscope.remedy import Help, choose_interval, of_sweep
from prefixscope.trace import Trace

CODES = ("reuses", "short", "none", "cannot hit", "not reported", "inconclusive", "not asked")
"""``not asked``: the run looked at something else, and found it."""
SPECULATION = "speculation"
"""The stage that sends prompts again without asking whether they are reused."""
_MOST_LENGTHS = 3  # that a sentence lists


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a run found about its main configuration.

    ``code`` is one of :data:`CODES`; ``headline`` says it in one sentence with its numbers; ``sentences`` add what
    differs elsewhere; ``remedy`` and ``price`` are None where the run measured none; ``upgrade`` names the release
    that mends it by itself, where the table of known faults knows one; ``basis`` says how much evidence there is,
    ``config`` which configuration the code is about and ``remedy_config`` which one helps. ``unfinished`` says which
    stages are not done; it is empty where all are.
    """

    code: str
    headline: str
    config: str | None = None
    sentences: tuple[str, ...] = ()
    remedy: str | None = None
    price: str | None = None
    upgrade: str | None = None
    remedy_config: str | None = None
    basis: str = ""
    unfinished: str = ""

    @property
    def sentence(self) -> str:
        """What was found and what helps, without the evidence: what a command prints."""
        parts = (self.headline, self.unfinished, *self.sentences, self.remedy, self.price, self.upgrade)
        return " ".join(part for part in parts if part)

    @property
    def text(self) -> str:
        """All of it as one paragraph."""
        return f"{self.sentence} {self.basis}".strip()


def of_run(run_dir: Path) -> Verdict:
    """The verdict of a run directory, half-finished ones too."""
    sent = sends(run_dir)
    found = None if len(sent) else brought(run_dir)
    return of_frames(run_dir, sent, kept(run_dir), found)


def of_frames(run_dir: Path, sent: pd.DataFrame, stored: pd.DataFrame, trace: Trace | None) -> Verdict:
    """The verdict of a run of which these frames are read already; ``trace`` is one that was brought."""
    run = load_run(run_dir)
    if trace is not None:
        found = of_trace(trace)
    # The long prompts of stage speculation are sent for its trade: where nothing else was, reuse was not the question.
    elif not sent["stage"].eq(SPECULATION).all() or (other := of_others(run_dir)) is None:
        found = judge(sent, stored, run)
    else:
        table = hits(sent)
        second = table[(table["send"] == "repeat") & (table["index"] == 2)]
        found = replace(other, config=str(main_config(second))) if len(second) else other
    return replace(found, unfinished=standing.of_run(run).unfinished)


def of_others(run_dir: Path) -> Verdict | None:
    """The verdict of a run that sent no prompt twice to ask about reuse: what else it asked; None for nothing."""
    swept = predicted_sweep(run_dir)
    top = choose_interval(swept)
    if top is not None:
        return _predicted(swept, top)
    generations = measured(streamed(run_dir))
    if len(generations):
        return _drafting(run_dir, generations)
    warm = comparisons(run_dir)
    warm = warm[(warm["pair"] == "cold-warm") & warm["identical"].notna()]
    if len(warm):
        same = int(warm["identical"].sum())
        return Verdict(code="not asked", headline=f"{same} of {count(len(warm), 'warm answer')} equal the cold ones.")
    return None


def _predicted(swept: pd.DataFrame, top: pd.Series[Any]) -> Verdict:
    """What a sweep says that was predicted alone."""
    here = swept[(swept["tokens"] == top["tokens"]) & swept["hit_2"].notna()]
    least = here.sort_values(["hit_2", "interval_order"], kind="stable").iloc[0]
    release = str(top["config"]).removeprefix("predicted by ")
    text = (
        f"Predicted by the scheduler of {release} from a trace: the second send of {number(top['tokens'])} tokens "
        f"reuses {number(top['hit_2'])} at interval {top['interval']}"
    )
    if least["hit_2"] < top["hit_2"]:
        text += f", and {number(least['hit_2'])} at interval {least['interval']}"
    found = of_sweep(swept)
    return Verdict(
        code="not asked",
        headline=text + ".",
        remedy=found.sentence,
        price=found.price,
        basis="Nothing was measured: the server was not restarted. The scheduler that predicts is the release's own.",
    )


def _drafting(run_dir: Path, generations: pd.DataFrame) -> Verdict:
    """What streamed answers say."""
    shapes, weighed = by_shape(generations), trade.of_run(run_dir)
    faster = effect(generations, "tokens_per_s")
    drafted = streaming.drafted(shapes)
    headline = f"{speed_title(shapes, faster)}." if faster is not None else drafted[0]
    sentences = (
        [trade.sentence(weighed, briefly=True)]
        if weighed is not None
        else drafted
        if faster is not None
        else drafted[1:]
    )
    prompts = generations["item"].nunique()
    return Verdict(
        code="not asked",
        headline=headline,
        sentences=tuple(sentences),
        basis=f"{count(len(generations), 'streamed answer')} to {count(prompts, 'prompt')}, by the server's own usage."
        + (f" {trade.in_turn(weighed)}" if weighed is not None else ""),
    )


def of_trace(trace: Trace) -> Verdict:
    """The verdict on a trace alone: why its worst miss missed. A trace says of no lookup what it should have been."""
    worst = trace.worst()
    if worst is None:
        return Verdict(code="inconclusive", headline="The trace holds no lookup, so no cause can be named.")
    found, versions = explain(trace, worst.engine_request_id), sorted({one.version for one in trace.headers})
    missed, every = sum(one.missed_tokens > 0 for one in trace.lookups), count(len(trace.lookups), "lookup")
    who = f"vLLM {' and '.join(versions)}"
    if not any(one.caching for one in trace.headers):
        return Verdict(code="none", headline=f"{who} runs without prefix caching.", sentences=(found.sentence,))
    if not missed:
        none = f"none of {every} in this trace" if len(trace.lookups) > 1 else "the only lookup in this trace never"
        repeated = worst.hit_tokens > 0
        return Verdict(
            code="reuses" if repeated else "inconclusive",
            headline=f"{who}: {none} missed what an earlier request had brought.",
            sentences=(found.sentence,),
            basis="The trace was brought from elsewhere; nothing was sent.",
        )
    return Verdict(
        code="none" if not worst.hit_tokens else "short",
        headline=f"{who}: {missed:,} of {every} in this trace missed what an earlier request had brought.",
        sentences=(f"The worst, of {number(worst.tokens)} tokens, hit {number(worst.hit_tokens)}.", found.sentence),
        remedy=found.remedy,
        price=found.price,
        basis="The trace was brought from elsewhere; nothing was sent.",
    )


def judge(sent: pd.DataFrame, stored: pd.DataFrame, run: Mapping[str, Any]) -> Verdict:
    """The verdict of a run, from its frames; inconclusive, and said why, where nothing was measured."""
    table = hits(sent)
    second = table[(table["send"] == "repeat") & (table["index"] == 2)]
    if not len(second):
        failed = sent.loc[sent["status"] == "failed", "error"].dropna()
        why = f" The first failure: {failed.iloc[0].splitlines()[0]}." if len(failed) else ""
        text = f"No prompt was sent twice, so nothing can be said about prefix reuse yet.{why}"
        return Verdict(code="inconclusive", headline=text)
    config = main_config(second)
    mine = second[second["config"] == config].sort_values("tokens")
    code = code_of(mine["verdict"])
    stopped = dict_in(dict_in(run, "stages"), "baseline").get("status") in ("running", "interrupted")
    # Sentences with numbers are about the lengths whose hits are known; the code has judged the others too.
    known = mine[mine["cached_tokens"].notna()]
    mine = known if len(known) else mine
    who = as_subject(str(config))
    name = f"{who} on vLLM {_version(run)}" if _version(run) else who
    sentences = [_third_send(table, mine)] if code in ("none", "short") else []
    sentences.append(_without_drafter(second, mine))
    bad = code in ("none", "short")
    found, upgrade = of_sweep(sweep(sent, stored)) if bad else Help(), None
    if bad:
        fault = _known_fault(run, mine.iloc[-1], _third(table, mine.iloc[-1]))
        if fault is not None and fault.certain and fault.upgrade:
            upgrade = (
                f"{fault.upgrade} ({', '.join(fault.refs)}; read {fault.checked}).{_still_needed(table, mine, found)}"
            )
        if fault is not None and _true(mine.iloc[-1]["as_served"]) and found.sentence is None:
            # The release that mends it is told by a sentence of its own.
            found = Help(sentence=f"{_capital(fault.sentence)}: {fault.flag if upgrade else fault.remedy}.")
    headline = _headline(name, mine, code)
    if stopped and code == "reuses":
        # What was not sent may be what misses.
        code, headline = "inconclusive", f"{headline[:-1]}, as far as it was asked."
    return Verdict(
        code=code,
        headline=headline,
        config=str(config),
        sentences=tuple(sentence for sentence in sentences if sentence),
        remedy=found.sentence,
        price=found.price,
        upgrade=upgrade,
        remedy_config=found.config,
        basis=_basis(sent, mine),
    )


def _true(value: Any) -> bool:
    """Whether it is so; what is not known is not."""
    return not pd.isna(value) and bool(value)


def _capital(text: str) -> str:
    """The text as a sentence begins; vLLM is written small there too."""
    return text if text.startswith("vLLM") else f"{text[:1].upper()}{text[1:]}"


def main_config(second: pd.DataFrame) -> Any:
    """The configuration that the verdict is about: what is served, else the drafter at the release's default."""
    rank = (
        (~second["as_served"].fillna(False)).astype(int) * 100
        + (~second["drafter"].fillna(False)).astype(int) * 10
        + second["lora"].fillna(False).astype(int) * 5
        + (~second["interval_order"].isin([-1.0, 0.0])).astype(int) * 20
        + (second["interval_order"] != -1.0).astype(int)
    )
    return second.loc[rank.sort_values(kind="stable").index[0], "config"]


def code_of(verdicts: pd.Series[Any]) -> str:
    """The verdict over second sends: the worst of those that could hit."""
    known = [value for value in verdicts.dropna() if value != "cannot hit"]
    return (worst(known) or "inconclusive") if known else ("cannot hit" if len(verdicts.dropna()) else "inconclusive")


def _headline(name: str, mine: pd.DataFrame, code: str) -> str:
    longest = mine.iloc[-1]
    if code == "not reported":
        if mine["prompt_tokens"].isna().all():
            return (
                f"{name} reports neither prompt tokens nor cached tokens, so reuse can't be read from its answers; "
                "a gateway may have dropped their usage: ask the engine at its own address, in a new run."
            )
        return (
            f"{name} does not report cached tokens, so reuse can't be read from its answers; "
            "start it with --enable-prompt-tokens-details and measure in a new run."
        )
    if code == "cannot hit":
        most = number(longest["tokens"])
        return f"{name}: every prompt sent was too short to be reused (the longest had {most} tokens)."
    if code == "inconclusive":
        return f"{name}: the sends of this run do not allow a verdict; the failed or doubtful ones are listed below."
    worst_row = mine[mine["verdict"] == code].iloc[-1]
    ratio = f"{number(worst_row['cached_tokens'])} of {number(worst_row['prompt_tokens'])}"
    if code == "reuses":
        able = mine[mine["verdict"] == "reuses"]
        short = (
            f"{number(able['short_tokens'].min())}–{number(able['short_tokens'].max())}"
            if len(able) > 1
            else number(able["short_tokens"].max())
        )
        lengths = "all lengths" if len(able) == len(mine) else f"the {len(able)} of {len(mine)} lengths that can hit"
        over = f" over {lengths}" if len(able) > 1 else ""
        return f"{name} reuses the prefix on the second send ({ratio} tokens; {short} short of full{over})."
    verb = "reuses nothing" if code == "none" else "reuses only part of the prefix"
    return f"{name} {verb} on the second send of {_lengths(mine, code)} ({ratio} tokens)."


def _lengths(mine: pd.DataFrame, code: str) -> str:
    tokens = mine["tokens"].tolist()
    bad = mine.loc[mine["verdict"] == code, "tokens"].tolist()
    if len(bad) == len(tokens):
        return "every prompt length measured" if len(tokens) > 1 else f"a {number(tokens[0])}-token prompt"
    if len(bad) == 1:
        return f"a {number(bad[0])}-token prompt"
    if bad == tokens[-len(bad) :] and len(bad) > _MOST_LENGTHS:
        return f"prompts of {number(bad[0])} to {number(bad[-1])} tokens"
    return f"prompts of {', '.join(map(number, bad[:-1]))} and {number(bad[-1])} tokens"


def _third(table: pd.DataFrame, longest: pd.Series[Any]) -> pd.DataFrame:
    """Third sends of the same prompt to the same configuration."""
    same = (table["config"] == longest["config"]) & (table["tokens"] == longest["tokens"])
    return table[same & (table["send"] == "repeat") & (table["index"] == 3)]


def _plain(second: pd.DataFrame, longest: pd.Series[Any]) -> pd.DataFrame:
    """Second sends of the same prompt without the drafter; none where the verdict's configuration has none either."""
    without = ~second["drafter"].fillna(True) & ~second["as_served"].fillna(False)
    found = second[without & (second["tokens"] == longest["tokens"])]
    return found if len(found) and _true(longest["drafter"]) else found.head(0)


def _third_send(table: pd.DataFrame, mine: pd.DataFrame) -> str | None:
    longest = mine.iloc[-1]
    third = _third(table, longest)
    if not len(third) or pd.isna(third.iloc[0]["cached_tokens"]):
        return None
    cached = third.iloc[0]["cached_tokens"]
    if not cached:
        return "The third send reuses nothing either."
    if cached == longest["cached_tokens"]:
        return f"The third send reuses the same {number(cached)}."
    return f"The third send reuses {number(cached)}: two sends are not enough to describe this server."


def _without_drafter(second: pd.DataFrame, mine: pd.DataFrame) -> str | None:
    plain = _plain(second, mine.iloc[-1])
    if not len(plain) or pd.isna(plain.iloc[0]["cached_tokens"]):
        return None
    return f"Without MTP the second send reuses {number(plain.iloc[0]['cached_tokens'])}."


def _known_fault(run: Mapping[str, Any], mine: pd.Series[Any], third: pd.DataFrame) -> preflight.Fault | None:
    """What this release is known for, where what is known of the server and of this configuration matches."""
    facts = [
        preflight.Fact(str(fact.get("name")), fact.get("value"), str(fact.get("source")))
        for fact in run.get("facts") or ()
        if isinstance(fact, Mapping)
    ]
    at = preflight.situation(facts)
    if not _true(mine["as_served"]):
        # The facts were asked of the run's first server; this configuration may be another.
        at = replace(at, version=_version(run) or at.version, speculation=_true(mine["drafter"]))
        if mine["interval_order"] >= 0:
            at = replace(at, interval="dense" if mine["interval"] == "dense" else f"{mine['interval_order']:.0f}")
    if len(third) and (third["cached_tokens"].fillna(0) > 0).any():
        # Only layers whose checkpoints are thinned out miss once and hit afterwards.
        at = replace(at, sparse_groups=True)
    elif third["cached_tokens"].notna().any():
        return None  # a third send that misses too has another cause
    return next(iter(preflight.matching(at, "second send misses")), None)


def _still_needed(table: pd.DataFrame, mine: pd.DataFrame, found: Help) -> str:
    """What the interval that helps brings besides the repeat, which no release's sparse default does."""
    rows = table[(table["send"] == "new_ending") & table["cached_tokens"].notna()]
    here = rows[rows["config"] == mine.iloc[-1]["config"]]
    helped = table.loc[table["config"] == found.config, "interval_order"]
    if not len(here) or not len(helped):
        return ""
    with_it = rows[(rows["interval_order"] == helped.iloc[0]) & (rows["drafter"] == mine.iloc[-1]["drafter"])]
    both = here.merge(with_it, on="tokens", suffixes=("", "_helped")).sort_values("tokens", kind="stable")
    if not len(both) or both.iloc[-1]["cached_tokens"] >= both.iloc[-1]["cached_tokens_helped"]:
        return ""
    row = both.iloc[-1]
    return (
        f" That is for the same prompt again: a new ending of {number(row['tokens'])} tokens, which reuses "
        f"{number(row['cached_tokens_helped'])} at interval {row['interval_helped']} and "
        f"{number(row['cached_tokens'])} without, still needs the interval."
    )


def _basis(sent: pd.DataFrame, mine: pd.DataFrame) -> str:
    many, lengths = int(mine["count"].sum()), mine["tokens"].nunique()
    second = "one second send at each of" if many == lengths > 1 else f"{count(many, 'second send')} at"
    parts = [f"The verdict rests on {second} {count(lengths, 'prompt length')}"]
    parts.append(f"hit lengths were read from {count(len(sent), 'request')}")
    failed = int((sent["status"] == "failed").sum())
    if failed:
        parts.append(f"{failed} of them failed")
    counters, predicted = agreed(sent, "metrics_agree"), agreed(sent, "predicted_agrees")
    if counters.compared:
        rest = f" ({counters.untold} could not be compared)" if counters.untold else ""
        parts.append(f"the server's own counters agree with {counters.same} of {counters.answered} hit lengths{rest}")
    if predicted.compared:
        parts.append(f"the release's own scheduler predicts {predicted.same} of {predicted.compared} to the token")
    return "; ".join(parts) + "."


def _version(run: Mapping[str, Any]) -> str | None:
    engine = run.get("engine")
    version = engine.get("version") if isinstance(engine, Mapping) else None
    return str(version) if version else None
