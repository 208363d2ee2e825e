"""``check``: what it sends to a healthy server, what it costs, and what it never does. A stub answers."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from checked import asked, run, usage_of
from stub import CHAT, TOKENIZE, Reply, StubServer, error

from prefixscope import cli
from prefixscope.check import MAX_SENDS, MAX_TOKENS
from prefixscope.check.budget import stated
from prefixscope.check.evidence import allowance
from prefixscope.cli.check import GATE

# --- the healthy path ----------------------------------------------------------------------------------------------


def test_a_healthy_server_gets_three_requests(stub: StubServer) -> None:
    """A prompt, the same again and its next turn, one after the other, under one salt of their own: no more."""
    said: list[str] = []
    found = asked(stub, said=said)
    assert (found.code, found.cause, said) == ("reuses", "", [])
    first, second, turn = stub.sent()
    assert first["messages"] == second["messages"] == turn["messages"][:1]
    assert [message["role"] for message in turn["messages"]] == ["user", "assistant", "user"]
    assert len({body["cache_salt"] for body in stub.sent()}) == 1
    assert all(body["temperature"] == 0 and body["max_tokens"] == 1 for body in stub.sent())
    again, after = (f"{one.cached_tokens:,} of {one.prompt_tokens:,} prompt tokens" for one in found.evidence.sends[1:])
    assert found.sentence == (
        f"tiny (vLLM 0.29.0) reuses what is sent twice: {again} on the second send, {after} on a second turn."
    )


def test_little_is_asked_beside_the_requests(stub: StubServer) -> None:
    """On the healthy path every other endpoint is read at most twice, and the tokenizer is asked twice."""
    asked(stub)
    others = [path for path, _, _ in stub.requests if path != CHAT]
    assert max(others.count(path) for path in set(others)) <= 2
    assert others.count(TOKENIZE) == 2


def test_two_checks_share_nothing(stub: StubServer) -> None:
    """The first send is cold each time, also where the server ignores the salt, and no cache is reset for it."""
    stub.honours_salt = False
    for _ in range(2):
        assert asked(stub).evidence.sends[0].cached_tokens == 0
    assert not any("reset" in path for path, _, _ in stub.requests)


# --- what it costs -------------------------------------------------------------------------------------------------

UNBELIEVED = {
    "below zero": ({"prompt_tokens": -5}, "below zero, prompt_tokens -5"),
    "cached below zero": ({"prompt_tokens_details": {"cached_tokens": -1}}, "below zero"),
    "none at all": ({"prompt_tokens": 0}, "counts 0 prompt tokens"),
    "far too few": ({"prompt_tokens": 7}, "counts only 7 prompt tokens"),
    "more than there are": (
        {"prompt_tokens_details": {"cached_tokens": 10**6}},
        "1,000,000 cached tokens for a prompt",
    ),
    "cached when cold": ({"prompt_tokens_details": {"cached_tokens": 700}}, "that nobody had sent before"),
}


@pytest.mark.parametrize("tokenizer", ["bytes", None])
@pytest.mark.parametrize("name", UNBELIEVED)
def test_a_usage_that_can_not_be_believed_ends_the_check(stub: StubServer, name: str, tokenizer: str | None) -> None:
    """Numbers that can't be settle the verdict at the first send: nothing more is sent, and the number is told."""
    change, words = UNBELIEVED[name]
    stub.tokenizer = tokenizer
    usage_of(stub, lambda own, number: {**own, **change})
    found = asked(stub, tokens=1_200 if tokenizer else 4_000)
    assert (found.code, found.cause) == ("inconclusive", "usage-not-believed")
    assert words in found.sentence
    assert len(stub.sent()) == 1


def test_a_prompt_that_changes_its_length_is_not_believed(stub: StubServer) -> None:
    """The same prompt counted with other lengths is another request's number: two sends, and both numbers."""
    usage_of(stub, lambda own, number: {**own, "prompt_tokens": own["prompt_tokens"] * number})
    found = asked(stub)
    assert (found.code, found.cause) == ("inconclusive", "usage-not-believed")
    cold, second = (f"{sent.prompt_tokens:,}" for sent in found.evidence.sends)
    assert f"counts {second} prompt tokens for a prompt that had {cold} when it was sent before" in found.sentence


@pytest.mark.parametrize("usage", [{"prompt_tokens": None}, {"prompt_tokens": "many"}])
def test_prompts_that_are_not_counted_end_it_too(stub: StubServer, usage: dict[str, Any]) -> None:
    """Cached tokens of an unknown number are no share: two sends, not reported."""
    usage_of(stub, lambda own, number: {**own, **usage})
    found = asked(stub)
    assert (found.code, found.cause) == ("not reported", "no-prompt-tokens")
    assert len(stub.sent()) == 2


@pytest.mark.parametrize("block", [10**6, 9_000])
@pytest.mark.parametrize("has_metrics", [True, False])
@pytest.mark.parametrize("tokens", [20, 600, 6_400, 30_000])
def test_the_caps_hold(stub: StubServer, tokens: int, has_metrics: bool, block: int) -> None:
    """However little is explained, requests and tokens stay within the cap, and each further probe told its price."""
    stub.block, stub.max_model_len, stub.has_metrics = block, 10**6, has_metrics
    stub.sends = 10**6
    said: list[str] = []
    found = asked(stub, tokens=tokens, said=said)
    cost = found.evidence.spending
    assert cost.requests == len(stub.sent()) <= MAX_SENDS == cost.most_requests
    assert cost.tokens <= cost.most_tokens == max(MAX_TOKENS, 5 * tokens)
    priced = [int(n) for line in said for n in re.findall(r"\((\d+) requests?, about [\d,]+ tokens\)", line)]
    assert len(priced) == len(said)
    assert cost.requests == 2 + sum(priced)


def test_a_long_prompt_that_misses_is_not_asked_longer(stub: StubServer) -> None:
    """No block is as long as the default prompt where the server tells its blocks: three sends, no other length."""
    stub.sends = 10**6
    found = asked(stub, tokens=6_400)
    assert found.code == "none"
    assert len(stub.sent()) == 3


def test_one_longer_prompt_is_enough_where_blocks_are_known(stub: StubServer) -> None:
    """From 1,200 tokens one prompt four times as long holds blocks enough to hit: five sends, no third length."""
    stub.sends = 10**6
    asked(stub)
    assert len(stub.sent()) == 5


def test_the_price_is_in_the_answer(stub: StubServer, capsys: pytest.CaptureFixture[str]) -> None:
    """Requests, tokens and the cap stand below the sends, and in the JSON."""
    run(stub)
    spent = sum(len(stub.tokens(body["messages"])) for body in stub.sent())
    assert f"sent: 3 requests, {spent:,} prompt tokens (never more than 16 and 100,000)" in capsys.readouterr().out
    run(stub, "--json")
    answer = json.loads(capsys.readouterr().out)
    assert (answer["requests"], answer["most_requests"], answer["most_tokens"]) == (3, 16, 100_000)
    assert abs(answer["tokens"] - spent) < 8


def test_the_help_says_the_cap_and_the_default_share(capsys: pytest.CaptureFixture[str]) -> None:
    """What a check may cost, and what it takes to pass without --min-reuse, is known before it is run."""
    with pytest.raises(SystemExit):
        cli.main(["check", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert stated() in shown
    assert f"default: both must take {GATE}" in shown


def test_the_readme_says_the_gate_as_the_help_does() -> None:
    """The same words, and the numbers of the rule itself: a twentieth, 192 tokens, three blocks."""
    readme = " ".join((Path(__file__).resolve().parents[2] / "README.md").read_text().split())
    assert GATE in readme
    assert "check URL --min-reuse 0.95 # a gate with a share of your own" in readme
    assert (allowance(10_000, None), allowance(100, None), allowance(100, 100)) == (500, 192, 300)


# --- what a prompt is made of --------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokenizer", ["bytes", "pairs"])
def test_without_a_tokenizer_a_short_request_tells_the_length(stub: StubServer, tokenizer: str) -> None:
    """A token a character, or two: the prompt has about the tokens that were asked for all the same."""
    inner = stub.respond
    stub.tokenizer = tokenizer
    stub.respond = lambda path, body, headers: (  # type: ignore[method-assign]
        error(404, "Not Found") if path == TOKENIZE else inner(path, body, headers)
    )
    said: list[str] = []
    found = asked(stub, said=said)
    calibration, cold, *_ = found.evidence.sends
    assert (found.code, calibration.series) == ("reuses", "calibration")
    assert 1_100 < (cold.prompt_tokens or 0) < 1_300
    assert said == [
        "no tokenizer answers for this model: a short request first tells how long its tokens are "
        "(1 request, about 200 tokens; at most about 800, where each character is one)"
    ]
    if tokenizer == "bytes":
        assert 700 < (calibration.prompt_tokens or 0) < 820  # as much as was announced


def test_a_plain_prompt_is_counted_in_the_form_of_a_plain_prompt(stub: StubServer) -> None:
    """/v1/completions knows no chat: /tokenize is asked for a prompt, and no short request is needed first."""
    said: list[str] = []
    found = asked(stub, api="completions", said=said)
    assert [sent.series for sent in found.evidence.sends] == ["first", "first", "second turn"]
    assert 1_100 < (found.evidence.sends[0].prompt_tokens or 0) < 1_300
    assert said == []
    assert all("prompt" in body and "messages" not in body for body in stub.sent(TOKENIZE))
    assert found.evidence.template_changes is None  # a plain prompt has no template


def test_a_prompt_that_does_not_fit_is_cut_to_the_context(stub: StubServer, capsys: pytest.CaptureFixture[str]) -> None:
    """--tokens beyond max_model_len: the server's own number is told, the prompt fits, and the answer says so."""
    stub.max_model_len = 900
    assert cli.main(["check", stub.url, "--tokens", "5000"]) == 0
    shown = capsys.readouterr()
    assert "does not fit the context of 900 tokens: asking with about 836 tokens instead" in shown.err
    assert re.search(
        r"prompt-clipped: a prompt of 5,000 tokens does not fit the served context; the prompt sent has \d+; "
        "use a --tokens that fits, or start the server with a larger --max-model-len",
        shown.out,
    )


def test_the_context_is_the_asked_models_own(stub: StubServer) -> None:
    """Of several models each has its own context, and an adapter its base's."""
    models = [
        {"id": "a", "max_model_len": 200},
        {"id": "tiny", "max_model_len": 900},
        {"id": "tiny-lora", "parent": "tiny"},
    ]
    stub.always("/v1/models", Reply(body={"data": models}))
    for name in ("tiny", "tiny-lora"):
        found = asked(stub, model=name)
        assert 700 < (found.evidence.sends[0].prompt_tokens or 0) <= 900, name


# --- what it never does --------------------------------------------------------------------------------------------


def test_nothing_is_streamed(stub: StubServer) -> None:
    """Usage is read from whole answers: no request asks for a stream, whose usage some servers leave out."""
    stub.sends = 2
    asked(stub)
    assert not any("stream" in body or "stream_options" in body for body in stub.sent())


def test_requests_go_one_after_another(stub: StubServer) -> None:
    """What is sent at once shares nothing, so never two requests are under way together."""
    under_way, most = [0], [0]
    inner = stub.respond

    def respond(path: str, body: dict[str, Any], headers: dict[str, str]) -> Reply:
        under_way[0] += 1
        most[0] = max(most[0], under_way[0])
        reply = inner(path, body, headers)
        under_way[0] -= 1
        return reply

    stub.respond = respond  # type: ignore[method-assign]
    stub.sends = 2
    asked(stub)
    assert most == [1]


def test_speed_is_no_evidence(stub: StubServer) -> None:
    """A second send that is much faster and reuses nothing is none: a warm-up is not a hit."""
    stub.prefix_caching, stub.has_metrics = False, False
    inner = stub.respond
    first = [True]

    def respond(path: str, body: dict[str, Any], headers: dict[str, str]) -> Reply:
        reply = inner(path, body, headers)
        slow, first[0] = path == CHAT and first[0], first[0] and path != CHAT
        return Reply(reply.status, reply.body, reply.headers, delay_s=0.3) if slow else reply

    stub.respond = respond  # type: ignore[method-assign]
    found = asked(stub)
    cold, second = found.evidence.sends[:2]
    assert cold.seconds > 2 * second.seconds
    assert found.code == "none"


def test_only_what_our_sends_added_is_counted(stub: StubServer) -> None:
    """A long history of misses in the counters does not dilute the one send that is measured."""
    stub.reports_cached, stub._queries = False, 10**9
    found = asked(stub)
    second = found.evidence.sends[1]
    assert found.to_json()["counters"]["queries"] == second.prompt_tokens


def test_a_check_needs_no_pandas() -> None:
    """A deploy gate starts quickly: neither pandas nor Altair nor papermill is loaded for it."""
    code = "import sys\nfrom prefixscope import check, cli\n"
    code += "print(sorted({'pandas', 'altair', 'papermill', 'numpy'} & set(sys.modules)))"
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )  # fmt: skip
    assert found.stdout.strip() == "[]"
