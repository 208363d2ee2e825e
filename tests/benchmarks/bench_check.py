"""What ``check`` costs on a healthy server, against the two bare requests that it replaces.

    python tests/benchmarks/bench_check.py [--rounds 5]

The embedded engine with MTP and interval 1024 is asked in turn by hand (the same prompt posted twice) and by ``check``,
with prompts of one length. What counts is the ratio within one run: of processor seconds, the server's and our own
together, and of wall seconds, which other work on the machine disturbs. The bound holds for the medians of both.
"""

from __future__ import annotations

import argparse
import os
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import requests

from prefixscope import prompts
from prefixscope.check import TOKENS, check
from prefixscope.client import Client
from prefixscope.investigation import Investigation
from prefixscope.runs import Run
from prefixscope.setting import Setting
from prefixscope.target import Target

BOUND = 1.3
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        target = Target()
        run = Run.create(Path(place) / "run", target=target.to_json(), parameters={})
        investigation = Investigation(run, target)
        try:
            with (
                investigation.stage("baseline") as stage,
                investigation.server(Setting(interval=1024), stage, keep=True) as (client, _),
            ):
                servers = {server.process[0] for server in investigation.pool.servers() if server.process}
                return compare(client.url, arguments.rounds, servers)
        finally:
            investigation.stop_servers()


def compare(url: str, rounds: int, servers: set[int]) -> int:
    with Client(url) as client:
        model = client.models()[0].name
        check(client, model=model)  # warms the server up, and tells how long its prompts are
        sent = check(client, model=model)
    assert sent.code == "reuses", sent.sentence
    tokens = sent.evidence.sends[0].prompt_tokens or TOKENS
    chars = round(tokens * len(prompts.text(1, 800)) / 830)
    wall, spent = [], []
    for _ in range(rounds):
        bare, ours = (
            measured(lambda: by_hand(url, model, chars), servers),
            measured(lambda: by_check(url, model), servers),
        )
        wall.append(ours[0] / bare[0])
        spent.append(ours[1] / bare[1])
        print(f"bare {bare[0]:6.2f} s wall {bare[1]:6.2f} s CPU   check {ours[0]:6.2f} s wall {ours[1]:6.2f} s CPU")
    good = True
    for name, ratios in (("processor seconds", spent), ("wall seconds", wall)):
        middle = statistics.median(ratios)
        good = good and middle <= BOUND
        print(f"{name}: check costs {middle:.2f} times the two bare requests (bound {BOUND}) at {tokens:,} tokens")
    return 0 if good else 1


def by_hand(url: str, model: str, chars: int) -> None:
    content = f"Check {secrets.token_hex(8)}. " + prompts.text(1, chars)
    body = {"model": model, "max_tokens": 1, "temperature": 0, "messages": [{"role": "user", "content": content}]}
    for _ in range(2):
        requests.post(url + "/v1/chat/completions", json=body, timeout=120).raise_for_status()


def by_check(url: str, model: str) -> None:
    with Client(url) as client:
        assert check(client, model=model).code == "reuses"


def measured(work: Callable[[], None], servers: set[int]) -> tuple[float, float]:
    """Wall and processor seconds, the latter of this process and of the servers together."""
    wall, spent = time.perf_counter(), processor_s(servers)
    work()
    seconds = time.perf_counter() - wall
    time.sleep(0.05)  # the server finishes its bookkeeping
    return seconds, processor_s(servers) - spent


def processor_s(servers: set[int]) -> float:
    """Processor seconds of this process, of these servers and of every process below them."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        pid = int(stat.parent.name)
        parents[pid], ticks[pid] = int(fields[1]), int(fields[11]) + int(fields[12])
    mine = {os.getpid(), *servers}
    while more := {pid for pid, parent in parents.items() if parent in mine} - mine:
        mine |= more
    return sum(ticks.get(pid, 0) for pid in mine) * TICK_S


if __name__ == "__main__":
    sys.exit(main())
