"""The stage: parameters checked, both arms asked, answers compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import pandas as pd

from prefixscope import asked, frames
from prefixscope.errors import RunError, ServerError, Unreachable
from prefixscope.investigation import Investigation
from prefixscope.prompts import SHAPES
from prefixscope.speculation.arms import Item, Mix, arms
from prefixscope.speculation.asking import Work
from prefixscope.speculation.checks import compare, doubts
from prefixscope.speculation.roles import read_roles

LOAD = (6_446, 200, 0.7)


def run(
    investigation: Investigation,
    *,
    shapes: Sequence[str] = tuple(SHAPES),
    documents: int = 2,
    repeats: int = 2,
    tokens: int = 512,
    answer_tokens: int = 32,
    seed: int = 200,
    load: Sequence[float] = LOAD,
    other: str = "",
) -> pd.DataFrame:
    """Stream every prompt from each arm and return ``frames.generations``.

    Parameters
    ----------
    shapes, documents : which of ``prompts.SHAPES``, and how many prompts of each; or a file of your own prompts by
        role (``roles.jsonl``, :func:`read_roles`), all of which are asked.
    repeats : how often each prompt is asked on each arm; two or more show an arm's own noise.
    tokens, answer_tokens : prompt tokens of each, and tokens answered, greedily.
    load : what the verdict is about: prompt tokens, answer tokens, share of the prompts sent once before. A prompt of
        that length is resent on each arm, where no earlier stage has done it.
    other : address of a second server to compare an attached one with.
    """
    asked.check(
        "speculation",
        {"shapes": shapes, "documents": documents, "repeats": repeats, "tokens": tokens, "answer_tokens": answer_tokens,
         "seed": seed, "load": load, "other": other},
    )  # fmt: skip
    if answer_tokens < 2:
        raise RunError(f"speculation.answer_tokens={answer_tokens}: a rate takes two tokens or more", remedy="give 32")
    mix = Mix.of(load)
    sides = arms(investigation, other)
    drawn = [Item(shape=s, document=d, repeat=0) for d, s in product(range(documents), shapes) if s in SHAPES]
    own = [
        Item(shape=role, document=d, repeat=0, messages=messages)
        for file in shapes
        if file not in SHAPES
        for role, own_prompts in read_roles(file).items()
        for d, messages in enumerate(own_prompts)
    ]
    given = {"shapes": list(shapes), "documents": documents, "repeats": repeats, "tokens": tokens}
    given |= {"answer_tokens": answer_tokens, "seed": seed, "load": list(load)}
    with investigation.stage("speculation", **given) as stage:
        if investigation.target.kind == "sample" and not investigation.run.rows("speculation"):
            stage.outcome, stage.note = "skipped", "the recorded sample was made before this notebook"
            stage.warn(
                "no-speculation", "the recorded sample holds no row of this stage", "prefixscope run --only speculation"
            )
            return frames.generations(investigation.path)
        plan = [replace(item, repeat=k) for k, item in product(range(repeats), [*drawn, *own])]
        work = Work(investigation, stage, sides, plan, tokens, answer_tokens, seed, mix.prompt_tokens)
        try:
            work.measure()
        except (ServerError, Unreachable) as error:
            stage.outcome, stage.note = "partial", error.what
            stage.warn("server-failed", error.what, error.remedy)
            if not investigation.run.answered():
                raise
        compare(investigation, stage)
        doubts(investigation, stage)
    return frames.generations(investigation.path)
