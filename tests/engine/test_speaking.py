"""The trained model: the script that made it, what it computes, what it says, and how often its drafter is right."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from bench import Bench

from prefixscope import prompts
from prefixscope.client import Client
from prefixscope.engine import Engine
from prefixscope.metrics import samples
from prefixscope.setting import Setting
from prefixscope.trained import trained_model

pytestmark = pytest.mark.engine

ROOT = Path(__file__).parents[2]
TRAINING = ROOT / "training"


def run(engine: Engine, *words: str) -> str:
    done = subprocess.run(
        [str(engine.python), *words], capture_output=True, text=True, timeout=600, check=False, cwd=ROOT,
        env=engine.environment(),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_the_script_trains_on_a_cpu(engine: Engine, tmp_path: Path) -> None:
    """A hundred steps halve the target's loss; every file of the shipped model is written, tensor for tensor."""
    run(engine, str(TRAINING / "train.py"), "target", "drafter", "adapter", "--out", str(tmp_path), "--scale", "0.02")
    record = json.loads((tmp_path / "training.json").read_text())
    for stage, most in (("target", 0.5), ("drafter", 0.9), ("adapter", 1.0)):
        curve = record["stages"][stage]["curve"]
        assert curve[-1]["loss"] < most * curve[0]["loss"], stage
    shipped = trained_model()
    assert shipped is not None
    assert tensors(tmp_path) == tensors(shipped.target.parent)


def tensors(home: Path) -> dict[str, tuple[str, list[int]]]:
    """Folder and name of every tensor → type and shape."""
    found = {}
    for file in home.glob("*/*.safetensors"):
        data = file.read_bytes()
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        for name, entry in header.items():
            if name != "__metadata__":
                found[f"{file.parent.name}/{name}"] = (entry["dtype"], entry["shape"])
    return found


def test_training_computes_what_transformers_does(engine: Engine) -> None:
    """With the shipped weights the training code's logits are transformers', target's and drafter's, to 1e-4."""
    shipped = trained_model()
    assert shipped is not None
    driver = Path(__file__).with_name("logits_driver.py")
    found = json.loads(run(engine, str(driver), str(shipped.target.parent), str(TRAINING)).splitlines()[-1])
    assert len(found) == 5
    assert all(difference < 1e-4 for difference in found.values()), found


@dataclass(frozen=True)
class Said:
    """One answer and what the drafter did for it."""

    shape: str
    text: str
    drafts: int
    drafted: int
    accepted: int


def drafting(client: Client) -> list[int]:
    """Drafts, drafted and accepted tokens so far."""
    names = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
    page = client.metrics() or ""
    return [round(sum(v for _, v in samples(page, f"vllm:spec_decode_{name}_total"))) for name in names]


@pytest.fixture(scope="module")
def said(bench: Bench) -> list[Said]:
    """Answers to two prompts of each shape and to two documents, from the default server with the drafter."""
    found = []
    with bench.investigation.stage("trace") as stage, bench.investigation.server(Setting(), stage) as (client, _):
        name = client.models()[0].name

        def count(messages: object) -> tuple[int, ...] | None:
            return client.tokenize(messages, name)  # type: ignore[arg-type]

        asked = [prompts.shaped(count, shape, 512, seed) for shape in prompts.SHAPES for seed in (1, 2)]
        asked += [prompts.document(count, 1_600, seed) for seed in (100, 101)]
        for prompt in asked:
            before = drafting(client)
            answer = client.chat(prompt.messages, model=name, max_tokens=64)
            spent = [after - sofar for after, sofar in zip(drafting(client), before, strict=True)]
            found.append(Said(prompt.name.rpartition(" ")[0], answer.text or "", *spent))
    return found


def test_the_drafter_is_right_often_and_not_always(said: list[Said]) -> None:
    """Between 40 and 95 of a hundred guesses are accepted, more than 1.8 tokens a step, unlike from shape to shape."""
    drafts, drafted, accepted = (sum(getattr(one, name) for one in said) for name in ("drafts", "drafted", "accepted"))
    assert 0.40 < accepted / drafted < 0.95
    assert 1 + accepted / drafts > 1.8
    shares = [
        sum(one.accepted for one in said if one.shape == shape) / sum(one.drafted for one in said if one.shape == shape)
        for shape in {one.shape for one in said}
    ]
    assert max(shares) - min(shares) > 0.1


def test_answers_go_on_with_what_was_asked(said: list[Said]) -> None:
    """A log is continued in its own words, rules in XML, calls in JSON; a summary quotes how the document begins."""
    texts = {shape: " ".join(one.text for one in said if one.shape == shape) for shape in {one.shape for one in said}}
    assert all(text.isascii() and text.isprintable() for one in said for text in one.text.splitlines())
    assert ", entry " in texts["prose"]
    assert "found" in texts["code"]
    assert "<" in texts["XML"]
    assert '": ' in texts["tool arguments"]
    for one, seed in zip([one for one in said if one.shape == "document"], (100, 101), strict=True):
        number = prompts.text(seed, 200).partition(", entry ")[2][:4]
        assert one.text.startswith(f"Log {seed} begins with entry {number}: ")
