"""The client: what a record holds, and what an odd answer is turned into."""

from __future__ import annotations

import socket
import threading
import time
from dataclasses import replace
from typing import Any

import pytest
from stub import CHAT, HTML_PAGE, METRICS, MODELS, TOKENIZE, VERSION, Reply, StubServer, error

from prefixscope import transport
from prefixscope.client import Client, ServedModel
from prefixscope.completion import Completion
from prefixscope.errors import Rejected, TargetError, Unreachable, mask
from prefixscope.transport import read_key

HELLO = [{"role": "user", "content": "hello " * 40}]


@pytest.fixture
def client(stub: StubServer) -> Client:
    return Client(stub.url, retry_budget_s=0.5)


def chat(client: Client, **options: Any) -> Completion:
    return client.chat(HELLO, **{"model": "tiny", **options})


def closed_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


# --- a healthy server ----------------------------------------------------------------------------------------------


def test_a_completion_holds_what_the_server_said(stub: StubServer, client: Client) -> None:
    """Counts, text, token ids, log-probabilities and margins are those of the answer, and our request id is kept."""
    first = chat(client, max_tokens=5, request_id="ps-1", logprobs=True, extra={"return_token_ids": True})
    assert first.prompt_tokens == len(stub.tokens(HELLO))
    assert (first.cached_tokens, first.completion_tokens, first.finish_reason) == (0, 5, "length")
    assert first.token_ids is not None
    assert bytes(first.token_ids).decode() == first.text
    assert first.logprobs == (-0.25,) * 5
    assert first.margins == (1.5,) * 5
    assert first.request_id == "ps-1"
    assert stub.requests[-1][2]["x-request-id"] == "ps-1"
    assert chat(client).cached_tokens == (len(stub.tokens(HELLO)) - 1) // 64 * 64


def test_a_request_is_greedy_and_carries_the_salt(stub: StubServer, client: Client) -> None:
    """Every request has temperature 0 and the salt it was given; without one there is no such field."""
    chat(client, salt="s")
    chat(client)
    salted, plain = stub.sent()
    assert salted["temperature"] == plain["temperature"] == 0
    assert salted["cache_salt"] == "s"
    assert "cache_salt" not in plain


def test_a_salt_separates_caches(client: Client) -> None:
    """The same prompt under another salt hits nothing."""
    assert [chat(client, salt=salt).cached_tokens for salt in ("a", "a", "b")] == [0, 192, 0]


def test_models_name_adapters_by_their_parent(client: Client) -> None:
    """A LoRA adapter is told from a base model by its parent."""
    assert client.models() == (
        ServedModel("tiny", None, 16_384, owned_by="vllm"),
        ServedModel("tiny-lora", "tiny", None, owned_by="vllm"),
    )


def test_tokenize_counts_what_chat_counts(client: Client) -> None:
    """The ids of ``/tokenize`` are as many as the prompt tokens of the answer."""
    ids = client.tokenize(HELLO, "tiny")
    assert ids is not None
    assert len(ids) == chat(client).prompt_tokens


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/", "/v1/chat/completions"])
def test_the_url_may_end_anywhere_known(stub: StubServer, suffix: str) -> None:
    """The server's root, its /v1 and its chat endpoint name the same server, with or without a scheme."""
    assert Client(stub.url + suffix).url == stub.url
    assert Client(stub.url.removeprefix("http://") + suffix).url == stub.url


def test_a_local_server_is_never_asked_through_a_proxy(stub: StubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy in the environment does not stand between us and a server on this machine."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{closed_port()}")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    assert Client(stub.url).healthy()


# --- null is not zero ----------------------------------------------------------------------------------------------


def test_null_details_are_none(stub: StubServer, client: Client) -> None:
    """``prompt_tokens_details: null`` gives None, never 0."""
    stub.reports_cached = False
    assert chat(client).cached_tokens is None
    assert chat(client).prompt_tokens is not None


@pytest.mark.parametrize("usage", [None, [], "none", {}])
def test_no_usage_gives_none(stub: StubServer, client: Client, usage: Any) -> None:
    """An answer without a usable usage has a text and no counts."""
    stub.edit = lambda answer, request: {**answer, "usage": usage}
    found = chat(client)
    assert (found.prompt_tokens, found.cached_tokens, found.completion_tokens) == (None, None, None)
    assert found.text


def test_numbers_as_strings_are_numbers(stub: StubServer, client: Client) -> None:
    """Some gateways send counts as strings; those are read, words are not."""
    usage = {"prompt_tokens": "251", "completion_tokens": "many", "prompt_tokens_details": {"cached_tokens": "192"}}
    stub.edit = lambda answer, request: {**answer, "usage": usage}
    found = chat(client)
    assert (found.prompt_tokens, found.cached_tokens, found.completion_tokens) == (251, 192, None)


@pytest.mark.parametrize("value", [True, [], {}, "", 1e400])
def test_what_is_no_count_is_none(stub: StubServer, client: Client, value: Any) -> None:
    """A truth value, a list or an infinity is no hit length."""
    stub.edit = lambda answer, request: {**answer, "usage": {"prompt_tokens_details": {"cached_tokens": value}}}
    assert chat(client).cached_tokens is None


def test_unknown_fields_do_no_harm(stub: StubServer, client: Client) -> None:
    """Fields that a newer server adds are passed over."""
    stub.edit = lambda answer, request: {
        **answer,
        "new": {"a": [1]},
        "usage": {**answer["usage"], "created_cache_tokens": 3},
    }
    found = chat(client)
    assert found.cached_tokens == 0
    assert found.usage["created_cache_tokens"] == 3


# --- malformed answers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("choices", [[], None, "x", [None], ["text"]])
def test_no_choice_is_an_error_that_shows_the_answer(stub: StubServer, client: Client, choices: Any) -> None:
    """Without a choice there is no answer; the error shows what came back."""
    stub.edit = lambda answer, request: {**answer, "choices": choices}
    with pytest.raises(Rejected, match="no choices") as caught:
        chat(client)
    assert caught.value.status == 0
    assert "chat.completion" in str(caught.value)


@pytest.mark.parametrize("change", [{"message": "text"}, {"message": None}, {"logprobs": "none"}, {"logprobs": []}])
def test_a_choice_of_another_shape_is_read_as_far_as_it_goes(stub: StubServer, client: Client, change: Any) -> None:
    """A message or log-probabilities of an unknown shape give no text or no values."""
    stub.edit = lambda answer, request: {**answer, "choices": [{**answer["choices"][0], **change}]}
    found = chat(client, logprobs=True)
    assert found.text == "" or (found.logprobs, found.margins) == (None, None)


@pytest.mark.parametrize("top", [[], [{"logprob": -1.0}], None, [{"token": "a"}]])
def test_fewer_than_two_candidates_give_no_margin(stub: StubServer, client: Client, top: Any) -> None:
    """A margin needs two candidates; a server that gives one has no margins, and the answer stands."""
    content = [{"token": "a", "logprob": -1.0, "top_logprobs": top}]
    stub.edit = lambda answer, request: {
        **answer,
        "choices": [{**answer["choices"][0], "logprobs": {"content": content}}],
    }
    found = chat(client, logprobs=True)
    assert found.margins is None
    assert found.logprobs == (-1.0,)


def test_a_web_page_is_named_as_one(stub: StubServer, client: Client) -> None:
    """A 200 with HTML says that another web server answers, and shows its beginning."""
    stub.always(CHAT, Reply(200, HTML_PAGE, {"Content-Type": "text/html"}))
    with pytest.raises(Rejected, match="not JSON") as caught:
        chat(client)
    assert "another web server" in str(caught.value)
    assert "Welcome" in str(caught.value)


@pytest.mark.parametrize("body", [[1, 2], "text", 3])
def test_json_that_is_no_object_is_malformed(stub: StubServer, client: Client, body: Any) -> None:
    """A JSON list or string is no completion."""
    stub.always(CHAT, Reply(200, body if not isinstance(body, str) else '"text"'))
    with pytest.raises(Rejected, match="malformed"):
        chat(client)


def test_models_without_a_list_are_malformed(stub: StubServer, client: Client) -> None:
    """``/v1/models`` without 'data' is an error, not an empty list."""
    stub.always(MODELS, Reply(200, {"models": []}))
    with pytest.raises(Rejected, match="no list under 'data'"):
        client.models()


def test_a_body_cut_in_the_middle_is_an_error(stub: StubServer, client: Client) -> None:
    """Half an answer is never read as a whole one."""
    stub.reply_once(CHAT, Reply(200, {"choices": [{"message": {"content": "x" * 200}}]}, cut=60))
    with pytest.raises(TargetError, match=r"chat/completions"):
        chat(client)


def test_a_connection_closed_without_an_answer_is_unreachable(stub: StubServer, client: Client) -> None:
    """A server that hangs up (its engine died) is unreachable, and its log is named as the place to look."""
    stub.reply_once(CHAT, Reply(close=True))
    with pytest.raises(Unreachable, match="log"):
        chat(client)


# --- refusals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_key_names_the_option(stub: StubServer, client: Client, status: int) -> None:
    """401 and 403 say that a key is missing or wrong, and how to give one without writing it down."""
    stub.always(CHAT, error(status, "Unauthorized"))
    with pytest.raises(Rejected, match="--key-env") as caught:
        chat(client)
    assert caught.value.status == status


def test_an_unknown_model_lists_the_served_ones(client: Client) -> None:
    """A 404 for a model names those that are served."""
    with pytest.raises(Rejected, match="tiny, tiny-lora") as caught:
        chat(client, model="tinny")
    assert caught.value.status == 404
    assert "'tinny'" in str(caught.value)


def test_a_404_at_models_means_another_server(stub: StubServer, client: Client) -> None:
    """Without /v1/models there is no OpenAI-compatible server at this address."""
    stub.always(MODELS, error(404, "Not Found"))
    with pytest.raises(Rejected, match="no OpenAI-compatible server"):
        client.models()


@pytest.mark.parametrize("status", [400, 413])
def test_a_prompt_beyond_the_context_says_so(stub: StubServer, client: Client, status: int) -> None:
    """A refusal for length names the context and the parameter."""
    stub.max_model_len = 100
    if status == 413:
        stub.always(CHAT, error(413, "prompt too long"))
    with pytest.raises(Rejected, match="longer than the model's context") as caught:
        chat(client)
    assert "lengths" in caught.value.remedy


def test_a_500_suspects_the_engine(stub: StubServer, client: Client) -> None:
    """An internal error is not retried, and shows the server's words."""
    stub.always(CHAT, error(500, "EngineCore encountered an issue"))
    with pytest.raises(Rejected, match="EngineCore encountered an issue") as caught:
        chat(client)
    assert "engine" in caught.value.cause
    assert len(stub.sent()) == 1


def test_an_error_page_is_shortened(stub: StubServer, client: Client) -> None:
    """A long error body is shown in part."""
    stub.always(CHAT, Reply(502, "x" * 50_000))
    with pytest.raises(Rejected) as caught:
        chat(client)
    assert len(str(caught.value)) < 1_500


# --- retries -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_server_is_asked_again_and_the_retries_are_counted(stub: StubServer, status: int) -> None:
    """429 and 503 with Retry-After are retried; the record says how often, and times only the last call."""
    stub.reply_once(CHAT, error(status, "busy", Retry_After="0.2"), error(status, "busy", Retry_After="0.2"))
    started = time.monotonic()
    found = chat(Client(stub.url))
    assert found.retries == 2
    assert 0.4 <= time.monotonic() - started < 5
    assert found.seconds < 0.2


def test_a_date_to_come_back_at_is_by_the_servers_clock(stub: StubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry-After as a date is so long after the answer's own Date, whatever our clock says; the wait is announced."""
    slept: list[float] = []
    monkeypatch.setattr(transport.time, "sleep", slept.append)
    busy = error(429, "busy", Retry_After="Wed, 21 Oct 2099 07:28:09 GMT")
    stub.reply_once(CHAT, replace(busy, headers={**busy.headers, "Date": "Wed, 21 Oct 2099 07:28:00 GMT"}))
    told: list[str] = []
    assert chat(Client(stub.url, told=told.append)).retries == 1
    assert slept == [9.0]
    assert "asking again in 9 s" in told[0]


@pytest.mark.parametrize("after", ["3600", "inf", "Wed, 21 Oct 2099 07:28:00 GMT", "-5", "nan", "0"])
def test_retries_end_within_the_budget(stub: StubServer, after: str) -> None:
    """Whatever Retry-After says, a server that stays busy is an error within the budget, naming the retries."""
    stub.always(CHAT, error(429, "rate limit", Retry_After=after))
    started = time.monotonic()
    with pytest.raises(Rejected, match="rate limit") as caught:
        chat(Client(stub.url, retry_budget_s=0.4))
    assert time.monotonic() - started < 3
    assert "retries" in caught.value.cause
    assert caught.value.status == 429
    assert len(stub.sent()) < 20


# --- no answer -----------------------------------------------------------------------------------------------------


def test_nobody_listening_is_unreachable() -> None:
    """A refused connection names the address and the next command."""
    with pytest.raises(Unreachable, match=r"connection refused") as caught:
        Client(f"http://127.0.0.1:{closed_port()}").models()
    assert "curl" in caught.value.remedy


@pytest.mark.parametrize("url", ["http://", "ftp://127.0.0.1", "http://127.0.0.1:999999", "not a url"])
def test_what_is_no_url_is_unreachable_in_words(url: str) -> None:
    """A malformed address is an error of ours, with a remedy, never a bare exception of the HTTP library."""
    with pytest.raises(Unreachable) as caught:
        Client(url).models()
    assert caught.value.remedy


def test_https_to_a_plain_server_says_so(stub: StubServer) -> None:
    """A TLS handshake with a plain HTTP server names the scheme as the mistake."""
    with pytest.raises(Unreachable, match="http://"):
        Client(stub.url.replace("http:", "https:")).models()


def test_a_slow_answer_times_out_with_the_seconds_waited(stub: StubServer, client: Client) -> None:
    """An answer that does not come in time is unreachable, and the wait is in the message."""
    stub.reply_once(MODELS, Reply(200, {}, delay_s=1.0))
    with pytest.raises(Unreachable, match="no answer within"):
        client._call("GET", MODELS, timeout_s=0.2)


def test_the_timeout_grows_with_the_prompt(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long prompt is waited for longer than a short one."""
    waits: list[float] = []
    real = client._call

    def note(*args: Any, timeout_s: float, **options: Any) -> Any:
        waits.append(timeout_s)
        return real(*args, timeout_s=timeout_s, **options)

    monkeypatch.setattr(client, "_call", note)
    chat(client)
    chat(client, expected_tokens=100_000)
    assert waits[1] >= waits[0] + 900


# --- endpoints that may be missing ---------------------------------------------------------------------------------


def test_missing_endpoints_are_none(stub: StubServer, client: Client) -> None:
    """A server without /version, /metrics or /tokenize simply has none."""
    stub.version, stub.has_metrics, stub.tokenizer = None, False, None
    assert (client.version(), client.metrics(), client.tokenize(HELLO, "tiny")) == (None, None, None)
    assert chat(client).prompt_tokens


def test_a_page_in_place_of_an_endpoint_is_none(stub: StubServer, client: Client) -> None:
    """A catch-all web page is neither a version nor metrics nor tokens."""
    for path in (VERSION, METRICS, TOKENIZE):
        stub.always(path, Reply(200, HTML_PAGE))
    assert (client.version(), client.metrics(), client.tokenize(HELLO, "tiny")) == (None, None, None)


def test_health_is_true_only_for_200(stub: StubServer, client: Client) -> None:
    """A server that answers 503 on /health, or none at all, is not healthy."""
    assert client.healthy()
    stub.always("/health", Reply(503))
    assert not client.healthy()
    assert not Client(f"http://127.0.0.1:{closed_port()}").healthy()


# --- keys ----------------------------------------------------------------------------------------------------------


def test_a_key_is_read_from_the_named_variable(stub: StubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The key goes into the header and nowhere into the client's representation."""
    stub.api_key = "very-secret-value"
    monkeypatch.setenv("TINY_KEY", stub.api_key)
    client = Client(stub.url, key_env="TINY_KEY")
    assert chat(client).prompt_tokens
    assert stub.api_key not in repr(client) + str(vars(client))


def test_an_unset_key_variable_is_named() -> None:
    """A named variable that is not set is an error before anything is sent."""
    with pytest.raises(TargetError, match="'PREFIXSCOPE_NO_SUCH_KEY'"):
        read_key("PREFIXSCOPE_NO_SUCH_KEY")


@pytest.mark.parametrize("name", ["VLLM_API_KEY", "PREFIXSCOPE_TEST_LOGIN"])
def test_a_key_that_the_server_echoes_is_masked(stub: StubServer, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A server that repeats the key in its error does not get it into ours, whatever the variable is called."""
    monkeypatch.setenv(name, "0123456789abcdef-verysecret")
    stub.always(CHAT, error(401, "Incorrect API key provided: 0123456789abcdef-verysecret."))
    with pytest.raises(Rejected) as caught:
        chat(Client(stub.url, key_env=name))
    assert "verysecret" not in str(caught.value) + repr(caught.value.args)
    assert "***" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("Authorization: Bearer abcdef123456", "abcdef123456"),
        ("vllm serve m --api-key abcdef123456", "abcdef123456"),
        ("vllm serve m --api-key=abcdef123456 --port 1", "abcdef123456"),
        ('{"api_key": "abcdef123456"}', "abcdef123456"),
        ("token hf_abcdef123456", "abcdef123456"),
        ("key sk-abcdef123456", "abcdef123456"),
        ("GET http://user:abcdef123456@host:8000/v1", "abcdef123456"),
    ],
)
def test_what_looks_like_a_key_is_masked(text: str, hidden: str) -> None:
    """A key is masked in any of the forms in which it comes up in commands, headers and addresses."""
    assert hidden not in mask(text)
    assert "***" in mask(text)


@pytest.mark.parametrize(
    "text", ["disk-usage-report", "a task-oriented risk-assessment", "half_precision", "GET http://host:8000/v1"]
)
def test_plain_words_are_not_masked(text: str) -> None:
    """Words that merely contain the beginning of a key stay readable."""
    assert mask(text) == text


def test_one_client_serves_one_request_at_a_time_without_mixing_answers(stub: StubServer) -> None:
    """Clients in several threads each get the answer to their own request."""
    found: dict[str, str] = {}

    def ask(name: str) -> None:
        with Client(stub.url) as client:
            found[name] = client.chat(HELLO, model="tiny", request_id=name).request_id

    threads = [threading.Thread(target=ask, args=(f"r{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {f"r{n}": f"r{n}" for n in range(4)}


# --- answers that nobody sends by accident --------------------------------------------------------------------------


def test_a_server_that_is_always_busy_is_not_flooded(stub: StubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """However short it says the wait is, the same request is sent nine times at most."""
    monkeypatch.setattr("prefixscope.transport.time.sleep", lambda seconds: None)
    stub.always(CHAT, error(429, "rate limit", Retry_After="0"))
    with pytest.raises(Rejected):
        chat(Client(stub.url, retry_budget_s=60))
    assert len(stub.sent()) == 9


def test_json_too_deep_to_read_is_malformed(stub: StubServer) -> None:
    """A body of a hundred thousand brackets is an error of ours, not a traceback."""
    stub.always(CHAT, Reply(body="[" * 100_000))
    with pytest.raises(Rejected, match="not JSON"):
        chat(Client(stub.url))


def test_a_redirect_to_nowhere_is_told(stub: StubServer) -> None:
    """A Location that is no address is an error with a next step."""
    stub.always(CHAT, Reply(status=302, headers={"Location": "http://[oops"}))
    with pytest.raises((Unreachable, Rejected)) as caught:
        chat(Client(stub.url))
    assert caught.value.remedy


@pytest.mark.parametrize("value", ["ключ-ключ-ключ", "two\nlines-of-key"])
def test_a_key_that_no_header_can_hold(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused by the variable's name, and not shown."""
    monkeypatch.setenv("ODD_KEY", value)
    with pytest.raises(TargetError, match="ODD_KEY") as caught:
        read_key("ODD_KEY")
    assert value not in str(caught.value)
