"""Sends the check's prompts, one after the other, in the form that this server takes."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import Any

from prefixscope import prompts
from prefixscope.check.evidence import Sent
from prefixscope.client import Client, Completion
from prefixscope.errors import Rejected, TargetError
from prefixscope.prompts import Message

SAMPLE_CHARS = 800
MIN_CHARS = 16
FIELDS = ("cache_salt", "temperature", "max_tokens")
"""Fields of ours that some servers refuse; the answer to a refusal is to ask once more without the field it names."""

Say = Callable[[str], None]
Messages = tuple[Message, ...]


class Asker:
    """One model of one server.

    Every conversation begins with words of its own and goes under a salt of its own, so its first send is cold even
    where the server does not know ``cache_salt``.

    Attributes
    ----------
    sends : every request made, in order.
    dropped : fields that the server refused.
    """

    def __init__(self, client: Client, model: str, *, context: int | None, say: Say) -> None:
        self.client, self.model, self.context, self.say = client, model, context, say
        self.sends: list[Sent] = []
        self.dropped: list[str] = []
        self.chars_per_token = prompts.CHARS_PER_TOKEN
        self._salt = f"prefixscope-{secrets.token_hex(8)}"

    def sample(self) -> tuple[int, ...] | None:
        """Token ids of a short message, template included; None where the server has no ``/tokenize`` for chats."""
        ids = self.client.tokenize([{"role": "user", "content": prompts.text(1, SAMPLE_CHARS)}], self.model)
        if ids:
            self.chars_per_token = SAMPLE_CHARS / len(ids)
        return ids

    def conversation(self, tokens: int) -> Messages:
        """A prompt of about that many tokens that nobody has sent before; what the server counts is in the answer."""
        chars = max(MIN_CHARS, round(tokens * self.chars_per_token))
        head = f"Check {secrets.token_hex(8)}. "
        return ({"role": "user", "content": (head + prompts.text(1, chars))[: max(chars, len(head))]},)

    def send(self, series: str, index: int, messages: Messages, *, headers: Mapping[str, str] | None = None) -> Sent:
        """One request, kept in ``sends``; see :meth:`ask`."""
        return self.ask(series, index, messages, headers=headers)[0]

    def ask(
        self, series: str, index: int, messages: Messages, *, headers: Mapping[str, str] | None = None
    ) -> tuple[Sent, Completion]:
        """One request and its whole answer.

        Raises
        ------
        TargetError
            where the server does not answer, or refuses for another reason than one of ``FIELDS``.
        """
        answer = self._complete(messages, headers)
        sent = Sent(
            series=series,
            index=index,
            prompt_tokens=answer.prompt_tokens,
            cached_tokens=answer.cached_tokens,
            seconds=answer.seconds,
            retries=answer.retries,
        )
        self.sends.append(sent)
        if answer.prompt_tokens and index == 1:
            self.chars_per_token = sum(len(m["content"]) for m in messages) / answer.prompt_tokens
        return sent, answer

    def _complete(self, messages: Messages, headers: Mapping[str, str] | None) -> Completion:
        expected = round(sum(len(m["content"]) for m in messages) / self.chars_per_token)
        while True:
            try:
                return self.client.chat(
                    messages,
                    model=self.model,
                    salt=self._salt,
                    request_id=f"ps-{secrets.token_hex(8)}",
                    expected_tokens=expected,
                    extra=self._extra(),
                    headers=headers,
                )
            except Rejected as error:
                field = next((name for name in FIELDS if name not in self.dropped and name in error.what), None)
                if error.status not in (400, 422) or field is None:
                    raise
                self.dropped.append(field)
                self.say(f"the server refuses {field}; asking again without it")

    def _extra(self) -> dict[str, Any]:
        extra: dict[str, Any] = dict.fromkeys(self.dropped)
        if "max_tokens" in self.dropped:
            extra["max_completion_tokens"] = 16  # the newer name; reasoning models refuse a budget of one token
        return extra


def too_long(error: TargetError) -> bool:
    """Whether a prompt was refused because it does not fit the context."""
    return isinstance(error, Rejected) and error.status in (400, 413, 422) and "longer than the model" in error.cause
