"""What a replay costs, against its bounds: the worker beside a bare loop over vLLM's scheduler, in one process.

    python tests/benchmarks/bench_replay.py [--release 0.29.0]

Both do the same sweep: 7 intervals × 5 prompt lengths × 3 sends, cache reset between prompts. The bare loop hashes
every send, as the scheduler's own callers do; the worker also reads and writes JSON and counts what is kept.
"""

from __future__ import annotations

import sys

from in_engine import measured

MOST_RATIO, MOST_S = 1.10, 2.0


def main() -> int:
    found = measured(
        "replay_loop.py",
        __doc__,
        repeats=7,
        environment=lambda engine, kit: {**engine.environment(), "PYTHONPATH": str(kit)},
    )
    rows = {
        "sweep through the worker, CPU": (f"{found['ours_s']:.2f} s", f"{MOST_S:.0f} s", found["ours_s"] > MOST_S),
        "over the bare loop": (f"{found['ratio']:.2f}×", f"{MOST_RATIO:.2f}×", found["ratio"] > MOST_RATIO),
        "blocks hashed": (f"{found['hashed']:,}", f"{found['blocks']:,}", found["hashed"] > found["blocks"]),
    }
    print(f"\nvLLM {found['version']}, bare loop {found['bare_s']:.2f} s CPU")
    for name, (value, bound, over) in rows.items():
        print(f"{name:32} {value:>10} {bound:>10}{'  broken' if over else ''}")
    return int(any(over for _, _, over in rows.values()))


if __name__ == "__main__":
    sys.exit(main())
