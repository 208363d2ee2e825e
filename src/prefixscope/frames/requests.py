"""Frames of the requests that were sent, and what each one says about reuse."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from prefixscope import impossible
from prefixscope.frames.attempts import counted
from prefixscope.frames.columns import BOOL, FLOAT, INT, TEXT, TIME, make_frame, whole
from prefixscope.frames.rows import Rows, dict_in, of_kind, read_rows, scheduler_block, setting_columns
from prefixscope.sent import sent_rows

SEND_COLUMNS = {
    "stage": TEXT, "series": TEXT, "cell": TEXT, "attempt": TEXT, "at": TIME, "setting": TEXT, "setting_id": TEXT,
    "config": TEXT, "role": TEXT,
    "drafter": BOOL, "lora": BOOL, "as_served": BOOL, "dtype": TEXT, "interval": TEXT, "interval_order": FLOAT,
    "server": TEXT, "model": TEXT, "prompt": TEXT, "tokens": INT, "send": TEXT, "index": INT, "send_label": TEXT,
    "request_id": TEXT, "status": TEXT, "error": TEXT, "prompt_tokens": INT, "cached_tokens": INT,
    "shared_tokens": INT, "short_tokens": INT, "completion_tokens": INT, "first_token_ms": FLOAT,
    "overlapped": BOOL, "metrics_queries": INT, "metrics_hits": INT, "metrics_agree": BOOL, "verdict": TEXT,
    "predicted_tokens": INT, "predicted_by": TEXT, "predicted_agrees": BOOL,
}  # fmt: skip

WORST = ("none", "short", "not reported", "inconclusive", "cannot hit", "reuses")
"""Verdicts of single sends, the one that describes a set of them first."""


FULL_HIT_BLOCKS = 3
"""A full hit ends at most so many scheduler blocks before the prompt's end: the unfinished one, which holds the last
token at least, and with a drafter one given up in the full-attention groups and one in the windowed ones."""


def sends(run_dir: Path) -> pd.DataFrame:
    """One row per request of which the hit length was asked for (``sent.sent_rows``), failed ones included.

    Those of a series that was cut short and sent again are not (``attempts``).

    =================  ========  ========================================================================
    column             dtype     meaning; when it is null
    =================  ========  ========================================================================
    setting, config    string    how the server was started; ``config`` adds the model where one served two
    role               string    which served name was asked: base or lora
    interval           string    retention interval as people read it; ``interval_order`` sorts it
    tokens             Int64     prompt length asked for (of the first message, for a follow-up)
    send, index        —         cold 1, repeat 2, 3 …, control, new_ending, follow_up
    send_label         string    ``send 1 (cold)``, ``send 2``, ``different text`` …
    prompt_tokens      Int64     as the server counted; null where it failed or said nothing
    cached_tokens      Int64     the hit length; null where the server does not report it (not zero), and where
                                 its row has no prompt tokens: a hit can't be judged without them
    shared_tokens      Int64     exact common prefix with an earlier send; null where unknown
    short_tokens       Int64     prompt tokens − cached tokens; null where either is
    first_token_ms     float64   time to first token in ms; NaN where not measured
    overlapped         boolean   another server was starting meanwhile, so the time is not comparable
    metrics_agree      boolean   ``/metrics`` counted the same hit; null where it was not read
    predicted_tokens   Int64     the hit by that release's own scheduler; null where it was not asked
    predicted_agrees   boolean   predicted and measured hit are the same; null where either is missing
    verdict            string    reuses · short · none · cannot hit · not reported · inconclusive; null for a
                                 first send that hit nothing, which asks no question
    =================  ========  ========================================================================
    """
    block = scheduler_block(run_dir)
    predicted = {str(row.get("request_id")): row for row in of_kind(run_dir, "predicted")}
    out: Rows = []
    for row in counted(sent_rows(read_rows(run_dir)[0])):
        prompt, metrics = dict_in(row, "prompt"), dict_in(row, "metrics")
        send, index = str(row.get("send")), whole(row.get("index"))
        total, cached = whole(row.get("prompt_tokens")), whole(row.get("cached_tokens"))
        # A hit length is judged against its prompt: where either can't be known, the hit can't be told.
        untold = impossible.taken_out(row, "cached_tokens", "prompt_tokens") or (total is None and cached is not None)
        cached = None if total is None else cached
        queries, hits = whole(metrics.get("queries")), whole(metrics.get("hits"))
        replayed = predicted.get(str(row.get("request_id")), {})
        expected = whole(replayed.get("predicted_tokens"))
        found = {
            **row,
            **setting_columns(row),
            "model": row.get("model") or None,
            "prompt": prompt.get("name"),
            "cached_tokens": cached,
            "tokens": prompt.get("tokens") or total,
            "send_label": send_label(send, index),
            "short_tokens": total - cached if total is not None and cached is not None else None,
            "metrics_queries": queries,
            "metrics_hits": hits,
            "predicted_tokens": expected,
            "predicted_by": replayed.get("release"),
            "predicted_agrees": None if expected is None or cached is None else expected == cached,
            "metrics_agree": None if hits is None or cached is None else hits == cached,
        }
        found["verdict"] = "inconclusive" if untold else _send_verdict(found, block)
        out.append(found)
    frame = make_frame(out, SEND_COLUMNS)
    served = frame.groupby("setting_id")["model"].transform("nunique") if len(frame) else 0
    names = frame["setting"] + " · " + frame["model"]
    if len(frame):
        frame["config"] = names.where((served > 1) & names.notna(), frame["setting"]).astype(TEXT)
    return frame


def current(frame: pd.DataFrame) -> pd.DataFrame:
    """The sends that count: a failed one is history once the same cell was measured."""
    done = frame.loc[frame["status"] != "failed", "cell"].dropna()
    return frame[(frame["status"] != "failed") | ~frame["cell"].isin(done)]


def repeats(sent: pd.DataFrame) -> dict[str, str]:
    """Request id of each repeat → request id of the cold send it repeats: the last one of its series before it."""
    cold: dict[Any, str] = {}
    found: dict[str, str] = {}
    for row in sent[sent["request_id"].notna() & sent["send"].notna()].itertuples():
        if row.send == "cold":
            cold[row.series] = str(row.request_id)
        elif row.send == "repeat" and row.series in cold:
            found[str(row.request_id)] = cold[row.series]
    return found


def send_label(send: str, index: int | None) -> str:
    """What a reader calls one send."""
    if send == "cold":
        return "send 1 (cold)"
    if send == "repeat":
        return f"send {index}"
    return {"control": "different text", "new_ending": "new ending", "follow_up": "follow-up turn"}.get(send, send)


def worst(verdicts: Iterable[Any]) -> str | None:
    """The verdict that describes a set of sends: one miss outweighs any number of hits."""
    found = {str(value) for value in verdicts if not pd.isna(value)}
    return next((name for name in WORST if name in found), None)


def _send_verdict(row: Mapping[str, Any], block: int | None) -> str | None:
    if row.get("status") not in (None, "ok"):
        return "inconclusive"
    cached, total = whole(row.get("cached_tokens")), whole(row.get("prompt_tokens"))
    if cached is None or total is None:
        return "not reported"
    if row.get("send") in ("cold", "control"):
        # A first send under its own salt can hit nothing; if it does, the series proves nothing.
        return "inconclusive" if cached else None
    shared = whole(row.get("shared_tokens"))
    reach = total if shared is None else min(shared, total)
    allowance = FULL_HIT_BLOCKS * block if block else max(192, reach // 20)
    if not cached:
        return "cannot hit" if reach <= (FULL_HIT_BLOCKS * block if block else 192) else "none"
    return "reuses" if reach - cached <= allowance else "short"
