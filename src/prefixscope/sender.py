"""One server, asked one request at a time: its first request discarded, its counters read around each of the others."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from prefixscope import metrics, prompts
from prefixscope.client import Client
from prefixscope.completion import Completion
from prefixscope.investigation import Investigation
from prefixscope.preflight import choose_model
from prefixscope.prompts import Prompt
from prefixscope.runs import Stage
from prefixscope.setting import Setting

DISCARD_TOKENS = 256

Read = TypeVar("Read")


class Sender:
    """One server, asked one request at a time."""

    def __init__(
        self, investigation: Investigation, stage: Stage, client: Client, server_id: str, setting: Setting
    ) -> None:
        self.investigation, self.stage, self.client = investigation, stage, client
        self.server_id, self.setting = server_id, setting
        self.base, self.lora = choose_model(client, investigation.target.model)
        self.context = next((m.max_model_len for m in client.models() if m.max_model_len), None)
        self.overlapped = False
        self._discarded: set[str] = set()
        self.catch_up()

    def model(self, role: str) -> str:
        return self.lora if role == "lora" and self.lora else self.base

    def count(self, model: str) -> prompts.Count:
        return lambda messages: self.client.tokenize(messages, model)

    def discard_first(self, model: str) -> None:
        """The first request of a server and of each adapter pays for warming up: sent, recorded, never reported."""
        if model in self._discarded:
            return
        self._discarded.add(model)
        prompt = prompts.build(self.count(model), DISCARD_TOKENS, 0)
        completion = self.client.chat(
            prompt.messages,
            model=model,
            max_tokens=4,
            salt=new_salt(),
            request_id=new_request_id(),
            expected_tokens=DISCARD_TOKENS,
        )
        self.stage.append(
            {"kind": "discarded", "setting": self.setting.to_json(), "server": self.server_id, "model": model,
             "prompt_tokens": completion.prompt_tokens, "seconds": round(completion.seconds, 3)}
        )  # fmt: skip
        self.catch_up()

    def catch_up(self) -> None:
        """Count from now on: what was asked without this sender meanwhile is nobody's hit."""
        self._counters = metrics.counters(self.client.metrics())

    def send(
        self,
        prompt: Prompt,
        *,
        model: str,
        salt: str,
        max_tokens: int = 1,
        logprobs: bool = False,
        extra: Mapping[str, Any] | None = None,
    ) -> tuple[Completion, dict[str, Any]]:
        """One request, and the fields that every row of it has."""
        completion = self.client.chat(
            prompt.messages,
            model=model,
            max_tokens=max_tokens,
            salt=salt,
            request_id=new_request_id(),
            logprobs=logprobs,
            extra=extra,
            expected_tokens=prompt.tokens,
        )
        return completion, {
            "setting": self.setting.to_json(),
            "server": self.server_id,
            "model": model,
            "prompt": prompt.to_json(),
            "request_id": completion.request_id,
            "status": "ok",
            "error": None,
            "prompt_tokens": completion.prompt_tokens,
            "cached_tokens": completion.cached_tokens,
            "completion_tokens": completion.completion_tokens,
            "metrics": self._metrics_delta(completion.prompt_tokens),
        }

    def keep_beside(self, why: str, completion: Completion, fields: Mapping[str, Any]) -> None:
        """The row of a request that was sent for another one's sake: nothing is sent that no row tells of."""
        self.stage.append({"kind": "beside", "why": why, **fields, "seconds": round(completion.seconds, 3)})

    def _metrics_delta(self, prompt_tokens: int | None) -> dict[str, int] | None:
        """What ``/metrics`` says of the call just made; None where it says nothing."""
        before = self._counters

        def read() -> metrics.Counters:
            self._counters = metrics.counters(self.client.metrics())
            return self._counters.since(before)

        def whole(delta: metrics.Counters) -> bool:
            return delta.queries is None or prompt_tokens is None or delta.queries >= prompt_tokens

        delta = settle(read, whole)
        if delta.queries is None or delta.hits is None:
            return None
        return {"queries": delta.queries, "hits": delta.hits}


def settle(read: Callable[[], Read], whole: Callable[[Read], bool]) -> Read:
    """What ``read`` says once it says all, or the last word after a quarter of a second.

    Counters are written after the answer is sent; a page read at once may not have them yet.
    """
    for wait_s in (0.0, 0.05, 0.2):
        time.sleep(wait_s)
        found = read()
        if whole(found):
            break
    return found


def new_salt() -> str:
    """A cache salt that no other request has."""
    return f"prefixscope-{secrets.token_hex(8)}"


def new_request_id() -> str:
    """The id under which the engine's trace and our row meet."""
    return f"ps-{secrets.token_hex(8)}"
