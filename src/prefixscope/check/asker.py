"""Sends the check's prompts, one after the other, in the form that this server takes."""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Callable, Mapping
from typing import Any

from prefixscope import prompts
from prefixscope.check.budget import MAX_SENDS, most_tokens
from prefixscope.check.doubt import doubt
from prefixscope.check.evidence import FILLER, TURN, Sent, Spending
from prefixscope.client import Client
from prefixscope.completion import PATHS, Completion
from prefixscope.errors import Rejected, TargetError
from prefixscope.prompts import Message
from prefixscope.refusal import too_long

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
    api : which of ``completion.PATHS`` is asked. Where none was named the next is tried until one is there.
    sends : every request that was answered, in order; ``asked`` counts the others too.
    spent : prompt tokens so far, by the server's count, or estimated where it gives none.
    dropped : fields that the server refused.
    """

    def __init__(self, client: Client, model: str, *, tokens: int, context: int | None, api: str, say: Say) -> None:
        self.client, self.model, self.context, self.say = client, model, context, say
        self.api, self._named = api or next(iter(PATHS)), bool(api)
        self.sends: list[Sent] = []
        self.dropped: list[str] = []
        self.asked = self.spent = 0
        self.most_tokens = most_tokens(tokens)
        self.chars_per_token = prompts.CHARS_PER_TOKEN
        self._counts: dict[str, int | None] = {}
        self._salt = f"prefixscope-{secrets.token_hex(8)}"

    @property
    def spending(self) -> Spending:
        return Spending(
            requests=self.asked,
            tokens=self.spent,
            estimated=any(not sent.prompt_tokens for sent in self.sends),
            most_requests=MAX_SENDS,
            most_tokens=self.most_tokens,
        )

    @property
    def templated(self) -> bool:
        """Whether a chat template stands around what is asked; a plain completion has none."""
        return self.api != "completions"

    def affords(self, requests: int, tokens: int) -> bool:
        """Whether so many more requests, of so many tokens together, stay within the cap."""
        return self.asked + requests <= MAX_SENDS and self.spent + tokens <= self.most_tokens

    def sample(self) -> tuple[int, ...] | None:
        """Token ids of a short message, template included where the API has one; None without a ``/tokenize``."""
        said = prompts.text(1, SAMPLE_CHARS)
        ids = self.client.tokenize(said if not self.templated else [{"role": "user", "content": said}], self.model)
        if ids:
            self.chars_per_token = SAMPLE_CHARS / len(ids)
        return ids

    def conversation(self, tokens: int) -> Messages:
        """A prompt of about that many tokens that nobody has sent before; what the server counts is in the answer."""
        chars = max(MIN_CHARS, round(tokens * self.chars_per_token))
        head = f"Check {secrets.token_hex(8)}. "
        return ({"role": "user", "content": (head + prompts.text(1, chars))[: max(chars, len(head))]},)

    def expected(self, messages: Messages) -> int:
        """Tokens that a prompt has, about."""
        return round(_chars(messages) / self.chars_per_token)

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
        chars = _chars(messages)
        self.spent += answer.prompt_tokens or self.expected(messages)
        sent = Sent(
            series=series,
            index=index,
            prompt_tokens=answer.prompt_tokens,
            cached_tokens=answer.cached_tokens,
            seconds=answer.seconds,
            retries=answer.retries,
            doubt=doubt(
                answer.usage,
                prompt_tokens=answer.prompt_tokens,
                cached_tokens=answer.cached_tokens,
                chars=chars,
                cold=index == 1 and series != TURN,
                before=self._counts.setdefault(messages[-1]["content"], answer.prompt_tokens),
            ),
        )
        self.sends.append(sent)
        if answer.prompt_tokens and index == 1 and series != FILLER and not sent.doubt:
            self.chars_per_token = chars / answer.prompt_tokens
        return sent, answer

    def _complete(self, messages: Messages, headers: Mapping[str, str] | None) -> Completion:
        self.asked += 1
        first: Rejected | None = None
        others = [] if self._named or self.sends else [api for api in PATHS if api != self.api]
        while True:
            try:
                return self.client.chat(
                    messages,
                    model=self.model,
                    salt=self._salt,
                    request_id=f"ps-{secrets.token_hex(8)}",
                    expected_tokens=self.expected(messages),
                    extra=self._extra(),
                    headers=headers,
                    api=self.api,
                )
            except Rejected as error:
                field = next((name for name in FIELDS if name not in self.dropped and name in error.what), None)
                if error.status in (400, 422) and field is not None:
                    self.dropped.append(field)
                    self.say(f"the server refuses {field}; asking again without it")
                    continue
                if not _elsewhere(error):
                    raise
                first = first or error
                if not others:
                    raise self._nowhere(first) from None
                missing, self.api = self.api, others.pop(0)
                self.say(f"the server takes no prompt at {PATHS[missing]}; asking {PATHS[self.api]}")

    def _nowhere(self, first: Rejected) -> Rejected:
        """The error to raise where no API took the prompt: the first one's, and that the others were tried."""
        if self._named:
            return first
        self.api, *others = PATHS
        return Rejected(
            first.what,
            status=first.status,
            cause=f"{first.cause}; nor does it take a prompt at {' or '.join(PATHS[api] for api in others)}",
            remedy=f"give the address of the engine itself, without a path: prefixscope check http://host:8000 --model "
            f"{shlex.quote(self.model)}; --api NAME shows another API's own words",
            lacks="path",
        )

    def _extra(self) -> dict[str, Any]:
        extra: dict[str, Any] = dict.fromkeys(self.dropped)
        if "max_tokens" in self.dropped:
            extra["max_completion_tokens"] = 16  # the newer name; reasoning models refuse a budget of one token
        return extra


def fits_not(error: TargetError) -> bool:
    """Whether a prompt was refused because it does not fit the context."""
    return isinstance(error, Rejected) and error.status in (400, 413, 422) and too_long(error.what)


def _elsewhere(error: Rejected) -> bool:
    """Whether a refusal means that this API is not served, or not for this model, rather than that something failed."""
    if error.status in (404, 405, 501):
        return error.lacks != "model"
    return error.status == 400 and "chat template" in error.what.lower()


def _chars(messages: Messages) -> int:
    return sum(len(message["content"]) for message in messages)
