"""A tiny Llama-shaped model with random weights as one GGUF file, made on the spot: 0.5 MB, for llama.cpp's server."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

LAYERS, WIDTH, HEADS, INNER, WORDS = 2, 64, 2, 128, 300
CONTEXT = 16_384


def write(path: Path) -> Path:
    """The model, its tokens the 256 bytes, its template two words a message."""
    out = gguf.GGUFWriter(str(path), "llama")
    out.add_context_length(CONTEXT)
    out.add_embedding_length(WIDTH)
    out.add_block_count(LAYERS)
    out.add_feed_forward_length(INNER)
    out.add_head_count(HEADS)
    out.add_head_count_kv(HEADS)
    out.add_layer_norm_rms_eps(1e-5)
    out.add_rope_dimension_count(WIDTH // HEADS)
    out.add_vocab_size(WORDS)
    _tokenizer(out)
    draw = np.random.RandomState(0)

    def tensor(name: str, *shape: int) -> None:
        out.add_tensor(name, (draw.standard_normal(shape) * 0.1).astype(np.float32))

    tensor("token_embd.weight", WORDS, WIDTH)
    tensor("output.weight", WORDS, WIDTH)
    tensor("output_norm.weight", WIDTH)
    for layer in range(LAYERS):
        for name in ("attn_norm", "ffn_norm"):
            tensor(f"blk.{layer}.{name}.weight", WIDTH)
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            tensor(f"blk.{layer}.{name}.weight", WIDTH, WIDTH)
        for name in ("ffn_gate", "ffn_up"):
            tensor(f"blk.{layer}.{name}.weight", INNER, WIDTH)
        tensor(f"blk.{layer}.ffn_down.weight", WIDTH, INNER)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    return path


def _tokenizer(out: gguf.GGUFWriter) -> None:
    kinds = gguf.TokenType
    special = [(b"<unk>", kinds.UNKNOWN), (b"<s>", kinds.CONTROL), (b"</s>", kinds.CONTROL)]
    single = [(f"<0x{byte:02X}>".encode(), kinds.BYTE) for byte in range(256)]
    rest = [(f"word{number}".encode(), kinds.NORMAL) for number in range(WORDS - 259)]
    tokens = [*special, *single, *rest]
    out.add_tokenizer_model("llama")
    out.add_token_list([token for token, _ in tokens])
    out.add_token_scores([0.0] * WORDS)
    out.add_token_types([kind for _, kind in tokens])
    out.add_bos_token_id(1)
    out.add_eos_token_id(2)
    out.add_chat_template("{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}<assistant>")
