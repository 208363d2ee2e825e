"""Frames of streamed answers: how fast they came, and what the drafter had to do with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from prefixscope import paired
from prefixscope.frames.attempts import counted
from prefixscope.frames.columns import BOOL, FLOAT, INT, TEXT, TIME, make_frame, whole
from prefixscope.frames.rows import Rows, dict_in, load_run, of_kind, setting_columns

GENERATION_COLUMNS = {
    "arm": TEXT, "label": TEXT, "side": TEXT, "at": TIME, "setting": TEXT, "server": TEXT, "model": TEXT, "shape": TEXT,
    "document": INT, "repeat": INT, "item": TEXT, "digest": TEXT, "cell": TEXT, "request_id": TEXT,
    "status": TEXT, "error": TEXT,
    "prompt_tokens": INT, "cached_tokens": INT, "completion_tokens": INT, "chunks": INT, "seconds": FLOAT,
    "first_token_ms": FLOAT, "step_ms": FLOAT, "step_p90_ms": FLOAT, "tokens_per_s": FLOAT, "chunks_per_s": FLOAT,
    "drafts": INT, "drafted": INT, "accepted": INT, "acceptance": FLOAT, "tokens_per_step": FLOAT, "source": TEXT,
    "agree": BOOL, "disturbed": BOOL, "interleaved": BOOL,
}  # fmt: skip

BURST_MS = 0.5
"""No engine makes a step in less: chunks that mostly lie closer were held back on their way, by a busy machine or a
proxy, and how fast they were made is not known."""
RATES = ("tokens_per_s", "chunks_per_s", "first_token_ms", "step_ms", "acceptance", "tokens_per_step")
"""What a summary gives as median, 10th and 90th percentile."""

_PAIR_COLUMNS = {
    "pair": TEXT, "shape": TEXT, "document": INT, "identical": BOOL, "by": TEXT, "first_difference": INT, "class": TEXT,
}  # fmt: skip

_COUNTS = ("drafts", "drafted", "accepted", "per_position")


def generations(run_dir: Path) -> pd.DataFrame:
    """One row per streamed answer of the speculation stage, failed ones included.

    ===============  ========  ==========================================================================
    column           dtype     meaning; when it is null
    ===============  ========  ==========================================================================
    arm, label       string    ``A`` or ``B``, and how its server was started; ``side`` tells servers apart
    item             string    which prompt: ``prose 1``; ``repeat`` counts how often it was asked
    digest           string    of the prompt's messages: equal ones are the same text
    chunks           Int64     pieces that the stream came in: what a naive benchmark counts as tokens
    tokens_per_s     float64   tokens by usage after the first chunk, per second from first to last chunk;
                               NaN where the server gave no usage or they came in one burst
    chunks_per_s     float64   the same with chunks for tokens
    step_ms          float64   median time between chunks; ``step_p90_ms`` its 90th percentile
    drafts           Int64     verified steps; null where nobody reports, 0 where nothing was drafted
    acceptance       float64   accepted / drafted; NaN where nothing was drafted: that is not 0 %
    tokens_per_step  float64   1 + accepted / drafts; NaN where nothing was drafted
    source           string    ``answer`` (per-request metrics), ``counters`` (/metrics), or null
    agree            boolean   both sources gave the same counts; null where there was one
    disturbed        boolean   the counters moved by more than this request, so they are not used
    ===============  ========  ==========================================================================
    """
    return make_frame([_generation(row) for row in of_kind(run_dir, "generation")], GENERATION_COLUMNS)


def _generation(row: Mapping[str, Any]) -> dict[str, Any]:
    own, counted = dict_in(row, "per_request"), dict_in(row, "counters")
    usable = counted if counted.get("drafts") is not None and not row.get("disturbed") else {}
    scored = own or usable
    drafts, drafted, accepted = (whole(scored.get(name)) for name in _COUNTS[:3])
    arrivals = [float(at) for at in row.get("arrivals_ms") or ()]
    steps = pd.Series(arrivals, dtype="float64").diff().dropna()
    span_s = steps.sum() / 1000
    tokens, first = whole(row.get("completion_tokens")), (row.get("chunk_tokens") or [1])[0]
    timed = span_s > 0 and steps.median() >= BURST_MS
    return {
        **row,
        "setting": setting_columns(row)["setting"],
        "item": f"{row.get('shape')} {row.get('document')}",
        "digest": dict_in(row, "prompt").get("digest"),
        "first_token_ms": arrivals[0] if arrivals else None,
        "step_ms": steps.median() if len(steps) else None,
        "step_p90_ms": steps.quantile(0.9) if len(steps) else None,
        "tokens_per_s": (tokens - first) / span_s if timed and tokens is not None else None,
        "chunks_per_s": len(steps) / span_s if timed else None,
        "drafts": drafts,
        "drafted": drafted,
        "accepted": accepted,
        "acceptance": accepted / drafted if drafted and accepted is not None else None,
        "tokens_per_step": 1 + accepted / drafts if drafts and accepted is not None else None,
        "source": "answer" if own else "counters" if usable else None,
        "agree": all(own.get(name) == usable.get(name) for name in _COUNTS) if own and usable else None,
    }


def measured(frame: pd.DataFrame) -> pd.DataFrame:
    """The answers that count: failed ones are left out, and those of which it is not known who gave them."""
    return frame[(frame["status"] == "ok") & frame["arm"].isin(["A", "B"]) & frame["label"].notna()]


def arm_labels(frame: pd.DataFrame) -> tuple[str, str]:
    """What the servers of the arms A and B are called; ``arm A`` where nothing was measured."""
    labels = frame.drop_duplicates("arm").set_index("arm")["label"]
    return str(labels.get("A", "arm A")), str(labels.get("B", "arm B"))


def by_shape(frame: pd.DataFrame) -> pd.DataFrame:
    """One row per shape × arm: each of ``RATES`` as median, 10th and 90th percentile over requests, with their count.

    ``drafted`` and ``accepted`` are sums, null where nothing was reported.
    """
    out: Rows = []
    for (arm, label, shape), part in measured(frame).groupby(["arm", "label", "shape"], sort=False):
        row: dict[str, Any] = {"arm": arm, "label": label, "shape": shape, "requests": len(part)}
        for name in RATES:
            known = part[name].dropna()
            row |= {name: known.median(), f"{name}_p10": known.quantile(0.1), f"{name}_p90": known.quantile(0.9)}
        row |= {name: _sum(part[name]) for name in ("drafts", "drafted", "accepted")}
        out.append(row)
    shapes = list(dict.fromkeys(row["shape"] for row in out))
    out.sort(key=lambda row: (shapes.index(row["shape"]), row["arm"]))
    columns = {"arm": TEXT, "label": TEXT, "shape": TEXT, "requests": INT, "drafts": INT, "drafted": INT}
    columns |= {"accepted": INT} | {f"{name}{part}": FLOAT for name in RATES for part in ("", "_p10", "_p90")}
    return make_frame(out, columns)


def positions(run_dir: Path) -> pd.DataFrame:
    """One row per arm × shape × place in the draft: in which share of the drafts that token was accepted."""
    sums: dict[tuple[str, str, str, int], list[int]] = {}
    for row in of_kind(run_dir, "generation"):
        own, counted = dict_in(row, "per_request"), dict_in(row, "counters")
        scored = own or ({} if row.get("disturbed") else counted)
        places, drafts = scored.get("per_position"), whole(scored.get("drafts"))
        if row.get("status") != "ok" or not drafts or not isinstance(places, list):
            continue
        for place, accepted in enumerate(places):
            total = sums.setdefault((row["arm"], row["label"], row["shape"], place + 1), [0, 0])
            total[0] += whole(accepted) or 0
            total[1] += drafts
    rows = [
        {**dict(zip(("arm", "label", "shape", "position"), key, strict=True)),
         "accepted": accepted, "drafts": drafts, "share": accepted / drafts}
        for key, (accepted, drafts) in sums.items()
    ]  # fmt: skip
    columns = {"arm": TEXT, "label": TEXT, "shape": TEXT, "position": INT, "accepted": INT, "drafts": INT}
    return make_frame(rows, {**columns, "share": FLOAT})


def output_pairs(run_dir: Path) -> pd.DataFrame:
    """One row per pair of answers to the same prompt: ``A / A`` and ``B / B`` asked twice, ``A / B`` on either arm."""
    return make_frame(of_kind(run_dir, "pair"), _PAIR_COLUMNS)


def resends(run_dir: Path) -> pd.DataFrame:
    """One row per send of a prompt that an arm was sent before, or for the first time, with its time to first token.

    ``send`` is cold or repeat, ``index`` the how-manieth; ``tokens`` the prompt length asked for.
    """
    columns = {"arm": TEXT, "label": TEXT, "side": TEXT, "tokens": INT, "send": TEXT, "index": INT}
    columns |= {"prompt_tokens": INT, "cached_tokens": INT, "first_token_ms": FLOAT, "taken_from": TEXT}
    return make_frame(counted(of_kind(run_dir, "resend")), columns)


def headrooms(run_dir: Path) -> pd.DataFrame:
    """One row per arm: tokens of KV cache that one sequence could hold (null where nothing tells), and who says so."""
    columns = {"arm": TEXT, "label": TEXT, "tokens": INT, "blocks": INT, "source": TEXT}
    return make_frame(of_kind(run_dir, "headroom"), columns).drop_duplicates(["arm", "label"], keep="last")


def across(first: Path, second: Path, *, arm: str = "A") -> tuple[pd.DataFrame, pd.DataFrame]:
    """One arm of two runs as the arms A and B of one comparison: (generations, headrooms).

    For a before and after: an upgrade, a changed flag. The runs were not interleaved, and the rows say so.
    """
    found: list[list[pd.DataFrame]] = [[], []]
    for name, run_dir in (("A", first), ("B", second)):
        version = dict_in(load_run(run_dir), "engine").get("version")
        suffix = (f", vLLM {version}" if version else "") + f" ({name})"
        for tables, table in zip(found, (generations(run_dir), headrooms(run_dir)), strict=True):
            kept = table[table["arm"] == arm]
            tables.append(kept.assign(arm=name, label=kept["label"] + suffix))
    rows, heads = (pd.concat(tables, ignore_index=True) for tables in found)
    return rows.assign(interleaved=False), heads


def record(frame: pd.DataFrame, heads: pd.DataFrame) -> pd.DataFrame:
    """One row per measure of the comparison: wall clock, tokens a second of each shape, acceptance, headroom …

    ``a`` and ``b`` are medians over requests with ``a_p10`` … ``b_p90`` beside them (sums for wall clock, drafted and
    accepted together for the share over all); ``times`` is how many times b the value of a is, with its 95 % interval
    over ``pairs`` paired prompts where there are any.
    """
    rows = measured(frame)
    out: Rows = [{"metric": "wall clock of the same requests, s", **_sides(_shared(rows), "seconds", "sum")}]
    for shape in rows["shape"].drop_duplicates():
        part = rows[rows["shape"] == shape]
        out.append({"metric": f"tokens/s, {shape}", **_sides(part, "tokens_per_s"), **_times(part, "tokens_per_s")})
    out.append({"metric": "tokens/s, all shapes", **_sides(rows, "tokens_per_s"), **_times(rows, "tokens_per_s")})
    out.append({"metric": "chunks/s, what a count of chunks would say", **_sides(rows, "chunks_per_s")})
    out.append(
        {"metric": "time to first token, ms", **_sides(rows, "first_token_ms"), **_times(rows, "first_token_ms")}
    )
    out.append({"metric": "acceptance, per request", **_sides(rows, "acceptance")})
    drafted, accepted = _sides(rows, "drafted", "sum"), _sides(rows, "accepted", "sum")
    shares = {name: accepted[name] / drafted[name] for name in accepted if drafted.get(name)}
    out.append({"metric": "acceptance, all drafted tokens", **shares})
    out.append({"metric": "tokens per step", **_sides(rows, "tokens_per_step")})
    head = {str(row.arm).lower(): whole(row.tokens) for row in heads.itertuples()}
    out.append({"metric": "KV cache headroom, tokens", **head})
    for row in out:
        if row.get("a") and row.get("b"):
            row.setdefault("times", row["a"] / row["b"])
    edges = dict.fromkeys(("a", "a_p10", "a_p90", "b", "b_p10", "b_p90", "times", "low", "high"), FLOAT)
    return make_frame(out, {"metric": TEXT, **edges, "pairs": INT})


def effect(frame: pd.DataFrame, column: str) -> paired.Effect | None:
    """How many times arm B's value arm A's is: over prompts that both answered, each with the mean of its repeats."""
    means = measured(frame).groupby(["item", "arm"])[column].mean().unstack("arm")
    if not {"A", "B"} <= set(means.columns):
        return None
    both = means[["A", "B"]].dropna()
    return paired.ratio(both.itertuples(index=False, name=None))


def _times(frame: pd.DataFrame, column: str) -> dict[str, Any]:
    found = effect(frame, column)
    if found is None:
        return {}
    return {"times": found.value, "low": found.low, "high": found.high, "pairs": found.pairs}


def _sides(frame: pd.DataFrame, column: str, how: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for arm, part in frame.groupby("arm"):
        known, name = part[column].dropna(), str(arm).lower()
        if how and len(known):
            found[name] = float(known.sum())
        elif len(known):
            found |= {name: known.median(), f"{name}_p10": known.quantile(0.1), f"{name}_p90": known.quantile(0.9)}
    return found


def _shared(frame: pd.DataFrame) -> pd.DataFrame:
    """The requests that every arm answered."""
    arms = frame["arm"].nunique()
    return frame[frame.groupby(["item", "repeat"])["arm"].transform("nunique") == arms] if len(frame) else frame


def _sum(values: Sequence[Any] | pd.Series[Any]) -> int | None:
    known = pd.Series(values).dropna()
    return int(known.sum()) if len(known) else None
