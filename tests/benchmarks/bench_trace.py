"""How long a long trace takes to read, and in how much memory: ``python tests/benchmarks/bench_trace.py [LOOKUPS]``.

A trace of that many lookups (100,000 by default), each with its admission and what it stored, is written to a
temporary folder. Fresh processes then read it: the package's reader, ``json.loads`` of every line and nothing else, and
the reader that follows a growing file. Seconds are of processor time; what counts is their ratio in one run, and the
peak memory of each.
"""

from __future__ import annotations

import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).parents[1] / "data" / "trace-incident.jsonl"


def lines(lookups: int) -> Iterator[str]:
    """The recorded incident's header, then its three events for ever new prompts of many lengths."""
    events = [json.loads(line) for line in RECORDED.read_text(encoding="utf-8").splitlines()]
    rng = random.Random(1)
    header, lookup, admit, store = (
        events[0],
        *(
            next(one for one in events if one["event"] == name and "cpu-2" in one.get("request", ""))
            for name in ("lookup", "admit", "store")
        ),
    )
    yield json.dumps(header, separators=(",", ":"))
    for number in range(lookups):
        name, t = f"chatcmpl-bench-{number}-0123abcd", header["t"] + number * 0.05
        tokens = rng.randrange(2_000, 60_000)
        last, hit = tokens // 32, tokens // 64 * 64 - 64
        sliding = {"cached": [[last - 33, last]], "needed": [last - 35, last - 2], "backs": hit}
        full = {"cached": [[0, tokens // 64]], "needed": [0, tokens // 64], "backs": hit}
        yield _line(
            lookup, t=t, request=name, prompt_tokens=tokens, tokens=tokens, hit_tokens=rng.choice((0, hit)),
            groups=[{"gids": [0, 1, 2, 3, 4], **sliding}, {"gids": [5], **full}],
            closest={"request": f"chatcmpl-bench-{number - 1}-0123abcd", "common_tokens": tokens // 32 * 32},
        )  # fmt: skip
        yield _line(admit, t=t + 0.001, request=name)
        kept = {"kept": [[last - 33, last]], "dropped": [[0, last - 33]], "boundaries": [tokens - 1]}
        yield _line(
            store, t=t + 0.002, request=name,
            groups=[{"gids": [0, 1, 2, 3, 4], **kept}, {"gids": [5], "kept": [[0, tokens // 64]], "dropped": []}],
        )  # fmt: skip


def _line(event: dict[str, Any], **changed: Any) -> str:
    return json.dumps({**event, **changed}, separators=(",", ":"))


def plain(path: Path) -> int:
    """The floor: every line parsed and thrown away."""
    with path.open("rb") as file:
        return sum(json.loads(line)["event"] == "lookup" for line in file)


def read(path: Path) -> int:
    from prefixscope.trace import read_trace

    return len(read_trace(path).lookups)


def follow(path: Path) -> int:
    from prefixscope.trace import Follower

    follower = Follower([path])
    follower.look()
    return sum(building.taken for building in follower.reader.engines.values())


WAYS: dict[str, Callable[[Path], int]] = {"json.loads": plain, "read_trace": read, "Follower": follow}


def main() -> None:
    if len(sys.argv) == 3:
        started = time.process_time()
        found = WAYS[sys.argv[1]](Path(sys.argv[2]))
        seconds, peak = time.process_time() - started, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print(json.dumps({"lookups": found, "seconds": seconds, "peak_mib": peak / 1024}))
        return
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace-1.jsonl"
        with path.open("w", encoding="utf-8") as file:
            file.writelines(line + "\n" for line in lines(wanted))
        print(f"{wanted:,} lookups, {path.stat().st_size / 2**20:,.0f} MiB")
        floor = 0.0
        for way in WAYS:
            done = subprocess.run(
                [sys.executable, __file__, way, str(path)], capture_output=True, text=True, check=True
            )
            row = json.loads(done.stdout)
            assert row["lookups"] == wanted, (way, row)
            floor = floor or row["seconds"]
            ratio = f"{row['seconds'] / floor:.1f} times json.loads"
            print(f"{way:10}  {row['seconds']:6.2f} s  {ratio:22}  peak {row['peak_mib']:,.0f} MiB")


if __name__ == "__main__":
    main()
