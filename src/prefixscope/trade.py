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
from prefixscope.errors import RunError
from prefixscope.frames.drafting import measured
from prefixscope.frames.rows import dict_in, load_run
from prefixscope.paired import Effect
from prefixscope.quantities import count, number
from prefixscope.speculation import Mix
from prefixscope.streaming import percent


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
    even_between : the shares between which the net's interval holds nothing; None where it does at none.
    taken_from : the stage that sent the long prompts, where it was another than the one that streamed.
    scatter : by which share equal first-token times scatter; NaN where nothing tells.
    sends : the fewest and the most times that a long prompt was timed as the how-manieth send.
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
    even_between: tuple[float, float] | None = None
    taken_from: str | None = None
    scatter: float = math.nan
    sends: tuple[int, int] = (1, 1)


def weigh(generations: pd.DataFrame, resends: pd.DataFrame, mix: Mix) -> Trade | None:
    """The trade for one mix; None where an arm lacks answers, or the resends of a prompt of that length."""
    found = _halves(generations, resends, mix)
    if found is None:
        return None
    saved, cold, again = found.saved, found.first["A"][0] - found.first["B"][0], found.again
    even = (saved.value - cold) / (again - cold) if again != cold else math.nan
    # At a share between these the sign of the net is not known.
    unsure = [share for share in _SHARES if not _sure(found.net(share))]
    hits = {arm: _hit(resends, mix.prompt_tokens, arm) for arm in "AB"}
    return Trade(
        mix=mix,
        labels=found.labels,
        gained_s=saved,
        lost_s=found.lost(mix.reuse),
        net_s=found.net(mix.reuse),
        hit_net_s=found.hit_net(mix.reuse),
        rates=found.rates,
        hits=(hits["A"], hits["B"]),
        break_even=even if 0 <= even <= 1 else None,
        even_between=(unsure[0], unsure[-1]) if unsure else None,
        taken_from=_taken_from(resends, mix.prompt_tokens),
        scatter=found.noise,
        sends=(min(times := found.times), max(times)),
    )


_SHARES = tuple(percent / 100 for percent in range(101))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Halves:
    """What a trade is made of, at whatever share of reuse.

    ``first``, ``second`` and ``third`` are arm → mean seconds to the first token of that send, and of how many sends;
    ``noise`` is the share by which equal first-token times scatter, ``freedom`` the degrees of freedom behind it.
    """

    labels: tuple[str, str]
    saved: Effect
    rates: tuple[float, float]
    first: dict[str, tuple[float, int]]
    second: dict[str, tuple[float, int]]
    third: tuple[float, int] | None
    noise: float
    freedom: int

    @property
    def again(self) -> float:
        """Seconds to the first token that A takes more than B on the second send."""
        return self.second["A"][0] - self.second["B"][0]

    @property
    def times(self) -> list[int]:
        """How often each send was timed."""
        return [many for one in (self.first, self.second) for _, many in one.values()]

    def lost(self, reuse: float) -> Effect:
        return _lost(self.first, self.second, reuse, self.noise, self.freedom)

    def net(self, reuse: float) -> Effect:
        return minus(self.saved, self.lost(reuse))

    def hit_net(self, reuse: float) -> Effect | None:
        if self.third is None:
            return None
        second = {**self.second, "A": self.third}
        return minus(self.saved, _lost(self.first, second, reuse, self.noise, self.freedom))


def _halves(generations: pd.DataFrame, resends: pd.DataFrame, mix: Mix) -> _Halves | None:
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
    # Of the same mean that the gain is made of: a median could point the other way.
    rates = 1 / both.mean()
    return _Halves(
        labels=(str(labels["A"]), str(labels["B"])),
        saved=saved,
        rates=(float(rates["A"]), float(rates["B"])),
        first=first,
        second=second,
        third=_third_that_hits(resends, mix.prompt_tokens),
        noise=noise,
        freedom=freedom,
    )


def _sure(found: Effect) -> bool:
    """Whether the interval is there and leaves out nothing."""
    return found.low is not None and found.high is not None and not found.low <= 0 <= found.high


def over_reuse(generations: pd.DataFrame, resends: pd.DataFrame, mix: Mix) -> pd.DataFrame:
    """One row per share of reuse from 0 to 1: the net in seconds with its interval; ``hit`` if the second send hit.

    Empty where :func:`weigh` has nothing to weigh.
    """
    out: list[dict[str, Any]] = []
    found = _halves(generations, resends, mix)
    if found is not None:
        for share in _SHARES:
            net, hit = found.net(share), found.hit_net(share)
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


def sentence(trade: Trade, *, briefly: bool = False) -> str:
    """Both halves side by side, and what is left of them; every number with the interval it is known to.

    ``briefly`` leaves out the rates behind the first half and `in_turn`, for who says them elsewhere.
    """
    mix, (a, b) = trade.mix, trade.labels
    lost = trade.lost_s
    hits = [f"{number(hit)} with {name}" for name, hit in zip(trade.labels, trade.hits, strict=True) if hit is not None]
    why = f", where the second send hits {' and '.join(hits)}" if len(hits) == 2 and mix.reuse else ""
    rates = (
        f" ({trade.rates[0]:,.1f} against {trade.rates[1]:,.1f} tokens/s by the mean time of a token over "
        f"{count(trade.gained_s.pairs, 'prompt')})"
    )
    text = (
        f"With prompts of {mix.prompt_tokens:,} tokens, {mix.reuse:.0%} of them sent once before, and answers of "
        f"{mix.answer_tokens:,}, {a} {_seconds('gains', 'loses', trade.gained_s)} of generation a request against {b}"
        f"{'' if briefly else rates} and {_seconds('loses', 'gains', lost)} of prefill{why}. "
    )
    text += "" if briefly else f"{in_turn(trade)} "
    net = trade.net_s
    if net.low is None or net.high is None or net.low <= 0 <= net.high:
        text += f"On balance that can't be told from nothing: {_signed(net)}."
    else:
        text += f"On balance {a} {'saves' if net.value > 0 else 'costs'} time: {_signed(net)}."
    if trade.break_even is not None and mix.reuse:
        between = trade.even_between
        known = "" if between is None else f" (95 % interval {between[0]:.0%} to {between[1]:.0%})"
        text += f" The two halves meet where {trade.break_even:.0%}{known} of the prompts were sent before."
    if trade.hit_net_s is not None and mix.reuse:
        text += f" If its second send hit as its third one does, the balance would be {_signed(trade.hit_net_s)}."
    return text


def in_turn(trade: Trade) -> str:
    """What the prefill half can't know: other than for the answers, one server was asked after the other."""
    source = f"which stage {trade.taken_from} sent" if trade.taken_from else "which were sent"
    return (
        f"The prefill times are not those of the streamed answers but of long prompts, {source} to one server after "
        f"the other: whatever else slowed the machine meanwhile is in that half.{_scatter(trade)}"
    )


def _scatter(trade: Trade) -> str:
    """Where the interval of the prefill half comes from: hardly ever from the long prompts themselves."""
    if not trade.lost_s.sure:
        return ""
    low, high = trade.sends
    sends = f"{low:,} to {high:,} times" if low < high else "once" if low == 1 else f"{low:,} times"
    return (
        f" Each was timed {sends}; their interval takes them to scatter as the streamed prompts' first tokens did, by "
        f"{percent(trade.scatter)}."
    )


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
