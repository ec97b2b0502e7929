"""Adapter folders that other programs wrote: read as PEFT would, or refused with the true cause and a remedy."""

import functools
import json
import logging
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
import small_families as small
from safetensors.numpy import load_file, save_file

from pixelis_jax.models import lora, peft
from pixelis_jax.models.lora import LoraConfig
from pixelis_jax.models.policy import abstract_params
from pixelis_jax.models.vlm import VLM
from pixelis_jax.types import UserError

TEXT = LoraConfig(rank=4, alpha=8.0)
NAMES = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


@functools.cache
def abstract(text_only: bool = False) -> dict:
    return abstract_params(VLM(small.TEXT_ONLY["qwen2"] if text_only else reference.small_config()))


@functools.cache
def adapter(text_only: bool = False) -> dict:
    made = lora.init(jax.random.key(1), abstract(text_only), TEXT)
    leaves, tree = jax.tree.flatten(made)
    return jax.tree.unflatten(tree, [x + i for i, x in enumerate(leaves)])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    peft.save(tmp_path, adapter(), lora=TEXT, base_name="some/base")
    return tmp_path


def change(directory: Path, **fields: object) -> None:
    file = directory / peft.CONFIG
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


def rename(directory: Path, new: Callable[[str], str]) -> None:
    tensors = load_file(directory / peft.WEIGHTS)
    save_file({new(key): value for key, value in tensors.items()}, directory / peft.WEIGHTS)


def add(directory: Path, **more: np.ndarray) -> None:
    save_file(load_file(directory / peft.WEIGHTS) | more, directory / peft.WEIGHTS)


def same(directory: Path) -> None:
    jax.tree.map(np.testing.assert_array_equal, peft.load(directory, abstract())[0], adapter())


def refusal(directory: Path, base: dict | None = None) -> str:
    with pytest.raises(UserError) as caught:
        peft.load(directory, base or abstract())
    assert "\n" not in str(caught.value)
    return str(caught.value)


P = "base_model.model."


@pytest.mark.parametrize(
    "new",
    [
        lambda key: key.replace(".weight", ".default.weight"),
        lambda key: key.replace(".weight", ".my_adapter.weight"),
        lambda key: key.removeprefix(P),
        lambda key: P + key,
        lambda key: "module." + key,
        lambda key: "_orig_mod." + key,
        lambda key: key.replace(P, P + "_orig_mod."),
        lambda key: "module._fsdp_wrapped_module." + key,
        lambda key: key.replace("model.language_model.", "model."),
        lambda key: key.replace("model.language_model.", "language_model.model."),
        lambda key: key.replace("model.language_model.", "language_model."),
        lambda key: key.replace("model.model.language_model.", "model.language_model.").replace(".weight", ".x.weight"),
    ],
)
def test_keys_of_other_nestings_are_read(folder: Path, new: Callable[[str], str]) -> None:
    rename(folder, new)
    change(folder, target_modules=NAMES, exclude_modules=".*visual.*")
    same(folder)


@pytest.mark.parametrize("prefix", [P, P + "model.", "", "model.", P + P + "model."])
def test_a_text_models_keys_with_and_without_a_head_around_it(tmp_path: Path, prefix: str) -> None:
    """PEFT over the bare decoder (`AutoModel`) names layers without `model.`."""
    peft.save(tmp_path, adapter(True), lora=TEXT, base_name="b", text_only=True)
    rename(tmp_path, lambda key: key.replace(P + "model.", prefix))
    change(tmp_path, target_modules=NAMES)
    jax.tree.map(np.testing.assert_array_equal, peft.load(tmp_path, abstract(True))[0], adapter(True))


def test_two_adapters_in_one_file_are_refused(folder: Path) -> None:
    tensors = load_file(folder / peft.WEIGHTS)
    both = {key.replace(".weight", f".{name}.weight"): value for key, value in tensors.items() for name in ("a", "b")}
    save_file(both, folder / peft.WEIGHTS)
    assert "holds several adapters (a, b); save one of them alone" in refusal(folder)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_half_precision_is_read_as_it_is(folder: Path, dtype) -> None:
    peft.save(folder, adapter(), lora=TEXT, base_name="b", dtype=dtype)
    for x, y in zip(jax.tree.leaves(peft.load(folder, abstract())[0]), jax.tree.leaves(adapter()), strict=True):
        assert x.dtype == jnp.float32
        np.testing.assert_array_equal(x, y.astype(dtype).astype(jnp.float32))


@pytest.mark.parametrize("targets", [NAMES, "all-linear"])
def test_leaf_names_trained_on_text_only_are_read_and_said(
    folder: Path, targets: object, caplog: pytest.LogCaptureFixture
) -> None:
    """`gate_proj` names layers of the vision tower, too; a trainer that froze it leaves them out of the file."""
    change(folder, target_modules=targets)
    with caplog.at_level(logging.WARNING):
        same(folder)
    assert len(caplog.records) == 1 and "it was trained on text only" in caplog.text and "visual/" in caplog.text


def test_a_part_of_the_vision_tower_is_no_training_on_text_only(folder: Path) -> None:
    change(folder, target_modules=NAMES)
    name = P + "model.visual.blocks.0.mlp.gate_proj"
    add(folder, **{f"{name}.lora_A.weight": np.ones((4, 64), np.float32)})
    add(folder, **{f"{name}.lora_B.weight": np.ones((96, 4), np.float32)})
    assert "visual/blocks_0/mlp/down_proj/a is missing" in refusal(folder)


EMBEDDING = np.zeros((100, 64), np.float32)


@pytest.mark.parametrize(
    ("key", "words"),
    [
        (P + "lm_head.weight", "is of the output matrix, which the adapter changes too (modules_to_save"),
        (P + "model.language_model.embed_tokens.weight", "is of the embedding, which the adapter changes too"),
        (P + "model.language_model.embed_tokens.lora_embedding_A", "adapters of embed_tokens are not read; merge it"),
        (P + "lm_head.lora_A.weight", "is of the output matrix"),
        (P + "model.embed_tokens.modules_to_save.default.weight", "is of the embedding"),
        (P + "model.language_model.layers.0.mlp.up_proj.lora_magnitude_vector.weight", "is of DoRA"),
        (P + "model.language_model.layers.0.mlp.up_proj.bias", "or of trained biases"),
        (P + "model.language_model.layers.0.mlp.up_proj.lora_B.bias", "or of trained biases"),
        (P + "model.language_model.norm.weight", "is no factor of a LoRA"),
        (P + "score.weight", "is no factor of a LoRA"),
        ("prompt_embeddings", "is no factor of a LoRA"),
    ],
)
def test_what_is_in_the_file_besides_factors_is_named(folder: Path, key: str, words: str) -> None:
    add(folder, **{key: EMBEDDING})
    line = refusal(folder)
    assert words in line and key in line and "merge it into its base with PEFT" in line


def test_another_models_first_layer_that_does_not_fit_is_named_with_its_sizes(folder: Path) -> None:
    for layer in (1, 10):
        key = f"{P}model.language_model.layers.{layer}.mlp.up_proj.lora_B.weight"
        add(folder, **{key: np.zeros((81, 4), np.float32)})
    line = refusal(folder)
    assert "layers.1.mlp.up_proj.lora_B.weight' has shape [81, 4] in place of [80, 4]; it was made for another" in line


def test_a_layer_behind_the_last_is_named_with_the_last(folder: Path) -> None:
    rename(folder, lambda key: key.replace("layers.2.", "layers.27."))
    assert "is of layer 27, and this base model has layers 0 to 2 there" in refusal(folder)


def test_a_vision_adapter_on_a_text_model(folder: Path) -> None:
    rename(folder, lambda key: key.replace("language_model.layers", "visual.blocks"))
    assert "is of a vision tower, and this base model has none" in refusal(folder, abstract(True))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"rank_pattern": {"q_proj": 2}}, "rank_pattern is {'q_proj': 2}"),
        ({"alpha_pattern": {"q_proj": 2}}, "alpha_pattern is {'q_proj': 2}"),
        ({"use_dora": True}, "use_dora is True"),
        ({"bias": "lora_only"}, "bias is 'lora_only'"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out is True"),
        ({"modules_to_save": ["lm_head", "embed_tokens"]}, "modules_to_save is ['lm_head', 'embed_tokens']"),
        ({"trainable_token_indices": [1, 2]}, "trainable_token_indices is [1, 2]"),
        ({"layer_replication": [[0, 2]]}, "layer_replication is [[0, 2]]"),
        ({"target_parameters": ["x"]}, "target_parameters is ['x']"),
        ({"lora_bias": True}, "lora_bias is True"),
        ({"init_lora_weights": "olora"}, "init_lora_weights is 'olora'"),
    ],
)
def test_what_computes_something_else_is_refused_by_name(folder: Path, fields: dict, words: str) -> None:
    change(folder, **fields)
    line = refusal(folder)
    assert words in line and "merge it into its base with PEFT (merge_and_unload)" in line


@pytest.mark.parametrize(
    "fields",
    [
        {"rank_pattern": {"q_proj": 4}},
        {"alpha_pattern": {"mlp.up_proj": 8, "q_proj": 8}},
        {"rank_pattern": {}, "alpha_pattern": {}},
        {"target_modules": NAMES, "exclude_modules": r".*visual.*"},
        {"target_modules": NAMES, "exclude_modules": ["visual.blocks.0.mlp.gate_proj"]},
        {"layers_to_transform": [0, 1, 2]},
        {"init_lora_weights": "gaussian"},
        {"megatron_config": None, "loftq_config": {}, "corda_config": None, "use_qalora": False},
        {
            "target_modules": r"(?:.*?(?:language|text).*?(?:self_attn|attention|attn|mlp|feed_forward|ffn|dense).*?"
            r"(?:k_proj|q_proj|v_proj|o_proj|gate_proj|up_proj|down_proj).*?)"
            r"|(?:\bmodel\.layers\.[\d]{1,}\.(?:self_attn|attention|attn|mlp|feed_forward|ffn|dense)\."
            r"(?:(?:k_proj|q_proj|v_proj|o_proj|gate_proj|up_proj|down_proj)))"
        },
    ],
)
def test_what_changes_nothing_is_read(folder: Path, fields: dict) -> None:
    change(folder, **fields)
    same(folder)


def test_a_torch_file_alone_has_a_command_that_works(folder: Path) -> None:
    torch = pytest.importorskip("torch", reason="pip install -e .[parity]")
    tensors = {key: torch.tensor(value) for key, value in load_file(folder / peft.WEIGHTS).items()}
    torch.save(tensors, folder / "adapter_model.bin")
    same(folder)  # beside the other one it is not looked at
    (folder / peft.WEIGHTS).unlink()
    command = re.search(r'python -c "(.*)"', refusal(folder))
    assert command is not None
    subprocess.run([sys.executable, "-c", command[1]], check=True, timeout=300, capture_output=True)
    same(folder)


def test_a_pointer_of_git_lfs(folder: Path) -> None:
    (folder / peft.WEIGHTS).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 9\n")
    assert f"is a pointer of Git LFS and not the file itself; run `git lfs pull` in {folder}" in refusal(folder)
