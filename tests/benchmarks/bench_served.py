"""What the tracer costs a served engine, against its bounds: its hooks' time, of the time to first token.

    python tests/benchmarks/bench_served.py [--release 0.29.0] [--prompts 6]

The embedded model answers one token to each prompt of 6,446 tokens, cold and twice warm. The hooks' time of a request
is what the tracer itself counts between its lookup and the next one; the time to first token is the client's. Both are
of one run, so their ratio holds on a busy machine too. Interval 1024 keeps every block, the most that can be recorded.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from prefixscope import engine as engines
from prefixscope.investigation import Investigation
from prefixscope.measure import measure
from prefixscope.runs import Run
from prefixscope.series import REPEATS, Series
from prefixscope.setting import Setting
from prefixscope.target import Target
from prefixscope.trace import our_id

TOKENS = 6_446
BOUNDS = {"cold": 0.02, "warm": 0.05}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--release", default=engines.DEFAULT_VERSION)
    parser.add_argument("--prompts", type=int, default=6)
    arguments = parser.parse_args()
    engines.ensure(arguments.release, progress=print, to_serve=True)
    target = Target(kind="embedded", engine=arguments.release)
    # One prompt more, for what its lookup says of the one before.
    plan = [
        Series(setting=Setting(interval=1024), tokens=TOKENS, seed=seed, sends=REPEATS)
        for seed in range(1, arguments.prompts + 2)
    ]
    with tempfile.TemporaryDirectory() as place:
        investigation = Investigation(Run.create(Path(place) / "run", target=target.to_json(), parameters={}), target)
        try:
            with investigation.stage("trace") as stage:
                rows = measure(investigation, stage, plan)
        finally:
            investigation.stop_servers()
        hooks_s = dict(hook_times(investigation.path / "trace"))
    print(f"\nvLLM {arguments.release}, {arguments.prompts} prompts of {TOKENS:,} tokens; medians")
    print(f"{'':6} {'first token':>12} {'in hooks':>10} {'share':>7} {'bound':>6}")
    broken = 0
    for kind, bound in BOUNDS.items():
        sent = [row for row in rows if (row["send"] == "cold") == (kind == "cold") and row["request_id"] in hooks_s]
        share = statistics.median(hooks_s[row["request_id"]] / row["first_token_ms"] * 1000 for row in sent)
        first, hooks = (
            statistics.median(values)
            for values in ([row["first_token_ms"] for row in sent], [hooks_s[row["request_id"]] * 1000 for row in sent])
        )
        broken += share > bound
        print(
            f"{kind:6} {first:9.1f} ms {hooks:7.2f} ms {share:7.2%} {bound:6.0%}{'  broken' if share > bound else ''}"
        )
    return 1 if broken else 0


def hook_times(folder: Path) -> Iterator[tuple[str, float]]:
    """Request id and seconds in the hooks, of every request but an engine's last."""
    for path in folder.glob("*.jsonl"):
        events = map(json.loads, path.read_text(encoding="utf-8").splitlines())
        lookups = [event for event in events if event["event"] == "lookup"]
        for one, after in pairwise(lookups):
            yield our_id(one["request"]), (after["hook_total_us"] - one["hook_total_us"]) / 1e6


if __name__ == "__main__":
    sys.exit(main())
