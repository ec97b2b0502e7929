"""Folders of weights that can't be read: the line names the cause, and its remedy works."""

import json
import re
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
import reference
from safetensors.numpy import save_file

from pixelis_jax.models import checkpoint_files, families, processor, weights
from pixelis_jax.models.policy import abstract_params, init_params
from pixelis_jax.models.vlm import VLM
from pixelis_jax.types import UserError

CONFIG = reference.small_config()


@pytest.fixture(scope="module")
def params():
    return init_params(VLM(CONFIG), 3)


@pytest.fixture
def sharded(params, tmp_path: Path) -> Path:
    directory = tmp_path / "model"
    weights.save(directory, params, config=CONFIG, shard_bytes=200_000)
    (directory / "config.json").write_text(json.dumps(reference.config_json()))
    return directory


def load(directory: Path):
    return weights.load(directory, CONFIG, abstract=abstract_params(VLM(CONFIG)))


def refusal(directory: Path) -> str:
    with pytest.raises(UserError) as caught:
        load(directory)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_missing_shard_is_named_before_anything_is_read(sharded: Path) -> None:
    names = sorted(file.name for file in sharded.glob("*.safetensors"))
    (sharded / names[1]).unlink()
    assert refusal(sharded) == f"{sharded / names[1]}: not there, and {weights.INDEX} names it; copy all shards"
    (sharded / names[2]).unlink()
    assert f"(2 of {len(names)} shards are missing)" in refusal(sharded)


def test_shards_without_their_index(sharded: Path) -> None:
    (sharded / weights.INDEX).unlink()
    assert f"not there; the shards beside it need {weights.INDEX}" in refusal(sharded)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "consolidated.safetensors", "model.gguf", "notes.txt"])
def test_what_lies_beside_whole_weights_is_not_read(sharded: Path, params, name: str) -> None:
    (sharded / name).write_bytes(b"anything")
    jax.tree.map(np.testing.assert_array_equal, load(sharded), params)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("consolidated.safetensors", "consolidated.safetensors beside it is of another layout"),
        ("adapter_model.safetensors", "adapter_model.safetensors beside it is an adapter: name its base model"),
        ("q4.gguf", "a .gguf file beside it is not read"),
        ("pytorch_model-00001-of-00002.bin", "pytorch_model.bin beside it is not read; convert it"),
        ("README.md", "the directory must hold model.safetensors or all shards"),
    ],
)
def test_what_lies_in_place_of_weights_is_named(tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / name).write_bytes(b"anything")
    assert words in refusal(tmp_path)


@pytest.mark.parametrize("tied", [False, True])
def test_the_remedy_for_a_torch_file_works(sharded: Path, params, tied: bool) -> None:
    torch = pytest.importorskip("torch", reason="pip install -e .[parity]")
    tensors = {}
    for file in sharded.glob("*.safetensors"):
        with checkpoint_files.safe_open(file, framework="pt") as handle:
            tensors |= {key: handle.get_tensor(key) for key in handle.keys()}  # noqa: SIM118  no mapping
        file.unlink()
    (sharded / weights.INDEX).unlink()
    if tied:  # as torch files have it: both names, one storage
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
        raw = reference.config_json() | {"tie_word_embeddings": True}
        (sharded / "config.json").write_text(json.dumps(raw))
    torch.save(tensors, sharded / "pytorch_model.bin")
    command = re.search(r'python -c "(.*)"', refusal(sharded))
    assert command is not None
    subprocess.run([sys.executable, "-c", command[1]], check=True, timeout=300, capture_output=True)
    config = families.from_json(sharded / "config.json")
    assert config.text.tie_word_embeddings is tied
    loaded = weights.load(sharded, config, abstract=abstract_params(VLM(config)))
    expected = {name: leaf for name, leaf in params.items() if not (tied and name == "lm_head")}
    jax.tree.map(np.testing.assert_array_equal, loaded, expected)


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 135\n"


def test_a_pointer_of_git_lfs_is_named(sharded: Path) -> None:
    shard = min(sharded.glob("*.safetensors"))
    shard.write_text(POINTER)
    assert refusal(sharded) == (
        f"{shard}: is a pointer of Git LFS and not the file itself; run `git lfs pull` in {sharded}"
    )
    (sharded / "tokenizer.json").write_text(POINTER)
    with pytest.raises(UserError, match=r"tokenizer\.json: is a pointer of Git LFS .*git lfs pull"):
        processor.read_tokenizer(sharded / "tokenizer.json")


QUERY = "model.layers.0.self_attn.q_proj"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (f"{QUERY}.qweight", np.zeros((8, 64), np.int32)),
        (f"{QUERY}.weight.absmax", np.zeros(64, np.uint8)),
        (f"{QUERY}.weight.quant_state.bitsandbytes__nf4", np.zeros(8, np.uint8)),
        (f"{QUERY}.weight_scale_inv", np.zeros((1, 1), np.float32)),
        (f"{QUERY}.SCB", np.zeros(64, np.float32)),
        (f"{QUERY}.weight", np.zeros((64, 64), jax.numpy.float8_e4m3fn)),
        (f"{QUERY}.weight", np.zeros((2048, 1), np.uint8)),
        (f"{QUERY}.weight", np.zeros((64, 64), np.int8)),
    ],
)
def test_quantized_weights_are_named_with_the_model_to_take(tmp_path: Path, key: str, value) -> None:
    """Whatever config.json says: merging tools drop the field."""
    directory = tmp_path / "Qwen2.5-VL-3B-Instruct-unsloth-bnb-4bit"
    directory.mkdir()
    save_file({key: value}, directory / weights.WEIGHTS)
    line = refusal(directory)
    assert "weights in fewer bits" in line and "such as Qwen2.5-VL-3B-Instruct;" in line and repr(key) in line


@pytest.mark.parametrize(
    "method", ["bitsandbytes", "gptq", "awq", "fp8", "compressed-tensors", "fbgemm_fp8", "torchao"]
)
@pytest.mark.parametrize("inside", [False, True])
def test_a_quantized_config_is_named_with_its_method(tmp_path: Path, method: str, inside: bool) -> None:
    field = {"quantization_config": {"quant_method": method, "bits": 4}}
    raw = reference.config_json()
    raw = raw | ({"text_config": raw["text_config"] | field} if inside else field)
    (tmp_path / "config.json").write_text(json.dumps(raw))
    with pytest.raises(UserError, match=rf"quantization_config \({method}\) is of weights in fewer bits") as caught:
        families.from_json(tmp_path / "config.json")
    assert "take the model in full" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("unsloth/Qwen2.5-VL-3B-Instruct-unsloth-bnb-4bit", "unsloth/Qwen2.5-VL-3B-Instruct"),
        ("unsloth/Qwen2.5-VL-3B-Instruct-bnb-4bit", "unsloth/Qwen2.5-VL-3B-Instruct"),
        ("Qwen/Qwen2.5-VL-7B-Instruct-AWQ", "Qwen/Qwen2.5-VL-7B-Instruct"),
        ("Qwen/Qwen2-7B-GPTQ-Int4", "Qwen/Qwen2-7B"),
        ("Qwen/Qwen3-VL-4B-Instruct-FP8", "Qwen/Qwen3-VL-4B-Instruct"),
        ("mlx/Qwen2.5-VL-3B-4bit", "mlx/Qwen2.5-VL-3B"),
        ("a/Model-FP8-dynamic", "a/Model"),
        ("a/Model-quantized.w4a16", "a/Model"),
        ("/data/q.4bit/Model", "/data/q.4bit/Model"),
        ("Qwen/Qwen2.5-VL-3B-Instruct", "Qwen/Qwen2.5-VL-3B-Instruct"),
        ("a/awq", "a/awq"),
    ],
)
def test_the_name_of_a_model_in_full(name: str, full: str) -> None:
    assert checkpoint_files.full_name(name) == full


def test_a_folder_that_is_no_model_names_the_one_that_is(tmp_path: Path) -> None:
    """A Trainer's output of full tuning, and an adapter in place of a model."""
    for step in (20, 100):
        (tmp_path / f"checkpoint-{step}").mkdir()
        (tmp_path / f"checkpoint-{step}" / "config.json").write_text("{}")
    with pytest.raises(UserError, match=rf"no config\.json there, but in {tmp_path}/checkpoint-100; give that folder"):
        families.from_json(tmp_path / "config.json")
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(UserError, match=r"no config\.json there: it is an adapter; give its base model in its place"):
        families.from_json(tmp_path / "config.json")
    with pytest.raises(UserError, match=r"no config\.json there; give a Hugging Face model directory"):
        families.from_json(tmp_path / "nothing" / "config.json")
