"""Runs in an engine's Python: what the training code computes beside what transformers does, for the shipped weights.

Prints one JSON object with the largest differences.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, Gemma4AssistantForCausalLM

folder, training = Path(sys.argv[1]), Path(sys.argv[2])
sys.path[:0] = [str(training), str(training.parent / "src")]
import texts  # noqa: E402
import train  # noqa: E402
from gemma import Drafter, Target, capped  # noqa: E402

shapes = train.configs()
target, drafter = Target(shapes["target"]), Drafter(shapes["drafter"])
target.load_state_dict(train.load(folder / "target"))
drafter.load_state_dict(train.load(folder / "drafter"))
theirs = AutoModelForCausalLM.from_pretrained(folder / "target", dtype=torch.float32, attn_implementation="eager")
assistant = Gemma4AssistantForCausalLM.from_pretrained(
    folder / "drafter", dtype=torch.float32, attn_implementation="eager"
)
found = {}
with torch.no_grad():
    for length in (300, 2048, 2500):  # within a window, two windows, and no whole number of them
        ids = torch.tensor([texts.sequence(1, length)[0]])
        hidden, shared = target(ids)
        found[f"target, {length} tokens"] = (target.logits(hidden) - theirs(ids).logits).abs().max().item()
    last = 2047
    until = slice(0, last + 1)
    guess, state = drafter(target.embed(ids[:, 1 : last + 2]), hidden[:, until], {
        name: (keys[:, :, until], values[:, :, until]) for name, (keys, values) in shared.items()
    })  # fmt: skip
    window = slice(last + 1 - shapes["target"]["sliding_window"], last + 1)
    seen = {"full_attention": until, "sliding_attention": window}
    made = assistant(
        inputs_embeds=torch.cat([target.embed(ids[:, last + 1 : last + 2]), hidden[:, last : last + 1]], -1),
        position_ids=torch.tensor([[last]]),
        shared_kv_states={name: (k[:, :, seen[name]], v[:, :, seen[name]]) for name, (k, v) in shared.items()},
        attention_mask=torch.ones(1, last + 1, dtype=torch.long),
    )
    found["drafter"] = (capped(made.logits, shapes["drafter"]["text_config"])[0, 0] - guess[0, last]).abs().max().item()
    found["drafter's state"] = (made.last_hidden_state[0, 0] - state[0, last]).abs().max().item()
print(json.dumps(found))
