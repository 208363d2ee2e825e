"""What a server that answers, and says no, means by it: the likely cause, and what to do."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import requests

from prefixscope.completion import PATHS
from prefixscope.errors import Rejected, mask

MAX_BODY_CHARS = 600
BUSY = {429: "too many requests", 503: "not available now"}
"""Statuses after which the same is asked again, and what they mean."""
_CONTEXT = re.compile(r"context (?:length|size|window)\D{0,24}?(\d[\d,]*)", re.IGNORECASE)
_TITLE = re.compile(r"<title[^>]*>(.*?)</title", re.IGNORECASE | re.DOTALL)


def refusal(
    url: str,
    path: str,
    response: requests.Response,
    *,
    model: str = "",
    names: Sequence[str] | None = (),
    key_env: str = "",
    retries: int = 0,
    sent: Mapping[str, Any] | None = None,
) -> Rejected:
    """The error to raise for a response that is no 200.

    Parameters
    ----------
    model : the model that was asked; empty where the request names none.
    names : the served ones; None where their list can't be read.
    key_env : name of the variable that the key was taken from.
    retries : how often the server was busy before.
    sent : the request's body, none of whose prompt may stand in a message.
    """
    status, text = response.status_code, _message(response)
    page = is_page(text)
    message = _title(text) if page else without_prompt(text, sent or {})
    low = message.lower()
    cause, remedy, lacks = "", "read the server's log", ""
    if 300 <= status < 400:
        place = response.headers.get("Location", "")
        message = message or f"it redirects to {place}"
        cause, remedy = "the server answers at another address", f"use that address: {place.removesuffix(path)}"
    elif status == 400 and "plain http" in text.lower():
        cause, remedy = "the server speaks HTTPS", f"use {url.replace('http://', 'https://', 1)}"
    elif status == 401:
        cause, remedy = _key(url, key_env)
    elif status == 403:
        cause, remedy = _forbidden(url, key_env, page)
    elif status in (404, 405, 501) and model:
        lacks = "model" if status == 404 and _about_model(low, model) else "path"
        cause, remedy = _missing(url, path, model, names, lacks)
    elif status == 404:
        cause = f"no OpenAI-compatible server at this address: there is no {path}"
        remedy = "give the server's root, without a path: prefixscope check http://host:8000"
    elif status in (400, 413, 422) and too_long(message):
        cause = "the prompt is longer than the model's context"
        most = context_named(message)
        remedy = "use shorter prompts" + (f", of less than {most:,} tokens" if most else "")
        remedy += f": check --tokens {most - 64 if most and most > 128 else 'N'}, or run -p baseline.lengths=…"
    elif status == 413:
        size = len(json.dumps(sent)) if sent else 0
        cause = f"the request's body, {size:,} bytes, is more than a proxy before the engine lets through"
        remedy = "check with a smaller --tokens, or raise the proxy's limit (nginx: client_max_body_size)"
    elif status in BUSY:
        cause, remedy = _busy(response, retries, page)
    elif status >= 500 and page:
        cause = "a proxy answers in place of the engine, which it can't reach"
        remedy = "see that the engine runs, and ask it at its own address"
    elif status >= 500:
        cause = "the engine failed on this request; it may be dead"
    what = f"{url}{path} answered {status}: {shorten(message)}"
    return Rejected(what, status=status, cause=cause, remedy=remedy, lacks=lacks)


def malformed(url: str, path: str, body: object, why: str) -> Rejected:
    """A 200 whose body is not what the endpoint answers."""
    text = body if isinstance(body, str) else json.dumps(body)
    page = is_page(text)
    return Rejected(
        f"{url}{path} answered 200, but the body is malformed: {why}",
        cause="a proxy, its login page or another web server answers at this address"
        if page
        else "not an OpenAI-compatible server",
        remedy="give the address of the vLLM server itself",
        detail=f"It began: {shorten(text)!r}",
    )


def _key(url: str, key_env: str) -> tuple[str, str]:
    if not key_env:
        return (
            "the server wants an API key, and none was given",
            "export the key and give its variable's NAME: --key-env VLLM_API_KEY",
        )
    return (
        f"the server does not accept the key in {key_env}: a wrong or expired one, or the key of another server",
        f'curl --oauth2-bearer "${key_env}" {shlex.quote(f"{url}/v1/models")}, and compare with the server\'s own '
        "--api-key; --key-env names another variable",
    )


def _forbidden(url: str, key_env: str, page: bool) -> tuple[str, str]:
    if page:
        return (
            "a proxy or firewall before the server lets nobody from here through",
            "ask the engine at its own address, from a machine that may",
        )
    who = f"the key in {key_env} is known, but" if key_env else "no key was given, or"
    return (
        f"{who} this caller may not use the model or the path",
        "ask who runs the server which models the key may use; --key-env NAME gives another key"
        f" (curl {shlex.quote(f'{url}/v1/models')} lists what is served)",
    )


def _busy(response: requests.Response, retries: int, page: bool) -> tuple[str, str]:
    wait = shorten(response.headers.get("Retry-After", ""), 60)
    wait += " s" if wait.replace(".", "", 1).isdigit() else ""
    asked = f", and asks to wait {wait}" if wait else ""
    again = f"try again after that ({wait})" if wait else "try again later, when the server is less busy"
    if response.status_code == 503:
        why = (
            "a proxy can't reach the engine" if page else "the server is overloaded, still starting, or its engine dead"
        )
        return f"{why}{asked} ({retries} retries)", f"read the server's log, or {again}"
    return f"the server limits the rate of requests{asked} ({retries} retries)", again


def _about_model(message: str, model: str) -> bool:
    """Whether a 404 speaks of a model at all; one that does not is about the path."""
    return "model" in message or model.lower() in message


def _missing(url: str, path: str, model: str, names: Sequence[str] | None, lacks: str) -> tuple[str, str]:
    """Cause and remedy of a 404, by what its words say isn't there, and by what the server lists."""
    other_api = " or ".join(f"--api {name}" for name, place in PATHS.items() if place != path)
    check = f"prefixscope check {shlex.quote(url)}"
    try_api = f"{check} --model {shlex.quote(model)} {other_api}"
    if names is None:
        listed = "the list at /v1/models can't be read"
    else:
        listed = f"/v1/models lists {', '.join(names) or 'no model'}"
    if names is not None and model not in names:
        other = f"; there may be no {path} either" if lacks == "path" else ""
        choose = f"{check} --model NAME, with one of {', '.join(names)}"
        return f"no model named {model!r} is served: {listed}{other}", choose if names else "read the server's log"
    if lacks == "path":
        who = f"the model {model!r} is served, the path isn't" if names else "the path isn't there"
        return f"{who}: this server has no {path} ({listed})", f"{try_api}, where it has one of those"
    if names is None:
        return f"no model named {model!r} is served at {path}; {listed}", "read the server's log for the served names"
    rest = [name for name in names if name != model]
    another = f", or --model with another name: {', '.join(rest)}" if rest else ""
    cause = f"its words are about the model, not the path: {path} does not know {model!r}, though {listed}"
    return cause, f"{try_api}{another}; or ask the engine at its own address"


def too_long(message: str) -> bool:
    """Whether a refusal's words say that a prompt does not fit the context."""
    message = message.lower()
    return (
        "context length" in message
        or "context size" in message
        or ("maximum" in message and "token" in message)
        or "too long" in message
    )


def context_named(message: str) -> int | None:
    """The context in tokens that a refusal names; None where it names none."""
    found = _CONTEXT.search(message)
    return int(found[1].replace(",", "")) if found else None


def is_page(text: str) -> bool:
    """Whether a body is a web page."""
    return "<html" in text[:2000].lower()


def shorten(text: str, limit: int = MAX_BODY_CHARS) -> str:
    """The text on one line, masked, cut in the middle of nowhere with a mark."""
    text = mask(" ".join(text.split()))
    return text if len(text) <= limit else text[:limit] + " …"


def without_prompt(message: str, sent: Mapping[str, Any]) -> str:
    """The server's message, ended where it begins to repeat what it was sent: no prompt is shown in an error."""
    texts = [one.get("content") for one in sent.get("messages", ())] + [sent.get("prompt")]
    for text in texts:
        start = str(text or "")[:24]
        if len(start) >= 8 and start in message:
            message = message[: message.index(start)] + "[the prompt, left out]"
    return message


def _title(page: str) -> str:
    found = _TITLE.search(page)
    return f"a web page, {' '.join(found[1].split())!r}" if found else "a web page"


def _message(response: requests.Response) -> str:
    try:
        body = response.json()
    except (ValueError, RecursionError):
        return response.text or response.reason or ""
    error = body.get("error", body) if isinstance(body, dict) else body
    return str(error.get("message") or error.get("detail") or error) if isinstance(error, dict) else str(error)
