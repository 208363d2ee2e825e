"""Sends one series after another and writes one row for each send: what baseline, trace and sweep have in common."""

from __future__ import annotations

import secrets
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from prefixscope import prompts
from prefixscope.errors import Rejected, ServerError, Unreachable
from prefixscope.investigation import Investigation
from prefixscope.prompts import Prompt
from prefixscope.runs import Stage
from prefixscope.sender import Sender, new_salt
from prefixscope.series import QUIET, START_S, Series
from prefixscope.setting import Setting, digest


def finished(investigation: Investigation, series: Series) -> list[dict[str, Any]] | None:
    """The rows of a series that some stage has already measured whole, the last time, or None."""
    key = series.key(investigation.target.id)
    attempts: dict[str, dict[tuple[str, int], dict[str, Any]]] = {}
    for row in investigation.run.rows():
        if row.get("kind") == "send" and row.get("series") == key and row.get("status") == "ok":
            attempts.setdefault(row["attempt"], {})[row["send"], row["index"]] = row
    for rows in reversed(attempts.values()):
        if all(cell in rows for cell in series.cells()):
            return [rows[cell] for cell in series.cells()]
    return None


def measure(
    investigation: Investigation,
    stage: Stage,
    plan: Sequence[Series],
    *,
    keep_last: bool = False,
    keep: Collection[Setting] = (),
    then: Setting | None = None,
) -> list[dict[str, Any]]:
    """Measure what of the plan is not measured yet, setting by setting, and return the rows of the whole plan.

    A setting whose server fails gives failed rows with the reason, and the next one is tried. Servers of the settings
    in ``keep``, and with ``keep_last`` the last one, are left running for a later stage. ``then`` is a setting
    that a later stage needs first: its server may start behind the last unmeasured latencies.
    """
    settings = list(dict.fromkeys(series.setting for series in plan))
    missing = {s: [p for p in plan if p.setting == s and finished(investigation, p) is None] for s in settings}
    left = [setting for setting in settings if missing[setting]]
    stage.progress.plan(
        sum(START_S + sum(series.expected_s() for series in missing[setting]) for setting in left),
        sum(len(missing[setting]) for setting in left),
    )
    for position, setting in enumerate(left):
        after = left[position + 1] if position + 1 < len(left) else then
        kept = setting in keep or (keep_last and position + 1 == len(left))
        _measure_setting(investigation, stage, setting, missing[setting], after, keep=kept)
    rows: list[dict[str, Any]] = []
    for series in plan:
        rows += finished(investigation, series) or []
    return rows


def _measure_setting(
    investigation: Investigation,
    stage: Stage,
    setting: Setting,
    missing: Sequence[Series],
    after: Setting | None,
    *,
    keep: bool,
) -> None:
    started, rows_before = time.monotonic(), len(investigation.run.rows(stage.name))
    try:
        with investigation.server(setting, stage, keep=keep) as (client, server_id):
            sender = Sender(investigation, stage, client, server_id, setting)
            open_series = []
            for series in missing:
                if series.role == "lora" and not sender.lora:
                    stage.progress.advance(series.expected_s())
                    if setting.as_served:
                        continue  # an attached server without adapters lacks nothing
                    _fail(investigation, stage, series, server_id, "no LoRA adapter is served under this setting")
                    continue
                if sender.context is not None and series.tokens >= sender.context:
                    why = f"{series.tokens:,} prompt tokens do not fit the served context of {sender.context:,} tokens"
                    stage.warn("too-long", why, f"choose lengths below {sender.context:,}")
                    _fail(investigation, stage, series, server_id, why)
                    continue
                open_series.append(SeriesRun(sender, series))
            for series_run in open_series:
                series_run.send_all(only_quiet=True)
            if after is not None and any(series_run.left for series_run in open_series):
                investigation.start_ahead(after)
                sender.overlapped = True
            for series_run in open_series:
                series_run.send_all(only_quiet=False)
                stage.progress.advance(series_run.series.expected_s())
    except (ServerError, Unreachable) as error:
        stage.failure = error
        stage.outcome = "partial"
        stage.warn("server-failed", f"{setting.label}: {error.what}", error.remedy)
        told = {
            row["series"] for row in investigation.run.rows(stage.name)[rows_before:] if row.get("status") == "failed"
        }
        for series in missing:
            if finished(investigation, series) is None and series.key(investigation.target.id) not in told:
                _fail(investigation, stage, series, "", str(error))
        if isinstance(error, ServerError) and not investigation.run.answered():
            # Nothing of this run has ever worked: the next setting's server would fail in the same way.
            raise
    stage.progress.advance(START_S, steps=0)
    stage.spent(f"measuring {setting.label}", time.monotonic() - started)


class SeriesRun:
    """A series being sent: the prompts it needs, the salt it runs under, what is left."""

    def __init__(self, sender: Sender, series: Series) -> None:
        self.sender, self.series = sender, series
        self.model = sender.model(series.role)
        self.attempt, self.salt = secrets.token_hex(4), new_salt()
        self.left = list(series.cells())
        self._prompt: Prompt | None = None

    @property
    def prompt(self) -> Prompt:
        if self._prompt is None:
            self._prompt = prompts.build(self.sender.count(self.model), self.series.tokens, self.series.seed)
        return self._prompt

    def send_all(self, *, only_quiet: bool) -> None:
        """Send what is left (or only the sends whose latency counts). The first refusal ends the series, with a row."""
        while self.left and (not only_quiet or self.left[0][0] in QUIET):
            send, index = self.left.pop(0)
            self.sender.stage.progress.say(
                f"{self.sender.setting.label}, {self.model}, {self.prompt.name}: {send} {index}"
            )
            try:
                self.sender.discard_first(self.model)
                self._send(send, index)
            except Rejected as error:
                self.left.clear()
                self.sender.stage.outcome = "partial"
                self.sender.stage.append({**self._identity(send, index), "status": "failed", "error": str(error)})
                self.sender.stage.warn("request-refused", f"{self.prompt.name}, {send}: {error.what}", error.remedy)
                if error.status in (401, 403):
                    raise

    def _send(self, send: str, index: int) -> None:
        sender, count = self.sender, self.sender.count(self.model)
        prompt = self.prompt
        salt = self.salt
        shared: int | None = None
        answered: dict[str, Any] = {}
        if send == "control":
            prompt = prompts.control(count, self.prompt)
        elif send == "new_ending":
            prompt = prompts.new_ending(count, self.prompt)
        elif send == "follow_up":
            answer, fields = sender.send(
                self.prompt, model=self.model, salt=salt, max_tokens=16, extra={"return_token_ids": True}
            )
            sender.keep_beside("its answer is what the follow-up turn goes on from", answer, fields)
            prompt = prompts.follow_up(count, self.prompt, answer.text)
            answered = {
                "answered_tokens": answer.prompt_tokens,
                "answer_tokens": answer.completion_tokens,
                "shared_answer_tokens": prompts.shared_answer(self.prompt, answer.token_ids, prompt),
            }
        if prompt is not self.prompt:
            shared = prompts.shared_tokens(self.prompt, prompt)
        completion, fields = sender.send(prompt, model=self.model, salt=salt)
        row = {
            **self._identity(send, index),
            **fields,
            # A follow-up is longer than its series; its length is in prompt_tokens.
            "prompt": {**prompt.to_json(), "tokens": self.series.tokens},
            "shared_tokens": shared,
            **answered,
            "first_token_ms": round(completion.seconds * 1000, 1),
            "overlapped": sender.overlapped,
            "retries": completion.retries,
        }
        sender.stage.append(row)
        doubt(sender.stage, row, self.prompt)

    def _identity(self, send: str, index: int) -> dict[str, Any]:
        key = self.series.key(self.sender.investigation.target.id)
        return {
            "kind": "send",
            "cell": digest([key, send, index]),
            "series": key,
            "attempt": self.attempt,
            "role": self.series.role,
            "setting": self.series.setting.to_json(),
            "server": self.sender.server_id,
            "model": self.model,
            "prompt": self.prompt.to_json(),
            "send": send,
            "index": index,
        }


def doubt(stage: Stage, row: Mapping[str, Any], prompt: Prompt) -> None:
    """Warn of what makes one row less than certain."""
    cached, counted = row["cached_tokens"], row["metrics"]
    where = f"{row['setting']['label']}, {row['model']}, {prompt.name}"
    if cached is None:
        stage.warn(
            "cached-not-reported",
            f"{where}: the answer's usage has no cached_tokens (null is not zero)",
            "ask the engine at its own address: the whole usage is missing"
            if row["prompt_tokens"] is None
            else "start the server with --enable-prompt-tokens-details",
        )
    if row["send"] in ("cold", "control") and cached:
        stage.warn(
            "cold-not-cold",
            f"{where}: the {row['send']} send already hit {cached:,} tokens",
            "the server seems to ignore cache_salt; send through vLLM directly",
        )
    if (
        row["prompt_tokens"] is not None
        and row["prompt_tokens"] != row["prompt"]["tokens"]
        and row["send"] != "follow_up"
    ):
        stage.warn(
            "length-not-exact",
            f"{where}: the server counted {row['prompt_tokens']:,} prompt tokens",
            "lengths are exact where the server offers /tokenize",
        )
    if row["retries"]:
        stage.warn(
            "retried",
            f"{where}, {row['send']} {row['index']}: the server said 429 or 503 {row['retries']} times first",
            "measure when the server is less busy; hits may have been evicted meanwhile",
        )
    if counted is not None and cached is not None and counted["hits"] != cached:
        busy = row["prompt_tokens"] is not None and counted["queries"] > row["prompt_tokens"]
        stage.warn(
            "metrics-disagree",
            f"{where}, {row['send']} {row['index']}: usage says {cached:,} cached tokens, /metrics {counted['hits']:,}"
            + (" (its queries moved by more than this request: other traffic)" if busy else ""),
            "trust usage; measure again when the server is idle" if busy else "keep both numbers in the report",
        )


def _fail(investigation: Investigation, stage: Stage, series: Series, server_id: str, why: str) -> None:
    send, index = series.cells()[0]
    key = series.key(investigation.target.id)
    stage.append(
        {
            "kind": "send",
            "cell": digest([key, send, index]),
            "series": key,
            "attempt": secrets.token_hex(4),
            "role": series.role,
            "setting": series.setting.to_json(),
            "server": server_id,
            "model": "",
            "prompt": {"name": f"{series.tokens:,} tokens", "tokens": series.tokens, "seed": series.seed, "digest": ""},
            "send": send,
            "index": index,
            "status": "failed",
            "error": why,
            "prompt_tokens": None,
            "cached_tokens": None,
            "completion_tokens": None,
            "metrics": None,
        }
    )
    stage.outcome = "partial"
    stage.note = stage.note or why.splitlines()[0]
