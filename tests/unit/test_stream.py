"""A streamed answer: chunks are counted, tokens are taken from usage, and a stream that stops is an error."""

from __future__ import annotations

import itertools
import json
from types import SimpleNamespace
from typing import Any

import pytest
from stub import CHAT, Reply, StubServer

from prefixscope import completion, transport
from prefixscope import stream as streams
from prefixscope.client import Client
from prefixscope.errors import Rejected, Unreachable
from prefixscope.metrics import Drafting, drafting
from prefixscope.stream import Streamed, per_request, stream

ASKED = ({"role": "user", "content": "go on"},)
SSE = {"Content-Type": "text/event-stream"}


def ask(stub: StubServer, tokens: int = 12, **options: Any) -> Streamed:
    with Client(stub.url) as client:
        return stream(client, ASKED, model="tiny", max_tokens=tokens, **options)


def test_tokens_are_those_of_usage_and_chunks_are_steps(stub: StubServer) -> None:
    """A drafter that is right twice each step brings 12 tokens in 5 chunks; without one every token is a chunk."""
    plain = ask(stub)
    stub.draft, stub.accepts = 3, lambda step: 2
    found = ask(stub, extra={"return_token_ids": True})
    assert (plain.completion_tokens, plain.chunks, plain.drafting) == (12, 12, None)
    assert (found.completion_tokens, found.chunks, found.chunk_tokens) == (12, 5, (1, 3, 3, 3, 2))
    assert found.text == plain.text
    assert found.token_ids is not None
    assert bytes(found.token_ids).decode() == found.text


def test_the_answers_own_score_is_read(stub: StubServer) -> None:
    """Steps, drafted and accepted tokens, and accepted ones by place, from the histogram of the last event."""
    stub.draft, stub.accepts = 3, lambda step: (2, 0, 3)[step % 3]
    found = ask(stub, tokens=20)
    assert found.drafting is not None
    assert found.drafting == Drafting(drafts=7, drafted=21, accepted=12, per_position=(5, 5, 2))
    with Client(stub.url) as client:
        counted = drafting(client.metrics())
    assert (counted.drafts, counted.accepted, counted.per_position) == (7, 12, (5, 5, 2))


def test_the_first_chunk_with_content_is_the_first_token(stub: StubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The role alone is no token: with a clock that ticks once per event the first arrival is the second event's."""
    ticks = itertools.count()
    clock = SimpleNamespace(perf_counter=lambda: float(next(ticks)), sleep=lambda seconds: None)
    monkeypatch.setattr(transport, "time", clock)
    monkeypatch.setattr(streams, "time", clock)
    assert ask(stub, tokens=3).arrivals_s == (2.0, 3.0, 4.0)


@pytest.mark.parametrize("chunked", [True, False])
def test_each_step_has_its_own_time(stub: StubServer, chunked: bool) -> None:
    """A gateway that announces a length, or sends no chunks, doesn't merge the steps into blocks of its own."""
    stub.pace_s, stub.chunked = 0.01, chunked
    arrivals = ask(stub).arrivals_s
    assert len(arrivals) == 12
    assert arrivals[-1] - arrivals[0] > 0.9 * 11 * 0.01


def test_ids_that_are_not_sent_are_unknown(stub: StubServer) -> None:
    """Where no token ids were asked for there are none, and no sizes of chunks."""
    found = ask(stub)
    assert (found.token_ids, found.chunk_tokens) == (None, None)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ('data: {"choices": [{"delta": {"content": "a"}}]}\n\n', "ended before its end"),
        ("", "ended before its end"),
        ('data: {"error": {"message": "the engine is dead"}}\n\n', "holds an error"),
        ("data: nonsense\n\n", "not JSON"),
        ("data: 7\n\n", "holds an error"),
    ],
)
def test_a_stream_that_is_none_is_refused(stub: StubServer, body: str, said: str) -> None:
    """A stream without its end, with an error in it or with no JSON is a rejection that says so."""
    stub.always(CHAT, Reply(body=body, headers=SSE))
    with pytest.raises(Rejected, match=said):
        ask(stub)


def test_a_stream_that_breaks_off_is_named(stub: StubServer) -> None:
    """A connection that closes in the middle is no answer, and the message says that the stream broke off."""
    event = 'data: {"choices": [{"delta": {"content": "a"}}]}\n\n'
    stub.always(CHAT, Reply(body=event * 5, headers=SSE, cut=len(event) * 2))
    with pytest.raises(Unreachable, match="broke off after"):
        ask(stub)


def test_a_stream_that_never_ends_is_ended(stub: StubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte now and then keeps no stream alive beyond its time; how much of it had come is said."""
    monkeypatch.setattr(completion, "PATIENCE_S", -11.3)
    event = 'data: {"choices": [{"delta": {"content": "a"}}]}\n\n'
    stub.always(CHAT, Reply(body=event * 400, headers=SSE, trickle_s=0.001))
    with pytest.raises(Unreachable, match=r"had not ended after 0\.7 s; \d+ chunks of it had arrived"):
        ask(stub)


def test_a_stream_tells_cached_tokens_where_others_count_them(stub: StubServer) -> None:
    """The names that other servers use are read from a stream's usage as from a whole answer's."""
    usage = {"prompt_tokens": 100, "prompt_cache_hit_tokens": 64}
    end = {"choices": [{"delta": {"content": "a"}, "finish_reason": "stop"}], "usage": usage}
    stub.always(CHAT, Reply(body=f"data: {json.dumps(end)}\n\ndata: [DONE]\n\n", headers=SSE))
    assert ask(stub).cached_tokens == 64


def test_a_stream_without_usage_has_no_token_count(stub: StubServer) -> None:
    """A gateway that drops usage leaves the number of tokens unknown, not zero."""
    body = 'data: {"choices": [{"delta": {"content": "a"}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'
    stub.always(CHAT, Reply(body=body, headers=SSE))
    found = ask(stub)
    assert (found.completion_tokens, found.prompt_tokens, found.chunks) == (None, None, 1)


@pytest.mark.parametrize(
    "value", [None, 3, {}, {"num_spec_steps": "x", "num_accepted_draft_tokens": 1, "num_draft_tokens": 2}], ids=str
)
def test_a_score_that_cannot_be_read_is_none(value: object) -> None:
    """Another server's idea of such metrics is not guessed at."""
    assert per_request(value) is None


def test_a_score_without_its_histogram_has_no_places() -> None:
    """A summary without the histogram still has its totals."""
    found = per_request({"num_spec_steps": 4, "num_accepted_draft_tokens": 2, "num_draft_tokens": 12})
    assert found == Drafting(drafts=4, drafted=12, accepted=2)
