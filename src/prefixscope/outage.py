"""Why no whole answer came: the name, the connection, its encryption, or the time."""

from __future__ import annotations

import os
import shlex
from urllib.parse import urlsplit

import requests

from prefixscope import tls
from prefixscope.deadline import Limit
from prefixscope.errors import Unreachable

_NO_NAME = (
    "Name or service not known",
    "name resolution",
    "getaddrinfo failed",
    "No address associated",
    "nodename nor",
)
_NO_WAY = ("No route to host", "Network is unreachable", "Host is down")
_CUT = ("Remote end closed", "Connection reset", "Connection aborted", "Broken pipe")
CONNECT_S = 5.0
"""A connection that takes longer is not going to be made."""


def outage(error: Exception, what: str, url: str, limit: Limit, *, so_far: str = "") -> Unreachable:
    """The error to raise for one of the HTTP library's.

    Parameters
    ----------
    what : ``POST http://host:8000/v1/…``.
    so_far : how much of a stream had come; bytes are told where it is empty.
    """
    text, (host, name) = str(error), _host(url)
    models = shlex.quote(f"{url}/v1/models")
    if isinstance(error, requests.exceptions.SSLError):
        cause, remedy = tls.explain(text)
        return Unreachable(f"{what}: the TLS handshake failed", cause=cause, remedy=remedy)
    if isinstance(error, requests.exceptions.ProxyError):
        return Unreachable(
            f"{what}: the proxy named in this shell's environment did not let the request through",
            cause=f"{_proxies() or 'a proxy variable'} is set, and that proxy does not reach {host}",
            remedy=f"export NO_PROXY={name}, or unset the variable, and run again",
        )
    if isinstance(error, requests.exceptions.ConnectTimeout) or any(words in text for words in _NO_WAY):
        how = next((words.lower() for words in _NO_WAY if words in text), f"no connection within {CONNECT_S:.0f} s")
        return Unreachable(
            f"{what}: {how}",
            cause=f"a firewall drops what is sent to {host}, or nothing has that address",
            remedy=f"curl -m 10 {models} from where the server runs, and compare the addresses",
        )
    if limit.over or isinstance(error, requests.exceptions.Timeout) or "timed out" in text:
        return _late(what, url, limit, so_far)
    if isinstance(error, (requests.exceptions.InvalidURL, requests.exceptions.InvalidSchema)):
        return Unreachable(f"{url!r} is not a URL", remedy="use the form http://host:8000")
    if any(words in text for words in _NO_NAME):
        return Unreachable(
            f"{what}: no address is known for the host name {name!r}",
            cause="a typing error, or a name that only another network (a VPN, a cluster, a container) knows",
            remedy=f"getent hosts {name}, then give the name or the address that this machine knows",
        )
    if "refused" in text:
        return Unreachable(
            f"{what}: connection refused",
            cause=f"no server listens at {host}: it is still starting, has ended, or has another port or address "
            "(inside a container 127.0.0.1 is the container itself)",
            remedy=f"curl {models} on the server's own machine, and read its log",
        )
    if isinstance(error, requests.RequestException) and tls.spoken_at(url):
        return Unreachable(
            f"{what}: {why_broken(error)}",
            cause="the server speaks HTTPS, and the URL says http://",
            remedy=f"use {url.replace('http://', 'https://', 1)}",
        )
    if isinstance(error, requests.RequestException):
        told = f" after {so_far}" if so_far else ""
        return Unreachable(
            f"{what}: {'the stream broke off' if so_far else 'the connection broke'}{told}: {why_broken(error)}",
            cause="the server, or a proxy before it, closed the connection in the middle (its engine may have died)",
            remedy=f"curl {models}, and read the server's log",
        )
    return Unreachable(  # a ValueError: of the address that an answer redirects to
        f"{what}: the answer can't be read: {text}",
        cause="it redirects to something that is no address",
        remedy="give the address of the server itself",
    )


def _late(what: str, url: str, limit: Limit, so_far: str) -> Unreachable:
    if not (so_far or limit.arrived):
        return Unreachable(
            f"{what}: no answer within {limit.seconds:.3g} s",
            cause="the server is starting, overloaded or stuck",
            remedy=f"curl -m 10 {shlex.quote(f'{url}/health')}, then try again",
        )
    came = so_far or f"{limit.arrived:,} bytes"
    return Unreachable(
        f"{what}: the answer had not ended after {limit.seconds:.3g} s; {came} of it had arrived",
        cause="the server, or a proxy before it, sends its answer too slowly, or never ends it",
        remedy="ask the engine at its own address; with a shorter prompt where it is only slow",
    )


def why_broken(error: requests.RequestException) -> str:
    """In one line, without the HTTP library's own addresses and object names."""
    text = str(error)
    return next((words.lower() for words in ("Connection refused", *_CUT) if words in text), type(error).__name__)


def _host(url: str) -> tuple[str, str]:
    """Host and port, and the host alone; never the password before them."""
    try:
        parts = urlsplit(url)
        return parts.netloc.rpartition("@")[2] or url, parts.hostname or url
    except ValueError:
        return url, url


def _proxies() -> str:
    names = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "https_proxy", "http_proxy", "all_proxy")
    return ", ".join(name for name in names if os.environ.get(name))
