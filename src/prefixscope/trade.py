"""Both halves of the trade: what a drafter gains in generation, and what it loses in prefill when hits vanish.

Nothing is extrapolated: time per generated token comes from the streamed prompts, time to first token from a prompt of
the very length asked about, sent for the first and for the second time on each arm.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from prefixscope import frames, paired
from prefixscope.charts import as_subject
from prefixscope.errors import RunError
from prefixscope.frames.drafting import BURST_MS, effect, measured
from prefixscope.frames.rows import dict_in, load_run
from prefixscope.paired import Effect
from prefixscope.quantities import count, number
from prefixscope.speculation import Mix


@dataclass(frozen=True, slots=True, kw_only=True)
class Trade:
    """Seconds per request of that mix, arm A against arm B, each with its interval.

    Attributes
    ----------
    gained_s : generation that A saves; negative where it costs time.
    lost_s : prefill that A costs over B.
    net_s : gained minus lost.
    hit_net_s : the net if A's second send hit as its third one does; None where the third hits no more.
    rates, hits : tokens/s over the paired prompts, and cached tokens on the second send, of (A, B).
    break_even : the share of reuse at which the net is nothing; None where no share from 0 to 1 is.
    taken_from : the stage that sent the long prompts, where it was another than the one that streamed.
    """

    mix: Mix
    labels: tuple[str, str]
    gained_s: Effect
    lost_s: Effect
    net_s: Effect
    hit_net_s: Effect | None
    rates: tuple[float, float]
    hits: tuple[int | None, int | None]
    break_even: float | None
    taken_from: str | None = None


def weigh(generations: pd.DataFrame, resends: pd.DataFrame, mix: Mix) -> Trade | None:
    """The trade for one mix; None where an arm lacks answers, or the resends of a prompt of that length."""
    rows = measured(generations)
    labels = rows.drop_duplicates("arm").set_index("arm")["label"]
    per_token = (1 / rows["tokens_per_s"]).groupby([rows["item"], rows["arm"]]).mean().unstack("arm")
    if not {"A", "B"} <= set(per_token.columns):
        return None
    both = per_token[["A", "B"]].dropna()
    saved = paired.mean([mix.answer_tokens * (row.B - row.A) for row in both.itertuples()])
    first, second = _first_tokens(resends, mix.prompt_tokens, 1), _first_tokens(resends, mix.prompt_tokens, 2)
    if saved is None or not all(arm in times for arm in "AB" for times in (first, second)):
        return None
    noise, freedom = first_token_noise(rows)
    lost = _lost(first, second, mix.reuse, noise, freedom)
    third = _third_that_hits(resends, mix.prompt_tokens)
    hit = None if third is None else _lost(first, {**second, "A": third}, mix.reuse, noise, freedom)
    cold, again = first["A"][0] - first["B"][0], second["A"][0] - second["B"][0]
    even = (saved.value - cold) / (again - cold) if again != cold else math.nan
    # Of the same mean that the gain is made of: a median could point the other way.
    rates = 1 / both.mean()
    hits = {arm: _hit(resends, mix.prompt_tokens, arm) for arm in "AB"}
    return Trade(
        mix=mix,
        labels=(str(labels["A"]), str(labels["B"])),
        gained_s=saved,
        lost_s=lost,
        net_s=minus(saved, lost),
        hit_net_s=None if hit is None else minus(saved, hit),
        rates=(float(rates["A"]), float(rates["B"])),
        hits=(hits["A"], hits["B"]),
        break_even=even if 0 <= even <= 1 else None,
        taken_from=_taken_from(resends, mix.prompt_tokens),
    )


def over_reuse(generations: pd.DataFrame, resends: pd.DataFrame, mix: Mix, steps: int = 20) -> pd.DataFrame:
    """One row per share of reuse from 0 to 1: the net in seconds with its interval; ``hit`` if the second send hit.

    Empty where :func:`weigh` has nothing to weigh.
    """
    out: list[dict[str, Any]] = []
    for step in range(steps + 1):
        share = step / steps
        found = weigh(
            generations, resends, Mix(prompt_tokens=mix.prompt_tokens, answer_tokens=mix.answer_tokens, reuse=share)
        )
        if found is not None:
            net, hit = found.net_s, found.hit_net_s
            out.append({"reuse": share, "net": net.value, "low": net.low, "high": net.high})
            out[-1]["hit"] = None if hit is None else hit.value
    return pd.DataFrame(out, columns=["reuse", "net", "low", "high", "hit"], dtype="float64")


def first_token_noise(rows: pd.DataFrame) -> tuple[float, int]:
    """How far equal first-token times scatter, as a share of themselves, and the degrees of freedom behind it.

    Equal are those of one arm, prompts of one length without a hit; the long prompt of the resends, which is sent
    once or twice only, is taken to scatter by the same share.
    """
    logs = rows["first_token_ms"].where(rows["first_token_ms"] > 0).map(math.log, na_action="ignore")
    apart = logs - logs.groupby(rows["arm"]).transform("mean")
    known = apart.dropna()
    freedom = len(known) - rows.loc[known.index, "arm"].nunique()
    return (math.sqrt(float((known**2).sum()) / freedom), freedom) if freedom > 0 else (math.nan, 0)


def minus(left: Effect, right: Effect) -> Effect:
    """The difference of two effects that were measured apart; no interval where either has none."""
    value, pairs = left.value - right.value, min(left.pairs, right.pairs)
    if left.high is None or right.high is None:
        return Effect(value, None, None, pairs)
    half = math.hypot(left.high - left.value, right.high - right.value)
    return Effect(value, value - half, value + half, pairs)


def _lost(
    first: dict[str, tuple[float, int]], second: dict[str, tuple[float, int]], reuse: float, noise: float, freedom: int
) -> Effect:
    """Prefill seconds of A over B, where a share of the requests finds its prompt sent before."""
    value = variance = 0.0
    for sign, arm in ((1, "A"), (-1, "B")):
        for share, (seconds, times) in ((1 - reuse, first[arm]), (reuse, second[arm])):
            value += sign * share * seconds
            variance += (share * seconds * noise) ** 2 / times
    sends = min(many for found in (first, second) for _, many in found.values())
    if not freedom:
        return Effect(value, None, None, sends)
    half = paired.t975(freedom) * math.sqrt(variance)
    return Effect(value, value - half, value + half, sends)


def _sent(resends: pd.DataFrame, tokens: int, index: int) -> pd.DataFrame:
    return resends[(resends["tokens"] == tokens) & (resends["index"] == index) & resends["first_token_ms"].notna()]


def _first_tokens(resends: pd.DataFrame, tokens: int, index: int) -> dict[str, tuple[float, int]]:
    """Arm → mean seconds to the first token of the how-manieth send, and of how many sends."""
    found = _sent(resends, tokens, index).groupby("arm")["first_token_ms"]
    return {str(arm): (float(part.mean()) / 1000, len(part)) for arm, part in found}


def _taken_from(resends: pd.DataFrame, tokens: int) -> str | None:
    stages = resends.loc[resends["tokens"] == tokens, "taken_from"].dropna().unique()
    return str(stages[0]) if len(stages) else None


def _third_that_hits(resends: pd.DataFrame, tokens: int) -> tuple[float, int] | None:
    third = _sent(resends[resends["arm"] == "A"], tokens, 3)
    before = _hit(resends, tokens, "A")
    better = before is not None and len(third) > 0 and bool((third["cached_tokens"].fillna(0) > before).all())
    return (float(third["first_token_ms"].mean()) / 1000, len(third)) if better else None


def _hit(resends: pd.DataFrame, tokens: int, arm: str) -> int | None:
    known = _sent(resends[resends["arm"] == arm], tokens, 2)["cached_tokens"].dropna()
    return int(known.median()) if len(known) else None


def mix_of(run: dict[str, Any]) -> Mix | None:
    """The mix that a run's speculation stage was asked about; None where it was not run."""
    load = dict_in(dict_in(dict_in(run, "stages"), "speculation"), "parameters").get("load")
    try:
        return Mix.of(load) if isinstance(load, list) else None
    except RunError:
        return None


def of_run(run_dir: Path) -> Trade | None:
    """The trade of a run, at the mix that its speculation stage was asked about."""
    mix = mix_of(load_run(run_dir))
    return None if mix is None else weigh(frames.generations(run_dir), frames.resends(run_dir), mix)


def sentence(trade: Trade) -> str:
    """Both halves side by side, and what is left of them; every number with the interval it is known to."""
    mix, (a, b) = trade.mix, trade.labels
    lost = trade.lost_s
    hits = [f"{number(hit)} with {name}" for name, hit in zip(trade.labels, trade.hits, strict=True) if hit is not None]
    why = f", where the second send hits {' and '.join(hits)}" if len(hits) == 2 and mix.reuse else ""
    text = (
        f"With prompts of {mix.prompt_tokens:,} tokens, {mix.reuse:.0%} of them sent once before, and answers of "
        f"{mix.answer_tokens:,}, {a} {_seconds('gains', 'loses', trade.gained_s)} of generation a request against {b} "
        f"({trade.rates[0]:,.1f} against {trade.rates[1]:,.1f} tokens/s by the mean time of a token over "
        f"{count(trade.gained_s.pairs, 'prompt')}) and "
        f"{_seconds('loses', 'gains', lost)} of prefill{why}. {in_turn(trade)} "
    )
    net = trade.net_s
    if net.low is None or net.high is None or net.low <= 0 <= net.high:
        text += f"On balance that can't be told from nothing: {_signed(net)}."
    else:
        text += f"On balance {a} {'saves' if net.value > 0 else 'costs'} time: {_signed(net)}."
    if trade.break_even is not None and mix.reuse:
        text += f" The two halves meet where {trade.break_even:.0%} of the prompts were sent before."
    if trade.hit_net_s is not None and mix.reuse:
        text += f" If its second send hit as its third one does, the balance would be {_signed(trade.hit_net_s)}."
    return text


def in_turn(trade: Trade) -> str:
    """What the prefill half can't know: other than for the answers, one server was asked after the other."""
    source = f"which stage {trade.taken_from} sent" if trade.taken_from else "which were sent"
    return (
        f"The prefill times are not those of the streamed answers but of long prompts, {source} to one server after "
        "the other: whatever else slowed the machine meanwhile is in that half."
    )


def drafted(shapes: pd.DataFrame) -> list[str]:
    """One sentence per arm of ``frames.by_shape``: what was accepted; or that no speculation was seen."""
    found = []
    for label, part in shapes.groupby("label", sort=False):
        known, who = part[part["drafts"].fillna(0) > 0], as_subject(str(label))
        if not len(known):
            found.append(f"{who}: no speculation seen.")
            continue
        accepted, total, drafts = (int(known[name].sum()) for name in ("accepted", "drafted", "drafts"))
        text = (
            f"{who}: {accepted:,} of {total:,} drafted tokens were accepted ({_percent(accepted / total)}), "
            f"{1 + accepted / drafts:.2f} tokens per step"
        )
        order = known.sort_values("acceptance", kind="stable")
        least, most = order.iloc[0], order.iloc[-1]
        if len(known) > 1 and least["acceptance"] < most["acceptance"]:
            ends = [f"{_percent(end['acceptance'])} ({end['shape']})" for end in (least, most)]
            text += f"; from {ends[0]} to {ends[1]}"
        found.append(f"{text}.")
    return found


def too_fast(generations: pd.DataFrame) -> str | None:
    """Why a gain of arm A over B can't be the drafter's: it is more than its tokens per step; None where it may be."""
    steps = measured(generations).groupby("arm")["tokens_per_step"].median().fillna(1.0)
    gain = effect(generations, "tokens_per_s")
    if gain is None or steps.get("A", 1.0) <= 1 or gain.value <= steps["A"] / steps["B"]:
        return None
    return (
        f"A gain of {gain.value:.2f} times is more than {steps['A']:.2f} tokens per step can bring, since a step with "
        "a drafter takes no less than one without: something else slowed one server down, such as other work on this "
        "machine. Measure again on an idle one before you quote it."
    )


def held_back(generations: pd.DataFrame) -> str | None:
    """How many answers came in one burst, so that their speed is not known; None where none did."""
    rows = measured(generations)
    held = int((rows["step_ms"] < BURST_MS).sum())
    if not held:
        return None
    return f"{held:,} of {count(len(rows), 'streamed answer')} came in one burst: their tokens a second are not known."


def counted(generations: pd.DataFrame) -> str | None:
    """How far a benchmark that counts chunks would be off on arm A; None where nothing was measured."""
    rows = measured(generations)
    rows = rows[(rows["arm"] == "A") & rows["tokens_per_s"].notna()]
    if not len(rows):
        return None
    tokens, chunks = int(rows["completion_tokens"].sum()), int(rows["chunks"].sum())
    right, naive = rows["tokens_per_s"].median(), rows["chunks_per_s"].median()
    return (
        f"{tokens:,} tokens came in {chunks:,} chunks: a benchmark that takes chunks for tokens would report "
        f"a median of {naive:,.1f} instead of {right:,.1f} tokens/s."
    )


def _percent(share: float) -> str:
    return f"{share:.1%}" if share < 0.1 else f"{share:.0%}"


def _seconds(more: str, less: str, found: Effect) -> str:
    """``gains 0.86 s (95 % interval 0.21 to 1.51)``."""
    value = f"{more if found.value >= 0 else less} {abs(found.value):.2f} s"
    if found.low is None or found.high is None:
        return value
    low, high = sorted((found.low, found.high)) if found.value >= 0 else sorted((-found.low, -found.high))
    return f"{value} (95 % interval {low:.2f} to {high:.2f})"


def _signed(found: Effect) -> str:
    value = f"{found.value:+.2f} s a request"
    return value if found.low is None or found.high is None else f"{value} ({found.low:+.2f} to {found.high:+.2f})"
