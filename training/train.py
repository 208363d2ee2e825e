"""Trains the small model that ships with the package: ``target``, then ``drafter`` and ``adapter`` against it.

    python training/train.py target drafter adapter --out data/models/gemma4-small

On one GPU each stage takes minutes. ``--scale 0.01`` is the same in small, for a machine without one. Needs PyTorch
and safetensors, which an embedded engine's Python has; nothing else of this project needs them.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import platform
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "src")]
import texts  # noqa: E402
from gemma import Drafter, Target  # noqa: E402

from prefixscope import model as models  # noqa: E402

NAME = "gemma4-small"
SEED = 1
SHARD_BYTES = 4_900_000
K = 3  # guesses per step, as the embedded engine speculates
SIZES = {"hidden_size": 160, "intermediate_size": 448}
DRAFTER_SIZES = {"hidden_size": 64, "intermediate_size": 128}
DRAFTER_LAYERS = ["sliding_attention", "full_attention"]
ADAPTER = {"r": 8, "lora_alpha": 16, "target_modules": ["q_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]}
# (sequence length, sequences a step, steps): short ones for the words, long ones for the prompts of a run.
PHASES = {
    "target": ((1_024, 48, 5_000), (8_192, 8, 900)),
    "drafter": ((2_048, 32, 900), (8_192, 8, 200)),
    "adapter": ((4_096, 8, 1_200),),
}
RATES = {"target": 3e-3, "drafter": 2e-3, "adapter": 2e-3}
# A drafter trained to the end is right nearly always on text as regular as this, which nobody's is. It stops as soon
# as this share of its guesses is accepted, and reads little but prose before, as real ones do.
ENOUGH = 0.8
MARKED = {"target": 1.0, "drafter": 0.15, "adapter": 1.0}


def configs() -> dict[str, dict[str, Any]]:
    """Configurations of target, drafter and adapter: the random model's, with other sizes."""
    recipe = models.load_recipe()
    target = {**recipe["target"]["config"], **SIZES}
    text = {
        **recipe["drafter"]["config"]["text_config"],
        **DRAFTER_SIZES,
        "layer_types": DRAFTER_LAYERS,
        "num_hidden_layers": len(DRAFTER_LAYERS),
        "num_kv_shared_layers": len(DRAFTER_LAYERS),
    }
    drafter = {**recipe["drafter"]["config"], "backbone_hidden_size": target["hidden_size"], "text_config": text}
    adapter = {**recipe["lora"]["config"], **ADAPTER, "base_model_name_or_path": NAME}
    return {"target": target, "drafter": drafter, "adapter": adapter}


# --- data -------------------------------------------------------------------------------------------------------------


class Sequences(Dataset[tuple[Tensor, Tensor]]):
    """Sequence i of a stage, made when asked for."""

    def __init__(self, first: int, count: int, length: int, stage: str) -> None:
        self.first, self.count, self.length, self.stage = first, count, length, stage

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        loud, marked = self.stage == "adapter", MARKED[self.stage]
        ids, marks = texts.sequence(self.first + index, self.length, loud=loud, marked=marked)
        return torch.tensor(ids), torch.tensor(marks, dtype=torch.float32)


def batches(stage: str, scale: float, workers: int, margin: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of all phases of a stage; ``margin`` tokens more than the length, for what is predicted ahead."""
    first = SEED * 100_000_000 + {"target": 0, "drafter": 30_000_000, "adapter": 60_000_000}[stage]
    for length, size, steps in phases(stage, scale):
        data = Sequences(first, size * steps, length + margin, stage)
        yield from DataLoader(
            data, size, num_workers=workers, prefetch_factor=8 if workers else None, pin_memory=workers > 0
        )
        first += size * steps


def phases(stage: str, scale: float) -> list[tuple[int, int, int]]:
    """The phases of a stage; a scale below one shortens lengths and batches a little and steps a lot."""
    if scale == 1:
        return list(PHASES[stage])
    length, size, steps = PHASES[stage][0]
    return [(max(128, length // 8), max(2, size // 16), max(2, round(steps * scale)))]


# --- losses -----------------------------------------------------------------------------------------------------------


def target_loss(model: Target, ids: Tensor, marks: Tensor, documents: float) -> tuple[Tensor, Tensor]:
    """Cross-entropy of the next token, and the share of answer tokens that a greedy step gets right.

    ``documents`` weighs what stands in a prompt against what answers it. What a conversation is followed by is no
    part of it, so nothing learns to begin another.
    """
    hidden, _ = model(ids[:, :-1])
    logits = model.logits(hidden)
    wanted, answered = ids[:, 1:], marks[:, 1:]
    weights = (answered + documents * (1 - answered)) * (wanted != texts.BOS)
    losses = F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), reduction="none").view_as(wanted)
    right = (logits.argmax(-1) == wanted).float() * answered
    return (losses * weights).sum() / weights.sum(), right.sum() / answered.sum()


def drafter_loss(target: Target, drafter: Drafter, ids: Tensor, marks: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Cross-entropy of k guesses from each position against the target's own choices, and the share accepted of each.

    As vLLM's ``Gemma4Proposer`` runs it: every guess of a step stands at the position of the target's last hidden
    state and sees the target's keys and values up to there; the first takes that hidden state, a later one what the
    drafter made of it, each beside the token before.
    """
    with torch.no_grad():
        hidden, shared = target(ids)
        logits = target.logits(hidden)
        chosen, sure = logits.argmax(-1), (logits * 1.5).softmax(-1)
    length = ids.shape[1] - K - 1  # positions from which all k guesses can be checked
    shared = {name: (k[:, :, :length], v[:, :, :length]) for name, (k, v) in shared.items()}
    state = hidden[:, :length]
    weights = marks[:, :length] * 0.9 + 0.1
    alive = torch.ones_like(weights)
    total, accepted = torch.zeros((), device=ids.device), []
    for step in range(K):
        ahead = step + 1
        given = ids[:, ahead : ahead + length]
        guess, state = drafter(target.embed(given), state, shared)
        losses = -(sure[:, ahead : ahead + length] * guess.log_softmax(-1)).sum(-1)
        # A guess counts where the text so far is what the target would have written: else it was rejected before.
        if step:
            alive = alive * (given == chosen[:, ahead - 1 : ahead - 1 + length])
        kept = weights * (0.2 + 0.8 * alive)
        total = total + (losses * kept).sum() / kept.sum()
        right = (guess.argmax(-1) == chosen[:, ahead : ahead + length]).float()
        alive = alive * right
        told = marks[:, :length]
        accepted.append((alive * told).sum() / told.sum())
        alive = alive.detach()
    return total / K, accepted


# --- training ---------------------------------------------------------------------------------------------------------


def train(stage: str, out: Path, scale: float, workers: int, seconds: float) -> dict[str, Any]:
    """Runs one stage and writes its weights; gives its curve. ``seconds`` ends it early, its rate down first."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(SEED)
    torch.set_float32_matmul_precision("high")
    shapes = configs()
    target = Target(shapes["target"])
    if stage != "target":
        target.load_state_dict(load(out / "target"), strict=False)
    target.to(device)
    trained: torch.nn.Module = target
    drafter = None
    if stage == "drafter":
        target.requires_grad_(False)
        trained = drafter = Drafter(shapes["drafter"]).to(device)
    if stage == "adapter":
        target.adapt(ADAPTER["r"], ADAPTER["lora_alpha"], ADAPTER["target_modules"])
    if device == "cuda" and stage != "adapter":  # an adapter's few steps are not worth compiling for
        torch._dynamo.reset()
        torch._dynamo.config.recompile_limit = 64  # two kinds of layer, with and without gradients, at each length
        for module in (target, drafter):
            for layer in module.model.layers if module is not None else ():
                layer.compile(dynamic=False)
    wide = [p for p in trained.parameters() if p.requires_grad and p.ndim > 1]
    narrow = [p for p in trained.parameters() if p.requires_grad and p.ndim == 1]
    groups = [
        {"params": wide, "weight_decay": 0.05 if stage == "target" else 0.0},
        {"params": narrow, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=RATES[stage], betas=(0.9, 0.97), fused=device == "cuda")
    total = sum(steps for _, _, steps in phases(stage, scale))
    curve: list[dict[str, float]] = []
    began, seen, sums, counted, done = time.perf_counter(), 0, [], 0, 0.0
    for step, (ids, marks) in enumerate(batches(stage, scale, workers, K + 1 if stage == "drafter" else 1)):
        ids, marks = ids.to(device, non_blocking=True), marks.to(device, non_blocking=True)
        # How far along: by steps, or by the clock where that runs out first.
        done = max(step / total, (time.perf_counter() - began) / seconds, done)
        rate = RATES[stage] * min(1.0, (step + 1) / min(200, 0.1 * total + 1)) * min(1.0, max(0.02, (1 - done) / 0.5))
        for group in optimizer.param_groups:
            group["lr"] = rate
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            if drafter is not None:
                loss, shares = drafter_loss(target, drafter, ids, marks)
            else:
                loss, share = target_loss(target, ids, marks, 0.0 if stage == "adapter" else 0.3)
                shares = [share]
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(wide + narrow, 1.0)
        optimizer.step()
        seen += ids.numel()
        sums.append(torch.stack([loss.detach(), *(share.detach() for share in shares)]))
        counted += 1
        recent = torch.stack(sums[-20:]).mean(0)[1:].mean().item() if drafter is not None and len(sums) >= 20 else 0.0
        over = done >= 1 or recent >= ENOUGH
        if counted == max(1, total // 40) or step + 1 == total or over:
            means = torch.stack(sums).mean(0).tolist()
            point = {
                "step": step + 1,
                "tokens": seen,
                "loss": round(means[0], 4),
                "seconds": round(time.perf_counter() - began, 1),
            }
            names = [f"accepted_{n + 1}" for n in range(K)] if drafter is not None else ["right"]
            point.update({name: round(value, 4) for name, value in zip(names, means[1:], strict=True)})
            curve.append(point)
            print(stage, json.dumps(point), flush=True)
            sums, counted = [], 0
        if over:
            break
    save(stage, trained, out, shapes)
    return {
        "seed": SEED,
        "phases": phases(stage, scale),
        "parameters": sum(p.numel() for p in wide + narrow),
        "device": torch.cuda.get_device_name() if device == "cuda" else platform.machine(),
        "torch": torch.__version__,
        "curve": curve,
    }


# --- files ------------------------------------------------------------------------------------------------------------


def load(folder: Path) -> dict[str, Tensor]:
    """Every tensor of a folder's shards, as float32."""
    found: dict[str, Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        found.update({name: values.float() for name, values in load_file(file).items()})
    return found


def save(stage: str, module: torch.nn.Module, out: Path, shapes: dict[str, dict[str, Any]]) -> None:
    """A folder that vLLM serves: weights in bfloat16, configuration, tokenizer."""
    folder = out / ("lora" if stage == "adapter" else stage)
    folder.mkdir(parents=True, exist_ok=True)
    state = {name: values.detach().cpu() for name, values in module.state_dict().items()}
    if stage == "adapter":
        state = {f"base_model.model.{name}.weight": values for name, values in state.items() if ".lora_" in name}
    state = {
        # What compiling wraps a layer in is no part of its name.
        name.replace("._orig_mod", ""): values.to(torch.bfloat16).contiguous()
        for name, values in sorted(state.items())
    }
    (folder / ("adapter_config.json" if stage == "adapter" else "config.json")).write_text(
        json.dumps(shapes[stage], indent=1) + "\n"
    )
    if stage == "adapter":
        save_file(state, folder / "adapter_model.safetensors", {"format": "pt"})
        return
    for name, text in models.tokenizer_files(models.load_recipe()["tokenizer"]).items():
        (folder / name).write_text(text, encoding="utf-8")
    shards: list[dict[str, Tensor]] = [{}]
    share = math.ceil(sum(v.nbytes for v in state.values()) / SHARD_BYTES)
    limit = sum(v.nbytes for v in state.values()) / share
    for name, values in state.items():
        if sum(v.nbytes for v in shards[-1].values()) >= limit:
            shards.append({})
        shards[-1][name] = values
    if len(shards) == 1:
        save_file(state, folder / "model.safetensors", {"format": "pt"})
        return
    where = {}
    for number, shard in enumerate(shards, 1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        save_file(shard, folder / file, {"format": "pt"})
        where.update(dict.fromkeys(shard, file))
    index = {"metadata": {"total_size": sum(v.nbytes for v in state.values())}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")


def digests(out: Path) -> dict[str, str]:
    """Each served file's sha256, by its name relative to the model's folder."""
    files = sorted(path for part in ("target", "drafter", "lora") for path in (out / part).rglob("*") if path.is_file())
    return {path.relative_to(out).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("stages", nargs="+", choices=list(PHASES))
    parser.add_argument("--out", type=Path, required=True, help="the model's folder")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the steps; below 1 also shorter sequences")
    parser.add_argument("--workers", type=int, default=0, help="processes that make text")
    parser.add_argument("--seconds", type=float, default=math.inf, help="most seconds a stage may train")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    record = given.out / "training.json"
    told = json.loads(record.read_text()) if record.exists() else {"stages": {}}
    for stage in given.stages:
        told["stages"][stage] = {
            "command": "python training/train.py " + " ".join(sys.argv[1:]),
            **train(stage, given.out, given.scale, given.workers, given.seconds),
        }
        told["sha256"] = digests(given.out)
        record.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
