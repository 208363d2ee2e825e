"""What is refused, and what can't be reached: each with what failed, the likely cause and the next command."""

from __future__ import annotations

import socket
from typing import Any

import pytest
import requests
from stub import CHAT, HTML_PAGE, METRICS, MODELS, Reply, StubServer, error

from prefixscope.client import Client
from prefixscope.deadline import Limit
from prefixscope.errors import Rejected, Unreachable
from prefixscope.metrics import counters
from prefixscope.outage import outage
from prefixscope.refusal import context_named

HELLO = [{"role": "user", "content": "hello " * 40}]
PAGE = "<html><head><title>{}</title></head><body>{}</body></html>"


def refused(stub: StubServer, reply: Reply, **options: Any) -> Rejected:
    stub.always(CHAT, reply)
    with Client(stub.url, retry_budget_s=0, **options) as client, pytest.raises(Rejected) as caught:
        client.chat(HELLO, model="tiny")
    assert caught.value.cause
    assert caught.value.remedy
    return caught.value


# --- refused -------------------------------------------------------------------------------------------------------


def test_a_missing_key_and_a_wrong_one_are_told_apart(stub: StubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """401 without a key names the option; with one it names the variable whose key was not accepted."""
    missing = refused(stub, error(401, "Unauthorized"))
    assert "none was given" in missing.cause
    assert "--key-env VLLM_API_KEY" in missing.remedy
    monkeypatch.setenv("TINY_KEY", "quite-a-secret-value-44")
    wrong = refused(stub, error(401, "Unauthorized"), key_env="TINY_KEY")
    assert "the key in TINY_KEY" in wrong.cause
    assert '--oauth2-bearer "$TINY_KEY"' in wrong.remedy
    assert "quite-a-secret" not in str(wrong)


def test_403_is_no_wrong_key(stub: StubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key that is known and may not, and a firewall's page, are two causes, neither of them a missing key."""
    monkeypatch.setenv("TINY_KEY", "quite-a-secret-value-44")
    assert "may not use the model" in refused(stub, error(403, "not allowed"), key_env="TINY_KEY").cause
    page = refused(stub, Reply(403, PAGE.format("403 Forbidden", "x" * 3_000)))
    assert "proxy or firewall" in page.cause
    assert page.what.endswith("answered 403: a web page, '403 Forbidden'")


def test_a_404_for_a_served_name_is_about_the_path(stub: StubServer) -> None:
    """A name that is served, and no such endpoint: the path is named, and the served names are there to compare."""
    found = refused(stub, error(404, "Not Found"))
    assert f"no {CHAT}" in found.cause
    assert "tiny, tiny-lora" in found.cause
    assert "--api" in found.remedy


def test_a_404_is_told_apart_by_what_is_listed(stub: StubServer) -> None:
    """A name that is not listed is not served, whatever the words; an unreadable list is told as that."""
    stub.model = "other"
    found = refused(stub, error(404, "The model `tiny` does not exist."))
    assert found.lacks == "model"
    assert "no model named 'tiny' is served: /v1/models lists other, tiny-lora" in found.cause
    assert "--model NAME, with one of other, tiny-lora" in found.remedy
    stub.always(MODELS, error(500, "boom"))
    assert "can't be read" in refused(stub, error(404, "no such model")).cause
    path = refused(stub, error(404, "Not Found"))
    assert (path.lacks, "the path isn't there" in path.cause) == ("path", True)


def test_413_tells_a_body_from_a_prompt(stub: StubServer) -> None:
    """A proxy that counts bytes is told with the bytes; an engine that counts tokens with its context."""
    body = refused(stub, Reply(413, PAGE.format("413 Request Entity Too Large", "nginx")))
    assert "bytes, is more than a proxy" in body.cause
    assert "client_max_body_size" in body.remedy
    assert "--tokens" in body.remedy
    prompt = refused(stub, error(413, "maximum context length is 8,192 tokens"))
    assert "longer than the model's context" in prompt.cause
    assert "--tokens 8128" in prompt.remedy


@pytest.mark.parametrize("after", ["120", "Wed, 21 Oct 2099 07:28:00 GMT"])
def test_429_says_how_long_to_wait(stub: StubServer, after: str) -> None:
    """Retry-After, in seconds or as a date, is in the cause and in the next step."""
    found = refused(stub, error(429, "rate limit", Retry_After=after))
    assert f"asks to wait {after}" in found.cause
    assert after in found.remedy
    assert "120 s" in found.cause or after != "120"


@pytest.mark.parametrize(
    ("status", "cause"), [(502, "which it can't reach"), (503, "can't reach the engine"), (504, "it can't reach")]
)
def test_a_proxys_page_is_no_dead_engine(stub: StubServer, status: int, cause: str) -> None:
    """An HTML page with a 5xx is the proxy's; its title is shown, not its markup."""
    found = refused(stub, Reply(status, PAGE.format(f"{status} Bad\n Gateway", "nginx")))
    assert cause in found.cause
    assert f"a web page, '{status} Bad Gateway'" in found.what
    assert "<" not in found.what


def test_a_login_page_is_no_list_of_models(stub: StubServer) -> None:
    """A 200 with HTML where models are listed is another server's, a proxy's or its login page."""
    stub.always(MODELS, Reply(200, HTML_PAGE))
    with Client(stub.url) as client, pytest.raises(Rejected) as caught:
        client.models()
    assert "login page" in caught.value.cause


@pytest.mark.parametrize(
    ("words", "context"),
    [
        ("This model's maximum context length is 16384 tokens. However, you requested 1 output tokens", 16_384),
        ("The input (9000 tokens) is longer than the model's context length (8192 tokens).", 8_192),
        ("request (5000 tokens) exceeds the available context size (4096 tokens), try increasing it", 4_096),
        ("too long", None),
    ],
)
def test_the_context_is_read_off_a_refusal(words: str, context: int | None) -> None:
    """vLLM, SGLang and llama.cpp's server each name it in words of their own."""
    assert context_named(words) == context


# --- not reached ---------------------------------------------------------------------------------------------------


def connection(words: str) -> requests.ConnectionError:
    return requests.ConnectionError(f"HTTPConnectionPool(host='h', port=1): Max retries exceeded ({words})")


@pytest.mark.parametrize(
    ("error", "what", "cause", "remedy"),
    [
        (connection("[Errno -2] Name or service not known"), "no address is known", "typing error", "getent hosts h,"),
        (connection("[Errno -3] Temporary failure in name resolution"), "no address is known", "VPN", "getent"),
        (connection("[Errno 111] Connection refused"), "connection refused", "no server listens at h:1", "curl"),
        (connection("[Errno 113] No route to host"), "no route to host", "firewall", "curl"),
        (requests.ConnectTimeout("timed out"), "no connection within 5 s", "firewall", "curl"),
        (requests.exceptions.ProxyError("Tunnel connection failed: 403"), "the proxy", "proxy", "NO_PROXY=h,"),
        (connection("Remote end closed connection"), "the connection broke", "engine may have died", "log"),
        (requests.exceptions.SSLError("EOF occurred in violation of protocol"), "handshake", "plain HTTP", "http://"),
        (requests.ReadTimeout("Read timed out."), "no answer within 7 s", "overloaded", "/health"),
    ],
)  # fmt: skip
def test_each_way_not_to_get_there_has_its_words(error: Exception, what: str, cause: str, remedy: str) -> None:
    """The name, the port, the way, the proxy, the encryption and the time are told apart."""
    found = outage(error, "GET http://h:1/v1/models", "http://h:1", Limit(7))
    assert what in found.what
    assert cause in found.cause
    assert remedy in found.remedy


def test_a_name_without_an_address_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that no resolver knows is named as such through the whole stack."""

    def unknown(*words: Any, **options: Any) -> Any:
        raise socket.gaierror(-2, "Name or service not known")

    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(Unreachable, match=r"host name 'no-such-host\.example'"):
        Client("http://no-such-host.example:8000").models()


def test_a_password_in_the_address_is_not_shown() -> None:
    """user:password@ in a URL gets into no message, whichever way it fails."""
    url = "http://user:secret-word@h:1"
    for kind in (connection("Connection refused"), connection("Name or service not known"), requests.ConnectTimeout()):
        assert "secret-word" not in str(outage(kind, f"GET {url}/v1/models", url, Limit(7)))


# --- pages ---------------------------------------------------------------------------------------------------------


def test_a_metrics_page_needs_no_comments(stub: StubServer) -> None:
    """A page without HELP and TYPE lines is a page; words, a web page and an empty one are none."""
    with Client(stub.url) as client:
        for text in ('vllm:prefix_cache_queries_total{engine="0"} 5.0\n', "vllm:prefix_cache_queries_total 5\n"):
            stub.always(METRICS, Reply(body=text))
            assert counters(client.metrics()).queries == 5
        for text in ("", "OK\n", "not found\n", HTML_PAGE, "{}", "# only a comment\n"):
            stub.always(METRICS, Reply(body=text))
            assert client.metrics() is None


def test_a_line_of_words_is_no_sample() -> None:
    """A line that looks like a sample and has no number is passed over."""
    page = "vllm:prefix_cache_queries_total many\nvllm:prefix_cache_queries_total 3\n"
    assert counters(page).queries == 3
