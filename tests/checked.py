"""A check of the stub server, as the tests of ``check`` ask for one."""

from __future__ import annotations

from typing import Any

from stub import StubServer

from prefixscope import cli
from prefixscope.check import Outcome, check
from prefixscope.client import Client


def asked(stub: StubServer, **options: Any) -> Outcome:
    """The outcome of a check of the stub, with prompts short enough for a test."""
    said: list[str] = options.pop("said", [])
    with Client(stub.url, retry_budget_s=0.2) as client:
        return check(client, **{"model": "tiny", "tokens": 1_200, "say": said.append, **options})


def usage_of(stub: StubServer, change: Any) -> None:
    """Answer with another usage: ``change`` gets the stub's own and the number of the request, from 1."""
    stub.edit = lambda answer, request: {**answer, "usage": change(answer["usage"], len(stub.sent()))}


def run(stub: StubServer, *more: str) -> int:
    return cli.main(["check", stub.url, "--model", "tiny", "--tokens", "1200", *more])
