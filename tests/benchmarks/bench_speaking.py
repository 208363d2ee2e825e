"""What MTP buys on the embedded engine: tokens generated a second with the drafter and without, side by side.

    python tests/benchmarks/bench_speaking.py [--release 0.29.0] [--repeats 3] [--answer 96]

Both servers run all the while and are asked in turns, so that what else the machine does hits both. A generation's time
is that of an answer of many tokens less that of an answer of one token to the same, cached prompt; tokens are those of
``usage``. The bound is on the ratio.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from prefixscope import engine as engines
from prefixscope import prompts
from prefixscope.client import Client
from prefixscope.investigation import Investigation
from prefixscope.metrics import samples
from prefixscope.runs import Run
from prefixscope.setting import Setting
from prefixscope.target import Target

BOUND = 1.2


def generated(client: Client, name: str, prompt: prompts.Prompt, tokens: int) -> tuple[int, float]:
    """Tokens generated after the first, and the seconds they took."""
    times, counts = [], []
    for most in (1, tokens):
        began = time.perf_counter()
        answer = client.chat(prompt.messages, model=name, max_tokens=most)
        times.append(time.perf_counter() - began)
        counts.append(answer.completion_tokens or 0)
    return counts[1] - counts[0], times[1] - times[0]


def steps(client: Client) -> tuple[float, float]:
    """Drafts and accepted tokens so far."""
    page = client.metrics() or ""
    names = ("num_drafts", "num_accepted_tokens")
    drafts, accepted = (sum(v for _, v in samples(page, f"vllm:spec_decode_{n}_total")) for n in names)
    return drafts, accepted


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--release", default=engines.DEFAULT_VERSION)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--answer", type=int, default=96)
    parser.add_argument("--tokens", type=int, default=1_600)
    given = parser.parse_args()
    engines.ensure(given.release, progress=print)
    target = Target(kind="embedded", engine=given.release)
    with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
        run = Run.create(Path(place) / "run", target=target.to_json(), parameters={})
        investigation = Investigation(run, target)
        stack.callback(investigation.stop_servers)
        stage = stack.enter_context(investigation.stage("bench"))
        clients = {
            arm: stack.enter_context(investigation.server(Setting(drafter=arm == "MTP"), stage))[0]
            for arm in ("no MTP", "MTP")
        }
        name = next(iter(clients.values())).models()[0].name
        count = lambda messages: clients["MTP"].tokenize(messages, name)  # noqa: E731
        asked = [prompts.shaped(count, shape, given.tokens, 1) for shape in prompts.SHAPES]
        asked.append(prompts.document(count, given.tokens, 100))
        for prompt in asked:  # three sends are what this release takes to reuse a prompt
            for client in clients.values():
                for _ in range(3):
                    client.chat(prompt.messages, model=name, max_tokens=1)
        print(f"{'':18} {'no MTP':>12} {'MTP':>12} {'ratio':>7} {'tokens/step':>12}   cost of a step with MTP")
        ratios = []
        for prompt in asked:
            rates: dict[str, list[float]] = {arm: [] for arm in clients}
            before = steps(clients["MTP"])
            for _ in range(given.repeats):
                for arm, client in clients.items():
                    tokens, seconds = generated(client, name, prompt, given.answer)
                    rates[arm].append(tokens / seconds)
            drafts, accepted = (after - sofar for after, sofar in zip(steps(clients["MTP"]), before, strict=True))
            plain, drafted = (statistics.median(rates[arm]) for arm in clients)
            ratio, per_step = drafted / plain, 1 + accepted / drafts
            ratios.append(ratio)
            # A step with a drafter costs the target's step, for four tokens at once, and three of the drafter's.
            print(
                f"{prompt.name:18} {plain:8.1f} t/s {drafted:8.1f} t/s {ratio:7.2f} {per_step:12.2f}   "
                f"{per_step / ratio:.2f} of one without"
            )
        middle = statistics.median(ratios)
        print(f"\n{json.dumps({'median ratio': round(middle, 2), 'bound': BOUND, 'least': round(min(ratios), 2)})}")
    return 0 if middle >= BOUND else 1


if __name__ == "__main__":
    raise SystemExit(main())
