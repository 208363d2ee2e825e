"""What the tracer costs, against its bounds: vLLM's scheduler with and without the hooks, in one process.

    python tests/benchmarks/bench_tracer.py [--release 0.29.0]

The scheduler runs without a model, so a share of its own time says more than an engine would notice. The bounds are in
terms of an engine's time: the model's part is taken from a Gemma-4-12B-shaped model on one NVIDIA H200 with CUDA graphs
(240 ms to the first token of a cold 6,400-token prompt, 46 ms of a warm one), a fast one, so the strict case.
"""

from __future__ import annotations

import sys

from in_engine import measured

from prefixscope.kit import kit_environment

COLD_S, WARM_S = 0.240, 0.046
PREFILL_S_PER_TOKEN = COLD_S / 6400
# One decode step of such a model.
STEP_S = 0.010


def main() -> int:
    found = measured(
        "tracer_loop.py",
        __doc__,
        repeats=30,
        environment=lambda engine, kit: {"VLLM_NO_USAGE_STATS": "1", **kit_environment(kit, kit.parent / "trace")},
    )
    step_s = 200 * STEP_S
    # times, the engine's time besides the scheduler's, bound
    rows = {
        "cold 6K prompt": (found["prompt"]["cold"], COLD_S, 0.02),
        "warm 6K prompt": (found["prompt"]["warm"], WARM_S, 0.05),
        "cold 6K prompt, its room all evicted": (found["pressure"], COLD_S, 0.02),
        "200 stuck requests, 200 steps": (found["queue"], step_s, 0.01),
        "200 requests, each looked up 200 times": (found["every_lookup"], step_s, None),
        "40 groups × 10,000 blocks, 10 sends": (
            found["many_groups"],
            120_005 * PREFILL_S_PER_TOKEN + 9 * WARM_S,
            0.01,
        ),
    }
    print(f"\nvLLM {found['version']}")
    print(f"{'':38} {'scheduler':>11} {'traced':>11} {'in hooks':>11} {'of engine':>10} {'bound':>6}")
    broken = 0
    for name, (times, model_s, bound) in rows.items():
        added = max(times["on"] - times["off"], times["hooks"])
        share = added / (model_s + times["off"])
        # Every request looked up at every step has no bound: the scheduler asks for the head of its queue alone.
        over = bound is not None and share > bound
        broken += over
        limit = "" if bound is None else f"{bound:.0%}"
        milliseconds = (f"{times[key] * 1000:8.2f} ms" for key in ("off", "on", "hooks"))
        print(f"{name:38} {' '.join(milliseconds)} {share:10.2%} {limit:>6}{'  broken' if over else ''}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
