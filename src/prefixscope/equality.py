"""Do warm answers equal cold ones? Each document asked cold, cold again under another salt, warm, and one turn on."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pandas as pd

from prefixscope import asked, frames, prompts, sweep
from prefixscope.errors import Rejected, RunError, ServerError, Unreachable
from prefixscope.geometry import default_header, legal_interval
from prefixscope.investigation import Investigation
from prefixscope.quantities import wilson
from prefixscope.runs import Stage
from prefixscope.sender import Sender, new_salt
from prefixscope.series import PREFILL_TOKENS_PER_S, START_S
from prefixscope.setting import Setting, digest

__all__ = ["compare", "difference", "run", "wilson"]

ARMS = ("cold", "control", "warm", "follow_up")
_MARKUP = re.compile(r"[*_`#>~\-]")


def run(
    investigation: Investigation,
    *,
    documents: int = 10,
    tokens: int = 2_400,
    answer_tokens: int = 32,
    workaround: int = 1024,
    seed: int = 100,
    dtype: str = "float32",
) -> pd.DataFrame:
    """Ask each document four times under each served name and compare the answers; return ``frames.comparisons``.

    Parameters
    ----------
    documents, tokens : how many documents, and how many prompt tokens each.
    answer_tokens : tokens answered, greedily.
    workaround : retention interval of the server; at a release's broken default nothing would be warm.
    dtype : of the embedded engine. In ``bfloat16`` near ties flip, between two cold sends too.

    The control (cold again, under another salt) is what any difference is held against: answers that differ between
    two cold sends can't be blamed on the cache.
    """
    counts = {"documents": documents, "tokens": tokens, "answer_tokens": answer_tokens}
    asked.check("equality", {**counts, "workaround": workaround, "seed": seed, "dtype": dtype})
    with investigation.stage(
        "equality",
        documents=documents,
        tokens=tokens,
        answer_tokens=answer_tokens,
        workaround=workaround,
        seed=seed,
        dtype=dtype,
    ) as stage:
        setting = _setting(investigation, workaround, dtype)
        done = answered(investigation)
        roles = ("base", "lora") if investigation.serves_adapter else ("base",)
        plan = [(n, role) for role in roles for n in range(documents)]

        def key(number: int, role: str) -> str:
            return series_key(investigation, setting, role, tokens, seed + number, answer_tokens)

        missing = [(n, role) for n, role in plan if len(done.get(key(n, role), {})) < len(ARMS)]
        if missing:
            expected = 3 * tokens / PREFILL_TOKENS_PER_S + 4 * answer_tokens * 0.03
            stage.progress.plan(START_S + expected * len(missing), len(missing))
            try:
                with investigation.server(setting, stage) as (client, server_id):
                    sender = Sender(investigation, stage, client, server_id, setting)
                    stage.progress.advance(START_S, steps=0)
                    if sender.context is not None and tokens + answer_tokens >= sender.context:
                        raise RunError(
                            f"documents of {tokens:,} tokens do not fit the served context of {sender.context:,}",
                            remedy=f"-p equality.tokens={max(1, sender.context // 2)}",
                        )
                    ahead = sweep.first_unmeasured(investigation)
                    if ahead is not None:
                        # No latency is reported here, so the sweep's first server may start meanwhile.
                        investigation.start_ahead(ahead)
                    for n, role in missing:
                        if role == "lora" and not sender.lora:
                            stage.progress.advance(expected)
                            continue
                        ask(
                            sender,
                            stage,
                            n,
                            role,
                            key(n, role),
                            tokens=tokens,
                            seed=seed + n,
                            answer_tokens=answer_tokens,
                        )
                        stage.progress.advance(expected)
            except (ServerError, Unreachable) as error:
                stage.failure = error
                stage.outcome = "partial"
                stage.warn("server-failed", f"{setting.label}: {error.what}", error.remedy)
        compare(investigation, stage)
    return frames.comparisons(investigation.path)


def _setting(investigation: Investigation, workaround: int, dtype: str) -> Setting:
    """The server whose warm sends hit: drafter and adapter where the target has them, and then the interval set."""
    target = investigation.target
    if dtype != "float32" and target.kind != "embedded":
        raise RunError(f"dtype {dtype!r} is for the embedded engine; {target.label} has its own")
    if target.kind == "attached":
        return Setting(as_served=True)
    drafter, lora = target.offers()
    interval = legal_interval(default_header(investigation), workaround) if drafter else None
    return Setting(drafter=drafter, lora=lora, interval=interval, dtype=dtype)


def series_key(
    investigation: Investigation, setting: Setting, role: str, tokens: int, seed: int, answer_tokens: int
) -> str:
    return digest(["answers", investigation.target.id, setting.id, role, tokens, seed, answer_tokens])


def answered(investigation: Investigation) -> dict[str, dict[str, dict[str, Any]]]:
    """Answers by series and arm; of several attempts the last whole one."""
    attempts: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for row in investigation.run.rows("equality"):
        if row.get("kind") == "answer" and row.get("status") == "ok":
            attempts.setdefault((row["series"], row["attempt"]), {})[row["arm"]] = row
    return {series: arms for (series, _), arms in attempts.items() if len(arms) == len(ARMS)}


def ask(
    sender: Sender, stage: Stage, number: int, role: str, series: str, *, tokens: int, seed: int, answer_tokens: int
) -> None:
    """One document under one name: cold, control, warm, follow-up."""
    model = sender.model(role)
    count = sender.count(model)
    sender.discard_first(model)
    document = prompts.document(count, tokens, seed)
    salt, attempt = new_salt(), new_salt()[-8:]
    answer = ""
    for arm in ARMS:
        stage.progress.say(f"{model}, document {number + 1}: {arm.replace('_', ' ')}")
        prompt = prompts.follow_up(count, document, answer) if arm == "follow_up" else document
        identity = {
            "kind": "answer",
            "series": series,
            "attempt": attempt,
            "role": role,
            "document": f"document {number + 1}",
            "arm": arm,
        }
        try:
            completion, fields = sender.send(
                prompt,
                model=model,
                salt=new_salt() if arm == "control" else salt,
                max_tokens=answer_tokens,
                logprobs=True,
                extra={"return_token_ids": True},
            )
        except Rejected as error:
            stage.outcome = "partial"
            stage.append(
                {
                    **identity,
                    "setting": sender.setting.to_json(),
                    "model": model,
                    "status": "failed",
                    "error": str(error),
                }
            )
            stage.warn("request-refused", f"{model}, document {number + 1}, {arm}: {error.what}", error.remedy)
            return
        if arm == "warm" and completion.cached_tokens == 0:
            # Some servers recover on the third send only; an answer with no hit would prove nothing.
            sender.keep_beside("a second send without a hit, so the third one is the warm answer", completion, fields)
            completion, fields = sender.send(
                prompt,
                model=model,
                salt=salt,
                max_tokens=answer_tokens,
                logprobs=True,
                extra={"return_token_ids": True},
            )
        answer = completion.text
        stage.append(
            {
                **identity,
                **fields,
                "text": completion.text,
                "token_ids": completion.token_ids,
                "logprobs": _rounded(completion.logprobs),
                "margins": _rounded(completion.margins),
            }
        )


def compare(investigation: Investigation, stage: Stage) -> None:
    """Write the comparisons that are not written yet."""
    known = {
        (r["series"], r["attempt"], r["pair"])
        for r in investigation.run.rows("equality")
        if r.get("kind") == "comparison"
    }
    for series, arms in answered(investigation).items():
        for pair in (("cold", "control"), ("cold", "warm")):
            name = "-".join(pair)
            if (series, arms["cold"]["attempt"], name) in known:
                continue
            result = difference(arms[pair[0]], arms[pair[1]])
            if name == "cold-warm" and not arms["warm"]["cached_tokens"]:
                # Nothing came from the cache, or nobody knows: equal answers would prove nothing.
                result = {**result, "identical": None, "class": "void"}
            stage.append(
                {
                    "kind": "comparison",
                    "series": series,
                    "attempt": arms["cold"]["attempt"],
                    "document": arms["cold"]["document"],
                    "model": arms["cold"]["model"],
                    "setting": arms["cold"]["setting"],
                    "pair": name,
                    "cached_tokens": arms[pair[1]]["cached_tokens"],
                    "prompt_tokens": arms[pair[1]]["prompt_tokens"],
                    "distinct_tokens": len(set(arms["cold"]["token_ids"] or arms["cold"]["text"])),
                    **result,
                }
            )


def difference(left: dict[str, Any], right: dict[str, Any]) -> dict[str, Any]:
    """How two answers differ: by token ids where both have them, else by text.

    ``margin`` is the log-probability of the best token minus the second best where they part, in the left answer,
    nats: a small one says that two near-equal tokens changed places.
    """
    by_ids = left["token_ids"] is not None and right["token_ids"] is not None
    a, b = (left["token_ids"], right["token_ids"]) if by_ids else (left["text"], right["text"])
    by = "token ids" if by_ids else "text"
    if a == b:
        return {"identical": True, "by": by, "first_difference": None, "margin": None, "class": "identical"}
    first = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    margins = left.get("margins")
    margin = margins[first] if by_ids and margins and first < len(margins) else None
    texts = left["text"], right["text"]
    if texts[0] == texts[1] or "\ufffd" in "".join(texts):
        kind = "words"  # a replacement character hides which bytes differ: not known to be mere form
    elif "".join(texts[0].split()) == "".join(texts[1].split()):
        kind = "whitespace"
    elif _plain(texts[0]) == _plain(texts[1]):
        kind = "markup"
    else:
        kind = "words"
    return {"identical": False, "by": by, "first_difference": first, "margin": margin, "class": kind}


def _plain(text: str) -> str:
    return "".join(_MARKUP.sub("", text).split())


def _rounded(values: Sequence[float] | None) -> list[float] | None:
    return None if values is None else [round(value, 5) for value in values]
