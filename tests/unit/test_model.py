"""The embedded models' files: digests, tensors, tokenizer."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from prefixscope import model as models
from prefixscope import trained
from prefixscope.errors import EngineError, PrefixscopeError
from prefixscope.resources import data_path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> models.Model:
    return models.ensure_model(tmp_path_factory.mktemp("models"))


def read(path: Path) -> dict[str, np.ndarray]:
    """Every tensor of a safetensors file of bfloat16 values, widened to float32."""
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    header.pop("__metadata__")
    assert start % 8 == 0
    assert max(entry["data_offsets"][1] for entry in header.values()) == len(data) - start
    found = {}
    for name, entry in header.items():
        assert entry["dtype"] == "BF16"
        first, last = entry["data_offsets"]
        halves = np.frombuffer(data[start + first : start + last], "<u2")
        found[name] = (halves.astype(np.uint32) << 16).view(np.float32).reshape(entry["shape"])
    return found


def test_files_match_the_recipe(made: models.Model, tmp_path: Path) -> None:
    """Two generations give the very files whose digests the recipe holds."""
    assert models.generate(tmp_path, models.load_recipe()) == models.load_recipe()["sha256"]


def test_target_has_the_tensors_of_the_architecture(made: models.Model) -> None:
    """168 tensors; full-attention layers have wider queries, fewer key heads and no values of their own."""
    tensors = read(made.target / "model.safetensors")
    assert len(tensors) == 168
    shapes = {name: values.shape for name, values in tensors.items()}
    assert shapes["model.embed_tokens.weight"] == (259, 128)
    assert shapes["model.layers.0.self_attn.q_proj.weight"] == (256, 128)
    assert shapes["model.layers.5.self_attn.q_proj.weight"] == (512, 128)
    assert shapes["model.layers.5.self_attn.k_proj.weight"] == (128, 128)
    assert "model.layers.0.self_attn.v_proj.weight" in shapes
    assert "model.layers.5.self_attn.v_proj.weight" not in shapes
    assert all(np.isfinite(values).all() for values in tensors.values())


def test_drafter_reads_the_targets_keys(made: models.Model) -> None:
    """48 tensors, none of them a key or value projection."""
    tensors = read(made.drafter / "model.safetensors")
    assert len(tensors) == 48
    assert not [name for name in tensors if ".k_" in name or ".v_" in name]
    assert tensors["pre_projection.weight"].shape == (64, 256)
    assert tensors["post_projection.weight"].shape == (128, 64)


def test_adapter_covers_queries_and_outputs(made: models.Model) -> None:
    """A and B of two projections in each of twelve layers, rank 8, none of them zero."""
    tensors = read(made.lora / "adapter_model.safetensors")
    assert len(tensors) == 48
    for name, values in tensors.items():
        assert values.shape[0 if ".lora_A." in name else 1] == 8
        assert np.abs(values).max() > 0


def test_groups_come_out_five_to_one(made: models.Model) -> None:
    """Two full layers among twelve, window 1,024, one page size: what makes five sliding groups and a full one."""
    config = json.loads((made.target / "config.json").read_text())
    assert config["layer_types"].count("full_attention") == 2
    assert config["sliding_window"] == 1024
    sliding = config["num_key_value_heads"] * config["head_dim"]
    full = config["num_global_key_value_heads"] * config["global_head_dim"]
    assert sliding == 2 * full  # so a full block of equal size holds twice the tokens: 64 beside 32


def test_second_call_writes_nothing(tmp_path: Path) -> None:
    """A complete model is reused; a damaged one is generated again."""
    first = models.ensure_model(tmp_path)
    weights = first.target / "model.safetensors"
    stamp = weights.stat().st_mtime_ns
    assert models.ensure_model(tmp_path) == first
    assert weights.stat().st_mtime_ns == stamp
    weights.write_bytes(weights.read_bytes()[:-1])
    assert models.ensure_model(tmp_path) == first
    assert weights.stat().st_mtime_ns != stamp
    assert len(list(tmp_path.iterdir())) == 1


def test_other_weights_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that comes out with another digest names the file and is not left behind."""
    recipe = copy.deepcopy(models.load_recipe())
    recipe["target"]["seed"] += 1
    monkeypatch.setattr(models, "load_recipe", lambda: recipe)
    with pytest.raises(EngineError, match=r"target/model\.safetensors"):
        models.ensure_model(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_tokenizer_has_one_token_per_byte(made: models.Model) -> None:
    """The id of a byte is three plus its value, and every symbol is distinct and printable."""
    tokenizer = json.loads((made.target / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    assert len(vocabulary) == 259
    assert vocabulary["A"] == 3 + ord("A")
    assert vocabulary["Ġ"] == 3 + ord(" ")
    assert vocabulary["Ċ"] == 3 + ord("\n")
    assert sorted(vocabulary.values()) == list(range(259))
    assert tokenizer["model"]["merges"] == []
    assert (made.drafter / "tokenizer.json").read_bytes() == (made.target / "tokenizer.json").read_bytes()


def test_specials_and_unreadable_bytes_never_win(made: models.Model) -> None:
    """Special tokens have empty rows in the tied embedding, so no answer ends early; letters have the longest."""
    rows = np.linalg.norm(read(made.target / "model.safetensors")["model.embed_tokens.weight"], axis=1)
    assert (rows[:3] == 0).all()
    letters = rows[[3 + ord(letter) for letter in "aez"]]
    assert letters.min() > 8 * rows[3 + 0xC3] > 0


@pytest.mark.parametrize(
    ("value", "bits"), [(1.0, 0x3F80), (-2.0, 0xC000), (1.00390625, 0x3F80), (1.01171875, 0x3F82), (1.005, 0x3F81)]
)
def test_bfloat16_rounds_to_nearest_even(value: float, bits: int) -> None:
    """Values between two bfloat16 numbers go to the nearer one, ties to the even one."""
    assert models.to_bfloat16(np.array([value], np.float32))[0] == bits


def test_missing_data_is_an_error_with_a_remedy() -> None:
    """A file that is not shipped says where it was looked for."""
    assert data_path("models").is_dir()
    with pytest.raises(PrefixscopeError, match="reinstall"):
        data_path("models", "no-such-model")


# --- the trained model ------------------------------------------------------------------------------------------------


def test_the_trained_model_is_whole_and_small() -> None:
    """It is served from where the package lies, with every digest as recorded and no file above 5 MB."""
    found = trained.trained_model()
    assert found is not None
    assert found.name == "gemma4-small"
    assert found.target.parent == data_path("models", "gemma4-small")
    sizes = [file.stat().st_size for file in found.target.parent.rglob("*") if file.is_file()]
    assert max(sizes) <= 5_000_000
    assert sum(sizes) <= 15_000_000


def test_both_models_have_one_attention_layout(made: models.Model) -> None:
    """Kinds of layer, heads, window and tokenizer are the generated model's, so groups, blocks and prompts are too."""
    found = trained.trained_model()
    assert found is not None
    ours, theirs = (json.loads((one.target / "config.json").read_text()) for one in (found, made))
    different = {name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name)}
    assert different == {"hidden_size", "intermediate_size"}
    for part in ("target", "drafter"):
        for name in ("tokenizer.json", "chat_template.jinja"):
            assert (getattr(found, part) / name).read_bytes() == (getattr(made, part) / name).read_bytes()


def test_trained_tensors_are_the_architectures() -> None:
    """Names and shapes of the trained target and drafter are those of their configurations."""
    found = trained.trained_model()
    assert found is not None
    for folder, shapes in ((found.target, models.target_shapes), (found.drafter, models.drafter_shapes)):
        tensors = {name: value.shape for file in folder.glob("*.safetensors") for name, value in read(file).items()}
        assert tensors == dict(shapes(json.loads((folder / "config.json").read_text())))


def test_a_damaged_trained_model_gives_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a file is missing or another one, the generated model is served."""
    shipped = data_path("models")
    copied = Path(shutil.copytree(shipped / "gemma4-small", tmp_path / "small"))
    monkeypatch.setattr(trained, "data_path", lambda *parts: copied)
    assert trained.embedded_model(tmp_path / "made").name == "gemma4-small"
    assert not (tmp_path / "made").exists()
    weights = copied / "drafter" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    assert trained.embedded_model(tmp_path / "made").name == "gemma4-tiny"
    (copied / "training.json").unlink()
    assert trained.trained_model() is None
