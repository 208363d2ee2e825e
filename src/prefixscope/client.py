"""An OpenAI-compatible server over HTTP: one method per endpoint, frozen records back.

Nothing here decides anything: a record holds what the server said, null where it said nothing.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prefixscope.completion import ANTHROPIC_VERSION, PATHS, Completion, chat_body, completion, integers, patience_s
from prefixscope.errors import TargetError, Unreachable
from prefixscope.refusal import is_page
from prefixscope.transport import Transport
from prefixscope.usage import integer, mapping

_SAMPLE = re.compile(r"^[a-zA-Z_:][\w:]*(\{.*\})? +[-+]?[\d.NI]", re.MULTILINE)
"""A line of a Prometheus page; a page need not have comments."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One entry of ``/v1/models``. ``parent`` is set for a LoRA adapter, ``root`` is equal for aliases (vLLM)."""

    name: str
    parent: str | None = None
    max_model_len: int | None = None
    root: str | None = None
    owned_by: str | None = None


class Client(Transport):
    """One server, one request at a time; see :class:`Transport` for what it is made of.

    Every request ends, whatever the server does: its whole answer has to be there in time, a stream's too.
    """

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def health(self, timeout_s: float = 2.0) -> int | None:
        """The status that ``/health`` answers; None where nothing answers."""
        try:
            return self._call("GET", "/health", timeout_s=timeout_s).status_code
        except Unreachable:
            return None

    def healthy(self, timeout_s: float = 2.0) -> bool:
        """Whether ``/health`` answers 200."""
        return self.health(timeout_s) == 200

    def version(self) -> str | None:
        """vLLM's ``/version``; None where the server has no such endpoint."""
        body = self._optional_json("/version")
        return str(body["version"]) if isinstance(body, dict) and "version" in body else None

    def models(self) -> tuple[ServedModel, ...]:
        """The served names."""
        body = self._json("GET", "/v1/models")
        entries = body.get("data")
        if not isinstance(entries, list):
            raise self.malformed("/v1/models", body, "no list under 'data'")
        return tuple(
            ServedModel(
                str(entry["id"]),
                _text(entry.get("parent")),
                integer(entry.get("max_model_len")) or integer(mapping(entry.get("meta")).get("n_ctx")),
                _text(entry.get("root")),
                _text(entry.get("owned_by")),
            )
            for entry in entries
            if isinstance(entry, dict) and entry.get("id")
        )

    def server_info(self) -> dict[str, Any]:
        """vLLM's ``/server_info`` (open in its development mode only): configuration and variables; empty elsewhere."""
        body = self._optional_json("/server_info?config_format=json")
        return body if isinstance(body, dict) and isinstance(body.get("vllm_config"), dict) else {}

    def metrics(self) -> str | None:
        """The Prometheus text of ``/metrics``; None where there is none."""
        try:
            response = self._call("GET", "/metrics")
        except Unreachable:
            return None
        text = response.text
        return text if response.status_code == 200 and not is_page(text) and _SAMPLE.search(text) else None

    def tokenize(self, asked: str | Sequence[Mapping[str, str]], model: str) -> tuple[int, ...] | None:
        """The token ids of a chat prompt, template included, or of a plain one (vLLM's ``/tokenize``).

        None where there is no such endpoint.
        """
        said = {"prompt": asked} if isinstance(asked, str) else {"messages": list(asked)}
        body = self._optional_json("/tokenize", {"model": model, **said}, timeout_s=30)
        tokens = body.get("tokens") if isinstance(body, dict) else None
        # llama.cpp's server has a /tokenize of its own, which answers messages with an empty list.
        return integers(tokens)

    def detokenize(self, tokens: Sequence[int], model: str) -> str | None:
        """The text of token ids (vLLM's ``/detokenize``); None where there is no endpoint."""
        body = self._optional_json("/detokenize", {"model": model, "tokens": list(tokens)}, timeout_s=30)
        return _text(body.get("prompt")) if isinstance(body, dict) else None

    def chat(
        self,
        messages: Sequence[Mapping[str, str]],
        *,
        model: str,
        max_tokens: int = 1,
        salt: str | None = None,
        request_id: str = "",
        logprobs: bool = False,
        extra: Mapping[str, Any] | None = None,
        expected_tokens: int = 0,
        headers: Mapping[str, str] | None = None,
        api: str = "chat",
    ) -> Completion:
        """One greedy completion, over the chat API or another of ``PATHS``.

        ``expected_tokens`` (prompt length) stretches the time that the whole exchange may take: 60 s, one more per 100
        prompt tokens and per answer token. ``extra`` adds fields to the body; one that is None takes the field out.

        Raises
        ------
        Unreachable, Rejected
            with what came back; a malformed answer is a Rejected with status 0.
        """
        path = PATHS[api]
        body = chat_body(
            messages, model=model, max_tokens=max_tokens, salt=salt, logprobs=logprobs, extra=extra, api=api
        )
        named = {**({"X-Request-Id": request_id} if request_id else {}), **(headers or {})}
        if api == "messages":
            named = {**self._as_anthropic(), **named}
        response, started, retries = self.post(
            path, body, headers=named, timeout_s=patience_s(expected_tokens, max_tokens), model=model
        )
        seconds = time.perf_counter() - started
        answer = self._decode(path, response)
        found = completion(answer, request_id=request_id, seconds=seconds, retries=retries, api=api)
        if found is None:
            raise self.malformed(path, answer, "no content" if api == "messages" else "no choices")
        return found

    def _as_anthropic(self) -> dict[str, str]:
        """The headers of Anthropic's API; the key goes where its gateways look for it, and where vLLM does."""
        key = str(self._session.headers.get("Authorization", "")).removeprefix("Bearer ")
        return {"anthropic-version": ANTHROPIC_VERSION, **({"x-api-key": key} if key else {})}

    def _served_names(self) -> tuple[str, ...] | None:
        try:
            return tuple(model.name for model in self.models())
        except TargetError:
            return super()._served_names()


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
