"""Configuration and keys of text-only families, as their published files have them."""

import json

import numpy as np
import pytest
import small_families as small
from safetensors.numpy import load_file, save_file

from pixelis_jax.models import families, weights
from pixelis_jax.models import policy as policies
from pixelis_jax.models.config import Llama3Rope, TextConfig
from pixelis_jax.models.vlm import VLM
from pixelis_jax.types import UserError

QWEN3_0_6B = {
    "architectures": ["Qwen3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 151643,
    "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 1024, "initializer_range": 0.02,
    "intermediate_size": 3072, "max_position_embeddings": 40960, "max_window_layers": 28, "model_type": "qwen3",
    "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8, "rms_norm_eps": 1e-06,
    "rope_scaling": None, "rope_theta": 1000000, "sliding_window": None, "tie_word_embeddings": True,
    "torch_dtype": "bfloat16", "transformers_version": "4.51.0", "use_cache": True, "use_sliding_window": False,
    "vocab_size": 151936,
}  # fmt: skip
SMOLLM2_135M = {
    "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 1,
    "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 576, "initializer_range": 0.041666666666666664,
    "intermediate_size": 1536, "is_llama_config": True, "max_position_embeddings": 8192, "mlp_bias": False,
    "model_type": "llama", "num_attention_heads": 9, "num_hidden_layers": 30, "num_key_value_heads": 3,
    "pad_token_id": 2, "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_interleaved": False, "rope_scaling": None,
    "rope_theta": 100000, "tie_word_embeddings": True, "torch_dtype": "bfloat16", "vocab_size": 49152,
    "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16"}}, "use_cache": True,
}  # fmt: skip
LLAMA3_ROPE = {
    "factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}  # fmt: skip


def read(tmp_path, raw):
    (tmp_path / "config.json").write_text(json.dumps(raw))
    return families.from_json(tmp_path / "config.json")


@pytest.mark.parametrize("config", small.TEXT_ONLY.values(), ids=small.TEXT_ONLY)
def test_round_trip(tmp_path, config):
    assert read(tmp_path, families.to_json(config)) == config


def test_published_files(tmp_path):
    qwen = read(tmp_path, QWEN3_0_6B)
    assert qwen.vision is None and qwen.model_type == "qwen3" and qwen.eos_token_id == 151645
    assert qwen.text == TextConfig(
        hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_key_value_heads=8, head_dim=128,
        max_position_embeddings=40960, attention_bias=False, qk_norm=True, mrope_section=None,
    )  # fmt: skip
    smol = read(tmp_path, SMOLLM2_135M)
    assert (smol.text.head_dim, smol.text.rope_theta, smol.pad_token_id) == (64, 1e5, 2)
    assert not smol.text.qk_norm and smol.text.tie_word_embeddings and smol.text.rope_scaling is None
    stretched = read(tmp_path, SMOLLM2_135M | {"rope_scaling": LLAMA3_ROPE})
    assert stretched.text.rope_scaling == Llama3Rope(32.0, 1.0, 4.0, 8192) and stretched.text.rope_theta == 1e5


def test_what_transformers_takes_for_missing_fields(tmp_path):
    """Llama 1 and 2 files lack some."""
    lacking = ("num_key_value_heads", "rope_theta", "tie_word_embeddings", "attention_bias", "mlp_bias", "rope_scaling")
    text = read(tmp_path, {k: v for k, v in SMOLLM2_135M.items() if k not in lacking}).text
    assert (text.num_key_value_heads, text.rope_theta, text.tie_word_embeddings) == (9, 1e4, False)
    assert read(tmp_path, SMOLLM2_135M | {"num_key_value_heads": None, "head_dim": None}).text.head_dim == 64
    assert read(tmp_path, {k: v for k, v in QWEN3_0_6B.items() if k != "head_dim"}).text.head_dim == 128


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (QWEN3_0_6B | {"use_sliding_window": True}, "use_sliding_window=true is not supported"),
        (QWEN3_0_6B | {"layer_types": ["sliding_attention"]}, "layer_types other than 'full_attention'"),
        (QWEN3_0_6B | {"layer_types": ["full_attention"] * 2}, "layer_types are 2 and num_hidden_layers is 28"),
        (QWEN3_0_6B | {"num_experts": 8}, "field 'num_experts' is not one this program honours"),
        (
            QWEN3_0_6B | {"quantization_config": {"bits": 4}},
            r"quantization_config \(None\) is of weights in fewer bits",
        ),
        (QWEN3_0_6B | {"mlp_bias": False}, "field 'mlp_bias' is not one"),
        (QWEN3_0_6B | {"head_dim": 0}, "head_dim is 0 and must be"),
        (QWEN3_0_6B | {"head_dim": 33}, "head_dim must be even"),
        (QWEN3_0_6B | {"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported; expected 'silu'"),
        (QWEN3_0_6B | {"attention_bias": "no"}, "attention_bias is 'no' and must be true or false"),
        (QWEN3_0_6B | {"eos_token_id": [1, "x"]}, "eos_token_id is 'x' and must be"),
        ({k: v for k, v in QWEN3_0_6B.items() if k != "hidden_size"}, "hidden_size is missing"),
        (QWEN3_0_6B | {"rope_scaling": {"type": "yarn", "factor": 4.0}}, "rope type 'yarn' is not computed here"),
        (QWEN3_0_6B | {"rope_scaling": {"partial_rotary_factor": 0.5}}, "rope_parameters: field 'partial_rotary"),
        (QWEN3_0_6B | {"rope_scaling": {"mrope_section": [1, 2, 3]}}, "rope_parameters: field 'mrope_section'"),
        (QWEN3_0_6B | {"rope_scaling": 3}, "rope_scaling"),
        (SMOLLM2_135M | {"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope type 'linear' is not computed here"),
        (SMOLLM2_135M | {"rope_scaling": {"rope_type": "llama3"}}, "rope_parameters: factor is missing"),
        (SMOLLM2_135M | {"rope_scaling": LLAMA3_ROPE | {"factor": 0}}, "factor is 0 and must be a number above 0"),
        (SMOLLM2_135M | {"rope_scaling": LLAMA3_ROPE | {"low_freq_factor": 4}}, "low_freq_factor must be below"),
        (SMOLLM2_135M | {"rope_interleaved": True}, "rope_interleaved=true is not supported"),
        (SMOLLM2_135M | {"num_attention_heads": 7}, "hidden_size must be a multiple of num_attention_heads"),
        (SMOLLM2_135M | {"num_key_value_heads": 2}, "must be a multiple of num_key_value_heads"),
        (SMOLLM2_135M | {"model_type": "mistral"}, "model_type 'mistral' is not supported; expected 'qwen2_5_vl', "),
    ],
)
def test_what_would_change_the_model_is_one_line(tmp_path, raw, words):
    with pytest.raises(UserError, match=words) as error:
        read(tmp_path, raw)
    assert str(error.value).startswith(str(tmp_path / "config.json")) and "\n" not in str(error.value)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A random qwen3 checkpoint."""
    directory = tmp_path_factory.mktemp("qwen3")
    model = VLM(small.TEXT_ONLY["qwen3"])
    small.save(directory, model, policies.init_params(model, 0))
    return directory


NORM = "model.layers.1.self_attn.q_norm.weight"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({NORM: None}, f"1 weights are missing, first '{NORM}'"),
        ({NORM: np.zeros(16, np.float32)}, r"q_norm.weight' has shape \(16,\), the config asks for \(24,\)"),
        ({"model.layers.0.self_attn.q_proj.bias": np.zeros(96, np.float32)}, "q_proj.bias' has no place in this model"),
        ({"visual.merger.ln_q.weight": np.zeros(64, np.float32)}, "ln_q.weight' has no place in this model"),
        ({"model.language_model.norm.weight": np.zeros(64, np.float32)}, "norm.weight' stands twice"),
    ],
)
def test_a_wrong_key_is_named(written, tmp_path, changes, words):
    tensors = load_file(written / weights.WEIGHTS) | changes
    save_file({k: v for k, v in tensors.items() if v is not None}, tmp_path / weights.WEIGHTS)
    (tmp_path / "config.json").write_text((written / "config.json").read_text())
    with pytest.raises(UserError, match=words):
        small.load(tmp_path)


def test_several_ends_of_text_are_read_and_written_back(tmp_path):
    config = read(tmp_path, QWEN3_0_6B | {"eos_token_id": [151645, 151643]})
    assert (config.eos_token_id, config.other_eos_token_ids) == (151645, (151643,))
    assert families.to_json(config)["eos_token_id"] == [151645, 151643]
    assert read(tmp_path, families.to_json(config)) == config
    with pytest.raises(UserError, match="eos_token_id must be below vocab_size"):
        read(tmp_path, QWEN3_0_6B | {"eos_token_id": [151645, 200000]})
