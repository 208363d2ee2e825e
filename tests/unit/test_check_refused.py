"""``check``: servers that refuse, stop or die, and those that have another API."""

from __future__ import annotations

import json
from typing import Any

import pytest
from checked import asked, run, usage_of
from stub import BLOCK, CHAT, COMPLETIONS, MESSAGES, Reply, StubServer, error

from prefixscope import cli
from prefixscope.check import check
from prefixscope.client import Client

# --- servers that refuse, stop or die ------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["temperature", "cache_salt", "max_tokens"])
def test_a_field_that_is_refused_is_left_out(stub: StubServer, field: str) -> None:
    """A model that refuses greedy, a gateway that knows no salt: asked again without, and said."""
    stub.refuses = (field,)
    said: list[str] = []
    found = asked(stub, said=said)
    assert found.code == "reuses"
    assert said == [f"the server refuses {field}; asking again without it"]


def test_a_prompt_beyond_the_context_is_halved(stub: StubServer) -> None:
    """The context that a server does not announce is found by asking for less."""
    stub.max_model_len = 700
    models = {"data": [{"id": "tiny"}]}
    stub.always("/v1/models", Reply(body=models))
    found = asked(stub)
    assert found.code == "reuses"
    assert (found.evidence.sends[0].prompt_tokens or 0) <= 700


def test_an_engine_that_dies_is_a_finding(stub: StubServer) -> None:
    """A 500 on the first prompt, and /health down: said with the engine's words, no crash."""
    stub.reply_once(CHAT, error(500, "EngineCore encountered an issue"))
    stub.always("/health", error(503, "dead"))
    found = asked(stub)
    assert (found.code, found.cause) == ("refused", "engine-failed")
    assert "EngineCore encountered an issue" in found.because
    assert found.because.endswith("/health answers 503")


def failing(stub: StubServer, at: int, reply: Reply) -> None:
    """From request number ``at`` on every completion is this reply."""
    inner, count = stub.respond, [0]

    def respond(path: str, body: dict[str, Any], headers: dict[str, str]) -> Reply:
        count[0] += path == CHAT
        return reply if path == CHAT and count[0] >= at else inner(path, body, headers)

    stub.respond = respond  # type: ignore[method-assign]


@pytest.mark.parametrize("at", [1, 2, 3])
@pytest.mark.parametrize(
    ("reply", "cause"),
    [(error(401, "no"), "refused"), (error(403, "no"), "refused"), (error(404, "no model `tiny`"), "refused"),
     (error(413, "no"), "refused"), (error(429, "no"), "refused"), (error(500, "boom"), "engine-failed"),
     (error(502, "no"), "refused"), (error(503, "no"), "refused"), (Reply(close=True), "unreachable"),
     (Reply(body={"choices": []}), "malformed"), (Reply(body="<html>"), "malformed"),
     (Reply(body={"x": 1}, cut=3), "unreachable")],
)  # fmt: skip
def test_a_fault_has_one_code_whenever_it_comes(
    stub: StubServer, capsys: pytest.CaptureFixture[str], reply: Reply, cause: str, at: int
) -> None:
    """A request that is refused or not answered is exit 2, the first as the last; what came before is in the answer."""
    failing(stub, at, reply)
    with Client(stub.url, retry_budget_s=0) as client:
        found = check(client, model="tiny", tokens=600)
    assert (found.code, found.cause) == ("refused", cause)
    assert found.because
    assert found.remedy
    assert [sent.cached_tokens is not None for sent in found.evidence.sends] == [True] * (at - 1)
    assert f"request {at} of the check" in found.sentence
    assert ("before that, the second send had 576 of" in found.sentence) == (at == 3)
    answer = found.to_json()
    assert (answer["requests"], len(answer["sends"])) == (at, at - 1)
    assert (answer["cached_tokens"] is not None) == (at == 3)


@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_server_that_is_gone_is_exit_2(stub: StubServer, capsys: pytest.CaptureFixture[str], at: int) -> None:
    """A connection that nobody takes any more is said so, with what was measured, on the screen too."""
    failing(stub, at, Reply(close=True))
    stub.always("/health", Reply(close=True))
    assert run(stub) == 2
    shown = capsys.readouterr().out
    assert "/health does not answer either" in shown
    assert shown.count(" s\n") == at - 1
    assert shown.rstrip().endswith("verdict: refused")


def test_a_wanted_share_needs_the_second_turn(stub: StubServer) -> None:
    """A gate that asks for a share is not passed by a server that reports nothing for the next turn."""
    usage_of(stub, lambda own, n: {**own, "prompt_tokens_details": None} if n == 3 else own)
    found = asked(stub, min_reuse=0.5)
    assert (found.code, found.cause) == ("inconclusive", "no-second-turn")
    assert asked(stub, min_reuse=0.9999).code == "short"


def test_a_busy_server_is_noted(stub: StubServer) -> None:
    """A 429 that passes is retried; the answer says that blocks may have gone meanwhile."""
    stub.reply_once(CHAT, error(429, "slow down", Retry_After="0"))
    found = asked(stub)
    assert found.code == "reuses"
    assert "retried" in [note.code for note in found.notes]


@pytest.mark.parametrize("status", [429, 503])
def test_each_wait_for_a_busy_server_is_announced(
    stub: StubServer, capsys: pytest.CaptureFixture[str], status: int
) -> None:
    """Without Retry-After too: what is waited for, how long, and the limit; an answer at once needs no line."""
    stub.reply_once(CHAT, error(status, "slow down"))
    assert run(stub) == 0
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert said[0].startswith(f"prefixscope: {CHAT} answered {status}, ")
    assert said[0].endswith("asking again in 1 s (waited 0 s of at most 60 s)")
    assert run(stub) == 0
    assert capsys.readouterr().err == ""


def test_a_404_says_whether_path_or_model_is_missing(stub: StubServer, capsys: pytest.CaptureFixture[str]) -> None:
    """A listed model: a 404 without a word of models is the path's, one about the model is that path's own; each has
    its next command."""
    stub.always(CHAT, error(404, "Not Found"))
    assert run(stub, "--api", "chat") == 2
    path = capsys.readouterr().out
    assert "the model 'tiny' is served, the path isn't: this server has no /v1/chat/completions" in path
    assert f"prefixscope check {stub.url} --model tiny --api completions or --api messages" in path
    stub.always(CHAT, error(404, "The model `tiny` does not exist."))
    assert run(stub) == 2
    model = capsys.readouterr().out
    assert "its words are about the model, not the path" in model
    assert "though /v1/models lists tiny, tiny-lora" in model
    assert "no model named" not in model
    assert "--api completions or --api messages, or --model with another name: tiny-lora" in model


def test_no_path_for_a_served_model_is_told_with_all_paths(stub: StubServer) -> None:
    """Without --api every path is tried: the model is there, none of the paths is, and the next command names both."""
    stub.apis = ()
    found = asked(stub)
    assert "the model 'tiny' is served, the path isn't" in found.because
    assert all(path in found.because for path in (CHAT, COMPLETIONS, MESSAGES))
    assert "prefixscope check http://host:8000 --model tiny" in found.remedy


def test_a_shorter_prompt_does_not_help_the_calibration(stub: StubServer) -> None:
    """A 413 for the short first request has nothing to do with --tokens; for a prompt of that length it has."""
    stub.always(CHAT, Reply(413, "<html>Request Entity Too Large</html>"))
    assert "check with a smaller --tokens" in asked(stub).remedy
    stub.tokenizer = None
    found = asked(stub)
    assert "client_max_body_size" in found.remedy
    assert "a smaller --tokens does not help: this request had about 200 tokens" in found.remedy


def test_a_refusal_says_nothing_of_how_hits_are_counted(stub: StubServer, capsys: pytest.CaptureFixture[str]) -> None:
    """That /metrics is missing helps nobody who was refused; a gateway in between may be why, and stays."""
    stub.has_metrics, stub.headers = False, {"x-litellm-version": "1.80"}
    assert run(stub) == 0
    assert "no-metrics" in capsys.readouterr().out
    stub.always(CHAT, error(401, "no key"))
    assert run(stub) == 2
    shown = capsys.readouterr().out
    assert "no-metrics" not in shown
    assert "gateway: LiteLLM" in shown
    run(stub, "--json")
    assert [one["code"] for one in json.loads(capsys.readouterr().out)["findings"]] == ["gateway"]


@pytest.mark.parametrize(("path", "api"), [(CHAT, "chat"), (COMPLETIONS, "completions"), (MESSAGES, "messages")])
def test_no_prompt_is_shown_in_an_error(stub: StubServer, path: str, api: str) -> None:
    """A server that repeats what it was sent in its refusal does not get the prompt onto the screen."""
    inner = stub.respond

    def respond(at: str, body: dict[str, Any], headers: dict[str, str]) -> Reply:
        said = body.get("messages") or body.get("prompt")
        return error(422, f"invalid input: {said}") if at == path else inner(at, body, headers)

    stub.respond = respond  # type: ignore[method-assign]
    found = asked(stub, api=api)
    assert "entry" not in found.because
    assert "the prompt, left out" in found.because


# --- the API that is asked -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("api", "path"), [("completions", COMPLETIONS), ("messages", MESSAGES)])
def test_another_api_gives_the_same_verdict(stub: StubServer, api: str, path: str) -> None:
    """The other two APIs of ``--api`` are asked alone, and the same tokens are reused under their own names."""
    found = asked(stub, api=api)
    assert {at for at, _, _ in stub.requests if at in (CHAT, COMPLETIONS, MESSAGES)} == {path}
    sends = {sent.series + str(sent.index): sent for sent in found.evidence.sends}
    second, turn = sends["first2"], sends["second turn1"]
    assert (found.code, found.to_json()["api"]) == ("reuses", api)
    assert second.cached_tokens == ((second.prompt_tokens or 0) - 1) // BLOCK * BLOCK
    assert (turn.cached_tokens or 0) >= second.cached_tokens
    assert f"(vLLM 0.29.0, {path})" in found.sentence


def test_the_messages_api_gets_the_key_where_its_gateways_look(
    stub: StubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anthropic's header beside the bearer token, and the version that it asks for."""
    monkeypatch.setenv("TINY_KEY", "quite-a-secret-value-43")
    stub.api_key = "quite-a-secret-value-43"
    assert cli.main(["check", stub.url, "--tokens", "300", "--api", "messages", "--key-env", "TINY_KEY"]) == 0
    headers = next(headers for path, _, headers in stub.requests if path == MESSAGES)
    assert headers["x-api-key"] == stub.api_key
    assert headers["anthropic-version"]


def test_an_api_without_details_is_not_reported(stub: StubServer) -> None:
    """/v1/messages leaves its cache fields out where the flag is off: null, not zero."""
    stub.reports_cached = False
    assert asked(stub, api="messages").code == "not reported"


@pytest.mark.parametrize(("apis", "asks"), [((COMPLETIONS, MESSAGES), COMPLETIONS), ((MESSAGES,), MESSAGES)])
def test_the_first_api_that_is_served_is_asked(stub: StubServer, apis: tuple[str, ...], asks: str) -> None:
    """Without --api a server that has no chat is asked at what it has, and that is said."""
    stub.apis = apis
    said: list[str] = []
    found = asked(stub, said=said)
    assert found.code == "reuses"
    assert asks in found.sentence
    assert said[-1].endswith(f"asking {asks}")


def test_a_model_without_a_chat_template_is_asked_at_completions(stub: StubServer) -> None:
    """vLLM refuses a chat with a base model; its text can be continued all the same."""
    stub.tokenizer = None
    words = "As of transformers v4.44, default chat template is no longer allowed, so you must provide a chat template"
    stub.always(CHAT, error(400, words))
    assert asked(stub).evidence.api == "completions"


@pytest.mark.parametrize("api", ["", "chat", "messages"])
def test_no_api_at_all_is_refused_with_what_is_served(stub: StubServer, api: str) -> None:
    """A listed model that nothing completes for: the path that failed, the names, and the option."""
    stub.apis = ()
    found = asked(stub, api=api)
    assert (found.code, found.cause) == ("refused", "refused")
    assert "tiny, tiny-lora" in found.because
    assert "--api" in found.remedy
    tried = {path for path, _, _ in stub.requests if path in (CHAT, COMPLETIONS, MESSAGES)}
    assert len(tried) == (1 if api else 3)
