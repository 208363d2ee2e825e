"""What does speculative decoding buy? The same prompts streamed from a server with the drafter and from one without.

Each prompt (a *shape* and a document number) is asked ``repeats`` times on each *arm* under a salt of its own, the arms
taking turns: one repeat against the other on one arm is that arm's own noise, one arm against the other is the drafter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any

import pandas as pd

from prefixscope import frames, metrics, prompts
from prefixscope.client import Client
from prefixscope.equality import difference
from prefixscope.errors import Rejected, RunError, ServerError, Unreachable
from prefixscope.geometry import traced
from prefixscope.headroom import headroom
from prefixscope.investigation import Investigation
from prefixscope.measure import (
    PREFILL_TOKENS_PER_S,
    QUIET,
    REPEATS,
    START_S,
    Sender,
    new_request_id,
    new_salt,
    settle,
)
from prefixscope.metrics import Drafting
from prefixscope.prompts import SHAPES, Prompt
from prefixscope.runs import Stage
from prefixscope.setting import Setting, digest
from prefixscope.stream import stream

STEP_S = 0.04
"""Seconds a decode step of the embedded engine takes on two cores; only progress uses it."""

PROBE_ANSWER = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One side of a comparison. ``url`` is set for a server that runs already."""

    name: str
    label: str
    setting: Setting
    url: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One request: which prompt, and the how-manieth time."""

    shape: str
    document: int
    repeat: int


def arms(investigation: Investigation, other: str = "") -> tuple[Arm, ...]:
    """The sides to compare: drafter on and off where the target restarts; else the server that is served, and another.

    Raises
    ------
    RunError
        for a second address where the target's own servers are compared.
    """
    target = investigation.target
    if target.kind == "attached":
        served = Setting(as_served=True)
        first = Arm(name="A", label="server A" if other else "as served", setting=served, url=target.url)
        return (first, Arm(name="B", label="server B", setting=served, url=other)) if other else (first,)
    if other:
        raise RunError(
            f"speculation.other={other!r} goes with an attached server; {target.label} is compared with itself",
            remedy="prefixscope run --url http://first:8000 --only speculation -p speculation.other=http://second:8000",
        )
    plain = Arm(name="B", label=Setting(drafter=False).label, setting=Setting(drafter=False))
    if not target.offers()[0]:
        return (replace(plain, name="A"),)
    return (Arm(name="A", label=Setting().label, setting=Setting()), plain)


def run(
    investigation: Investigation,
    *,
    shapes: Sequence[str] = tuple(SHAPES),
    documents: int = 2,
    repeats: int = 2,
    tokens: int = 512,
    answer_tokens: int = 32,
    seed: int = 200,
    prompt_tokens: int = 6_446,
    other: str = "",
) -> pd.DataFrame:
    """Stream every prompt from each arm and return ``frames.generations``.

    Parameters
    ----------
    shapes, documents : which of ``prompts.SHAPES``, and how many prompts of each.
    repeats : how often each prompt is asked on each arm; two or more show an arm's own noise.
    tokens, answer_tokens : prompt tokens of each, and tokens answered, greedily.
    prompt_tokens : a prompt of this length is resent on each arm, for what hits save; 0 leaves that out.
    other : address of a second server to compare an attached one with.
    """
    unknown = [shape for shape in shapes if shape not in SHAPES]
    if unknown or not shapes:
        raise RunError(f"unknown prompt shape {(unknown or [''])[0]!r}", remedy=f"use some of {', '.join(SHAPES)}")
    for name, value in (("documents", documents), ("repeats", repeats), ("tokens", tokens)):
        if value < 1:
            raise RunError(f"speculation.{name}={value}: give a positive number")
    if answer_tokens < 2:
        raise RunError(f"speculation.answer_tokens={answer_tokens}: a rate takes two tokens or more")
    sides = arms(investigation, other)
    given = {"shapes": list(shapes), "documents": documents, "repeats": repeats, "tokens": tokens}
    given |= {"answer_tokens": answer_tokens, "seed": seed, "prompt_tokens": prompt_tokens}
    with investigation.stage("speculation", **given) as stage:
        if investigation.target.kind == "sample" and not investigation.run.rows("speculation"):
            stage.outcome, stage.note = "skipped", "the recorded sample was made before this notebook"
            stage.warn(
                "no-speculation", "the recorded sample holds no row of this stage", "prefixscope run --only speculation"
            )
            return frames.generations(investigation.path)
        plan = [Item(shape=s, document=d, repeat=k) for d, k, s in product(range(documents), range(repeats), shapes)]
        work = Work(investigation, stage, sides, plan, tokens, answer_tokens, seed, prompt_tokens)
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
        probes = {arm.name: self.prompt_tokens > 0 and not self.probed(arm) for arm in self.sides}
        wanted = [arm for arm in self.sides if missing[arm.name] or probes[arm.name]]
        expected = self.tokens / PREFILL_TOKENS_PER_S + self.answer_tokens * STEP_S + 0.1
        steps = sum(map(len, missing.values()))
        self.stage.progress.plan(len(wanted) * START_S + steps * expected, steps)
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

    @contextmanager
    def connected(self, arm: Arm) -> Iterator[tuple[Arm, Sender]]:
        """A warmed server of this arm, its headroom noted."""
        if arm.url and arm.url != self.investigation.target.url:
            with Client(arm.url, key_env=self.investigation.target.key_env) as client:
                yield arm, self.sender(arm, client, f"attached {arm.name}")
            return
        with self.investigation.server(arm.setting, self.stage) as (client, server_id):
            yield arm, self.sender(arm, client, server_id)

    def sender(self, arm: Arm, client: Client, server_id: str) -> Sender:
        sender = Sender(self.investigation, self.stage, client, server_id, arm.setting)
        longest = max(self.tokens + self.answer_tokens, self.prompt_tokens + PROBE_ANSWER)
        if sender.context is not None and longest > sender.context:
            raise RunError(
                f"{longest:,} tokens do not fit the context of {sender.context:,} that {arm.label} serves",
                remedy=f"-p speculation.prompt_tokens={sender.context // 2}",
            )
        sender.discard_first(sender.base)
        known = headroom(client.metrics(), self.header(arm))
        row = {"kind": "headroom", **self.side(arm), "setting": arm.setting.to_json(), **asdict(known)}
        self.stage.append(row)
        return sender

    def header(self, arm: Arm) -> Any:
        """What the tracer inside this arm's engine said of its groups; None where none was traced."""
        known = [head for head in traced(self.investigation.path).headers if (head.spec_method is None) != arm.setting.drafter]
        return None if arm.url or not known else known[-1]

    # --- one request ---------------------------------------------------------------------------------------------

    def ask(self, arm: Arm, sender: Sender, item: Item) -> None:
        """Stream one answer and write its row."""
        prompt = self.prompt(sender, item)
        self.stage.progress.say(f"{arm.label}, {item.shape} {item.document + 1}, time {item.repeat + 1}")
        row = {
            "kind": "generation", "cell": self.cell(arm, item), **self.side(arm), **asdict(item),
            "document": item.document + 1, "repeat": item.repeat + 1,
            "setting": arm.setting.to_json(), "server": sender.server_id, "model": sender.base,
            "prompt": prompt.to_json(), "interleaved": self.together,
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
        for row in rows:
            self.stage.append({"kind": "resend", **self.side(arm), **row})
        if any(row["tokens"] == self.prompt_tokens for row in rows):
            return
        prompt = prompts.build(sender.count(sender.base), self.prompt_tokens, self.seed)
        salt = new_salt()
        for index, send in enumerate(REPEATS, start=1):
            self.stage.progress.say(f"{arm.label}, {prompt.name}: {send} {index}")
            completion, fields = sender.send(prompt, model=sender.base, salt=salt, max_tokens=PROBE_ANSWER)
            first_ms = round(completion.seconds * 1000, 1)
            told = {"tokens": self.prompt_tokens, "send": send, "index": index, "first_token_ms": first_ms}
            self.stage.append({"kind": "resend", **self.side(arm), **fields, **told})

    def probed(self, arm: Arm) -> bool:
        return any(
            row.get("kind") == "resend" and row["side"] == self.side(arm)["side"] and row["tokens"] == self.prompt_tokens
            for row in self.investigation.run.rows("speculation")
        )

    def side(self, arm: Arm) -> dict[str, str]:
        """Which arm a row is of; ``side`` also tells one address from another."""
        return {"arm": arm.name, "label": arm.label, "side": digest([arm.setting.id, arm.url], 8)}

    def cell(self, arm: Arm, item: Item) -> str:
        what = [item.shape, self.tokens, self.seed + item.document, self.answer_tokens, item.repeat]
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
        for row in investigation.run.rows()
        if row.get("kind") == "send" and row.get("status") == "ok" and row.get("role") == "base"
        and row["setting"]["id"] == arm.setting.id and row["send"] in QUIET and not row.get("overlapped")
    ]  # fmt: skip


def compare(investigation: Investigation, stage: Stage) -> None:
    """Write how the answers to each prompt differ: each arm against itself, and one arm against the other."""
    rows = [row for row in investigation.run.rows("speculation") if row.get("kind") in ("generation", "pair")]
    known = {row["pair_id"] for row in rows if row["kind"] == "pair"}
    answers: dict[tuple[Any, ...], dict[tuple[str, int], dict[str, Any]]] = {}
    for row in rows:
        if row["kind"] == "generation" and row["status"] == "ok":
            item = (row["shape"], row["document"], row["prompt"]["digest"], row["prompt"]["tokens"])
            answers.setdefault(item, {})[row["arm"], row["repeat"]] = row
    for (shape, document, *_), asked in answers.items():
        pairs = [("A / A", ("A", 1), ("A", 2)), ("B / B", ("B", 1), ("B", 2)), ("A / B", ("A", 1), ("B", 1))]
        for pair, left, right in pairs:
            if left not in asked or right not in asked:
                continue
            pair_id = digest([pair, asked[left]["cell"], asked[right]["cell"]])
            if pair_id not in known:
                told = {"kind": "pair", "pair_id": pair_id, "pair": pair, "shape": shape, "document": document}
                found = difference({**asked[left], "margins": None}, {**asked[right], "margins": None})
                stage.append({**told, **found})


def doubts(investigation: Investigation, stage: Stage) -> None:
    """One warning for each way in which the rows of an arm are less than certain."""
    table = frames.generations(investigation.path)
    for label, part in table[table["status"] == "ok"].groupby("label", sort=False):
        moved, apart = int(part["disturbed"].fillna(False).sum()), int((~part["agree"].fillna(True)).sum())
        if moved:
            stage.warn(
                "counters-moved-by-others",
                f"{label}: during {moved} of {len(part)} requests the counters moved by more than the request; what "
                "they say of those is not used",
                "measure when nobody else asks this server, or start it with --per-request-spec-decode-metrics detailed",
            )
        if apart:
            stage.warn(
                "sources-disagree",
                f"{label}: in {apart} of {len(part)} requests the answer's own speculative metrics are not what the "
                "server's counters say",
                "trust the answer's own",
            )
        if part["completion_tokens"].isna().any():
            stage.warn(
                "no-usage",
                f"{label}: {int(part['completion_tokens'].isna().sum())} streams ended without usage, so tokens are not known",
                "ask vLLM directly: it sends usage at the end of a stream when asked",
            )
