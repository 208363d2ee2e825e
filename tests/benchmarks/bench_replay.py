"""What a replay costs, against its bounds: the worker beside a bare loop over vLLM's scheduler, in one process.

    python tests/benchmarks/bench_replay.py [--release 0.29.0]

Both do the same sweep: 7 intervals × 5 prompt lengths × 3 sends, cache reset between prompts. The bare loop hashes
every send, as the scheduler's own callers do; the worker also reads and writes JSON and counts what is kept.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from prefixscope import engine as engines
from prefixscope.kit import write_kit

MOST_RATIO, MOST_S = 1.10, 2.0
LOOP = Path(__file__).with_name("replay_loop.py")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--release", default=engines.DEFAULT_VERSION)
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    engine = engines.ensure(arguments.release, progress=print)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        kit, result = write_kit(folder / "kit"), folder / "result.json"
        wanted = {
            "model_dir": str(Path(engine.model.target).parent),
            "repeats": arguments.repeats,
            "result": str(result),
        }
        subprocess.run(
            [str(engine.python), str(LOOP)],
            input=json.dumps(wanted),
            text=True,
            check=True,
            env={**os.environ, **engine.environment(), "PYTHONPATH": str(kit)},
        )
        found = json.loads(result.read_text(encoding="utf-8"))
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
