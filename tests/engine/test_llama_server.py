"""A second real engine behind the same API: llama.cpp's server, with a model made on the spot."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import tiny_gguf
import xllamacpp

from prefixscope import cli
from prefixscope.check import check
from prefixscope.client import Client


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a running llama.cpp server; up in a third of a second."""
    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(tiny_gguf.write(tmp_path_factory.mktemp("gguf") / "tiny.gguf"))
    parameters.n_ctx, parameters.n_parallel, parameters.cpuparams.n_threads = tiny_gguf.CONTEXT, 1, 2
    server = xllamacpp.Server(parameters)
    yield server.listening_address
    del server


def test_another_engine_gets_the_same_verdict(url: str) -> None:
    """llama.cpp reuses everything but the last token of a resend, ignores the salt, and has no /version."""
    with Client(url) as client:
        found = check(client, tokens=4_000)
        assert client.version() is None
    calibration, cold, second, turn = found.evidence.sends
    # A token of this model is a byte, which the first, short request tells.
    assert calibration.series == "calibration"
    assert 3_600 < (cold.prompt_tokens or 0) < 4_200
    # The calibration left the chat template's beginning and its own first word behind, and no more.
    assert found.code == "reuses"
    assert (cold.cached_tokens or 0) < 32
    assert second.cached_tokens == (second.prompt_tokens or 0) - 1
    assert (turn.cached_tokens or 0) > 0.9 * (second.prompt_tokens or 0)
    assert "(llama.cpp)" in found.sentence


def test_a_second_check_is_cold_though_no_salt_is_known(url: str) -> None:
    """What the check before left behind is no reuse, at another API too: only the template's beginning may hit."""
    with Client(url) as client:
        check(client, tokens=800)
        again = check(client, tokens=800, api="messages")
    cold = again.evidence.send("first", 1)
    assert again.code == "reuses"
    assert cold is not None
    assert cold.cached_tokens is not None
    assert cold.cached_tokens < 0.1 * (cold.prompt_tokens or 0)


def test_its_own_tokenizer_is_not_taken_for_vllms(url: str) -> None:
    """Its /tokenize answers chat messages with an empty list; that is no count."""
    with Client(url) as client:
        assert client.tokenize([{"role": "user", "content": "hello"}], client.models()[0].name) is None


def test_its_facts_and_findings_are_its_own(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The engine is named, its context known, and the missing /metrics page has llama.cpp's remedy."""
    assert cli.main(["check", url, "--tokens", "800", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    facts = {fact["name"]: fact["value"] for fact in answer["facts"]}
    assert (facts["engine"], facts["context, tokens"]) == ("llama.cpp", tiny_gguf.CONTEXT)
    assert [(one["code"], "--metrics" in one["remedy"]) for one in answer["findings"]] == [("no-metrics", True)]
