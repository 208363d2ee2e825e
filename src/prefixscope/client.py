"""An OpenAI-compatible server over HTTP: one method per endpoint, frozen records back.

Nothing here decides anything: a record holds what the server said, null where it said nothing.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import requests

from prefixscope import tls, usage
from prefixscope.errors import Rejected, TargetError, Unreachable, mask, remember_secret
from prefixscope.usage import integer as integer
from prefixscope.usage import mapping as mapping

MAX_BODY_CHARS = 600
RETRY_STATUS = frozenset({429, 503})
MOST_RETRIES = 8
"""A busy server is not asked the same again more often, whatever it says of when to come back."""
CHAT = "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One entry of ``/v1/models``. ``parent`` is set for a LoRA adapter, ``root`` is equal for aliases (vLLM)."""

    name: str
    parent: str | None = None
    max_model_len: int | None = None
    root: str | None = None
    owned_by: str | None = None


@dataclass(frozen=True, slots=True)
class Completion:
    """What one chat completion answered.

    Attributes
    ----------
    prompt_tokens, cached_tokens, completion_tokens : from ``usage``; None where the server reports none. A null
        ``prompt_tokens_details`` is None, never 0.
    token_ids, prompt_token_ids : where the server returns them (vLLM's ``return_token_ids``).
    margins : at each answered token, the log-probability of the best token minus the second best, nats.
    seconds : wall time of the whole call; with ``max_tokens`` 1 this is the time to the first token.
    retries : how often the server said 429 or 503 first.
    cached_from : the field of ``usage`` that ``cached_tokens`` was read from; empty where none has it.
    """

    request_id: str
    text: str
    prompt_tokens: int | None
    cached_tokens: int | None
    completion_tokens: int | None
    token_ids: tuple[int, ...] | None
    prompt_token_ids: tuple[int, ...] | None
    logprobs: tuple[float, ...] | None
    margins: tuple[float, ...] | None
    finish_reason: str | None
    seconds: float
    retries: int = 0
    usage: Mapping[str, Any] = field(default_factory=dict)
    cached_from: str = ""


def read_key(key_env: str) -> str | None:
    """The key in the environment variable of that name; None where no name is given.

    Raises
    ------
    TargetError
        where the name is given and the variable is unset or empty.
    """
    if not key_env:
        return None
    value = os.environ.get(key_env, "")
    if not value:
        raise TargetError(
            f"the environment variable {key_env!r}, named as the place of the API key, is not set",
            remedy=f"export {key_env}=… and run again",
        )
    remember_secret(value)
    if not value.isascii() or not value.isprintable():
        raise TargetError(
            f"the key in {key_env} can't stand in an HTTP header",
            cause="it holds a line break, or a character that is not ASCII",
            remedy=f"export {key_env}=… with the key alone",
        )
    return value


class Client:
    """One server, one request at a time.

    Parameters
    ----------
    url : the server's root (``http://host:8000``); a trailing ``/v1`` is accepted.
    key_env : name of the environment variable that holds the API key; the key itself is never stored elsewhere.
    verify : False accepts any TLS certificate; the caller has to ask for it.

    Attributes
    ----------
    answered_with : the headers of the newest response, their names in any case.
    """

    def __init__(self, url: str, *, key_env: str = "", verify: bool = True, retry_budget_s: float = 60.0) -> None:
        url = url.strip().rstrip("/")
        if not url or not url.isprintable() or " " in url:
            raise Unreachable(f"{url!r} is not a URL", remedy="use the form http://host:8000")
        if "://" not in url:
            url = "http://" + url
        self.url = url.removesuffix("/chat/completions").removesuffix("/v1")
        self.retry_budget_s = retry_budget_s
        self.answered_with: Mapping[str, str] = {}
        self._session = requests.Session()
        self._session.verify = verify
        if _is_local(self.url):
            # A proxy named in the environment can't reach loopback; a certificate named there still counts.
            self._session.trust_env = False
            bundle = os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE")
            self._session.verify = verify and (bundle or True)
        self._session.headers["User-Agent"] = "prefixscope"
        key = read_key(key_env)
        if key:
            self._session.headers["Authorization"] = f"Bearer {key}"

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        self._session.close()

    # --- endpoints ---------------------------------------------------------------------------------------------

    def healthy(self, timeout_s: float = 2.0) -> bool:
        """Whether ``/health`` answers 200."""
        try:
            return self._session.get(self.url + "/health", timeout=timeout_s).status_code == 200
        except requests.RequestException:
            return False

    def version(self) -> str | None:
        """vLLM's ``/version``; None where the server has no such endpoint."""
        body = self._optional_json("/version")
        return str(body["version"]) if isinstance(body, dict) and "version" in body else None

    def models(self) -> tuple[ServedModel, ...]:
        """The served names."""
        body = self._json("GET", "/v1/models")
        entries = body.get("data")
        if not isinstance(entries, list):
            raise self.malformed("/v1/models", body, "no list under 'data'")
        return tuple(
            ServedModel(
                str(entry["id"]),
                _text(entry.get("parent")),
                integer(entry.get("max_model_len")) or integer(mapping(entry.get("meta")).get("n_ctx")),
                _text(entry.get("root")),
                _text(entry.get("owned_by")),
            )
            for entry in entries
            if isinstance(entry, dict) and entry.get("id")
        )

    def server_info(self) -> dict[str, Any]:
        """vLLM's ``/server_info`` (open in its development mode only): configuration and variables; empty elsewhere."""
        body = self._optional_json("/server_info?config_format=json")
        return body if isinstance(body, dict) and isinstance(body.get("vllm_config"), dict) else {}

    def metrics(self) -> str | None:
        """The Prometheus text of ``/metrics``; None where there is none."""
        try:
            response = self._session.get(self.url + "/metrics", timeout=10)
        except requests.RequestException:
            return None
        return response.text if response.status_code == 200 and "# " in response.text else None

    def tokenize(self, messages: Sequence[Mapping[str, str]], model: str) -> tuple[int, ...] | None:
        """The token ids of a chat prompt, template included (vLLM's ``/tokenize``); None where there is no endpoint."""
        body = self._optional_json("/tokenize", {"model": model, "messages": list(messages)}, timeout_s=30)
        tokens = body.get("tokens") if isinstance(body, dict) else None
        # llama.cpp's server has a /tokenize of its own, which answers messages with an empty list.
        return integers(tokens)

    def detokenize(self, tokens: Sequence[int], model: str) -> str | None:
        """The text of token ids (vLLM's ``/detokenize``); None where there is no endpoint."""
        body = self._optional_json("/detokenize", {"model": model, "tokens": list(tokens)}, timeout_s=30)
        return _text(body.get("prompt")) if isinstance(body, dict) else None

    def chat(
        self,
        messages: Sequence[Mapping[str, str]],
        *,
        model: str,
        max_tokens: int = 1,
        salt: str | None = None,
        request_id: str = "",
        logprobs: bool = False,
        extra: Mapping[str, Any] | None = None,
        expected_tokens: int = 0,
        headers: Mapping[str, str] | None = None,
    ) -> Completion:
        """One greedy chat completion.

        ``expected_tokens`` (prompt length) only stretches the timeout: 60 s and one more per 100 prompt tokens.
        ``extra`` adds fields to the body; one that is None takes the field out.

        Raises
        ------
        Unreachable, Rejected
            with what came back; a malformed answer is a Rejected with status 0.
        """
        body = chat_body(messages, model=model, max_tokens=max_tokens, salt=salt, logprobs=logprobs, extra=extra)
        headers = {**({"X-Request-Id": request_id} if request_id else {}), **(headers or {})}
        answer, seconds, retries = self._send(
            CHAT, body, headers=headers, timeout_s=60 + expected_tokens / 100 + max_tokens, model=model
        )
        return _completion(self, CHAT, answer, request_id, seconds, retries)

    # --- transport ---------------------------------------------------------------------------------------------

    def _send(
        self, path: str, body: Mapping[str, Any], *, headers: Mapping[str, str], timeout_s: float, model: str
    ) -> tuple[dict[str, Any], float, int]:
        response, started, retries = self.post(path, body, headers=headers, timeout_s=timeout_s, model=model)
        seconds = time.perf_counter() - started
        return self._decode(path, response), seconds, retries

    def post(
        self,
        path: str,
        body: Mapping[str, Any],
        *,
        headers: Mapping[str, str],
        timeout_s: float,
        model: str,
        stream: bool = False,
    ) -> tuple[requests.Response, float, int]:
        """The response, when its request was sent (``time.perf_counter``), and how often the server was busy before.

        With ``stream`` the body is still to be read, and the response to be closed.
        """
        spent, retries = 0.0, 0
        while True:
            start = time.perf_counter()
            response = self._call("POST", path, body=body, headers=headers, timeout_s=timeout_s, stream=stream)
            if response.status_code not in RETRY_STATUS:
                break
            # A server that says "at once" again and again is asked less and less often all the same.
            pause = 2.0 ** min(retries, 4)
            wait = max(_retry_after(response, default=pause), pause / 10)
            if spent + wait > self.retry_budget_s or retries >= MOST_RETRIES:
                break
            time.sleep(wait)
            spent, retries = spent + wait, retries + 1
        if response.status_code != 200:
            raise self._rejected(path, response, model, retries, body)
        return response, start, retries

    def _call(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 10.0,
        stream: bool = False,
    ) -> requests.Response:
        try:
            response = self._session.request(
                method,
                self.url + path,
                json=body,
                headers=dict(headers or {}),
                timeout=(5.0, timeout_s),
                stream=stream,
                allow_redirects=False,  # a redirected POST would be sent again as a GET
            )
        except requests.exceptions.SSLError as error:
            cause, remedy = tls.explain(str(error))
            raise Unreachable(
                f"{method} {self.url}{path}: the TLS handshake failed", cause=cause, remedy=remedy
            ) from error
        except requests.exceptions.Timeout as error:
            raise Unreachable(
                f"{method} {self.url}{path}: no answer within {timeout_s:.0f} s",
                cause="the server is starting, overloaded or stuck",
                remedy=f"curl -m 10 {self.url}/health, then try again (prefixscope run goes on with --resume)",
            ) from error
        except (requests.exceptions.InvalidURL, requests.exceptions.InvalidSchema) as error:
            raise Unreachable(f"{self.url!r} is not a URL", remedy="use the form http://host:8000") from error
        except requests.RequestException as error:
            if tls.spoken_at(self.url):
                raise Unreachable(
                    f"{method} {self.url}{path}: {why_broken(error)}",
                    cause="the server speaks HTTPS, and the URL says http://",
                    remedy=f"use {self.url.replace('http://', 'https://', 1)}",
                ) from error
            raise Unreachable(
                f"{method} {self.url}{path}: {why_broken(error)}",
                cause="no server listens there, or it closed the connection in the middle (its engine may have died)",
                remedy=f"curl {self.url}/v1/models, and read the server's log",
            ) from error
        except ValueError as error:  # of the address that an answer redirects to
            raise Unreachable(
                f"{method} {self.url}{path}: the answer can't be read: {error}",
                cause="it redirects to something that is no address",
                remedy="give the address of the server itself",
            ) from error
        self.answered_with = response.headers
        return response

    def _json(self, method: str, path: str) -> dict[str, Any]:
        response = self._call(method, path)
        if response.status_code != 200:
            raise self._rejected(path, response, "", 0)
        return self._decode(path, response)

    def _optional_json(self, path: str, body: Mapping[str, Any] | None = None, timeout_s: float = 10.0) -> Any:
        try:
            response = self._call("POST" if body else "GET", path, body=body, timeout_s=timeout_s)
            return response.json() if response.status_code == 200 else None
        except (Unreachable, ValueError):
            return None

    def _decode(self, path: str, response: requests.Response) -> dict[str, Any]:
        try:
            body = response.json()
        except (ValueError, RecursionError):
            raise self.malformed(path, response.text, "not JSON") from None
        if not isinstance(body, dict):
            raise self.malformed(path, body, "not a JSON object")
        return body

    def malformed(self, path: str, body: object, why: str) -> Rejected:
        text = body if isinstance(body, str) else json.dumps(body)
        page = "<html" in text[:2000].lower()
        return Rejected(
            f"{self.url}{path} answered 200, but the body is malformed: {why}",
            cause="a proxy or another web server answers at this address"
            if page
            else "not an OpenAI-compatible server",
            remedy="give the address of the vLLM server itself",
            detail=f"It began: {shorten(text)!r}",
        )

    def _rejected(
        self, path: str, response: requests.Response, model: str, retries: int, sent: Mapping[str, Any] | None = None
    ) -> Rejected:
        status, message = response.status_code, _without_prompt(_error_message(response), sent or {})
        cause, remedy = "", "read the server's log"
        if 300 <= status < 400:
            place = response.headers.get("Location", "")
            message = message or f"it redirects to {place}"
            cause, remedy = "the server answers at another address", f"use that address: {place.removesuffix(path)}"
        elif status == 400 and "plain http" in message.lower():
            cause, remedy = "the server speaks HTTPS", f"use {self.url.replace('http://', 'https://', 1)}"
        elif status in (401, 403):
            cause, remedy = (
                "an API key is missing or wrong",
                "export a key and pass its variable's NAME: --key-env VLLM_API_KEY",
            )
        elif status == 404 and model:
            remedy = f"use one of the served names: {self._served_names()}"
            cause = f"no model named {model!r} is served"
        elif status == 404:
            cause, remedy = "no OpenAI-compatible server at this address", "give the server's root, without a path"
        elif status in (400, 413, 422) and _too_long(message):
            cause, remedy = (
                "the prompt is longer than the model's context",
                "use shorter prompts: -p baseline.lengths=…",
            )
        elif status in RETRY_STATUS:
            cause = (
                f"the server is overloaded or limits the rate ({retries} retries within {self.retry_budget_s:.0f} s)"
            )
            remedy = "try again later (prefixscope run goes on with --resume)"
        elif status >= 500:
            cause = "the engine failed on this request; it may be dead"
        return Rejected(
            f"{self.url}{path} answered {status}: {shorten(message)}", status=status, cause=cause, remedy=remedy
        )

    def _served_names(self) -> str:
        try:
            return ", ".join(model.name for model in self.models()) or "(none listed)"
        except TargetError:
            return "(the list could not be read)"


def chat_body(
    messages: Sequence[Mapping[str, str]],
    *,
    model: str,
    max_tokens: int,
    salt: str | None,
    logprobs: bool = False,
    extra: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The body of a greedy chat completion; a field that ``extra`` gives as None is left out."""
    body = {
        "model": model,
        "messages": list(messages),
        "max_tokens": max_tokens,
        "temperature": 0,
        **({"cache_salt": salt} if salt else {}),
        **({"logprobs": True, "top_logprobs": 2} if logprobs else {}),
        **(extra or {}),
    }
    return {name: value for name, value in body.items() if value is not None}


def shorten(text: str, limit: int = MAX_BODY_CHARS) -> str:
    """The text on one line, masked, cut in the middle of nowhere with a mark."""
    text = mask(" ".join(text.split()))
    return text if len(text) <= limit else text[:limit] + " …"


def _completion(
    client: Client, path: str, body: dict[str, Any], request_id: str, seconds: float, retries: int
) -> Completion:
    choices = body.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise client.malformed(path, body, "no choices")
    choice: dict[str, Any] = choices[0]
    message, listed = mapping(choice.get("message")), mapping(choice.get("logprobs"))
    text = message.get("content") or message.get("reasoning_content") or message.get("reasoning") or ""
    counted = usage.read(body.get("usage"))
    logprobs = listed.get("content") or None
    return Completion(
        request_id=request_id or str(body.get("id", "")),
        text=str(text),
        prompt_tokens=counted.prompt_tokens,
        cached_tokens=counted.cached_tokens,
        completion_tokens=counted.completion_tokens,
        token_ids=integers(choice.get("token_ids")),
        prompt_token_ids=integers(body.get("prompt_token_ids")),
        logprobs=_each(logprobs, lambda entry: float(entry["logprob"])),
        margins=_each(logprobs, _margin),
        finish_reason=choice.get("finish_reason"),
        seconds=seconds,
        retries=retries,
        usage=mapping(body.get("usage")),
        cached_from=counted.cached_from,
    )


def _each(entries: Any, read: Callable[[dict[str, Any]], float]) -> tuple[float, ...] | None:
    try:
        return tuple(read(entry) for entry in entries) if entries else None
    except (LookupError, TypeError, ValueError):
        return None


def _margin(entry: dict[str, Any]) -> float:
    best = sorted((float(top["logprob"]) for top in entry["top_logprobs"]), reverse=True)
    return best[0] - best[1]


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _is_local(url: str) -> bool:
    try:
        host = urlsplit(url).hostname or ""
    except ValueError:
        return False  # no URL at all: the first request says so
    return host in ("localhost", "::1") or host.startswith("127.")


def integers(value: Any) -> tuple[int, ...] | None:
    return tuple(value) if isinstance(value, list) and value and all(isinstance(v, int) for v in value) else None


def _retry_after(response: requests.Response, default: float) -> float:
    try:
        return max(0.0, float(response.headers.get("Retry-After", default)))
    except ValueError:
        return default


def _error_message(response: requests.Response) -> str:
    try:
        body = response.json()
    except ValueError:
        return response.text or response.reason or ""
    error = body.get("error", body) if isinstance(body, dict) else body
    return str(error.get("message", error)) if isinstance(error, dict) else str(error)


def _without_prompt(message: str, sent: Mapping[str, Any]) -> str:
    """The server's message, ended where it begins to repeat what it was sent: no prompt is shown in an error."""
    for one in sent.get("messages", ()):
        start = str(one.get("content") or "")[:24]
        if len(start) >= 8 and start in message:
            message = message[: message.index(start)] + "[the prompt, left out]"
    return message


def _too_long(message: str) -> bool:
    message = message.lower()
    return (
        "context length" in message
        or "context size" in message
        or ("maximum" in message and "token" in message)
        or "too long" in message
    )


def why_broken(error: requests.RequestException) -> str:
    text = str(error)
    for known in ("Connection refused", "Name or service not known", "Remote end closed", "Connection reset"):
        if known in text:
            return known.lower()
    return type(error).__name__
