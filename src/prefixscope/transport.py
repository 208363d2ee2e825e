"""One server over HTTP: requests sent one at a time, each within its time; what is no answer becomes an error."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from email.utils import formatdate, parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

import requests

from prefixscope import deadline
from prefixscope.deadline import Limit
from prefixscope.errors import Rejected, TargetError, Unreachable, remember_secret
from prefixscope.outage import CONNECT_S, outage
from prefixscope.refusal import BUSY, malformed, refusal

MOST_RETRIES = 8
"""A busy server is not asked the same again more often, whatever it says of when to come back."""


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


class Transport:
    """The way to one server.

    Parameters
    ----------
    url : the server's root (``http://host:8000``); a trailing ``/v1`` is accepted.
    key_env : name of the environment variable that holds the API key; the key itself is never stored elsewhere.
    verify : False accepts any TLS certificate; the caller has to ask for it.
    retry_budget_s : for how long a server that says it is busy is asked again.
    told : takes a line before each wait for a busy server: what it waits for, how long, and the limit.

    Attributes
    ----------
    answered_with : the headers of the newest response, their names in any case.
    limit : the time of the newest exchange.
    """

    def __init__(
        self,
        url: str,
        *,
        key_env: str = "",
        verify: bool = True,
        retry_budget_s: float = 60.0,
        told: Callable[[str], None] = lambda line: None,
    ) -> None:
        url = url.strip().rstrip("/")
        if not url or not url.isprintable() or " " in url:
            raise Unreachable(f"{url!r} is not a URL", remedy="use the form http://host:8000")
        if "://" not in url:
            url = "http://" + url
        self.url = url.removesuffix("/chat/completions").removesuffix("/v1")
        self.retry_budget_s, self._key_env, self._told = retry_budget_s, key_env, told
        self.answered_with: Mapping[str, str] = {}
        self.limit = Limit(0)
        self._session = requests.Session()
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, deadline.Adapter())
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

    def close(self) -> None:
        self._session.close()

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

        With ``stream`` the body is still to be read, within the same ``timeout_s``, and the response to be closed.
        """
        began, retries = time.perf_counter(), 0
        while True:
            start = time.perf_counter()
            response = self._call("POST", path, body=body, headers=headers, timeout_s=timeout_s, stream=stream)
            if response.status_code not in BUSY:
                break
            # A server that says "at once" again and again is asked less and less often all the same.
            pause = 2.0 ** min(retries, 4)
            wait = max(_retry_after(response, default=pause), pause / 10)
            if time.perf_counter() - began + wait > self.retry_budget_s or retries >= MOST_RETRIES:
                break
            response.close()
            waited = time.perf_counter() - began
            self._told(
                f"{path} answered {response.status_code}, {BUSY[response.status_code]}: asking again in {wait:.3g} s "
                f"(waited {waited:.0f} s of at most {self.retry_budget_s:.3g} s)"
            )
            time.sleep(wait)
            retries += 1
        if response.status_code != 200:
            with response:
                raise self._refused(path, response, model, retries, body)
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
        """One exchange; unless ``stream``, its whole body is there when this returns."""
        limit = self.limit = Limit(timeout_s)
        token = deadline.current.set(limit)
        try:
            response = self._session.request(
                method,
                self.url + path,
                json=body,
                headers=dict(headers or {}),
                timeout=(min(CONNECT_S, timeout_s), timeout_s),
                stream=stream,
                allow_redirects=False,  # a redirected POST would be sent again as a GET
            )
        except (requests.RequestException, ValueError) as error:
            raise outage(error, f"{method} {self.url}{path}", self.url, limit) from error
        finally:
            deadline.current.reset(token)
        self.answered_with = response.headers
        return response

    def broke(self, path: str, error: requests.RequestException, so_far: str) -> Unreachable:
        """The error to raise where a stream ended too early, or not at all: ``so_far`` says how much had come."""
        return outage(error, f"POST {self.url}{path}", self.url, self.limit, so_far=so_far)

    def _json(self, method: str, path: str) -> dict[str, Any]:
        response = self._call(method, path)
        if response.status_code != 200:
            raise self._refused(path, response, "", 0)
        return self._decode(path, response)

    def _optional_json(self, path: str, body: Mapping[str, Any] | None = None, timeout_s: float = 10.0) -> Any:
        try:
            response = self._call("POST" if body else "GET", path, body=body, timeout_s=timeout_s)
            return response.json() if response.status_code == 200 else None
        except (Unreachable, ValueError, RecursionError):
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
        """The error to raise for a 200 that is no answer."""
        return malformed(self.url, path, body, why)

    def _refused(
        self, path: str, response: requests.Response, model: str, retries: int, sent: Mapping[str, Any] | None = None
    ) -> Rejected:
        try:
            _ = response.content  # of a stream it is still to be read
        except requests.RequestException as error:
            raise self.broke(path, error, f"a {response.status_code}") from error
        names = self._served_names() if response.status_code in (404, 405, 501) and model else ()
        return refusal(
            self.url, path, response, model=model, names=names, key_env=self._key_env, retries=retries, sent=sent
        )

    def _served_names(self) -> tuple[str, ...] | None:
        """The names to ask by; None where the list can't be read."""
        return None


def _is_local(url: str) -> bool:
    try:
        host = urlsplit(url).hostname or ""
    except ValueError:
        return False  # no URL at all: the first request says so
    return host in ("localhost", "::1") or host.startswith("127.")


def _retry_after(response: requests.Response, default: float) -> float:
    """Seconds, as the header gives them or up to the day and time that it gives."""
    told = response.headers.get("Retry-After", "")
    try:
        return max(0.0, float(told))
    except ValueError:
        pass
    try:
        # Both times are the server's own: its clock may differ from ours.
        now = parsedate_to_datetime(response.headers.get("Date", formatdate(usegmt=True)))
        return max(0.0, (parsedate_to_datetime(told) - now).total_seconds())
    except (ValueError, TypeError):
        return default
