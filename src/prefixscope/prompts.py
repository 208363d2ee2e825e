"""Seeded, token-exact, reproducible prompts and conversations.

A prompt is a prefix of an endless text drawn from its seed. Its length is found with the server's own tokenizer
(``/tokenize``, template included), so 6,446 means 6,446. Without such an endpoint the length is an estimate, and the
rows carry what the server counted.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from prefixscope import shapes
from prefixscope.errors import TargetError
from prefixscope.setting import digest
from prefixscope.shapes import Stream, pick

Message = dict[str, str]
Count = Callable[[Sequence[Message]], "tuple[int, ...] | None"]
"""Chat messages → the token ids that the server would see; None where it can't tell."""

CHARS_PER_TOKEN = 4.0
MAX_COUNTS = 40
MAX_TOKENS = 4_000_000
"""Beyond any context served; a typing error must not fill the memory with text."""

_SUBJECTS = (
    "the scheduler|a worker|the cache|an operator|the router|this node|the drafter|a long request|the pool|the log"
)
_VERBS = "keeps|drops|reads|moves|counts|records|returns|checks|copies|waits for"
_OBJECTS = (
    "the last block|a full window|two checkpoints|the shared prefix|every prompt|one retained segment|"
    "the next turn|an older answer|the stored range|a short reply"
)
_PLACES = (
    "before the hit|after the restart|on the second send|in the morning|at the boundary|under load|"
    "without a warning|for each group|near the end|as before"
)


@dataclass(frozen=True, slots=True)
class Prompt:
    """Chat messages of a known length.

    Attributes
    ----------
    name : what a person calls it (``6,446 tokens``).
    tokens : prompt tokens asked for; what the server counts is in the row.
    token_ids : as the server's tokenizer gives them; None where it has no such endpoint.
    """

    name: str
    tokens: int
    seed: int
    messages: tuple[Message, ...]
    token_ids: tuple[int, ...] | None = None

    @property
    def digest(self) -> str:
        return digest([dict(message) for message in self.messages])

    @property
    def exact(self) -> bool:
        return self.token_ids is not None and len(self.token_ids) == self.tokens

    def to_json(self) -> dict[str, object]:
        """What a row says of its prompt: never the text."""
        return {"name": self.name, "tokens": self.tokens, "seed": self.seed, "digest": self.digest}


def words(seed: int) -> Iterator[str]:
    """An endless, reproducible stream of plain sentences."""
    draw = random.Random(seed)
    while True:
        number = int(draw.random() * 9000) + 1000
        said = " ".join(pick(draw, part) for part in (_SUBJECTS, _VERBS, _OBJECTS, _PLACES))
        sentence = f"{said}, entry {number}. "
        yield sentence[0].upper() + sentence[1:]


SHAPES: Mapping[str, tuple[str, Stream]] = {
    "prose": ("Continue this log in the same words.", words),
    "code": ("Continue this Python module in the same style.", shapes.code),
    "XML": ("Continue this list of rules in the same form.", shapes.xml),
    "tool arguments": ("Continue this list of tool calls, one JSON object a line.", shapes.tool_arguments),
    "repetition": ("Repeat this line.", shapes.repetition),
}
"""What a shape's prompt asks for, and the text that follows."""


def text(seed: int, chars: int, stream: Stream = words) -> str:
    """The first ``chars`` characters of the stream."""
    parts: list[str] = []
    size = 0
    for sentence in stream(seed):
        parts.append(sentence)
        size += len(sentence)
        if size >= chars:
            break
    return "".join(parts)[: max(0, chars)]


def build(count: Count, tokens: int, seed: int, *, head: str = "", name: str = "", stream: Stream = words) -> Prompt:
    """One user message of exactly ``tokens`` prompt tokens where the tokenizer can be asked.

    ``head`` begins the message (for a shared prefix), and ``stream`` is the text that fills it. Where no cut of the
    text gives the exact count, the nearest from below is taken; ``Prompt.exact`` says so.
    """
    name = name or f"{tokens:,} tokens"
    if tokens > MAX_TOKENS:
        raise TargetError(
            f"a prompt of {tokens:,} tokens is longer than any server takes", remedy="give a shorter length"
        )

    def messages(chars: int) -> tuple[Message, ...]:
        return ({"role": "user", "content": head + text(seed, chars, stream)},)

    low = count(messages(0))
    if low is None:
        chars = max(1, round(tokens * CHARS_PER_TOKEN) - len(head))
        return Prompt(name, tokens, seed, messages(chars))
    if len(low) >= tokens:
        return Prompt(name, tokens, seed, messages(0), low)
    # A secant walk lands within a token or two. The count may stall, jump or fall back by one as the text grows, so
    # a guess outside the known bounds halves them instead, and once they meet, cuts on either side are tried.
    chars, best_chars, best = max(1, tokens - len(low)), 0, low
    under, over, beside = 0, 0, 0
    for _ in range(MAX_COUNTS):
        ids = count(messages(chars))
        if ids is None:
            break
        if len(best) < len(ids) <= tokens:
            best_chars, best = chars, ids
        if len(ids) == tokens:
            break
        if len(ids) < tokens:
            under = max(under, chars)
        else:
            over = min(over or chars, chars)
        per_token = chars / max(1, len(ids) - len(low))
        chars = max(1, chars + (round((tokens - len(ids)) * per_token) or (1 if len(ids) < tokens else -1)))
        if over and over - under <= 1:
            beside = -beside if beside > 0 else 1 - beside
            chars = max(1, under + beside if beside < 0 else over + beside)
        elif over and not under < chars < over:
            chars = (under + over) // 2
    return Prompt(name, tokens, seed, messages(best_chars), best)


def control(count: Count, prompt: Prompt) -> Prompt:
    """A prompt of the same length that shares nothing past the template."""
    return replace(build(count, prompt.tokens, prompt.seed + 500_000), name=f"{prompt.name}, other text")


def new_ending(count: Count, prompt: Prompt, *, keep: float = 0.95) -> Prompt:
    """The same prompt with its last twentieth (16 characters at least) replaced by other text of the same length."""
    content = prompt.messages[-1]["content"]
    cut = min(round(len(content) * keep), max(0, len(content) - 16))
    # The first replaced character differs for certain, so the shared part is known to end at the cut.
    ending = ("#" if content[cut : cut + 1] != "#" else "%") + text(prompt.seed + 900_000, len(content) - cut - 1)
    messages = ({"role": "user", "content": content[:cut] + ending},)
    return Prompt(f"{prompt.name}, new ending", prompt.tokens, prompt.seed, messages, count(messages))


def follow_up(count: Count, prompt: Prompt, answer: str, question: str = "And what followed from that?") -> Prompt:
    """The next turn of the same conversation."""
    messages = (
        *prompt.messages,
        {"role": "assistant", "content": answer},
        {"role": "user", "content": question},
    )
    ids = count(messages)
    return Prompt(f"{prompt.name}, follow-up", len(ids) if ids else prompt.tokens, prompt.seed, messages, ids)


def shared_tokens(a: Prompt, b: Prompt) -> int | None:
    """How many leading tokens two prompts share; None where the tokenizer could not be asked."""
    if a.token_ids is None or b.token_ids is None:
        return None
    for index, (left, right) in enumerate(zip(a.token_ids, b.token_ids, strict=False)):
        if left != right:
            return index
    return min(len(a.token_ids), len(b.token_ids))


def shared_answer(first: Prompt, answer: Sequence[int] | None, later: Prompt) -> int | None:
    """How many tokens of the answer to ``first`` stand right behind it in ``later``; None where nobody knows.

    The answer's text is tokenized again with the next turn, which may give other tokens than were generated.
    """
    if first.token_ids is None or later.token_ids is None or answer is None:
        return None
    if later.token_ids[: len(first.token_ids)] != first.token_ids:
        return 0
    found = 0
    for left, right in zip(answer, later.token_ids[len(first.token_ids) :], strict=False):
        if left != right:
            break
        found += 1
    return found


def document(count: Count, tokens: int, seed: int) -> Prompt:
    """A long document with a request at its head, for comparing answers."""
    return build(
        count, tokens, seed, head=f"Summarise this log, number {seed}, in one paragraph.\n\n", name=f"document {seed}"
    )


def given(count: Count, messages: Sequence[Message], name: str) -> Prompt:
    """A prompt that is there already; its length is an estimate where the tokenizer can't be asked."""
    ids = count(messages)
    chars = sum(len(message["content"]) for message in messages)
    return Prompt(name, len(ids) if ids else max(1, round(chars / CHARS_PER_TOKEN)), 0, tuple(messages), ids)


def shaped(count: Count, shape: str, tokens: int, seed: int) -> Prompt:
    """A prompt of one of the ``SHAPES``, ended in the middle of its text for the answer to go on."""
    request, stream = SHAPES[shape]
    return build(count, tokens, seed, head=f"{request}\n\n", name=f"{shape} {seed}", stream=stream)
