"""Answers differ between two servers: is it the drafter, the cache, or noise that one server has with itself?"""

from __future__ import annotations

import math
from dataclasses import dataclass

import pandas as pd

from prefixscope import paired
from prefixscope.frames.columns import FLOAT, INT, TEXT, make_frame
from prefixscope.quantities import count, wilson

WITHIN = ("A / A", "B / B")
BETWEEN = "A / B"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """``code`` is same · arms · noise · can't tell; ``needed`` how many prompts would be enough, where they are few."""

    code: str
    sentence: str
    needed: int | None = None


def differences(pairs: pd.DataFrame, warm: pd.DataFrame, labels: tuple[str, str] = ("arm A", "arm B")) -> pd.DataFrame:
    """One row per comparison: prompts compared, those whose answers differ, and the 95 % interval of that share.

    Parameters
    ----------
    pairs : ``frames.output_pairs``.
    warm : ``frames.comparisons`` of the equality stage: what the cache does, on one server.
    labels : what the arms are called.
    """
    a, b = labels
    named = zip((*WITHIN, BETWEEN), (f"{a} against itself", f"{b} against itself", f"{a} against {b}"), strict=True)
    pairs, cache = (table[table["identical"].notna()] for table in (pairs, warm))
    found = [(words, pairs[pairs["pair"] == name]) for name, words in named]
    found += [
        ("cold against cold, equality stage", cache[cache["pair"] == "cold-control"]),
        ("cold against warm, equality stage", cache[cache["pair"] == "cold-warm"]),
    ]
    out = []
    for name, part in found:
        if len(part):
            apart = int((~part["identical"].astype(bool)).sum())
            low, high = wilson(apart, len(part))
            out.append({"pair": name, "compared": len(part), "differ": apart, "low": low, "high": high})
    return make_frame(out, {"pair": TEXT, "compared": INT, "differ": INT, "low": FLOAT, "high": FLOAT})


def judge(
    pairs: pd.DataFrame, labels: tuple[str, str] = ("arm A", "arm B"), *, cause: str = "the drafter"
) -> Judgement:
    """What the differences between the arms come from, as far as the counts tell.

    ``labels`` and ``cause`` are what the sentence calls the arms, and what differs between them.

    Under noise alone a prompt's answers part within an arm as often as between the arms, so prompts that part only
    between and prompts that part only within are a fair coin: McNemar's exact test, against each arm's own noise.
    """
    table = pairs.pivot_table(index=["shape", "document"], columns="pair", values="identical", aggfunc="first")
    if BETWEEN not in table:
        return Judgement(code="can't tell", sentence=f"The answers of {' and '.join(labels)} were not compared.")
    apart = ~table.astype("boolean")
    compared = apart[BETWEEN].dropna()
    differ, total, (a, b) = int(compared.sum()), len(compared), labels
    within = [name for name in WITHIN if name in apart and apart[name].notna().any()]
    if not within:
        return Judgement(
            code="can't tell",
            sentence=f"{differ} of {total} answers differ between {a} and {b}, and neither was asked twice: without "
            "its own noise no difference can be blamed on anything.",
        )
    noisy = {name: int(apart[name].fillna(False).sum()) for name in within}
    named = dict(zip(WITHIN, labels, strict=True))
    told = "; ".join(f"{named[name]} differs from itself in {noisy[name]}" for name in within)
    if not differ:
        most = wilson(0, total)[1]
        return Judgement(
            code="same",
            sentence=f"No answer differs between {a} and {b} ({count(total, 'prompt')}; {told}): if {cause} "
            f"changes answers, then fewer than {most:.0%} of such prompts.",
        )
    chances = []
    for name in within:
        both = apart[[BETWEEN, name]].dropna().astype(bool)
        between_only = int((both[BETWEEN] & ~both[name]).sum())
        within_only = int((both[name] & ~both[BETWEEN]).sum())
        chances.append((paired.mcnemar(between_only, within_only), between_only, within_only))
    chance, between_only, within_only = max(chances)
    start = f"{differ} of {total} answers differ between {a} and {b}; {told}"
    if chance < paired.LEVEL and between_only > within_only:
        return Judgement(
            code="arms",
            sentence=f"{start}. More than either one's own noise (exact p = {chance:.2g}): what differs between "
            f"{a} and {b} changes answers.",
        )
    if any(noisy.values()) and between_only <= within_only:
        return Judgement(
            code="noise",
            sentence=f"{start}. Their own noise is of that kind, so {cause} is not to blame on this.",
        )
    excess = (between_only - within_only) / total
    needed = math.ceil(paired.LEAST_ONE_SIDED / excess) if excess > 0 else None
    return Judgement(
        code="can't tell",
        sentence=f"{start}. That could be noise (exact p = {chance:.2g})"
        + (f"; at this rate about {needed:,} prompts would tell." if needed else "."),
        needed=needed,
    )
