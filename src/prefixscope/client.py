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

from prefixscope.errors import Rejected, TargetError, Unreachable, mask, remember_secret

MAX_BODY_CHARS = 600
RETRY_STATUS = frozenset({429, 503})
CHAT = "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One entry of ``/v1/models``. ``parent`` is set for a LoRA adapter (vLLM)."""

    name: str
    parent: str | None = None
    max_model_len: int | None = None


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
    return value


class Client:
    """One server, one request at a time.

    Parameters
    ----------
    url : the server's root (``http://host:8000``); a trailing ``/v1`` is accepted.
    key_env : name of the environment variable that holds the API key; the key itself is never stored elsewhere.
    verify : False accepts any TLS certificate; the caller has to ask for it.
    """

    def __init__(self, url: str, *, key_env: str = "", verify: bool = True, retry_budget_s: float = 60.0) -> None:
        url = url.strip().rstrip("/")
        if "://" not in url:
            url = "http://" + url
        self.url = url.removesuffix("/chat/completions").removesuffix("/v1")
        self.retry_budget_s = retry_budget_s
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
            ServedModel(str(entry["id"]), entry.get("parent"), integer(entry.get("max_model_len")))
            for entry in entries
            if isinstance(entry, dict) and entry.get("id")
        )

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
        return tuple(tokens) if isinstance(tokens, list) and all(isinstance(t, int) for t in tokens) else None

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
    ) -> Completion:
        """One greedy chat completion.

        ``expected_tokens`` (prompt length) only stretches the timeout: 60 s and one more per 100 prompt tokens.

        Raises
        ------
        Unreachable, Rejected
            with what came back; a malformed answer is a Rejected with status 0.
        """
        body = chat_body(messages, model=model, max_tokens=max_tokens, salt=salt, logprobs=logprobs, extra=extra)
        headers = {"X-Request-Id": request_id} if request_id else {}
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
            if spent + wait > self.retry_budget_s:
                break
            time.sleep(wait)
            spent, retries = spent + wait, retries + 1
        if response.status_code != 200:
            raise self._rejected(path, response, model, retries)
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
            return self._session.request(
                method, self.url + path, json=body, headers=dict(headers or {}), timeout=(5.0, timeout_s), stream=stream
            )
        except requests.exceptions.SSLError as error:
            wrong = "WRONG_VERSION_NUMBER" in str(error) or "record layer" in str(error)
            raise Unreachable(
                f"{method} {self.url}{path}: the TLS handshake failed",
                cause="the server speaks plain HTTP" if wrong else "the certificate is not trusted here",
                remedy="use http:// in the URL" if wrong else "point REQUESTS_CA_BUNDLE at the certificate's authority",
            ) from error
        except requests.exceptions.Timeout as error:
            raise Unreachable(
                f"{method} {self.url}{path}: no answer within {timeout_s:.0f} s",
                cause="the server is starting, overloaded or stuck",
                remedy=f"curl -m 10 {self.url}/health, then run again with --resume",
            ) from error
        except (requests.exceptions.InvalidURL, requests.exceptions.InvalidSchema) as error:
            raise Unreachable(f"{self.url!r} is not a URL", remedy="use the form http://host:8000") from error
        except requests.RequestException as error:
            raise Unreachable(
                f"{method} {self.url}{path}: {why_broken(error)}",
                cause="no server listens there, or it closed the connection in the middle (its engine may have died)",
                remedy=f"curl {self.url}/v1/models, and read the server's log",
            ) from error

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
        except ValueError:
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

    def _rejected(self, path: str, response: requests.Response, model: str, retries: int) -> Rejected:
        status, message = response.status_code, _error_message(response)
        cause, remedy = "", "read the server's log"
        if status in (401, 403):
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
            remedy = "run again later with --resume"
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
    """The body of a greedy chat completion."""
    return {
        "model": model,
        "messages": list(messages),
        "max_tokens": max_tokens,
        "temperature": 0,
        **({"cache_salt": salt} if salt else {}),
        **({"logprobs": True, "top_logprobs": 2} if logprobs else {}),
        **(extra or {}),
    }


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
    usage = mapping(body.get("usage"))
    details = usage.get("prompt_tokens_details")
    logprobs = listed.get("content") or None
    return Completion(
        request_id=request_id or str(body.get("id", "")),
        text=str(text),
        prompt_tokens=integer(usage.get("prompt_tokens")),
        cached_tokens=integer(details.get("cached_tokens")) if isinstance(details, dict) else None,
        completion_tokens=integer(usage.get("completion_tokens")),
        token_ids=integers(choice.get("token_ids")),
        prompt_token_ids=integers(body.get("prompt_token_ids")),
        logprobs=_each(logprobs, lambda entry: float(entry["logprob"])),
        margins=_each(logprobs, _margin),
        finish_reason=choice.get("finish_reason"),
        seconds=seconds,
        retries=retries,
        usage=usage,
    )


def _each(entries: Any, read: Callable[[dict[str, Any]], float]) -> tuple[float, ...] | None:
    try:
        return tuple(read(entry) for entry in entries) if entries else None
    except (LookupError, TypeError, ValueError):
        return None


def _margin(entry: dict[str, Any]) -> float:
    best = sorted((float(top["logprob"]) for top in entry["top_logprobs"]), reverse=True)
    return best[0] - best[1]


def integer(value: Any) -> int | None:
    """An int where the value is one (a numeric string too, which some gateways send); else None."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        return None


def mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


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


def _too_long(message: str) -> bool:
    message = message.lower()
    return "context length" in message or ("maximum" in message and "token" in message) or "too long" in message


def why_broken(error: requests.RequestException) -> str:
    text = str(error)
    for known in ("Connection refused", "Name or service not known", "Remote end closed", "Connection reset"):
        if known in text:
            return known.lower()
    return type(error).__name__
