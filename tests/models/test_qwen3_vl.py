"""Qwen3-VL's configuration, keys, preprocessor file and resampled positions, without the reference."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
import small_families as small
from flax import traverse_util

from pixelis_jax.models import families, preprocessor, weights
from pixelis_jax.models import policy as policies
from pixelis_jax.models.config import CLIP_MEAN, CLIP_STD, HALF, Qwen3VisionConfig, TextConfig
from pixelis_jax.models.decoder import _axes
from pixelis_jax.models.image_processor import PixelBudget
from pixelis_jax.models.qwen3_vision import resampled
from pixelis_jax.models.vlm import VLM
from pixelis_jax.types import UserError

QWEN3_VL_4B = {
    "architectures": ["Qwen3VLForConditionalGeneration"], "image_token_id": 151655, "model_type": "qwen3_vl",
    "text_config": {
        "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 151643, "dtype": "bfloat16",
        "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 2560,
        "initializer_range": 0.02, "intermediate_size": 9728, "max_position_embeddings": 262144,
        "model_type": "qwen3_vl_text", "num_attention_heads": 32, "num_hidden_layers": 36, "num_key_value_heads": 8,
        "rms_norm_eps": 1e-06, "rope_theta": 5000000, "tie_word_embeddings": True, "use_cache": True,
        "rope_scaling": {"mrope_interleaved": True, "mrope_section": [24, 20, 20], "rope_type": "default"},
        "vocab_size": 151936,
    },
    "tie_word_embeddings": True, "transformers_version": "4.57.0.dev0", "video_token_id": 151656,
    "vision_config": {
        "deepstack_visual_indexes": [5, 11, 17], "depth": 24, "hidden_act": "gelu_pytorch_tanh", "hidden_size": 1024,
        "in_channels": 3, "initializer_range": 0.02, "intermediate_size": 4096, "model_type": "qwen3_vl",
        "num_heads": 16, "num_position_embeddings": 2304, "out_hidden_size": 2560, "patch_size": 16,
        "spatial_merge_size": 2, "temporal_patch_size": 2,
    },
    "vision_end_token_id": 151653, "vision_start_token_id": 151652,
}  # fmt: skip
PREPROCESSOR = {
    "size": {"longest_edge": 16777216, "shortest_edge": 65536}, "patch_size": 16, "temporal_patch_size": 2,
    "merge_size": 2, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5],
    "processor_class": "Qwen3VLProcessor", "image_processor_type": "Qwen2VLImageProcessorFast",
}  # fmt: skip


def read(tmp_path, raw, images=None):
    (tmp_path / "config.json").write_text(json.dumps(raw))
    if images is not None:
        (tmp_path / "preprocessor_config.json").write_text(json.dumps(images))
    return families.from_json(tmp_path / "config.json")


def changed(part, **fields):
    return QWEN3_VL_4B | {part: QWEN3_VL_4B[part] | fields}


def test_the_published_4b_file(tmp_path):
    config = read(tmp_path, QWEN3_VL_4B, PREPROCESSOR)
    assert config.text == TextConfig(
        hidden_size=2560, intermediate_size=9728, num_hidden_layers=36, num_attention_heads=32, num_key_value_heads=8,
        head_dim=128, attention_bias=False, qk_norm=True, rope_theta=5e6, mrope_section=(24, 20, 20),
        mrope_interleaved=True, max_position_embeddings=262144,
    )  # fmt: skip
    assert config.vision == Qwen3VisionConfig(
        depth=24, hidden_size=1024, intermediate_size=4096, out_hidden_size=2560, deepstack_visual_indexes=(5, 11, 17)
    )
    assert config.need_vision().factor == 32 and config.eos_token_id == 151645


@pytest.mark.parametrize("config", small.VISION_LANGUAGE.values(), ids=small.VISION_LANGUAGE)
def test_round_trip(tmp_path, config):
    assert read(tmp_path, families.to_json(config)) == config


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (changed("text_config", mlp_only_layers=[1]), "field 'mlp_only_layers' is not one this program honours"),
        (changed("text_config", rope_scaling={"mrope_section": [24, 20, 20], "type": "yarn"}), "rope type 'yarn'"),
        (
            changed("text_config", rope_scaling={"mrope_section": [24, 20, 20], "mrope_interleaved": False}),
            "mrope_interleaved=false is not supported in this family",
        ),
        (changed("text_config", rope_scaling={"mrope_section": [24, 20, 21]}), "add up to half a head"),
        (changed("vision_config", window_size=112), "vision_config: field 'window_size' is not one"),
        (changed("vision_config", image_mean=[0.1, 0.1, 0.1]), "vision_config: field 'image_mean' is not one"),
        (
            changed("vision_config", hidden_act="silu"),
            "hidden_act 'silu' is not supported; expected 'gelu_pytorch_tanh",
        ),
        (changed("vision_config", num_position_embeddings=2305), "num_position_embeddings must be a square"),
        (changed("vision_config", deepstack_visual_indexes=[5, 24]), "must rise and be below depth"),
        (changed("vision_config", deepstack_visual_indexes=[7, 5]), "deepstack_visual_indexes must rise"),
        (changed("vision_config", rope_parameters={"rope_theta": 5.0}), "rope_parameters .* are not supported"),
        (changed("vision_config", rope_parameters=[1]), "rope_parameters .* are not supported"),
        (QWEN3_VL_4B | {"quantization_config": {"bits": 4}}, "is of weights in fewer bits"),
        (QWEN3_VL_4B | {"model_type": "qwen3_vl_moe"}, "model_type 'qwen3_vl_moe' is not supported"),
    ],
)
def test_what_would_change_the_model_is_one_line(tmp_path, raw, words):
    with pytest.raises(UserError, match=words) as error:
        read(tmp_path, raw)
    assert str(error.value).startswith(str(tmp_path / "config.json")) and "\n" not in str(error.value)


def test_channel_statistics_are_those_of_the_preprocessor(tmp_path):
    own = PREPROCESSOR | {"image_mean": [0.1, 0.2, 0.3], "image_std": [1, 1, 1]}
    vision = read(tmp_path, QWEN3_VL_4B, own).need_vision()
    assert (vision.image_mean, vision.image_std) == ((0.1, 0.2, 0.3), (1.0, 1.0, 1.0))
    assert Qwen3VisionConfig().image_mean == Qwen3VisionConfig().image_std == HALF
    assert families.VisionConfig().image_mean == CLIP_MEAN and families.VisionConfig().image_std == CLIP_STD


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("image_mean", [0.5, 0.5], "image_mean is .* and must be 3 numbers above 0"),
        ("image_std", [0.5, 0.5, 0], "image_std is .* and must be 3 numbers above 0"),
        ("patch_size", 14, "patch_size is 14, this program can only do 16"),
        ("do_normalize", False, "do_normalize is False, this program can only do True"),
        ("resample", 2, "resample is 2, this program can only do 3"),
        ("do_convert_rgb", False, "do_convert_rgb is False, this program can only do True"),
        ("rescale_factor", 0.5, "rescale_factor is 0.5, this program can only do 0.003"),
        ("do_center_crop", True, "do_center_crop is True, this program can only do False"),
        ("image_processor_type", "CLIPImageProcessor", "image_processor_type 'CLIPImageProcessor' is not supported"),
        ("sharpen", 1, "field 'sharpen' is not one this program honours"),
    ],
)
def test_another_preprocessing_is_refused(tmp_path, field, value, words):
    with pytest.raises(UserError, match=words) as error:
        read(tmp_path, QWEN3_VL_4B, PREPROCESSOR | {field: value})
    assert str(error.value).startswith(str(tmp_path / "preprocessor_config.json"))


def test_fields_that_are_null_have_their_defaults(tmp_path):
    spelled = dict.fromkeys(("do_resize", "size", "crop_size", "resample", "min_pixels", "device", "image_mean"))
    assert read(tmp_path, QWEN3_VL_4B, spelled | PREPROCESSOR) == read(tmp_path, QWEN3_VL_4B, PREPROCESSOR)


def test_a_nested_file_of_transformers_5_comes_first(tmp_path):
    """It is `processor_config.json`, which may also be there without an image processor in it."""
    plain = read(tmp_path, QWEN3_VL_4B, PREPROCESSOR)
    nested = tmp_path / "processor_config.json"
    nested.write_text(json.dumps({"processor_class": "Qwen3VLProcessor"}))
    assert read(tmp_path, QWEN3_VL_4B) == plain
    size = {"shortest_edge": 1024, "longest_edge": 4096}
    nested.write_text(json.dumps({"image_processor": PREPROCESSOR | {"image_std": [1, 1, 1], "size": size}}))
    assert read(tmp_path, QWEN3_VL_4B).need_vision().image_std == (1, 1, 1)
    assert preprocessor.read_budget(tmp_path) == PixelBudget(1024, 4096)
    nested.write_text(json.dumps({"image_processor": PREPROCESSOR | {"do_pad": True}}))
    with pytest.raises(UserError, match=r"processor_config.json: do_pad is True, this program can only do False"):
        read(tmp_path, QWEN3_VL_4B)


def test_every_parameter_has_one_key_and_every_key_one_parameter():
    paths = traverse_util.flatten_dict(policies.abstract_params(VLM(small.VISION_LANGUAGE["qwen3_vl"])), sep="/")
    keys = {path: weights.from_path(path) for path in paths}
    for path, (key, transposed) in keys.items():
        assert weights.to_path(key) == weights.to_path(weights.prefixed(key)) == (path, transposed)
    assert len({key for key, _ in keys.values()}) == len(paths)


def test_interleaved_axes():
    """Sections (4, 2, 2): t h w t h w, and time takes what is left."""
    config = TextConfig(head_dim=16, mrope_section=(4, 2, 2), mrope_interleaved=True)
    assert _axes(config).tolist() == [0, 1, 2, 0, 1, 2, 0, 0]
    assert _axes(TextConfig(head_dim=16, mrope_section=(4, 2, 2))).tolist() == [0, 0, 0, 0, 1, 1, 2, 2]
    assert _axes(TextConfig(head_dim=16, mrope_section=None)).tolist() == [0] * 8


def test_positions_are_resampled_corner_on_corner():
    """A table of 2 x 2 over a grid of 3 x 3: the middles are means; padding does not stretch the grid."""
    table = jnp.array([[0.0], [1.0], [10.0], [11.0]])
    coords = np.array([(y, x) for y in range(3) for x in range(3)] + [(40, 40)], np.int32)[None]
    valid = np.array([[True] * 9 + [False]])
    out = np.asarray(resampled(table, coords, valid))[0, :9, 0]
    assert out.tolist() == [0, 0.5, 1, 5, 5.5, 6, 10, 10.5, 11]
    one_row = np.array([[(0, 0), (0, 1)]], np.int32)
    assert np.asarray(resampled(table, one_row, np.ones((1, 2), bool)))[0, :, 0].tolist() == [0, 1]
