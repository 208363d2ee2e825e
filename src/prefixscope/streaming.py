"""What streamed answers say, in sentences: what was accepted of the drafts, and what makes their speed doubtful."""

from __future__ import annotations

import pandas as pd

from prefixscope.charts import as_subject
from prefixscope.frames.drafting import BURST_MS, effect, measured
from prefixscope.quantities import count


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
            f"{who}: {accepted:,} of {total:,} drafted tokens were accepted ({percent(accepted / total)}), "
            f"{1 + accepted / drafts:.2f} tokens per step"
        )
        # Of the same sums as the share before: medians over requests would be another measure.
        pooled = known.assign(pooled=known["accepted"] / known["drafted"]).sort_values("pooled", kind="stable")
        least, most = pooled.iloc[0], pooled.iloc[-1]
        if len(known) > 1 and least["pooled"] < most["pooled"]:
            ends = [f"{percent(end['pooled'])} ({end['shape']})" for end in (least, most)]
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


def percent(share: float) -> str:
    """``69%``, and ``5.2%`` of a small one."""
    return f"{share:.1%}" if share < 0.1 else f"{share:.0%}"
