"""Predicted sends as column tables: what a release's own scheduler would hit, and what it keeps."""

from __future__ import annotations

import math
from collections.abc import Iterable

import pandas as pd

from prefixscope.frames.columns import BOOL, FLOAT, INT, TEXT, make_frame
from prefixscope.frames.rows import Rows
from prefixscope.replay import Cell, Probe
from prefixscope.replay.releases import age
from prefixscope.setting import interval_label

_COLUMNS = {
    "release": TEXT,
    "drafter_tokens": INT,
    "interval": TEXT,
    "interval_order": FLOAT,
    "default": BOOL,
    "pattern": TEXT,
    "tokens": INT,
    "send": INT,
    "prompt_tokens": INT,
    "reusable_tokens": INT,
    "hit_tokens": INT,
    "short_tokens": INT,
    "blocks": INT,
    "bytes": INT,
    "evicted_blocks": INT,
}


def predicted(cells: Iterable[Cell]) -> pd.DataFrame:
    """One row per release × drafter × interval × pattern × prompt length × send.

    | column | dtype | unit, and the meaning of null |
    |---|---|---|
    | release | string | |
    | drafter_tokens | Int64 | draft tokens; null is no drafter |
    | interval | string | as people read it; ``0 (default)`` where it is the release's own |
    | interval_order | float64 | tokens; infinity is dense |
    | default | boolean | the release's own default |
    | pattern | string | repeat, new_ending, follow_up |
    | tokens | Int64 | prompt tokens of the first send |
    | send | Int64 | from 1 |
    | prompt_tokens, reusable_tokens, hit_tokens, short_tokens | Int64 | tokens |
    | blocks | Int64 | kept after the first send, all groups; null on later sends |
    | bytes | Int64 | the same; null where the geometry does not say |
    | evicted_blocks | Int64 | lost their content to this send; 0 in a pool that never evicts |
    """
    rows: Rows = []
    for cell in cells:
        label = interval_label(cell.resolved)
        sizes = cell.kept_bytes
        rows.append(
            {
                **cell.to_json(),
                "interval": f"{label} (default)" if cell.interval is None else label,
                "interval_order": math.inf if cell.resolved == "dense" else float(cell.resolved),
                "blocks": None if cell.kept_blocks is None else sum(cell.kept_blocks),
                "bytes": None if sizes is None or None in sizes else sum(size or 0 for size in sizes),
            }
        )
    return make_frame(rows, _COLUMNS)


def predicted_cases(frame: pd.DataFrame, weights: pd.DataFrame | None = None) -> pd.DataFrame:
    """One row per release × drafter × interval × pattern × prompt length, the oldest release first: sends 2 and 3
    beside what is kept.

    ``evicted`` are the blocks that lost their content to any send of the prompt, ``evicted_1`` to the first,
    ``prompt_2`` the tokens of send 2, which a follow-up has more of. The other columns are those of ``frames.sweep``
    where the meaning is the same: ``hit_2``, ``hit_3``, ``short_2`` (tokens; null where not asked), ``blocks``,
    ``bytes``. ``weight`` is how often this prompt comes; 1 without ``weights`` (``pattern``, ``tokens``, ``weight``;
    what is not in it has weight 0).
    """
    keys = ["release", "drafter_tokens", "interval", "interval_order", "default", "pattern", "tokens"]
    first = frame[frame["send"] == 1][[*keys, "blocks", "bytes", "evicted_blocks"]].rename(
        columns={"evicted_blocks": "evicted_1"}
    )
    sends = {n: frame[frame["send"] == n] for n in (2, 3)}
    second = sends[2][[*keys, "prompt_tokens", "hit_tokens", "short_tokens", "reusable_tokens"]].rename(
        columns={"prompt_tokens": "prompt_2", "hit_tokens": "hit_2", "short_tokens": "short_2"}
    )
    third = sends[3][[*keys, "hit_tokens"]].rename(columns={"hit_tokens": "hit_3"})
    # A missing drafter is a value like any other here.
    evicted = frame.groupby(keys, dropna=False, sort=False)["evicted_blocks"].sum().rename("evicted").reset_index()
    made = (
        first.merge(second, on=keys, how="left").merge(third, on=keys, how="left").merge(evicted, on=keys, how="left")
    )
    if weights is None:
        made["weight"] = 1.0
    else:
        made = made.merge(weights, on=["pattern", "tokens"], how="left")
        made["weight"] = made["weight"].fillna(0.0).astype(float)
    made = made.sort_values(["interval_order", "tokens"], kind="stable")
    return made.sort_values("release", key=lambda names: names.map(age), kind="stable").reset_index(drop=True)


def predicted_versions(probes: Iterable[Probe]) -> pd.DataFrame:
    """One row per release × probe: what tells releases apart.

    | column | dtype | unit, and the meaning of null |
    |---|---|---|
    | release, probe | string | the probes are those of ``replay.matrix`` |
    | interval | string | what the release resolved |
    | tokens | Int64 | prompt tokens |
    | hit_2, hit_3, short_2 | Int64 | tokens, of sends 2 and 3 |
    | blocks | Int64 | kept after the first send, all groups |
    | drop_groups, groups | Int64 | groups that give up a block at lookup, and all |
    | lookahead_tokens | Int64 | tokens past its end that enter a block's hash |
    """
    rows = [
        {
            "release": one.release,
            "probe": one.probe,
            "interval": interval_label(one.interval),
            "tokens": one.tokens,
            "hit_2": one.hit_2,
            "hit_3": one.hit_3,
            "short_2": one.tokens - one.hit_2,
            "blocks": one.kept_blocks,
            "drop_groups": one.drop_groups,
            "groups": one.groups,
            "lookahead_tokens": one.lookahead_tokens,
        }
        for one in probes
    ]
    columns = {"release": TEXT, "probe": TEXT, "interval": TEXT}
    names = ("tokens", "hit_2", "hit_3", "short_2", "blocks", "drop_groups", "groups", "lookahead_tokens")
    return make_frame(rows, columns | dict.fromkeys(names, INT))
