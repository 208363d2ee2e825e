"""Column tables of a run directory: the only place where DataFrames are built.

Tidy frames hold one row per observation and keep failed ones; summary frames give medians with their range and
count, never a bare mean. A value that no server reported stays ``<NA>``: it is not zero.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import pandas as pd

from prefixscope.setting import Interval, interval_label

INT, FLOAT, TEXT, BOOL, TIME = "Int64", "float64", "string", "boolean", "datetime64[ns, UTC]"
Rows = list[dict[str, Any]]

SEND_COLUMNS = {
    "stage": TEXT, "series": TEXT, "cell": TEXT, "attempt": TEXT, "at": TIME, "setting": TEXT, "setting_id": TEXT,
    "config": TEXT,
    "drafter": BOOL, "lora": BOOL, "as_served": BOOL, "dtype": TEXT, "interval": TEXT, "interval_order": FLOAT,
    "server": TEXT, "model": TEXT, "prompt": TEXT, "tokens": INT, "send": TEXT, "index": INT, "send_label": TEXT,
    "request_id": TEXT, "status": TEXT, "error": TEXT, "prompt_tokens": INT, "cached_tokens": INT,
    "shared_tokens": INT, "short_tokens": INT, "completion_tokens": INT, "first_token_ms": FLOAT,
    "overlapped": BOOL, "metrics_queries": INT, "metrics_hits": INT, "metrics_agree": BOOL, "verdict": TEXT,
}  # fmt: skip
KEPT_COLUMNS = {
    "stage": TEXT, "series": TEXT, "setting": TEXT, "setting_id": TEXT, "drafter": BOOL, "lora": BOOL,
    "interval": TEXT, "interval_order": FLOAT, "prompt": TEXT, "tokens": INT, "gid": INT, "group_kind": TEXT,
    "resolved": TEXT, "block_size": INT, "blocks": INT, "bytes": INT,
}  # fmt: skip
ANSWER_COLUMNS = {
    "setting": TEXT, "model": TEXT, "document": TEXT, "arm": TEXT, "request_id": TEXT, "status": TEXT, "error": TEXT,
    "prompt_tokens": INT, "cached_tokens": INT, "answer_tokens": INT, "distinct_tokens": INT, "text": TEXT,
}  # fmt: skip
COMPARISON_COLUMNS = {
    "document": TEXT, "model": TEXT, "pair": TEXT, "identical": BOOL, "by": TEXT, "first_difference": INT,
    "margin": FLOAT, "class": TEXT, "cached_tokens": INT,
}  # fmt: skip
BLOCK_COLUMNS = {
    "request_id": TEXT, "send_label": TEXT, "prompt_tokens": INT, "hit_tokens": INT, "candidate_tokens": INT,
    "gid": INT, "group": TEXT, "kind": TEXT, "block_size": INT, "limiting": BOOL, "state": TEXT, "start": INT,
    "stop": INT, "start_token": INT, "stop_token": INT,
}  # fmt: skip
SPAN_COLUMNS = {
    "lane": TEXT, "what": TEXT, "status": TEXT, "start": TIME, "stop": TIME, "start_min": FLOAT, "stop_min": FLOAT,
    "seconds": FLOAT,
}  # fmt: skip
SERVER_COLUMNS = {
    "id": TEXT, "setting": TEXT, "setting_id": TEXT, "command": TEXT, "started_at": TIME, "ready_at": TIME,
    "stopped_at": TIME, "start_s": FLOAT,
}  # fmt: skip


def load_run(run_dir: Path) -> dict[str, Any]:
    """The manifest, or ``{}`` where there is none or it can't be parsed."""
    try:
        value = json.loads((run_dir / "run.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def read_rows(run_dir: Path) -> tuple[Rows, list[str]]:
    """Every raw row in file order, and one sentence per file that held something unreadable."""
    rows: Rows = []
    problems: list[str] = []
    for path in sorted((run_dir / "raw").glob("*.jsonl")):
        status = path.stat()
        found, bad, unknown = _read_file(path, status.st_mtime_ns, status.st_size)
        rows += found
        if bad:
            problems.append(f"raw/{path.name}: {bad} unreadable line{'s' * (bad != 1)} left out (an interrupted write)")
        if unknown:
            problems.append(f"raw/{path.name}: {unknown} row{'s' * (unknown != 1)} of an unknown schema left out")
    return rows, problems


@lru_cache(maxsize=16)
def _read_file(path: Path, changed_ns: int, size: int) -> tuple[Rows, int, int]:
    """Rows of one file, unreadable lines, rows of another schema; read once as long as the file stays as it is."""
    rows: Rows = []
    bad = unknown = 0
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                bad += 1
                continue
            if not isinstance(row, dict) or row.get("schema", 1) != 1:
                unknown += 1
                continue
            rows.append({**row, "stage": row.get("stage") or path.stem})
    return rows, bad, unknown


def trace_headers(run_dir: Path) -> Rows:
    """The header event of every traced engine: its groups, blocks, interval. Nothing else of the trace is read."""
    found: Rows = []
    for path in sorted((run_dir / "trace").glob("*.jsonl")):
        with path.open(encoding="utf-8", errors="replace") as lines:
            try:
                event = json.loads(next(lines, ""))
            except ValueError:
                continue
        if isinstance(event, dict) and event.get("event") == "header":
            found.append(event)
    return found


def scheduler_block(run_dir: Path) -> int | None:
    """The block that hits are rounded down to, from the trace or the run's facts; None where neither knows it."""
    for header in trace_headers(run_dir):
        value = _whole(header.get("scheduler_block"))
        if value:
            return value
    for fact in _items(load_run(run_dir), "facts"):
        name = str(fact.get("name", "")).lower().replace("_", " ")
        value = _whole(fact.get("value"))
        if "scheduler block" in name and value:
            return value
    return None


def sends(run_dir: Path) -> pd.DataFrame:
    """One row per request sent by a measuring stage, failed ones included.

    =================  ========  ========================================================================
    column             dtype     meaning; when it is null
    =================  ========  ========================================================================
    setting, config    string    how the server was started; ``config`` adds the model where one served two
    interval           string    retention interval as people read it; ``interval_order`` sorts it
    tokens             Int64     prompt length asked for (of the first message, for a follow-up)
    send, index        —         cold 1, repeat 2, 3 …, control, new_ending, follow_up
    send_label         string    ``send 1 (cold)``, ``send 2``, ``different text`` …
    prompt_tokens      Int64     as the server counted; null where it failed or said nothing
    cached_tokens      Int64     the hit length; null where the server does not report it (not zero)
    shared_tokens      Int64     exact common prefix with an earlier send; null where unknown
    short_tokens       Int64     prompt tokens − cached tokens; null where either is
    first_token_ms     float64   time to first token in ms; NaN where not measured
    overlapped         boolean   another server was starting meanwhile, so the time is not comparable
    metrics_agree      boolean   ``/metrics`` counted the same hit; null where it was not read
    verdict            string    reuses · short · none · cannot hit · not reported · inconclusive; null for a
                                 first send that hit nothing, which asks no question
    =================  ========  ========================================================================
    """
    block = scheduler_block(run_dir)
    out: Rows = []
    for row in _of_kind(run_dir, "send"):
        prompt, metrics = _dict(row, "prompt"), _dict(row, "metrics")
        send, index = str(row.get("send")), _whole(row.get("index"))
        total, cached = _whole(row.get("prompt_tokens")), _whole(row.get("cached_tokens"))
        queries, hits = _whole(metrics.get("queries")), _whole(metrics.get("hits"))
        found = {
            **row,
            **_setting(row),
            "model": row.get("model") or None,
            "prompt": prompt.get("name"),
            "tokens": prompt.get("tokens") or total,
            "send_label": send_label(send, index),
            "short_tokens": total - cached if total is not None and cached is not None else None,
            "metrics_queries": queries,
            "metrics_hits": hits,
            "metrics_agree": None if hits is None or cached is None else hits == cached,
        }
        found["verdict"] = _send_verdict(found, block)
        out.append(found)
    frame = _frame(out, SEND_COLUMNS)
    served = frame.groupby("setting_id")["model"].transform("nunique") if len(frame) else 0
    names = frame["setting"] + " · " + frame["model"]
    if len(frame):
        frame["config"] = names.where((served > 1) & names.notna(), frame["setting"]).astype(TEXT)
    return frame


def current(frame: pd.DataFrame) -> pd.DataFrame:
    """The sends that count: a failed one is history once the same cell was measured."""
    done = frame.loc[frame["status"] != "failed", "cell"].dropna()
    return frame[(frame["status"] != "failed") | ~frame["cell"].isin(done)]


def kept(run_dir: Path) -> pd.DataFrame:
    """One row per setting × prompt × KV cache group: the blocks that one send left in the cache.

    Columns: ``resolved`` (the interval that the engine worked with; null where it did not say), ``gid``,
    ``group_kind``, ``block_size`` (tokens), ``blocks`` (count) and ``bytes`` (null where the engine did not say what
    a block costs); setting and prompt columns as in :func:`sends`.
    """
    rows = [
        {
            **row,
            **_setting(row),
            "prompt": _dict(row, "prompt").get("name"),
            "tokens": _dict(row, "prompt").get("tokens"),
            "resolved": _resolved(row),
        }
        for row in _of_kind(run_dir, "kept")
    ]
    return _frame(rows, KEPT_COLUMNS)


def answers(run_dir: Path) -> pd.DataFrame:
    """One row per answer of the equality stage.

    ``arm`` is cold, control, warm or follow_up; ``answer_tokens`` and ``distinct_tokens`` are null where the server
    returned no token ids.
    """
    out: Rows = []
    for row in _of_kind(run_dir, "answer"):
        ids = row.get("token_ids")
        counted = (
            {"answer_tokens": len(ids), "distinct_tokens": len(set(map(str, ids)))} if isinstance(ids, list) else {}
        )
        out.append({**row, **_setting(row), **counted})
    return _frame(out, ANSWER_COLUMNS)


def comparisons(run_dir: Path) -> pd.DataFrame:
    """One row per document × served name × pair of answers.

    ``class`` is identical, whitespace, markup, words or void; ``first_difference`` is a token (or character) position
    and ``margin`` the log-probability distance of the two best tokens there, both null where the answers are equal.
    """
    return _frame(_of_kind(run_dir, "comparison"), COMPARISON_COLUMNS)


def blocks(lookups: Iterable[Any], *, labels: Mapping[str, str] | None = None) -> pd.DataFrame:
    """One row per lookup × KV cache group × block range × state (stored, needed, missing).

    A group that held nothing has one row of state ``nothing``, one that was not scanned ``unknown``, without a range.

    Parameters
    ----------
    lookups : objects as ``prefixscope.trace`` gives them.
    labels : request id → what to call that lookup.

    ``start``/``stop`` are half-open in the group's own blocks; ``start_token``/``stop_token`` put groups of different
    block sizes on one axis. ``limiting`` marks the group that ended the hit.
    """
    out: Rows = []
    for lookup in lookups:
        for view in lookup.groups:
            group = view.group
            base = {
                "request_id": lookup.request_id,
                "send_label": (labels or {}).get(lookup.request_id, lookup.request_id),
                "prompt_tokens": lookup.prompt_tokens,
                "hit_tokens": lookup.hit_tokens,
                "candidate_tokens": lookup.candidate_tokens,
                "gid": group.gid,
                "kind": group.kind,
                "group": group_label(group.kind, group.block_size, group.window, bool(group.drafter)),
                "block_size": group.block_size,
                "limiting": bool(view.limiting),
            }
            known = getattr(view, "known", True)
            states = [
                ("stored", view.cached if known else ()),
                ("needed", _ranges(view.needed)),
                ("missing", _ranges(view.missing)),
            ]
            for state, ranges in states:
                for start, stop in ranges:
                    size = group.block_size
                    span = {"start": start, "stop": stop, "start_token": start * size, "stop_token": stop * size}
                    out.append({**base, "state": state, **span})
            if not states[0][1]:
                out.append({**base, "state": "nothing" if known else "unknown"})
    return _frame(out, BLOCK_COLUMNS)


def repeats(sent: pd.DataFrame) -> dict[str, str]:
    """Request id of each repeat → request id of the cold send it repeats: the last one of its series before it."""
    cold: dict[Any, str] = {}
    found: dict[str, str] = {}
    for row in sent[sent["request_id"].notna()].itertuples():
        if row.send == "cold":
            cold[row.series] = str(row.request_id)
        elif row.send == "repeat" and row.series in cold:
            found[str(row.request_id)] = cold[row.series]
    return found


def groups(headers: Iterable[Any]) -> pd.DataFrame:
    """One row per kind of KV cache group × distinct engine geometry, from trace headers.

    ``groups`` counts the identical ones; ``window_tokens`` is null for full attention, ``bytes_per_block`` where
    unknown.
    """
    out: dict[tuple[Any, ...], dict[str, Any]] = {}
    for header in headers:
        for group in header.groups:
            key = (
                header.version,
                group.kind,
                group.block_size,
                group.window,
                group.layers,
                group.drafter,
                header.scheduler_block,
            )
            row = out.setdefault(
                key,
                {
                    "vllm": header.version,
                    "kind": group.kind,
                    "groups": 0,
                    "layers_each": group.layers,
                    "block_tokens": group.block_size,
                    "window_tokens": group.window,
                    "drafter": group.drafter,
                    "bytes_per_block": group.bytes_per_block,
                    "scheduler_block_tokens": header.scheduler_block,
                    "seen": header,
                },
            )
            row["groups"] += row["seen"] is header
    columns = {
        "vllm": TEXT,
        "kind": TEXT,
        "groups": INT,
        "layers_each": INT,
        "block_tokens": INT,
        "window_tokens": INT,
        "drafter": BOOL,
        "bytes_per_block": INT,
        "scheduler_block_tokens": INT,
    }
    return _frame([{name: row[name] for name in columns} for row in out.values()], columns)


def lookups(found: Iterable[tuple[str, Any, str]]) -> pd.DataFrame:
    """One row per lookup × kind of group that was asked, from (label, lookup, cause); ranges as people read them."""
    from prefixscope.trace import ranges_text

    out: Rows = []
    for label, lookup, cause in found:
        seen = set()
        for view in lookup.groups:
            row = {
                "send": label,
                "hit_tokens": lookup.hit_tokens,
                "cause": cause.replace("_", " "),
                "group": group_label(
                    view.group.kind, view.group.block_size, view.group.window, bool(view.group.drafter)
                ),
                "ends_the_hit": bool(view.limiting),
                "stored_blocks": ranges_text(view.cached),
                "needed_blocks": ranges_text([view.needed]) if view.needed else "not asked",
                "missing_blocks": ranges_text(view.missing),
            }
            if tuple(row.items()) not in seen:
                seen.add(tuple(row.items()))
                out.append(row)
    columns = {
        "send": TEXT,
        "hit_tokens": INT,
        "cause": TEXT,
        "group": TEXT,
        "ends_the_hit": BOOL,
        "stored_blocks": TEXT,
        "needed_blocks": TEXT,
        "missing_blocks": TEXT,
    }
    return _frame(out, columns)


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
    return _frame(out, {"config": TEXT} | dict.fromkeys(("sends", "compared", "agree", "disagree"), INT))


def equality(pairs: pd.DataFrame) -> pd.DataFrame:
    """One row per served name × pair: how many answers are identical, with the 95 % interval of that share."""
    from prefixscope.verdict import wilson

    out: Rows = []
    for (model, pair), part in pairs.groupby(["model", "pair"], sort=False):
        judged = part[part["identical"].notna()]
        same = int(judged["identical"].sum())
        low, high = wilson(same, len(judged))
        out.append(
            {
                "model": model,
                "pair": str(pair).replace("-", " / "),
                "compared": len(judged),
                "identical": same,
                "void": len(part) - len(judged),
                "share_low": low if len(judged) else None,
                "share_high": high if len(judged) else None,
            }
        )
    columns = (
        {"model": TEXT, "pair": TEXT}
        | dict.fromkeys(("compared", "identical", "void"), INT)
        | dict.fromkeys(("share_low", "share_high"), FLOAT)
    )
    return _frame(out, columns)


def servers(run: Mapping[str, Any]) -> pd.DataFrame:
    """One row per server that the run started: setting, command, times (null where it has not got there)."""
    return _frame([{**row, **_setting(row)} for row in _items(run, "servers")], SERVER_COLUMNS)


def timeline(run: Mapping[str, Any]) -> pd.DataFrame:
    """One row per span of time: a stage, a server starting, a server serving.

    ``start_min``/``stop_min`` count minutes from the first span; a span without an end is left out.
    """
    out: Rows = []
    for name, stage in (run.get("stages") or {}).items():
        if isinstance(stage, Mapping) and stage.get("started_at"):
            stop = stage.get("finished_at")
            out.append(
                {
                    "lane": name,
                    "what": "stage",
                    "status": stage.get("status"),
                    "start": stage["started_at"],
                    "stop": stop,
                }
            )
    for row in _items(run, "servers"):
        lane = f"{row.get('id', '?')} {_setting(row)['setting'] or ''}".strip()
        ready = row.get("ready_at")
        out.append(
            {"lane": lane, "what": "starting", "start": row.get("started_at"), "stop": ready or row.get("stopped_at")}
        )
        out.append({"lane": lane, "what": "serving", "start": ready, "stop": row.get("stopped_at")})
    frame = _frame(out, SPAN_COLUMNS)
    frame = frame[frame["start"].notna() & frame["stop"].notna()].copy()
    frame["seconds"] = (frame["stop"] - frame["start"]).dt.total_seconds()
    first = frame["start"].min()
    for column in ("start", "stop"):
        frame[f"{column}_min"] = (frame[column] - first).dt.total_seconds() / 60
    return frame.sort_values(["start", "lane"], kind="stable").reset_index(drop=True)


def hits(frame: pd.DataFrame) -> pd.DataFrame:
    """One row per configuration × prompt length × send: hit length as median, range and count.

    ``rows`` counts all sends, ``count`` those with a reported hit length; ``cached_tokens``, ``cached_min`` and
    ``cached_max`` are null where none was. ``verdict`` is the worst of the sends behind the row.
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
    out: Rows = []
    for values, part in current(frame).groupby(keys, dropna=False, sort=False):
        cached = part["cached_tokens"].dropna()
        total = part["prompt_tokens"].dropna()
        short = part["short_tokens"].dropna()
        out.append(
            {
                **dict(zip(keys, values, strict=True)),
                "rows": len(part),
                "failed": int((part["status"] == "failed").sum()),
                "count": len(cached),
                "prompt_tokens": _median(total),
                "cached_tokens": _median(cached),
                "cached_min": _whole(cached.min()) if len(cached) else None,
                "cached_max": _whole(cached.max()) if len(cached) else None,
                "short_tokens": _median(short),
                "verdict": worst(part["verdict"]),
            }
        )
    columns = {key: SEND_COLUMNS[key] for key in keys}
    columns |= dict.fromkeys(
        ("rows", "failed", "count", "prompt_tokens", "cached_tokens", "cached_min", "cached_max", "short_tokens"), INT
    )
    result = _frame(out, {**columns, "verdict": TEXT})
    result["rank"] = result["send"].map(_SEND_RANK).fillna(9)
    order = ["as_served", "drafter", "lora", "interval_order", "config", "tokens", "rank", "index"]
    return result.sort_values(order, kind="stable").drop(columns="rank").reset_index(drop=True)


def latency(frame: pd.DataFrame) -> pd.DataFrame:
    """One row per configuration × prompt length × send: time to first token in ms as median, range and count.

    Sends that shared the machine with a starting server are left out.
    """
    out: Rows = []
    measured = frame[frame["first_token_ms"].notna() & frame["send"].isin(["cold", "repeat"])]
    measured = measured[~measured["overlapped"].fillna(False)]
    keys = ["config", "drafter", "lora", "interval_order", "tokens", "send_label", "index"]
    for values, part in measured.groupby(keys, dropna=False, sort=False):
        times = part["first_token_ms"]
        out.append(
            {
                **dict(zip(keys, values, strict=True)),
                "count": len(times),
                "median_ms": times.median(),
                "min_ms": times.min(),
                "max_ms": times.max(),
                "cached_tokens": _median(part["cached_tokens"].dropna()),
            }
        )
    columns = {key: SEND_COLUMNS[key] for key in keys} | {"count": INT, "cached_tokens": INT}
    result = _frame(out, columns | dict.fromkeys(("median_ms", "min_ms", "max_ms"), FLOAT))
    return result.sort_values(
        ["drafter", "lora", "interval_order", "config", "tokens", "index"], kind="stable"
    ).reset_index(drop=True)


def sweep(frame: pd.DataFrame, stored: pd.DataFrame) -> pd.DataFrame:
    """One row per retention interval × prompt length of the swept family of settings.

    The family is the one the sweep stage restarted its server in; a cell measured once by another stage counts too.
    ``hit_2`` and ``hit_3`` are the median hits of sends 2 and 3, ``first_2_ms`` the time to first token of send 2,
    ``blocks``/``bytes`` what one prompt left in the cache over all groups; each null where not measured.
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
                    "hit_2": _median(second["cached_tokens"].dropna()),
                    "hit_3": _median(third["cached_tokens"].dropna()),
                    "short_2": _median(second["short_tokens"].dropna()),
                    "first_2_ms": second["first_token_ms"].median(),
                    "failed": int((part["status"] == "failed").sum()),
                    "blocks": _whole(cell["blocks"].sum() / series) if len(cell) else None,
                    "bytes": _whole(cell["bytes"].sum() / series)
                    if len(cell) and cell["bytes"].notna().all()
                    else None,
                }
            )
    columns = {
        "config": TEXT,
        "interval": TEXT,
        "interval_order": FLOAT,
        "tokens": INT,
        "hit_2": INT,
        "hit_3": INT,
        "short_2": INT,
    }
    columns |= {"first_2_ms": FLOAT, "failed": INT, "blocks": INT, "bytes": INT}
    return _frame(out, columns).sort_values(["interval_order", "tokens"], kind="stable").reset_index(drop=True)


def frames_to_csv(run_dir: Path, out_dir: Path) -> list[Path]:
    """Every frame of a run as CSV files in ``out_dir``; answers without their text."""
    out_dir.mkdir(parents=True, exist_ok=True)
    run, sent, stored = load_run(run_dir), sends(run_dir), kept(run_dir)
    tables = {
        "sends": sent,
        "hits": hits(sent),
        "latency": latency(sent),
        "kept": stored,
        "sweep": sweep(sent, stored),
        "answers": answers(run_dir).drop(columns="text"),
        "comparisons": comparisons(run_dir),
        "timeline": timeline(run),
    }
    paths = []
    for name, table in tables.items():
        paths.append(out_dir / f"{name}.csv")
        table.to_csv(paths[-1], index=False)
    return paths


def send_label(send: str, index: int | None) -> str:
    """What a reader calls one send."""
    if send == "cold":
        return "send 1 (cold)"
    if send == "repeat":
        return f"send {index}"
    return {"control": "different text", "new_ending": "new ending", "follow_up": "follow-up turn"}.get(send, send)


def group_label(kind: str, block_size: int, window: int | None, drafter: bool) -> str:
    """What a reader calls one KV cache group: ``sliding · window 1,024 · 32-token blocks``."""
    name = {"sliding_window": "sliding", "full_attention": "full"}.get(kind, kind)
    name = f"{name} · window {window:,}" if window else name
    return f"{name} · {block_size}-token blocks" + (" · drafter" if drafter else "")


_SEND_RANK = {"cold": 0, "repeat": 1, "control": 2, "new_ending": 3, "follow_up": 4}
_WORST = ("none", "short", "not reported", "inconclusive", "cannot hit", "reuses")


def worst(verdicts: Iterable[Any]) -> str | None:
    """The verdict that describes a set of sends: one miss outweighs any number of hits."""
    found = {str(value) for value in verdicts if not pd.isna(value)}
    return next((name for name in _WORST if name in found), None)


def _send_verdict(row: Mapping[str, Any], block: int | None) -> str | None:
    if row.get("status") not in (None, "ok"):
        return "inconclusive"
    cached, total = _whole(row.get("cached_tokens")), _whole(row.get("prompt_tokens"))
    if cached is None or total is None:
        return "not reported"
    if row.get("send") in ("cold", "control"):
        # A first send under its own salt can hit nothing; if it does, the series proves nothing.
        return "inconclusive" if cached else None
    shared = _whole(row.get("shared_tokens"))
    reach = total if shared is None else min(shared, total)
    # A full hit stops up to three scheduler blocks early: rounding down, and one drop in each kind of group.
    allowance = 3 * block if block else max(192, reach // 20)
    if not cached:
        return "cannot hit" if reach <= (3 * block if block else 192) else "none"
    return "reuses" if reach - cached <= allowance else "short"


def _of_kind(run_dir: Path, kind: str) -> Rows:
    return [row for row in read_rows(run_dir)[0] if row.get("kind") == kind]


def _setting(row: Mapping[str, Any]) -> dict[str, Any]:
    setting = _dict(row, "setting")
    interval: Interval = setting.get("interval")
    order = -1.0 if interval is None else float(interval) if isinstance(interval, int) else math.inf
    picked = {key: setting.get(key) for key in ("drafter", "lora", "as_served", "dtype")}
    label = setting.get("label") or "unnamed"
    return {
        **picked,
        "setting": label,
        "setting_id": setting.get("id") or label,
        "interval": interval_label(interval),
        "interval_order": order,
    }


def _resolved(row: Mapping[str, Any]) -> str | None:
    interval = row.get("interval")
    return None if interval is None else interval_label(interval)


def _moment(value: Any) -> Any:
    """A time as pandas reads it; manifests hold ISO text or Unix seconds."""
    return (
        pd.Timestamp(value, unit="s", tz="UTC") if isinstance(value, (int, float)) and math.isfinite(value) else value
    )


def _frame(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> pd.DataFrame:
    convert = {INT: _whole, FLOAT: _real, TEXT: _text, BOOL: _truth, TIME: _moment}
    data: dict[str, Any] = {}
    for name, dtype in columns.items():
        values = [convert[dtype](row.get(name)) for row in rows]
        if dtype == TIME:
            data[name] = _times(values)
        else:
            data[name] = pd.Series(values, dtype=dtype)
    return pd.DataFrame(data, columns=list(columns))


def _times(values: Sequence[Any]) -> pd.Series[Any]:
    return pd.to_datetime(pd.Series(values, dtype="object"), utc=True, errors="coerce", format="ISO8601").astype(TIME)


def _whole(value: Any) -> int | None:
    if value is None or value is pd.NA or isinstance(value, bool):
        return None
    try:
        return int(value) if math.isfinite(float(value)) else None
    except (TypeError, ValueError):
        return None


def _real(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


def _text(value: Any) -> str | None:
    return None if value is None or value is pd.NA else str(value)


def _truth(value: Any) -> bool | None:
    return bool(value) if isinstance(value, bool) or (value is not None and value is not pd.NA) else None


def _median(values: Any) -> int | None:
    return _whole(values.median()) if len(values) else None


def _ranges(value: Any) -> list[tuple[int, int]]:
    if not value:
        return []
    return [tuple(value)] if isinstance(value[0], int) else [tuple(item) for item in value]


def _dict(row: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = row.get(name)
    return value if isinstance(value, dict) else {}


def _items(run: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    value = run.get(name)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
