"""How long a long trace takes to read, and in how much memory: ``python tests/benchmarks/bench_trace.py [LOOKUPS]``.

A trace of that many lookups (100,000 by default), each with its admission and what it stored, is written to a
temporary folder. Fresh processes then read it: the package's reader, ``json.loads`` of every line and nothing else, the
reader that follows a growing file, and one that names the cause of every lookup (``trace show --limit 0``), here of
prompts of one length only, the worst case. Seconds are of processor time; what counts is their ratio in one run, and
the peak memory of each. Causes must cost about the same per lookup in a tenth of the trace.
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


def lines(lookups: int, *, one_length: bool = False) -> Iterator[str]:
    """The recorded incident's header, then its three events for ever new prompts, of many lengths or of one; every
    third evicts something."""
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
        tokens = 6_446 if one_length else rng.randrange(2_000, 60_000)
        last, hit = tokens // 32, tokens // 64 * 64 - 64
        sliding = {"cached": [[last - 33, last]], "needed": [last - 35, last - 2], "backs": hit}
        full = {"cached": [[0, tokens // 64]], "needed": [0, tokens // 64], "backs": hit}
        yield _line(
            lookup, t=t, request=name, prompt_tokens=tokens, tokens=tokens, hit_tokens=(got := rng.choice((0, hit))),
            groups=[{"gids": [0, 1, 2, 3, 4], **sliding}, {"gids": [5], **full}],
            closest={"request": f"chatcmpl-bench-{number - 1}-0123abcd", "common_tokens": tokens // 32 * 32},
        )  # fmt: skip
        yield _line(admit, t=t + 0.001, request=name, hit_tokens=got)
        kept = {"kept": [[last - 33, last]], "dropped": [[0, last - 33]], "boundaries": [tokens - 1]}
        yield _line(
            store, t=t + 0.002, request=name,
            groups=[{"gids": [0, 1, 2, 3, 4], **kept}, {"gids": [5], "kept": [[0, tokens // 64]], "dropped": []}],
        )  # fmt: skip

        if number % 3 == 0:
            rows = [{"gid": gid, "blocks": 33, "ranges": [[0, 33]]} for gid in range(5)]
            yield _line({**header, "event": "evict"}, t=t + 0.003, groups=rows)


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


def explain(path: Path) -> int:
    from prefixscope.terminal import summarise
    from prefixscope.trace import read_trace

    return len(summarise(read_trace(path), limit=0).rows)


WAYS: dict[str, Callable[[Path], int]] = {
    "json.loads": plain,
    "read_trace": read,
    "Follower": follow,
    "explain": explain,
}


def main() -> None:
    if len(sys.argv) == 3:
        started = time.process_time()
        found = WAYS[sys.argv[1]](Path(sys.argv[2]))
        seconds, peak = time.process_time() - started, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print(json.dumps({"lookups": found, "seconds": seconds, "peak_mib": peak / 1024}))
        return
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    with tempfile.TemporaryDirectory() as folder:
        long, one_length, tenth = (Path(folder) / f"trace-{number}.jsonl" for number in range(3))
        write(long, lines(wanted))
        write(one_length, lines(wanted, one_length=True))
        write(tenth, lines(wanted // 10, one_length=True))
        print(f"{wanted:,} lookups, {long.stat().st_size / 2**20:,.0f} MiB")
        floor = 0.0
        for way in WAYS:
            row = run(way, one_length if way == "explain" else long)
            assert row["lookups"] == wanted, (way, row)
            floor = floor or row["seconds"]
            ratio = f"{row['seconds'] / floor:.1f} times json.loads"
            print(f"{way:10}  {row['seconds']:6.2f} s  {ratio:22}  peak {row['peak_mib']:,.0f} MiB")
        small = run("explain", tenth)
        growth = row["seconds"] / row["lookups"] / (small["seconds"] / small["lookups"])
        print(f"explain costs {growth:.2f} times as much per lookup as in a tenth of the trace")


def write(path: Path, text: Iterator[str]) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(line + "\n" for line in text)


def run(way: str, path: Path) -> dict[str, Any]:
    """One way of reading in a process of its own."""
    done = subprocess.run([sys.executable, __file__, way, str(path)], capture_output=True, text=True, check=True)
    row: dict[str, Any] = json.loads(done.stdout)
    return row


if __name__ == "__main__":
    main()
