"""Summary frames of requests: medians with their range and count, never a bare mean."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from prefixscope.frames.columns import BOOL, FLOAT, INT, TEXT, make_frame, median, whole
from prefixscope.frames.requests import SEND_COLUMNS, WORST, current
from prefixscope.frames.rows import Rows, of_kind

SWEEP_COLUMNS = {
    "config": TEXT, "interval": TEXT, "interval_order": FLOAT, "tokens": INT, "hit_2": INT, "hit_3": INT,
    "short_2": INT, "first_2_ms": FLOAT, "predicted_2": INT, "predicted_3": INT, "measured": BOOL, "failed": INT,
    "blocks": INT, "bytes": INT, "every_block": BOOL,
}  # fmt: skip

_SEND_RANK = {"cold": 0, "repeat": 1, "control": 2, "new_ending": 3, "follow_up": 4}


def hits(frame: pd.DataFrame) -> pd.DataFrame:
    """One row per configuration × prompt length × send: hit length as median, range and count.

    ``rows`` counts all sends, ``count`` those with a reported hit length; ``cached_tokens``, ``cached_min`` and
    ``cached_max`` are null where none was. ``predicted_tokens`` is the hit by the release's own scheduler and
    ``predicted_wrong`` the sends in which it is not the measured one; null where it was not asked. ``verdict`` is the
    worst of the sends behind the row.
    """
    keys = [
        "config",
        "setting",
        "setting_id",
        "drafter",
        "lora",
        "as_served",
        "interval",
        "interval_order",
        "model",
        "tokens",
        "send",
        "index",
        "send_label",
    ]
    counted = current(frame)
    marked = counted.assign(
        failed=counted["status"] == "failed",
        wrong=~counted["predicted_agrees"],
        worst=counted["verdict"].map({name: place for place, name in enumerate(WORST)}).astype(FLOAT),
    )
    found = marked.groupby(keys, dropna=False, sort=False).agg(
        rows=("status", "size"),
        failed=("failed", "sum"),
        count=("cached_tokens", "count"),
        prompt_tokens=("prompt_tokens", "median"),
        cached_tokens=("cached_tokens", "median"),
        cached_min=("cached_tokens", "min"),
        cached_max=("cached_tokens", "max"),
        short_tokens=("short_tokens", "median"),
        predicted_tokens=("predicted_tokens", "median"),
        predicted_wrong=("wrong", "sum"),
        predicted=("wrong", "count"),
        worst=("worst", "min"),
    )
    found["predicted_wrong"] = found["predicted_wrong"].where(found["predicted"] > 0)
    found["verdict"] = found["worst"].map(dict(enumerate(WORST))).astype(TEXT)
    out = found.reset_index().to_dict("records")
    columns = {key: SEND_COLUMNS[key] for key in keys}
    columns |= dict.fromkeys(
        ("rows", "failed", "count", "prompt_tokens", "cached_tokens", "cached_min", "cached_max", "short_tokens"), INT
    )
    columns |= {"predicted_tokens": INT, "predicted_wrong": INT}
    result = make_frame(out, {**columns, "verdict": TEXT})
    result["rank"] = result["send"].map(_SEND_RANK).fillna(9)
    order = ["as_served", "drafter", "lora", "interval_order", "config", "tokens", "rank", "index"]
    return result.sort_values(order, kind="stable").drop(columns="rank").reset_index(drop=True)


def by_send(table: pd.DataFrame) -> pd.DataFrame:
    """One row per configuration × prompt length of :func:`hits`: the median hit of each send in a column of its own.

    Null where such a send was not made, or reported no hit. ``short_2`` and ``verdict`` are those of send 2.
    """
    out: Rows = []
    for (config, tokens), part in table.groupby(["config", "tokens"], sort=False, dropna=False):
        row: dict[str, object] = {"config": config, "tokens": tokens}
        for one in part.itertuples():
            name = {"cold": "send_1", "control": "different_text"}.get(str(one.send), str(one.send))
            name = f"send_{one.index}" if name == "repeat" else name
            row[name] = one.cached_tokens
            if name == "send_2":
                row |= {"short_2": one.short_tokens, "verdict": one.verdict}
        out.append(row)
    sends = ("tokens", "send_1", "send_2", "send_3", "different_text", "new_ending", "follow_up", "short_2")
    return make_frame(out, {"config": TEXT, **dict.fromkeys(sends, INT), "verdict": TEXT})


def latency(frame: pd.DataFrame) -> pd.DataFrame:
    """One row per configuration × prompt length × send: time to first token in ms as median, range and count.

    Sends that shared the machine with a starting server are left out.
    """
    measured = frame[frame["first_token_ms"].notna() & frame["send"].isin(["cold", "repeat"])]
    measured = measured[~measured["overlapped"].fillna(False)]
    keys = ["config", "drafter", "lora", "interval_order", "tokens", "send_label", "index"]
    found = measured.groupby(keys, dropna=False, sort=False).agg(
        count=("first_token_ms", "size"),
        median_ms=("first_token_ms", "median"),
        min_ms=("first_token_ms", "min"),
        max_ms=("first_token_ms", "max"),
        cached_tokens=("cached_tokens", "median"),
    )
    out = found.reset_index().to_dict("records")
    columns = {key: SEND_COLUMNS[key] for key in keys} | {"count": INT, "cached_tokens": INT}
    result = make_frame(out, columns | dict.fromkeys(("median_ms", "min_ms", "max_ms"), FLOAT))
    return result.sort_values(
        ["drafter", "lora", "interval_order", "config", "tokens", "index"], kind="stable"
    ).reset_index(drop=True)


def sweep(frame: pd.DataFrame, stored: pd.DataFrame) -> pd.DataFrame:
    """One row per retention interval × prompt length of the swept family of settings.

    The family is the one the sweep stage restarted its server in; a cell measured once by another stage counts too.
    ``hit_2`` and ``hit_3`` are the median hits of sends 2 and 3, ``first_2_ms`` the time to first token of send 2,
    ``predicted_2`` and ``predicted_3`` what the release's own scheduler hits there, ``blocks``/``bytes`` what one
    prompt left in the cache over all groups; each null where not measured. ``every_block`` says that those are all of
    the prompt's whole blocks.
    """
    swept = frame[frame["stage"] == "sweep"]
    out: Rows = []
    if len(swept):
        family = ["drafter", "lora", "dtype", "model"]
        first = swept[family].value_counts(dropna=False, sort=True).index[0]
        pick = pd.Series(True, index=frame.index)
        for column, value in zip(family, first, strict=True):
            pick &= frame[column].isna() if pd.isna(value) else frame[column].eq(value).fillna(False)
        pick &= frame["tokens"].isin(swept["tokens"].dropna())
        for (interval, order, tokens), part in current(frame[pick]).groupby(
            ["interval", "interval_order", "tokens"], sort=False
        ):
            second, third = (part[(part["send"] == "repeat") & (part["index"] == k)] for k in (2, 3))
            cell = stored[stored["series"].isin(part["series"])].drop_duplicates(["series", "gid"])
            series = max(cell["series"].nunique(), 1)
            if order < 0 and cell["resolved"].notna().any():
                # The engine said what its default is, so it takes its place among the others.
                known = cell["resolved"].dropna().iloc[0]
                order = math.inf if known == "dense" else float(str(known).replace(",", ""))
                interval = f"{known} (default)"
            out.append(
                {
                    "config": part["config"].iloc[0],
                    "interval": interval,
                    "interval_order": order,
                    "tokens": tokens,
                    "hit_2": median(second["cached_tokens"].dropna()),
                    "hit_3": median(third["cached_tokens"].dropna()),
                    "short_2": median(second["short_tokens"].dropna()),
                    "first_2_ms": second["first_token_ms"].median(),
                    "predicted_2": median(second["predicted_tokens"].dropna()),
                    "predicted_3": median(third["predicted_tokens"].dropna()),
                    "measured": True,
                    "failed": int((part["status"] == "failed").sum()),
                    "blocks": whole(cell["blocks"].sum() / series) if len(cell) else None,
                    "bytes": whole(cell["bytes"].sum() / series) if len(cell) and cell["bytes"].notna().all() else None,
                    "every_block": _every(cell),
                }
            )
    return (
        make_frame(out, SWEEP_COLUMNS).sort_values(["interval_order", "tokens"], kind="stable").reset_index(drop=True)
    )


def _every(cell: pd.DataFrame) -> bool | None:
    known = cell.dropna(subset=["blocks", "tokens", "block_size"])
    if not len(known) or len(known) < len(cell):
        return None
    return bool((known["blocks"] >= known["tokens"] // known["block_size"]).all())


def keeps_all(table: pd.DataFrame, order: float) -> bool:
    """Whether an interval of ``frames.sweep`` keeps every block at each length, as dense retention does."""
    mine = table[(table["interval_order"] == order) & table["hit_2"].notna()]
    dense = table[table["interval_order"] == math.inf]
    both = mine.merge(dense, on="tokens", suffixes=("", "_dense"))
    as_dense = len(both) == len(mine) and bool(both["blocks"].eq(both["blocks_dense"]).fillna(False).all())
    return len(mine) > 0 and (as_dense or bool(mine["every_block"].fillna(False).all()))


def interval_totals(table: pd.DataFrame, *, first: float | None = None) -> pd.DataFrame:
    """One row per retention interval of ``frames.sweep`` or of one release's ``frames.predicted_cases``, best first.

    Best is what leaves the fewest tokens short on the second sends of **all** prompts, then the cheapest in blocks,
    then the one whose ``interval_order`` is ``first`` (what is set already), then the coarsest finite one: a coarse
    interval may lift long prompts and leave short ones on the floor. Only
    intervals that were asked for every prompt are in it. ``short``, ``blocks`` and ``bytes`` are sums over prompts,
    each as often as its ``weight`` says (once without); null where not known. ``front`` marks what no other interval
    beats in tokens short without keeping more blocks; of equal ones each.
    """
    known = table[table["hit_2"].notna()]
    weight = known.get("weight", 1)
    weighted = known.assign(
        short=known["short_2"] * weight, kept=known["blocks"] * weight, size=known["bytes"] * weight
    )
    totals = weighted.groupby("interval_order", sort=False).agg(
        interval=("interval", "first"),
        lengths=("tokens", "size"),
        short=("short", "sum"),
        blocks=("kept", lambda values: values.sum(skipna=False)),
        bytes=("size", lambda values: values.sum(skipna=False)),
    )
    totals = totals[totals["lengths"] == totals["lengths"].max()].reset_index()
    totals["dense"] = totals["interval_order"] == math.inf
    totals["coarse"] = -totals["interval_order"]
    totals["other"] = totals["interval_order"] != first
    totals = totals.sort_values(["short", "blocks", "other", "dense", "coarse"], kind="stable").reset_index(drop=True)
    # In this order whatever comes later is on the front only if it keeps less than all before it, or is equal.
    least = totals["blocks"].astype(float).cummin().shift(fill_value=math.inf)
    totals["front"] = totals["blocks"].astype(float) < least
    totals["front"] |= totals.groupby(["short", "blocks"])["front"].transform("max")
    return totals.drop(columns=["dense", "coarse", "other"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Cheaper:
    """An interval that does as well on the longest prompt with fewer blocks; ``worse``: lengths where it does not."""

    interval: str
    blocks: int
    worse: tuple[int, ...]


def cheaper_interval(tried: pd.DataFrame, chosen: pd.Series[Any]) -> Cheaper | None:
    """What keeps least among the rows of ``frames.sweep`` that hit as much as the chosen row; None where none does."""
    rows = tried[tried["tokens"] == chosen["tokens"]]
    same = rows[(rows["hit_2"] == chosen["hit_2"]) & (rows["blocks"] < chosen["blocks"])]
    if not len(same):
        return None
    row = same.sort_values("blocks", kind="stable").iloc[0]
    mine = tried[tried["interval_order"] == row["interval_order"]]
    other = tried[tried["interval_order"] == chosen["interval_order"]]
    both = mine.merge(other, on="tokens", suffixes=("", "_chosen"))
    worse = both.loc[both["hit_2"] < both["hit_2_chosen"], "tokens"]
    return Cheaper(interval=str(row["interval"]), blocks=int(row["blocks"]), worse=tuple(map(int, worse)))


class Agreed(NamedTuple):
    """In how many sends two hit lengths are the same, in how many both are known, and how many answers had one."""

    same: int
    compared: int
    answered: int

    @property
    def apart(self) -> int:
        return self.compared - self.same

    @property
    def untold(self) -> int:
        """Answers of which one of the two is missing."""
        return self.answered - self.compared


def agreed(sent: pd.DataFrame, column: str) -> Agreed:
    """The count of ``metrics_agree`` or ``predicted_agrees`` over the rows of ``sends`` that did not fail."""
    answered = sent[sent["status"].isna() | (sent["status"] == "ok")]
    known = answered[column].dropna()
    return Agreed(int(known.sum()), len(known), len(answered))


def agreement(frame: pd.DataFrame) -> pd.DataFrame:
    """One row per configuration: in how many sends ``/metrics`` counted the same hit as ``usage``."""
    out: Rows = []
    for config, part in frame[frame["status"] == "ok"].groupby("config", sort=False):
        known = part["metrics_agree"].dropna()
        out.append(
            {
                "config": config,
                "sends": len(part),
                "compared": len(known),
                "agree": int(known.sum()),
                "disagree": int((~known).sum()),
            }
        )
    return make_frame(out, {"config": TEXT} | dict.fromkeys(("sends", "compared", "agree", "disagree"), INT))


def crosscheck(frame: pd.DataFrame) -> pd.DataFrame:
    """One row per configuration: in how many sends the release's own scheduler gave the hit that was measured."""
    out: Rows = []
    for config, part in frame[frame["status"] == "ok"].groupby("config", sort=False):
        known = part["predicted_agrees"].dropna()
        out.append(
            {
                "config": config,
                "predicted_by": next(iter(part["predicted_by"].dropna()), None),
                "sends": len(part),
                "predicted": len(known),
                "agree": int(known.sum()),
                "differ": int((~known).sum()),
            }
        )
    columns = {"config": TEXT, "predicted_by": TEXT}
    return make_frame(out, columns | dict.fromkeys(("sends", "predicted", "agree", "differ"), INT))


def predicted_sweep(run_dir: Path) -> pd.DataFrame:
    """The columns of :func:`sweep` for a sweep that was predicted alone, from a trace; nothing in it is measured."""
    out: Rows = []
    for row in of_kind(run_dir, "predicted_sweep"):
        interval, hits, tokens = row.get("interval"), list(row.get("hits") or ()), whole(row.get("tokens"))
        second, third = (whole(hits[k]) if tokens is not None and len(hits) > k else None for k in (1, 2))
        out.append(
            {
                "config": f"predicted by vLLM {row.get('release')}",
                "interval": row.get("interval_asked"),
                "interval_order": math.inf if interval == "dense" else whole(interval),
                "tokens": tokens,
                "hit_2": second,
                "hit_3": third,
                "short_2": None if second is None or tokens is None else tokens - second,
                "measured": False,
                "failed": 0,
                "blocks": row.get("blocks"),
                "bytes": row.get("bytes"),
            }
        )
    return (
        make_frame(out, SWEEP_COLUMNS).sort_values(["interval_order", "tokens"], kind="stable").reset_index(drop=True)
    )
