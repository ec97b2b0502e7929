import json

import pytest
import reference

from pixelis_jax.models import config as model_config
from pixelis_jax.models import families
from pixelis_jax.types import UserError


def read(tmp_path, raw):
    (tmp_path / "config.json").write_text(json.dumps(raw))
    return families.from_json(tmp_path / "config.json")


def test_round_trip(tmp_path):
    assert read(tmp_path, reference.config_json()) == reference.small_config()


def test_the_published_3b_layout_before_transformers_5(tmp_path):
    """The decoder's fields at the top level, as in Qwen2.5-VL-3B-Instruct's config.json."""
    raw = {
        "architectures": ["Qwen2_5_VLForConditionalGeneration"], "attention_dropout": 0.0, "bos_token_id": 151643,
        "eos_token_id": 151645, "vision_start_token_id": 151652, "vision_end_token_id": 151653,
        "vision_token_id": 151654, "image_token_id": 151655, "video_token_id": 151656, "hidden_act": "silu",
        "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 11008, "max_position_embeddings": 128000,
        "max_window_layers": 70, "model_type": "qwen2_5_vl", "num_attention_heads": 16, "num_hidden_layers": 36,
        "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": 32768,
        "tie_word_embeddings": True, "torch_dtype": "bfloat16", "use_cache": True, "use_sliding_window": False,
        "vision_config": {
            "depth": 32, "hidden_act": "silu", "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16,
            "in_chans": 3, "out_hidden_size": 2048, "patch_size": 14, "spatial_merge_size": 2,
            "spatial_patch_size": 14, "window_size": 112, "fullatt_block_indexes": [7, 15, 23, 31],
            "tokens_per_second": 2, "temporal_patch_size": 2,
        },
        "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}, "vocab_size": 151936,
    }  # fmt: skip
    config = read(tmp_path, raw)
    assert config.text == model_config.TextConfig(max_position_embeddings=128000)
    assert config.vision == model_config.VisionConfig(tokens_per_second=2)
    assert config.image_token_id == 151655 and config.eos_token_id == 151645


@pytest.mark.parametrize(
    "change, message",
    [
        ({"model_type": "llava"}, "model_type 'llava' is not supported; expected 'qwen2_5_vl'"),
        ({"vision_start_token_id": 10**9}, "vision_start_token_id must be below vocab_size"),
        ({"softcap": 30.0}, "field 'softcap' is not one this program honours"),
        ({"vision_config": {"depth": 4, "registers": 4}}, "vision_config: field 'registers'"),
        ({"use_sliding_window": True}, "use_sliding_window=true is not supported"),
        ({"rope_scaling": {"rope_type": "yarn", "mrope_section": [2, 3, 3]}}, "rope type 'yarn' is not computed here"),
    ],
)
def test_what_would_change_the_model_is_refused(tmp_path, change, message):
    with pytest.raises(UserError, match=message) as error:
        read(tmp_path, reference.config_json() | change)
    assert "config.json" in str(error.value)


def test_another_activation_is_refused(tmp_path):
    raw = reference.config_json()
    raw["text_config"]["hidden_act"] = "gelu"
    with pytest.raises(UserError, match=r"text_config\.hidden_act 'gelu' is not supported"):
        read(tmp_path, raw)


def without(raw: dict, *path: str) -> dict:
    """A copy of nested dicts that lacks one entry."""
    first, *rest = path
    if rest:
        return raw | {first: without(raw[first], *rest)}
    return {name: value for name, value in raw.items() if name != first}


RAW = reference.config_json()
TEXT, VISION = RAW["text_config"], RAW["vision_config"]
ROPE = TEXT["rope_parameters"]


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ([], "not a JSON object"),
        ("qwen2_5_vl", "not a JSON object"),
        ({}, "model_type None is not supported"),
        (without(RAW, "text_config", "rope_parameters"), r"rope_parameters \(or rope_scaling\) with mrope_section"),
        (without(RAW, "text_config", "rope_parameters", "mrope_section"), "with mrope_section is missing"),
        (RAW | {"rope_scaling": [1]}, r"rope_parameters \(or rope_scaling\) is no JSON object"),
        (without(RAW, "vision_config"), "vision_config is missing or no JSON object"),
        (RAW | {"vision_config": 3}, "vision_config is missing or no JSON object"),
        (RAW | {"text_config": None}, "text_config is missing or no JSON object"),
        (without(RAW, "image_token_id"), "image_token_id is None and must be a token's number"),
        (RAW | {"eos_token_id": [1, "x"]}, "eos_token_id is 'x' and must be"),
        (RAW | {"text_config": TEXT | {"hidden_size": "big"}}, "hidden_size is 'big' and must be a whole number"),
        (RAW | {"text_config": TEXT | {"num_hidden_layers": 0}}, "num_hidden_layers is 0 and must be"),
        (RAW | {"text_config": TEXT | {"vocab_size": True}}, "vocab_size is True and must be"),
        (RAW | {"text_config": TEXT | {"rms_norm_eps": -1.0}}, "rms_norm_eps is -1.0 and must be a number above 0"),
        (RAW | {"text_config": TEXT | {"hidden_size": 66}}, "hidden_size must be a multiple of num_attention_heads"),
        (RAW | {"text_config": TEXT | {"num_key_value_heads": 3}}, "must be a multiple of num_key_value_heads"),
        (RAW | {"text_config": TEXT | {"rope_parameters": {"mrope_section": [1, 2]}}}, "mrope_section must be three"),
        (RAW | {"text_config": TEXT | {"rope_parameters": {"mrope_section": "x"}}}, "mrope_section is 'x' and must be"),
        (RAW | {"tie_word_embeddings": 1}, "tie_word_embeddings is 1 and must be true or false"),
        (RAW | {"vision_config": VISION | {"num_heads": 3}}, "vision_config.hidden_size must be a multiple"),
        (RAW | {"vision_config": VISION | {"out_hidden_size": 32}}, "out_hidden_size must be hidden_size"),
        (RAW | {"vision_config": VISION | {"patch_size": None}}, "vision_config: patch_size is None and must be"),
        (RAW | {"vision_config": VISION | {"fullatt_block_indexes": [-1]}}, "fullatt_block_indexes is"),
        (
            RAW | {"vision_config": VISION | {"fullatt_block_indexes": [99]}},
            "fullatt_block_indexes must be below depth",
        ),
        (RAW | {"vision_config": VISION | {"depth": 10**9}}, "vision_config.depth must be 1024 or less"),
        (RAW | {"text_config": TEXT | {"num_hidden_layers": 10**9}}, "num_hidden_layers must be 1024 or less"),
        (RAW | {"vision_config": VISION | {"window_size": 14}}, "window_size must hold at least one merged patch"),
        (RAW | {"vision_config": VISION | {"window_size": 10**8}}, "window_size must hold 64 merged patches a side or"),
        (RAW | {"text_config": TEXT | {"rms_norm_eps": 2**40}}, "rms_norm_eps must be below 1"),
        (RAW | {"text_config": TEXT | {"rope_parameters": ROPE | {"rope_theta": 1e308}}}, "rope_theta must be 1e30 or"),
    ],
)
def test_a_damaged_config_is_one_line_with_its_name(tmp_path, raw, words):
    with pytest.raises(UserError, match=words) as error:
        read(tmp_path, raw)
    assert str(error.value).startswith(str(tmp_path / "config.json")) and "\n" not in str(error.value)


def test_no_file_and_no_json(tmp_path):
    with pytest.raises(UserError, match=r"no config\.json there"):
        families.from_json(tmp_path / "config.json")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UserError, match="not valid JSON"):
        families.from_json(tmp_path / "config.json")
    (tmp_path / "config.json").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="not valid JSON"):
        families.from_json(tmp_path / "config.json")
