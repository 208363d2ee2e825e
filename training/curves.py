"""Draws a model's ``training.json`` as ``training.svg`` beside it: loss, and how often answers and guesses are right.

python training/curves.py data/models/gemma4-small
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import altair as alt
import pandas as pd

LABELS = {"right": "answer token right", **{f"accepted_{n}": f"guess {n} accepted" for n in (1, 2, 3)}}


def main(home: Path) -> None:
    stages = json.loads((home / "training.json").read_text(encoding="utf-8"))["stages"]
    panels = []
    for stage, told in stages.items():
        curve = pd.DataFrame(told["curve"])
        curve["mtokens"] = curve["tokens"] / 1e6
        x = alt.X("mtokens:Q", title="million tokens")
        loss = alt.Chart(curve, title=stage, width=220, height=110).mark_line().encode(
            x=x, y=alt.Y("loss:Q", title="cross-entropy, nats", scale=alt.Scale(type="log"))
        )  # fmt: skip
        shares = curve.melt("mtokens", [name for name in LABELS if name in curve], "what", "share")
        shares["what"] = shares["what"].map(LABELS)
        share = alt.Chart(shares, width=220, height=110).mark_line().encode(
            x=x,
            y=alt.Y("share:Q", title="share", scale=alt.Scale(domain=[0, 1])),
            color=alt.Color("what:N", title=None),
        )  # fmt: skip
        panels.append(loss & share)
    alt.hconcat(*panels).save(home / "training.svg")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
