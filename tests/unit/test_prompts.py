"""Prompts of an exact length, the same every time."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from stub import StubServer

from prefixscope import prompts
from prefixscope.client import Client
from prefixscope.errors import TargetError
from prefixscope.prompts import Count, Message, Prompt


def byte_count(per_byte: int = 1) -> Count:
    """A byte-level tokenizer with a template of seven tokens around one message."""

    def count(messages: Sequence[Message]) -> tuple[int, ...]:
        ids: list[int] = [256]
        for message in messages:
            ids += [257, 0, *(b for b in message["content"].encode() for _ in range(per_byte)), 258]
        return (*ids, 257, 1)

    return count


def word_count(messages: Sequence[Message]) -> tuple[int, ...]:
    """A tokenizer of whole words and of single trailing characters: counts jump and stall as the text grows."""
    return (1, 2, 3, *(len(word) for message in messages for word in message["content"].split(" ")))


def no_count(messages: Sequence[Message]) -> None:
    return None


@pytest.mark.parametrize("tokens", [8, 64, 100, 1_000, 1_600, 6_446])
def test_a_prompt_has_exactly_the_tokens_asked_for(tokens: int) -> None:
    """With a tokenizer to ask, 6,446 means 6,446."""
    prompt = prompts.build(byte_count(), tokens, seed=1)
    assert prompt.exact
    assert len(byte_count()(prompt.messages) or ()) == tokens
    assert prompt.name == f"{tokens:,} tokens"


@pytest.mark.parametrize("tokens", [200, 1_601])
def test_other_tokenizers_are_matched_too(tokens: int) -> None:
    """Word-like tokenizers, whose count stalls and jumps, are still met exactly."""
    assert prompts.build(word_count, tokens, seed=3).exact


@pytest.mark.parametrize(("tokens", "reached"), [(1_000, 1_000), (1_001, 1_000), (6_446, 6_446), (6_447, 6_446)])
def test_a_skipped_length_is_met_from_below_and_said(tokens: int, reached: int) -> None:
    """Where no text has the exact count, the nearest one below is taken, and the prompt does not call itself exact."""
    prompt = prompts.build(byte_count(per_byte=2), tokens, seed=1)
    assert prompt.token_ids is not None
    assert len(prompt.token_ids) == reached
    assert prompt.exact == (tokens == reached)


def test_the_stub_agrees_with_its_own_count(stub: StubServer) -> None:
    """A length found through ``/tokenize`` is the length that the answer's usage reports."""
    client = Client(stub.url)
    prompt = prompts.build(lambda messages: client.tokenize(messages, "tiny"), 777, seed=5)
    assert client.chat(prompt.messages, model="tiny").prompt_tokens == 777


def test_few_counts_are_needed() -> None:
    """A length is found in a handful of questions to the tokenizer, not in forty."""
    asked = 0

    def count(messages: Sequence[Message]) -> tuple[int, ...] | None:
        nonlocal asked
        asked += 1
        return byte_count()(messages)

    prompts.build(count, 6_446, seed=1)
    assert asked <= 5


def test_a_length_below_the_template_is_not_exact() -> None:
    """A prompt shorter than the chat template alone is the empty message, and not exact."""
    prompt = prompts.build(byte_count(), 3, seed=1)
    assert prompt.messages[0]["content"] == ""
    assert not prompt.exact


def test_without_a_tokenizer_the_length_is_an_estimate() -> None:
    """Where nobody counts, the text is about four characters a token, and nothing claims to be exact."""
    prompt = prompts.build(no_count, 1_000, seed=1)
    assert prompt.token_ids is None
    assert not prompt.exact
    assert 3_500 < len(prompt.messages[0]["content"]) < 4_500


def test_a_tokenizer_that_fails_in_the_middle_leaves_a_prompt() -> None:
    """A tokenizer that stops answering gives an inexact prompt, not a crash."""
    answers = iter([byte_count()([{"role": "user", "content": ""}]), None])
    assert not prompts.build(lambda messages: next(answers), 500, seed=1).exact


def test_the_same_seed_gives_the_same_prompt() -> None:
    """Seed and length decide every character; another seed gives another text."""
    build = prompts.build
    assert build(byte_count(), 900, seed=4) == build(byte_count(), 900, seed=4)
    assert build(byte_count(), 900, seed=4).digest != build(byte_count(), 900, seed=5).digest


def test_the_text_never_changes_between_releases() -> None:
    """The stream of a seed is frozen: recorded runs and new ones speak of the same prompts."""
    assert prompts.text(1, 120) == (
        "The pool checks two checkpoints at the boundary, entry 2209. "
        "The drafter checks the last block before the hit, entry 504"
    )


def test_longer_prompts_of_a_seed_continue_shorter_ones() -> None:
    """A text is a prefix of every longer text of its seed."""
    long = prompts.text(2, 5_000)
    assert all(long.startswith(prompts.text(2, chars)) for chars in (0, 1, 99, 2_500))
    assert prompts.text(2, -3) == ""


@pytest.mark.parametrize("seed", range(1, 21))
def test_a_control_shares_less_than_a_block(seed: int) -> None:
    """Different text of the same length shares less than the smallest block with the prompt."""
    prompt = prompts.build(byte_count(), 1_600, seed)
    other = prompts.control(byte_count(), prompt)
    shared = prompts.shared_tokens(prompt, other)
    assert other.exact
    assert other.tokens == prompt.tokens
    assert shared is not None
    assert shared < 32


@pytest.mark.parametrize("tokens", [7, 8, 30, 100, 1_600])
def test_a_new_ending_shares_all_but_its_end(tokens: int) -> None:
    """The last twentieth, sixteen characters at least, is replaced from its first character on; the length stays."""
    count = byte_count()
    prompt = prompts.build(count, tokens, seed=1)
    other = prompts.new_ending(count, prompt)
    before, after = prompt.messages[-1]["content"], other.messages[-1]["content"]
    cut = min(round(len(before) * 0.95), max(0, len(before) - 16))
    assert len(after) == max(1, len(before))
    assert after[:cut] == before[:cut]
    assert after[cut : cut + 1] != before[cut : cut + 1]
    assert prompts.shared_tokens(prompt, other) == 3 + cut


def test_a_follow_up_continues_the_conversation() -> None:
    """The next turn holds the first message, the answer and a new question, and begins with the same tokens."""
    count = byte_count()
    prompt = prompts.build(count, 500, seed=1)
    turn = prompts.follow_up(count, prompt, "an answer")
    assert [message["role"] for message in turn.messages] == ["user", "assistant", "user"]
    assert turn.messages[1]["content"] == "an answer"
    assert turn.token_ids is not None
    assert turn.tokens == len(turn.token_ids) > 500
    assert (prompts.shared_tokens(prompt, turn) or 0) >= 498


def test_shared_tokens_need_both_sides() -> None:
    """How much two prompts share is unknown where one of them was never tokenized."""
    known, unknown = prompts.build(byte_count(), 50, 1), prompts.build(no_count, 50, 1)
    assert prompts.shared_tokens(known, unknown) is None
    assert prompts.shared_tokens(known, known) == 50


def test_documents_differ_from_their_head_on() -> None:
    """Each document names its number at the head, so that two of them share no block."""
    found = [prompts.document(byte_count(), 2_400, seed) for seed in (100, 101, 102)]
    assert all(document.exact for document in found)
    assert all((prompts.shared_tokens(a, b) or 0) < 64 for a, b in itertools.combinations(found, 2))


def test_a_row_never_holds_the_text() -> None:
    """What a row says of its prompt is a name, a length, a seed and a digest."""
    prompt = prompts.build(byte_count(), 300, seed=1)
    assert set(prompt.to_json()) == {"name", "tokens", "seed", "digest"}
    assert isinstance(prompt, Prompt)


def test_a_prompt_longer_than_any_server_takes_is_refused() -> None:
    """A typing error in a length is an error, not gigabytes of text."""
    with pytest.raises(TargetError, match="1,000,000,000"):
        prompts.build(lambda messages: None, 1_000_000_000, 1)
