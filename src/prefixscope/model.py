"""The generated model: a tiny Gemma-4-shaped target, its MTP drafter and a LoRA adapter, drawn from a recipe.

The recipe (``data/models/gemma4-tiny/recipe.json``) holds configs, seeds and scales; the weights are drawn here, so
that nothing large is shipped, and every generated file is checked against the digest in the recipe. The model knows
nothing: it is there for its shape (the KV cache groups), for answers that differ from token to token, and where the
trained model (:mod:`prefixscope.trained`) is missing.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prefixscope.errors import EngineError
from prefixscope.resources import data_path
from prefixscope.setting import digest

Floats = NDArray[np.float32]
Shapes = Iterator[tuple[str, tuple[int, ...]]]


@dataclass(frozen=True, slots=True)
class Model:
    """The generated folders, and the names that a server gives the target and the adapter."""

    target: Path
    drafter: Path
    lora: Path
    name: str = "gemma4-tiny"
    lora_name: str = "gemma4-tiny-lora"


def ensure_model(folder: Path) -> Model:
    """The embedded model inside ``folder``, generated there unless it already is, its digests checked.

    Raises
    ------
    EngineError
        where the files can't be written, or come out with other digests than the recipe's.
    """
    recipe = load_recipe()
    expected: Mapping[str, str] = recipe["sha256"]
    # Named for its content: a later recipe never changes files that a running server has open.
    home = folder / f"{recipe['name']}-{digest(expected, 8)}"
    if digests(home) != expected:
        try:
            _generate_into(home, recipe)
        except OSError as error:
            raise EngineError(
                f"the embedded model can't be written to {home}: {error}",
                cause="a full disk, or a folder that this user may not write to",
                remedy="free some space, or set PREFIXSCOPE_CACHE to another folder",
            ) from error
    return Model(home / "target", home / "drafter", home / "lora", recipe["name"], recipe["lora_name"])


def load_recipe() -> dict[str, Any]:
    """The recipe: names, tokenizer, one section per generated folder, and the digest of every generated file."""
    text = data_path("models", "gemma4-tiny", "recipe.json").read_text(encoding="utf-8")
    recipe: dict[str, Any] = json.loads(text)
    return recipe


def generate(folder: Path, recipe: Mapping[str, Any]) -> dict[str, str]:
    """Writes ``target/``, ``drafter/`` and ``lora/`` under ``folder``; gives each file's sha256 by relative name."""
    for part, shapes in (("target", target_shapes), ("drafter", drafter_shapes)):
        section = recipe[part]
        _write_folder(folder / part, "config.json", section["config"], "model.safetensors", draw(shapes, recipe, part))
        for name, text in tokenizer_files(recipe["tokenizer"]).items():
            (folder / part / name).write_text(text, encoding="utf-8")
    adapter = draw(lora_shapes, recipe, "lora")
    _write_folder(
        folder / "lora", "adapter_config.json", recipe["lora"]["config"], "adapter_model.safetensors", adapter
    )
    return digests(folder)


def _generate_into(home: Path, recipe: Mapping[str, Any]) -> None:
    home.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".model-", dir=home.parent) as scratch:
        made = Path(scratch) / "new"
        found = generate(made, recipe)
        wrong = sorted(
            name for name in recipe["sha256"].keys() | found if recipe["sha256"].get(name) != found.get(name)
        )
        if wrong:
            raise EngineError(
                f"the embedded model came out different: {', '.join(wrong)}",
                cause=f"NumPy {np.__version__} draws or rounds differently here, or the recipe was edited",
                remedy="report this with the machine type (uname -a); another NumPy release may agree",
            )
        shutil.rmtree(home, ignore_errors=True)  # damaged, or half written by something else
        try:
            made.rename(home)
        except OSError:
            if digests(home) != recipe["sha256"]:  # else another process was faster, with the same files
                raise


def digests(folder: Path) -> dict[str, str]:
    """Each file's sha256 by its name relative to the folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


# --- shapes -----------------------------------------------------------------------------------------------------------


def target_shapes(config: Mapping[str, Any]) -> Shapes:
    """Name and shape of each tensor of a text-only Gemma 4, named as transformers does: 168 for the embedded target."""
    yield "model.embed_tokens.weight", (config["vocab_size"], config["hidden_size"])
    for index in range(config["num_hidden_layers"]):
        yield from _layer_shapes(config, index, own_kv=True)
    yield "model.norm.weight", (config["hidden_size"],)


def drafter_shapes(config: Mapping[str, Any]) -> Shapes:
    """Name and shape of each tensor of a Gemma 4 assistant, whose layers read the target's keys: 48 here."""
    text, backbone = config["text_config"], config["backbone_hidden_size"]
    yield "pre_projection.weight", (text["hidden_size"], 2 * backbone)
    yield "post_projection.weight", (backbone, text["hidden_size"])
    yield "model.embed_tokens.weight", (text["vocab_size"], text["hidden_size"])
    for index in range(text["num_hidden_layers"]):
        yield from _layer_shapes(text, index, own_kv=False)
    yield "model.norm.weight", (text["hidden_size"],)


def lora_shapes(config: Mapping[str, Any]) -> Shapes:
    """Name and shape of each tensor of the adapter: A and B of the query and output projection of every layer."""
    target, rank = config["target"], config["r"]
    for index in range(target["num_hidden_layers"]):
        attention = f"base_model.model.model.layers.{index}.self_attn"
        hidden, inner = target["hidden_size"], target["num_attention_heads"] * _head_size(target, index)
        for name, inputs, outputs in (("q_proj", hidden, inner), ("o_proj", inner, hidden)):
            yield f"{attention}.{name}.lora_A.weight", (rank, inputs)
            yield f"{attention}.{name}.lora_B.weight", (outputs, rank)


def _layer_shapes(config: Mapping[str, Any], index: int, *, own_kv: bool) -> Shapes:
    layer, hidden, inter = f"model.layers.{index}", config["hidden_size"], config["intermediate_size"]
    full, head = _is_full(config, index), _head_size(config, index)
    queries = config["num_attention_heads"] * head
    keys = (config["num_global_key_value_heads"] if full else config["num_key_value_heads"]) * head
    yield f"{layer}.self_attn.q_proj.weight", (queries, hidden)
    yield f"{layer}.self_attn.q_norm.weight", (head,)
    if own_kv:
        yield f"{layer}.self_attn.k_proj.weight", (keys, hidden)
        yield f"{layer}.self_attn.k_norm.weight", (head,)
        if not (full and config["attention_k_eq_v"]):  # full layers use their keys as values
            yield f"{layer}.self_attn.v_proj.weight", (keys, hidden)
    yield f"{layer}.self_attn.o_proj.weight", (hidden, queries)
    yield f"{layer}.mlp.gate_proj.weight", (inter, hidden)
    yield f"{layer}.mlp.up_proj.weight", (inter, hidden)
    yield f"{layer}.mlp.down_proj.weight", (hidden, inter)
    for norm in ("input", "post_attention", "pre_feedforward", "post_feedforward"):
        yield f"{layer}.{norm}_layernorm.weight", (hidden,)
    yield f"{layer}.layer_scalar", (1,)


def _is_full(config: Mapping[str, Any], index: int) -> bool:
    return bool(config["layer_types"][index] == "full_attention")


def _head_size(config: Mapping[str, Any], index: int) -> int:
    return int(config["global_head_dim"] if _is_full(config, index) else config["head_dim"])


# --- weights ----------------------------------------------------------------------------------------------------------


def draw(shapes: Any, recipe: Mapping[str, Any], part: str) -> dict[str, Floats]:
    """The tensors of one part of the recipe by name, float32, drawn in the order of the shapes.

    Only uniform draws and single multiplications: both are exact to the last bit on every platform, where a logarithm
    or a sum need not be, and the digests would differ.
    """
    section, random = recipe[part], np.random.RandomState(recipe[part]["seed"])
    config = {**section["config"], "target": recipe["target"]["config"]} if part == "lora" else section["config"]
    tensors: dict[str, Floats] = {}
    for name, shape in shapes(config):
        rule = next(rule for rule in section["weights"] if name.endswith(rule["name"]))
        if "constant" in rule:
            tensors[name] = np.full(shape, rule["constant"], np.float32)
            continue
        scale = np.float32(rule["spread"] * math.sqrt(3))  # uniform over ±√3·s has standard deviation s
        tensors[name] = (random.random_sample(shape) * 2 - 1).astype(np.float32) * scale
        if name.endswith("embed_tokens.weight"):
            tensors[name] *= token_weights(recipe["tokenizer"])[:, None]
    return tensors


def token_weights(tokenizer: Mapping[str, Any]) -> Floats:
    """How loud each token is in the (tied) embedding: 0 for a special one, so none ends an answer; readable ones 1.

    A quiet token still reads like any other, since layers see normalised states; it just never wins a greedy step.
    """
    weights = np.full(len(tokenizer["specials"]) + 256, tokenizer["quiet"], np.float32)
    weights[: len(tokenizer["specials"])] = 0
    for characters, weight in tokenizer["loud"].items():
        for byte in characters.encode("ascii"):
            weights[len(tokenizer["specials"]) + byte] = weight
    return weights


def to_bfloat16(values: Floats) -> NDArray[np.uint16]:
    """The upper halves of float32 values, rounded to nearest, ties to even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def write_safetensors(path: Path, tensors: Mapping[str, Floats]) -> None:
    """A safetensors file with the tensors in bfloat16, sorted by name."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    chunks, offset = [], 0
    for name, values in sorted(tensors.items()):
        chunk = to_bfloat16(values).astype("<u2").tobytes()
        header[name] = {"dtype": "BF16", "shape": list(values.shape), "data_offsets": [offset, offset + len(chunk)]}
        chunks.append(chunk)
        offset += len(chunk)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the data starts on a multiple of eight bytes
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(chunks))


def _write_folder(folder: Path, config_name: str, config: object, name: str, tensors: Mapping[str, Floats]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / config_name).write_text(_pretty(config), encoding="utf-8")
    write_safetensors(folder / name, tensors)


def _pretty(value: object) -> str:
    return json.dumps(value, indent=1, ensure_ascii=True) + "\n"


# --- tokenizer --------------------------------------------------------------------------------------------------------


def byte_symbols() -> list[str]:
    """The printable character that stands for each byte in a byte-level vocabulary, by byte value."""
    plain = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(0x100, 0x200))  # bytes without a visible character of their own take the next free one
    return [chr(byte if byte in plain else next(spare)) for byte in range(256)]


def tokenizer_files(tokenizer: Mapping[str, Any]) -> dict[str, str]:
    """Tokenizer, its settings and chat template, by file name.

    One token per byte, id = number of specials + byte value, no merges: prompts are token-exact by construction."""
    specials: list[str] = tokenizer["specials"]
    vocabulary = {text: index for index, text in enumerate([*specials, *byte_symbols()])}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    whole: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": index, "content": text, **flags} for index, text in enumerate(specials)],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocabulary,
            "merges": [],
        },
    }
    names = {f"{text.strip('<>')}_token": text for text in specials}
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": tokenizer["max_tokens"],
        "clean_up_tokenization_spaces": False,
        **names,
    }
    return {
        "tokenizer.json": _pretty(whole),
        "tokenizer_config.json": _pretty(settings),
        "chat_template.jinja": tokenizer["chat_template"],
    }
