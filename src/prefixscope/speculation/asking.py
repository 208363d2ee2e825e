"""The measuring: which requests are missing, asked on the arms in turns, a row for each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from typing import Any

from prefixscope import frames, metrics, prompts
from prefixscope.client import Client
from prefixscope.errors import Rejected, RunError
from prefixscope.geometry import traced
from prefixscope.headroom import headroom
from prefixscope.investigation import Investigation
from prefixscope.metrics import Drafting
from prefixscope.prompts import Prompt
from prefixscope.runs import Stage
from prefixscope.sender import Sender, new_request_id, new_salt, settle
from prefixscope.series import PREFILL_TOKENS_PER_S, QUIET, REPEATS, START_S
from prefixscope.setting import digest
from prefixscope.speculation.arms import Arm, Item
from prefixscope.stream import stream

STEP_S = 0.04
"""Seconds a decode step of the embedded engine takes on two cores; only progress uses it."""

PROBE_ANSWER = 1


class Work:
    """The measuring itself: which requests are missing, on which arm, in which order."""

    def __init__(
        self,
        investigation: Investigation,
        stage: Stage,
        sides: Sequence[Arm],
        plan: Sequence[Item],
        tokens: int,
        answer_tokens: int,
        seed: int,
        prompt_tokens: int,
    ) -> None:
        self.investigation, self.stage, self.sides, self.plan = investigation, stage, sides, plan
        self.tokens, self.answer_tokens, self.seed, self.prompt_tokens = tokens, answer_tokens, seed, prompt_tokens
        self.prompts: dict[tuple[str, int], Prompt] = {}
        self.together = len(sides) > 1 and investigation.side_by_side

    def measure(self) -> None:
        """Ask what is missing; the arms take turns, request by request, where two servers run at once."""
        done = {r.get("cell") for r in self.investigation.run.rows("speculation") if r.get("status") == "ok"}
        missing = {arm.name: [one for one in self.plan if self.cell(arm, one) not in done] for arm in self.sides}
        # One server alone has no trade to weigh, and a long prompt less to compute.
        probes = {arm.name: len(self.sides) > 1 and not self.probed(arm) for arm in self.sides}
        wanted = [arm for arm in self.sides if missing[arm.name] or probes[arm.name]]
        expected = self.tokens / PREFILL_TOKENS_PER_S + self.answer_tokens * STEP_S + 0.1
        resend = len(REPEATS) * (self.prompt_tokens / PREFILL_TOKENS_PER_S + 0.1)
        steps, resends = sum(map(len, missing.values())), sum(probes.values())
        self.stage.progress.plan(
            len(wanted) * START_S + steps * expected + resends * resend, steps + resends * len(REPEATS)
        )
        groups = [wanted] if self.together else [[arm] for arm in wanted]
        for group in groups:
            with ExitStack() as stack:
                for arm in group[1:]:
                    self.investigation.start_ahead(arm.setting)
                asked = [stack.enter_context(self.connected(arm)) for arm in group]
                self.stage.progress.advance(len(group) * START_S, steps=0)
                for place, item in enumerate(self.plan):
                    # A-B, B-A, A-B: whatever drifts meanwhile falls on both.
                    for arm, sender in asked if place % 2 == 0 else asked[::-1]:
                        if item in missing[arm.name]:
                            self.ask(arm, sender, item)
                            self.stage.progress.advance(expected)
                for arm, sender in asked:
                    if probes[arm.name]:
                        self.probe(arm, sender)
                        self.stage.progress.advance(resend, steps=len(REPEATS))

    @contextmanager
    def connected(self, arm: Arm) -> Iterator[tuple[Arm, Sender]]:
        """A warmed server of this arm, its headroom noted."""
        if arm.url and arm.url != self.investigation.target.url:
            key_env = self.investigation.target.key_env
            with Client(arm.url, key_env=key_env, told=self.stage.progress.say) as client:
                yield arm, self.sender(arm, client, f"attached {arm.name}")
            return
        with self.investigation.server(arm.setting, self.stage) as (client, server_id):
            yield arm, self.sender(arm, client, server_id)

    def sender(self, arm: Arm, client: Client, server_id: str) -> Sender:
        sender = Sender(self.investigation, self.stage, client, server_id, arm.setting)
        longest = self.tokens + self.answer_tokens
        if sender.context is not None and longest > sender.context:
            raise RunError(
                f"{arm.label}: {longest:,} tokens do not fit the served context of {sender.context:,}",
                remedy=f"-p speculation.tokens={max(1, sender.context // 2)}",
            )
        sender.discard_first(sender.base)
        known = headroom(client.metrics(), self.header(arm))
        row = {"kind": "headroom", **self.side(arm), "setting": arm.setting.to_json(), **asdict(known)}
        self.stage.append(row)
        return sender

    def header(self, arm: Arm) -> Any:
        """What the tracer inside this arm's engine said of its groups; None where none was traced."""
        known = [
            head
            for head in traced(self.investigation.path).headers
            if (head.spec_method is None) != arm.setting.drafter
        ]
        return None if arm.url or not known else known[-1]

    # --- one request ---------------------------------------------------------------------------------------------

    def ask(self, arm: Arm, sender: Sender, item: Item) -> None:
        """Stream one answer and write its row."""
        prompt = self.prompt(sender, item)
        self.stage.progress.say(f"{arm.label}, {item.shape} {item.document + 1}, time {item.repeat + 1}")
        row = {
            "kind": "generation", "cell": self.cell(arm, item), **self.side(arm), "shape": item.shape,
            "document": item.document + 1, "repeat": item.repeat + 1,
            "setting": arm.setting.to_json(), "server": sender.server_id, "model": sender.base,
            "prompt": prompt.to_json(), "answer_tokens": self.answer_tokens, "interleaved": self.together,
        }  # fmt: skip
        try:
            self.stage.append({**row, **self.streamed(sender, prompt)})
        except Rejected as error:
            self.stage.outcome = "partial"
            self.stage.append({**row, "status": "failed", "error": str(error)})
            self.stage.warn("request-refused", f"{arm.label}, {item.shape}: {error.what}", error.remedy)
            if error.status in (401, 403):
                raise

    def prompt(self, sender: Sender, item: Item) -> Prompt:
        """The same text for every arm, even where their tokenizers part."""
        key = item.shape, item.document
        if key not in self.prompts:
            count = sender.count(sender.base)
            if item.messages:
                self.prompts[key] = prompts.given(count, item.messages, f"{item.shape} {item.document + 1}")
            else:
                self.prompts[key] = prompts.shaped(count, item.shape, self.tokens, self.seed + item.document)
        return self.prompts[key]

    def streamed(self, sender: Sender, prompt: Prompt) -> dict[str, Any]:
        before = metrics.drafting(sender.client.metrics())
        found = stream(
            sender.client,
            prompt.messages,
            model=sender.base,
            max_tokens=self.answer_tokens,
            salt=new_salt(),
            request_id=new_request_id(),
            extra={"return_token_ids": True},
            expected_tokens=prompt.tokens,
        )
        counted = settle(
            lambda: metrics.drafting(sender.client.metrics()).since(before),
            lambda delta: delta.generated is None or delta.generated >= (found.completion_tokens or 0),
        )
        return {
            "request_id": found.request_id,
            "status": "ok",
            "error": None,
            "prompt_tokens": found.prompt_tokens,
            "cached_tokens": found.cached_tokens,
            "completion_tokens": found.completion_tokens,
            "finish_reason": found.finish_reason,
            "chunks": found.chunks,
            "chunk_tokens": found.chunk_tokens,
            "arrivals_ms": [round(at * 1000, 2) for at in found.arrivals_s],
            "seconds": round(found.seconds, 4),
            "retries": found.retries,
            "per_request": None if found.drafting is None else asdict(found.drafting),
            "counters": None if counted == Drafting() else asdict(counted),
            "disturbed": moved_by_others(counted, found.prompt_tokens, found.completion_tokens),
            "text": found.text,
            "token_ids": found.token_ids,
        }

    # --- what a hit saves ----------------------------------------------------------------------------------------

    def probe(self, arm: Arm, sender: Sender) -> None:
        """The long prompt cold, again, and once more; first, what another stage has measured on this arm is taken."""
        rows = [] if arm.url else measured_elsewhere(self.investigation, arm)
        known = {row.get("request_id") for row in self.resends(arm)}
        for row in rows:
            if row["request_id"] not in known:
                self.stage.append({"kind": "resend", **self.side(arm), **row})
        if any(row["tokens"] == self.prompt_tokens for row in rows):
            return
        if sender.context is not None and self.prompt_tokens + PROBE_ANSWER > sender.context:
            self.stage.warn(
                "too-long",
                f"{arm.label}: a prompt of {self.prompt_tokens:,} tokens does not fit the served context of "
                f"{sender.context:,}, so what hits save is not measured",
                f"-p 'speculation.load=[{sender.context // 2}, 200, 0.7]'",
            )
            return
        prompt = prompts.build(sender.count(sender.base), self.prompt_tokens, self.seed)
        salt = new_salt()
        series = {"series": digest(["resend", self.side(arm)["side"], self.prompt_tokens]), "attempt": salt[-8:]}
        sender.catch_up()
        for index, send in enumerate(REPEATS, start=1):
            self.stage.progress.say(f"{arm.label}, {prompt.name}: {send} {index}")
            completion, fields = sender.send(prompt, model=sender.base, salt=salt, max_tokens=PROBE_ANSWER)
            first_ms = round(completion.seconds * 1000, 1)
            told = {"tokens": self.prompt_tokens, "send": send, "index": index, "first_token_ms": first_ms}
            self.stage.append({"kind": "resend", **self.side(arm), **series, **fields, **told})

    def probed(self, arm: Arm) -> bool:
        """Whether the long prompt's sends are all there, or were taken from another stage."""
        own = [row for row in self.resends(arm) if row["tokens"] == self.prompt_tokens]
        sent = Counter(row.get("attempt") for row in own)
        return any(row.get("taken_from") for row in own) or any(many >= len(REPEATS) for many in sent.values())

    def resends(self, arm: Arm) -> list[dict[str, Any]]:
        """What is known of this arm's resends."""
        rows, side = self.investigation.run.rows("speculation"), self.side(arm)["side"]
        return [row for row in rows if row.get("kind") == "resend" and row["side"] == side]

    def side(self, arm: Arm) -> dict[str, str]:
        """Which arm a row is of; ``side`` also tells one address from another."""
        return {"arm": arm.name, "label": arm.label, "side": digest([arm.setting.id, arm.url], 8)}

    def cell(self, arm: Arm, item: Item) -> str:
        drawn = [self.tokens, self.seed + item.document]
        text = [list(item.messages)] if item.messages else drawn
        what = [item.shape, *text, self.answer_tokens, item.repeat]
        return digest(["generation", self.investigation.target.id, self.side(arm)["side"], *what])


def moved_by_others(counted: Drafting, prompt_tokens: int | None, completion_tokens: int | None) -> bool | None:
    """Whether the counters moved by more than this request; None where nobody can tell."""
    pairs = ((counted.generated, completion_tokens), (counted.prompted, prompt_tokens))
    known = [added > own for added, own in pairs if added is not None and own is not None]
    return any(known) if known else None


def measured_elsewhere(investigation: Investigation, arm: Arm) -> list[dict[str, Any]]:
    """First sends and repeats of the base model that another stage measured on this arm's setting, without company."""
    names = ("request_id", "prompt_tokens", "cached_tokens", "send", "index", "first_token_ms")
    return [
        {**{name: row.get(name) for name in names}, "tokens": row["prompt"]["tokens"], "taken_from": row["stage"]}
        for row in frames.counted(investigation.run.rows())
        if row.get("kind") == "send" and row.get("status") == "ok" and row.get("role") == "base"
        and row["setting"]["id"] == arm.setting.id and row["send"] in QUIET and not row.get("overlapped")
    ]  # fmt: skip
