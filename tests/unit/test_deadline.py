"""The time of a whole exchange: a server that sends a byte now and then does not hold anyone for ever."""

from __future__ import annotations

import time

import pytest
from stub import CHAT, METRICS, MODELS, VERSION, Reply, StubServer

from prefixscope import cli, completion
from prefixscope.client import Client
from prefixscope.errors import Rejected, Unreachable

SLOW = 0.01
LONG = {"data": [{"id": "x" * 5_000}]}


def test_a_trickle_ends_in_time(stub: StubServer) -> None:
    """Headers, then a body, byte by byte: the answer is given up after its time, with how much of it had come."""
    stub.always(MODELS, Reply(body=LONG, trickle_s=SLOW))
    began = time.monotonic()
    with Client(stub.url) as client, pytest.raises(Unreachable) as caught:
        client._call("GET", MODELS, timeout_s=0.4)
    assert 0.4 <= time.monotonic() - began < 2
    assert "had not ended after 0.4 s" in caught.value.what
    assert " bytes of it had arrived" in caught.value.what
    assert "too slowly" in caught.value.cause
    assert caught.value.remedy


def test_a_chat_has_one_time_for_all_of_it(stub: StubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time that grows with the prompt is the whole answer's, not each byte's."""
    monkeypatch.setattr(completion, "PATIENCE_S", -0.6)
    stub.always(CHAT, Reply(body={"choices": [{"message": {"content": "a" * 5_000}}]}, trickle_s=SLOW))
    with Client(stub.url) as client, pytest.raises(Unreachable, match=r"had not ended after 0\.4 s"):
        client.chat([{"role": "user", "content": "hello"}], model="tiny")


def test_an_error_that_trickles_ends_in_time_too(stub: StubServer) -> None:
    """A refusal's body is no way around the limit, streamed or not."""
    stub.always(CHAT, Reply(500, "x" * 5_000, trickle_s=SLOW))
    for stream in (False, True):
        with Client(stub.url) as client, pytest.raises(Unreachable, match="had not ended after"):
            client.post(CHAT, {}, headers={}, timeout_s=0.4, model="tiny", stream=stream)


def test_pages_that_trickle_are_not_there(stub: StubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """An optional endpoint that does not answer whole in its time is one that the server has not."""
    for path in (METRICS, VERSION):
        stub.always(path, Reply(body=LONG, trickle_s=SLOW))
    stub.always("/health", Reply(body=LONG, trickle_s=SLOW))
    with Client(stub.url) as client:
        real = client._call
        monkeypatch.setattr(client, "_call", lambda *words, **options: real(*words, **{**options, "timeout_s": 0.2}))
        assert (client.metrics(), client.version(), client.health()) == (None, None, None)


def test_a_connection_is_used_again_after_its_time(stub: StubServer) -> None:
    """What was left of one exchange's time does not cut the next one short."""
    with Client(stub.url) as client:
        client._call("GET", MODELS, timeout_s=0.3)
        time.sleep(0.35)
        stub.reply_once(MODELS, Reply(body={"data": [{"id": "tiny"}]}, delay_s=0.35))
        assert client.models()[0].name == "tiny"


def test_a_busy_server_is_not_waited_for_longer_than_the_budget(stub: StubServer) -> None:
    """What a slow refusal itself takes counts, too: retries end when the budget is spent."""
    stub.always(CHAT, Reply(429, {"error": "busy"}, {"Retry-After": "0.1"}, delay_s=0.3))
    began = time.monotonic()
    with Client(stub.url, retry_budget_s=0.5) as client, pytest.raises(Rejected):
        client.chat([{"role": "user", "content": "hello"}], model="tiny")
    assert time.monotonic() - began < 1.5
    assert len(stub.sent()) <= 2


def test_a_check_of_a_trickle_is_exit_2(
    stub: StubServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command ends too, with the code of a server that does not answer."""
    monkeypatch.setattr(completion, "PATIENCE_S", -3.6)
    stub.always(CHAT, Reply(body={"choices": [{"message": {"content": "a" * 5_000}}]}, trickle_s=SLOW))
    assert cli.main(["check", stub.url, "--tokens", "300"]) == 2
    shown = capsys.readouterr().out
    assert "bytes of it had arrived" in shown
    assert shown.rstrip().endswith("verdict: refused")
