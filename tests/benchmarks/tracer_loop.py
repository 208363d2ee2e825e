"""Run inside an engine's Python: times vLLM's scheduler with the tracer's hooks in place and taken out, in turn."""

from __future__ import annotations

import gc
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "engine"))

import scheduler_driver as driver

Patched = list[tuple[type, str, Any, Any]]


def install() -> Patched:
    """Load the tracer; every attribute that it replaced, as (class, name, before, after)."""
    from prefixscope_inside import tracer, versions

    # The hooks' own clock counts what other processes take on a busy machine; here it should not.
    tracer.time = SimpleNamespace(perf_counter=time.thread_time)
    found = versions.load()
    owners = {one for one in found.values() if isinstance(one, type)} | set(found["managers"])
    before = {owner: dict(vars(owner)) for owner in owners}
    driver.load_general_plugins()
    return [
        (owner, name, before[owner][name], value)
        for owner in owners
        for name, value in vars(owner).items()
        if name in before[owner] and before[owner][name] is not value
    ]


def hooks(patched: Patched, on: bool) -> None:
    for owner, name, plain, traced in patched:
        setattr(owner, name, traced if on else plain)


def timed(part: Callable[[], Any]) -> float:
    """This thread's seconds, without a garbage collection that falls to whoever comes at its time."""
    gc.collect()
    gc.freeze()
    gc.disable()
    started = time.thread_time()
    part()
    took = time.thread_time() - started
    gc.enable()
    return took


def spent_s() -> float:
    from prefixscope_inside.tracer import _Tracer

    assert _Tracer.current is not None
    assert _Tracer.current.on
    return float(_Tracer.current.recorder.spent_s)


def scheduler(scenario: dict[str, Any], model_dir: Path) -> Any:
    """A scheduler whose objects the garbage collector leaves alone, as in a running engine."""
    made = driver.scheduler(scenario, model_dir)
    gc.collect()
    gc.freeze()
    return made


def send(made: Any, name: str, tokens: int, base: int) -> None:
    driver.drive(made, [{"id": name, "tokens": tokens, "base": base}])


def prompt(patched: Patched, model_dir: Path, *, repeats: int) -> dict[str, Any]:
    """A cold and a warm prompt of 6,392 tokens in the incident's geometry."""
    rows: dict[str, dict[str, list[float]]] = {kind: {"off": [], "on": [], "hooks": []} for kind in ("cold", "warm")}
    both = Turns(patched, {**INCIDENT, "pool": 400_000}, model_dir).made
    for on in (False, True):
        hooks(patched, on)
        send(both[on], "first", 6392, 9_000_000)
    for number in range(repeats):
        for on in (False, True):
            hooks(patched, on)
            for kind in ("cold", "warm"):
                before = spent_s()
                took = timed(lambda: send(both[on], f"{kind}-{number}", 6392, number * 10_000))  # noqa: B023
                rows[kind]["on" if on else "off"].append(took)
                if on:
                    rows[kind]["hooks"].append(spent_s() - before)
    return {kind: {name: statistics.median(one) for name, one in row.items()} for kind, row in rows.items()}


def pressure(patched: Patched, model_dir: Path, *, repeats: int) -> dict[str, float]:
    """Cold prompts of 6,392 tokens whose every block takes the place of a cached one."""
    turns = Turns(patched, {**INCIDENT, "interval": None, "pool": 4_000}, model_dir)
    for number in range(repeats + 3):
        if number == 3:  # the pool is full
            turns.times = dict.fromkeys(turns.times, 0.0)
        turns.take(lambda on: send(turns.made[on], f"cold-{number}", 6392, number * 10_000))  # noqa: B023
    return {name: seconds / repeats for name, seconds in turns.times.items()}


class Turns:
    """Two schedulers, one without the hooks and one with, that take turns; times are this thread's own."""

    def __init__(self, patched: Patched, scenario: dict[str, Any], model_dir: Path) -> None:
        self.patched = patched
        self.made = {}
        for on in (False, True):
            hooks(patched, on)
            self.made[on] = scheduler(scenario, model_dir)
        self.times = {"off": 0.0, "on": 0.0, "hooks": 0.0}

    def take(self, part: Callable[[bool], Any]) -> None:
        for on in (False, True):
            hooks(self.patched, on)
            before = spent_s()
            self.times["on" if on else "off"] += timed(lambda: part(on))  # noqa: B023
            self.times["hooks"] += spent_s() - before


INCIDENT = {"geometry": "gemma-16-64", "interval": 0}


def queue(patched: Patched, model_dir: Path) -> dict[str, float]:
    """200 requests wait for 200 steps while another one decodes."""
    turns = Turns(patched, {**INCIDENT, "pool": 1090}, model_dir)
    running = {}
    for on, made in turns.made.items():
        hooks(patched, on)
        sends = [{"id": "runs", "tokens": 6392, "max_tokens": 250}]
        sends += [{"id": f"stuck-{n}", "tokens": 6392, "base": 10_000 * n} for n in range(1, 201)]
        requests = [driver.request(made, send) for send in sends]
        for one in requests:
            made.add_request(one)
        running[on] = {one.request_id: one for one in requests}
        while running[on][requests[0].request_id].num_output_tokens < 1:
            driver.step(made, running[on])

    def steps(on: bool) -> None:
        for _ in range(40):
            driver.step(turns.made[on], running[on])

    for _ in range(5):
        turns.take(steps)
    assert len(turns.made[True].waiting) >= 200
    return turns.times


def every_lookup(patched: Patched, model_dir: Path) -> dict[str, float]:
    """200 requests, all of them looked up 200 times: more than the scheduler itself does."""
    turns = Turns(patched, {**INCIDENT, "pool": 400_000}, model_dir)
    waiting = {}
    for on, made in turns.made.items():
        hooks(patched, on)
        send(made, "first", 6392, 0)
        waiting[on] = [driver.request(made, {"id": f"s-{n}", "tokens": 6392, "differs_at": 6300}) for n in range(200)]

    def look(on: bool) -> None:
        manager = turns.made[on].kv_cache_manager
        for one in waiting[on]:
            manager.get_computed_blocks(one)

    for _ in range(200):
        turns.take(look)
    return turns.times


def many_groups(patched: Patched, model_dir: Path) -> dict[str, float]:
    """40 groups of 10,000 blocks: one cold and nine warm sends of 120,000 tokens or so; the median round of five.

    What is added is a fiftieth of what the scheduler takes, and one round varies by as much.
    """
    groups = [
        {"kind": "sliding", "block_size": 12, "window": 1020, "count": 39},
        {"kind": "full", "block_size": 12},
    ]
    shape = {"groups": groups, "scheduler_block": 12, "hash_block": 12}
    scenario = {"geometry": shape, "interval": None, "pool": 3_000_000, "mtp": False, "batch": 131_072}
    turns, rounds = Turns(patched, scenario, model_dir), []
    for base in range(0, 5_000_000, 1_000_000):
        turns.times = dict.fromkeys(turns.times, 0.0)
        for number in range(10):
            turns.take(lambda on: send(turns.made[on], f"long-{base}-{number}", 120_005, base))  # noqa: B023
        rounds.append(turns.times)
    return sorted(rounds, key=lambda one: one["on"] - one["off"])[2]


def main() -> None:
    wanted = json.load(sys.stdin)
    model_dir = Path(wanted["model_dir"])
    driver.init_none_hash(driver.sha256)
    patched = install()
    result = {
        "version": driver.vllm.__version__,
        "prompt": prompt(patched, model_dir, repeats=wanted["repeats"]),
        "pressure": pressure(patched, model_dir, repeats=wanted["repeats"]),
        "queue": queue(patched, model_dir),
        "every_lookup": every_lookup(patched, model_dir),
        "many_groups": many_groups(patched, model_dir),
    }
    Path(wanted["result"]).write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    os.chdir(tempfile.mkdtemp())
    main()
