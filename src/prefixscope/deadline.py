"""A limit for a whole HTTP exchange: status line, headers and body together, however slowly they come.

The timeout of ``requests`` starts anew with every byte, so a server that sends one a second would hold its client for
ever. Here each read of a response first asks how much of the exchange's time is left, and waits no longer than that.
"""

from __future__ import annotations

import http.client
import io
import socket
import time
from contextvars import ContextVar
from typing import Any

import requests.adapters
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

SHOWN_BYTES = 4_000


class Limit:
    """One exchange's time.

    Attributes
    ----------
    seconds : how long it may take, from now to the last byte.
    arrived : bytes of the response so far, headers included.
    began : the first of them, as many as an error may show.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds, self._ends_at = seconds, time.monotonic() + seconds
        self.arrived, self.began = 0, bytearray()

    @property
    def left_s(self) -> float:
        return self._ends_at - time.monotonic()

    @property
    def over(self) -> bool:
        return self.left_s <= 0

    def note(self, data: bytes) -> None:
        self.arrived += len(data)
        self.began += data[: max(0, SHOWN_BYTES - len(self.began))]


current: ContextVar[Limit | None] = ContextVar("current", default=None)
"""The limit of the exchange that is about to start; a response takes it along."""


class _Timed(io.RawIOBase):
    """What a socket gives until the limit ends."""

    def __init__(self, inner: io.RawIOBase, sock: socket.socket, limit: Limit) -> None:
        self._inner, self._sock, self._limit = inner, sock, limit

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left = self._limit.left_s
        if left <= 0:
            raise TimeoutError("the time of this exchange is over")
        self._sock.settimeout(left)
        count = self._inner.readinto(buffer)
        self._limit.note(bytes(buffer[: count or 0]))
        return count

    def close(self) -> None:
        self._inner.close()
        super().close()


class _Response(http.client.HTTPResponse):
    def __init__(self, sock: socket.socket, *args: Any, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        limit = current.get()
        if limit is not None:
            self.fp = io.BufferedReader(_Timed(self.fp.detach(), sock, limit))


class _Plain(HTTPConnection):
    response_class = _Response


class _Secure(HTTPSConnection):
    response_class = _Response


class _PlainPool(HTTPConnectionPool):
    ConnectionCls = _Plain


class _SecurePool(HTTPSConnectionPool):
    ConnectionCls = _Secure


_POOLS = {"http": _PlainPool, "https": _SecurePool}


class Adapter(requests.adapters.HTTPAdapter):
    """The transport of ``requests``, whose responses keep to ``current``, through a proxy too."""

    def init_poolmanager(self, *args: Any, **options: Any) -> None:
        super().init_poolmanager(*args, **options)
        self.poolmanager.pool_classes_by_scheme = _POOLS

    def proxy_manager_for(self, proxy: str, **options: Any) -> Any:
        manager = super().proxy_manager_for(proxy, **options)
        if not proxy.lower().startswith("socks"):
            manager.pool_classes_by_scheme = _POOLS
        return manager
