"""A text-only Gemma 4 and its assistant drafter in PyTorch, for training: what vLLM computes, over whole sequences.

Sources: vLLM 0.29.0, ``Gemma4ForCausalLM``, ``Gemma4MTP`` and ``Gemma4Proposer``; parameter names are the
checkpoint's, so a state dict is a checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

EPS = 1e-6
KV = dict[str, tuple[Tensor, Tensor]]
"""Kind of layer → keys (rotated) and values of the last target layer of that kind, as a drafter reads them."""


class Norm(nn.Module):
    def __init__(self, size: int, start: float = 1.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((size,), start))

    def forward(self, x: Tensor) -> Tensor:
        return norm(x) * self.weight.to(x.dtype)


def norm(x: Tensor) -> Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPS)).to(x.dtype)


class Linear(nn.Linear):
    """A projection without bias; with ``adapt`` it gains a low-rank adapter beside its frozen weight."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, bias=False)
        nn.init.normal_(self.weight, std=inputs**-0.5)
        self.lora_A: nn.Parameter | None = None
        self.lora_B: nn.Parameter | None = None
        self.scale = 0.0

    def adapt(self, rank: int, alpha: float) -> None:
        made = {"device": self.weight.device}
        self.lora_A = nn.Parameter(torch.randn(rank, self.in_features, **made) * self.in_features**-0.5)
        self.lora_B = nn.Parameter(torch.zeros(self.out_features, rank, **made))
        self.scale = alpha / rank

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        if self.lora_A is not None and self.lora_B is not None:
            y = y + F.linear(F.linear(x, self.lora_A), self.lora_B) * self.scale
        return y


class Rope(nn.Module):
    """Cosine and sine per position; ``turned`` is the share of a head's pairs that rotate."""

    def __init__(self, head: int, theta: float, turned: float) -> None:
        super().__init__()
        angles = int(turned * head // 2)
        rates = theta ** -(torch.arange(0, 2 * angles, 2).float() / head)
        self.register_buffer("rates", torch.cat([rates, torch.zeros(head // 2 - angles)]), persistent=False)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        turns = positions.float()[:, None] * self.rates
        cos, sin = turns.cos().to(x.dtype), turns.sin().to(x.dtype)
        first, second = x.chunk(2, -1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def attend(q: Tensor, k: Tensor, v: Tensor, window: int | None) -> Tensor:
    """Causal attention of every position, scale 1, within the window if there is one: (batch, heads, length, head).

    Longer sequences than the window are cut into pieces of it, each of which sees itself and the piece before.
    """
    groups = q.shape[1] // k.shape[1]
    if groups > 1:
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    length = q.shape[2]
    if window is None or length <= window:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0)
    if length % window:
        seen = torch.ones(length, length, dtype=torch.bool, device=q.device).tril()
        return F.scaled_dot_product_attention(q, k, v, attn_mask=seen & ~seen.tril(-window), scale=1.0)
    first = F.scaled_dot_product_attention(
        q[:, :, :window], k[:, :, :window], v[:, :, :window], is_causal=True, scale=1.0
    )
    batch, heads, _, head = q.shape
    pieces = length // window - 1

    def cut(x: Tensor) -> Tensor:
        return x.view(batch, heads, pieces, window, head).transpose(1, 2).reshape(batch * pieces, heads, window, head)

    def pairs(x: Tensor) -> Tensor:
        return torch.cat([cut(x[:, :, :-window]), cut(x[:, :, window:])], 2)

    at = torch.arange(window, device=q.device)[:, None]
    behind = at + window - torch.arange(2 * window, device=q.device)[None, :]
    seen = (behind >= 0) & (behind < window)
    rest = F.scaled_dot_product_attention(cut(q[:, :, window:]), pairs(k), pairs(v), attn_mask=seen, scale=1.0)
    rest = rest.view(batch, pieces, heads, window, head).transpose(1, 2).reshape(batch, heads, length - window, head)
    return torch.cat([first, rest], 2)


@dataclass(frozen=True, slots=True)
class Kind:
    """What differs between the two kinds of layer."""

    name: str
    head: int
    kv_heads: int
    window: int | None
    own_values: bool

    @classmethod
    def of(cls, config: Mapping[str, Any], name: str) -> Kind:
        if name == "full_attention":
            heads = config["num_global_key_value_heads"]
            return cls(name, config["global_head_dim"], heads, None, not config["attention_k_eq_v"])
        return cls(name, config["head_dim"], config["num_key_value_heads"], config["sliding_window"], True)

    def rope(self) -> Rope:
        return Rope(self.head, 1e6, 0.25) if self.window is None else Rope(self.head, 1e4, 1.0)


class Attention(nn.Module):
    """Attention of one layer. A drafter's has no keys and values of its own."""

    def __init__(self, config: Mapping[str, Any], kind: Kind, own_kv: bool) -> None:
        super().__init__()
        self.kind, hidden, inner = kind, config["hidden_size"], config["num_attention_heads"] * kind.head
        self.q_proj, self.o_proj = Linear(hidden, inner), Linear(inner, hidden)
        self.q_norm = Norm(kind.head)
        if own_kv:
            self.k_proj = Linear(hidden, kind.kv_heads * kind.head)
            self.k_norm = Norm(kind.head, 2.0 * kind.head**-0.5)
            self.v_proj = Linear(hidden, kind.kv_heads * kind.head) if kind.own_values else None
        self.rope = kind.rope()

    def forward(
        self, x: Tensor, positions: Tensor, kv: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        def heads(y: Tensor) -> Tensor:
            return y.unflatten(-1, (-1, self.kind.head)).transpose(1, 2)

        q = self.rope(self.q_norm(heads(self.q_proj(x))), positions)
        if kv is None:
            keys = heads(self.k_proj(x))
            values = keys if self.v_proj is None else heads(self.v_proj(x))
            kv = self.rope(self.k_norm(keys), positions), norm(values)
        out = self.o_proj(attend(q, *kv, self.kind.window).transpose(1, 2).flatten(2))
        return out, kv


class Mlp(nn.Module):
    def __init__(self, hidden: int, inter: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = (
            Linear(hidden, inter),
            Linear(hidden, inter),
            Linear(inter, hidden),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.gelu(self.gate_proj(x), approximate="tanh") * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, config: Mapping[str, Any], index: int, own_kv: bool) -> None:
        super().__init__()
        hidden = config["hidden_size"]
        start = (2 * config["num_hidden_layers"]) ** -0.5  # branches begin small beside what passes them by
        self.self_attn = Attention(config, Kind.of(config, config["layer_types"][index]), own_kv)
        self.mlp = Mlp(hidden, config["intermediate_size"])
        self.input_layernorm, self.post_attention_layernorm = Norm(hidden), Norm(hidden, start)
        self.pre_feedforward_layernorm, self.post_feedforward_layernorm = Norm(hidden), Norm(hidden, start)
        self.register_buffer("layer_scalar", torch.ones(1))

    def forward(
        self, x: Tensor, positions: Tensor, kv: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        out, kv = self.self_attn(self.input_layernorm(x), positions, kv)
        x = x + self.post_attention_layernorm(out)
        x = x + self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x)))
        return x * self.layer_scalar.to(x.dtype), kv


class Decoder(nn.Module):
    """Embedding, layers and last norm: what a checkpoint calls ``model``."""

    def __init__(self, config: Mapping[str, Any], own_kv: bool) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config["vocab_size"], config["hidden_size"])
        nn.init.normal_(self.embed_tokens.weight, std=config["hidden_size"] ** -0.5)
        self.layers = nn.ModuleList(Layer(config, index, own_kv) for index in range(config["num_hidden_layers"]))
        self.norm = Norm(config["hidden_size"])


class Target(nn.Module):
    """The target model."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.config = dict(config)
        self.model = Decoder(config, own_kv=True)

    def embed(self, ids: Tensor) -> Tensor:
        return self.model.embed_tokens(ids) * self.config["hidden_size"] ** 0.5

    def forward(self, ids: Tensor) -> tuple[Tensor, KV]:
        """Last hidden states after the norm, (batch, length, hidden), and the keys and values a drafter reads."""
        positions = torch.arange(ids.shape[1], device=ids.device)
        x, shared = self.embed(ids), {}
        for layer in self.model.layers:
            x, shared[layer.self_attn.kind.name] = layer(x, positions)
        return self.model.norm(x), shared

    def logits(self, hidden: Tensor) -> Tensor:
        return capped(F.linear(hidden, self.model.embed_tokens.weight), self.config)

    def adapt(self, rank: int, alpha: float, modules: list[str]) -> None:
        """Freezes the model and gives the named projections an adapter."""
        self.requires_grad_(False)
        for name, module in self.named_modules():
            if isinstance(module, Linear) and name.rsplit(".", 1)[-1] in modules:
                module.adapt(rank, alpha)


class Drafter(nn.Module):
    """The assistant: k guesses from one position of the target, at that position, over the target's keys and values."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        text, backbone = config["text_config"], config["backbone_hidden_size"]
        self.config = dict(text)
        self.pre_projection = Linear(2 * backbone, text["hidden_size"])
        self.post_projection = Linear(text["hidden_size"], backbone)
        self.model = Decoder(text, own_kv=False)

    def forward(self, embedded: Tensor, hidden: Tensor, shared: KV) -> tuple[Tensor, Tensor]:
        """One guess for every position: its logits, and the hidden state that the next guess takes."""
        positions = torch.arange(hidden.shape[1], device=hidden.device)
        x = self.pre_projection(torch.cat([embedded, hidden], -1))
        for layer in self.model.layers:
            x, _ = layer(x, positions, shared[layer.self_attn.kind.name])
        x = self.model.norm(x)
        return capped(F.linear(x, self.model.embed_tokens.weight), self.config), self.post_projection(x)


def capped(logits: Tensor, config: Mapping[str, Any]) -> Tensor:
    most = config["final_logit_softcapping"]
    return most * torch.tanh(logits.float() / most)
