"""Model configuration, read from a Hugging Face `config.json` and written back to one."""

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pixelis_jax.types import UserError


@dataclasses.dataclass(frozen=True)
class VisionConfig:
    """Qwen2.5-VL vision tower. Sizes in pixels where the name says so, else in features or counts."""

    depth: int = 32
    hidden_size: int = 1280
    intermediate_size: int = 3420
    num_heads: int = 16
    in_channels: int = 3
    patch_size: int = 14
    spatial_merge_size: int = 2
    temporal_patch_size: int = 2
    tokens_per_second: int = 4
    window_size: int = 112
    out_hidden_size: int = 2048
    fullatt_block_indexes: tuple[int, ...] = (7, 15, 23, 31)
    hidden_act: str = "silu"

    @property
    def patch_dim(self) -> int:
        return self.in_channels * self.temporal_patch_size * self.patch_size**2

    @property
    def merge_unit(self) -> int:
        """Patches merged into one token."""
        return self.spatial_merge_size**2

    @property
    def window_units(self) -> int:
        """Side of an attention window, in merged tokens."""
        return self.window_size // self.patch_size // self.spatial_merge_size

    @property
    def window_patches(self) -> int:
        """Patches in a full window."""
        return self.window_units**2 * self.merge_unit

    @property
    def factor(self) -> int:
        """Image sides are multiples of this many pixels."""
        return self.patch_size * self.spatial_merge_size


@dataclasses.dataclass(frozen=True)
class TextConfig:
    """Qwen2.5-VL decoder: GQA with q/k/v bias, RMSNorm, SwiGLU, M-RoPE over (time, height, width)."""

    vocab_size: int = 151936
    hidden_size: int = 2048
    intermediate_size: int = 11008
    num_hidden_layers: int = 36
    num_attention_heads: int = 16
    num_key_value_heads: int = 2
    rms_norm_eps: float = 1e-6
    rope_theta: float = 1e6
    mrope_section: tuple[int, int, int] = (16, 24, 24)
    tie_word_embeddings: bool = True
    max_position_embeddings: int = 32768
    hidden_act: str = "silu"

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_attention_heads


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """A whole Qwen2.5-VL model: vision tower, decoder and the ids of its placeholder tokens."""

    vision: VisionConfig
    text: TextConfig
    image_token_id: int
    video_token_id: int
    vision_start_token_id: int
    vision_end_token_id: int
    pad_token_id: int
    eos_token_id: int


_IGNORED = frozenset(  # fields that change nothing in a forward pass, or repeat what others say
    """architectures model_type torch_dtype dtype transformers_version use_cache initializer_range attention_dropout
    bos_token_id use_sliding_window sliding_window max_window_layers layer_types in_chans spatial_patch_size
    tokens_per_second vision_token_id _name_or_path rope_scaling rope_parameters""".split()
)


def read_object(file: Path) -> dict[str, Any]:
    """The JSON object of a checkpoint's file. UserError, with the file's name, where it is missing or damaged."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{file.parent}: no {file.name} there; give a Hugging Face model directory") from None
    except OSError as error:
        raise UserError(f"{file}: can't be read ({error.strerror}); restore it from the original checkpoint") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file}: not valid JSON ({error}); restore it from the original checkpoint") from None
    if not isinstance(content, dict):
        raise UserError(f"{file}: not a JSON object; restore it from the original checkpoint")
    return content


def from_json(path: Path) -> ModelConfig:
    """Read `config.json`. UserError where the family is another one, a field is one we do not honour or is damaged."""
    raw = read_object(path)
    family = raw.get("model_type")
    if family != "qwen2_5_vl":
        raise UserError(f"{path}: model_type {family!r} is not supported; expected 'qwen2_5_vl'")
    vision = _group(raw, "vision_config", path)
    # Files before transformers 5 keep the decoder's fields at the top level.
    text = {k: v for k, v in raw.items() if not isinstance(v, dict)}
    text |= _group(raw, "text_config", path) if "text_config" in raw else {}
    text |= _rope(raw, text, path)
    if text.get("use_sliding_window"):
        raise UserError(f"{path}: use_sliding_window=true is not supported")
    ids = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
    _refuse_unknown(vision, VisionConfig, f"{path}: vision_config", ())
    _refuse_unknown(text, TextConfig, str(path), (*ids, "eos_token_id", "pad_token_id"))
    special = {name: raw.get(name) or text.get(name) for name in ("pad_token_id", "eos_token_id")}
    special["pad_token_id"] = special["pad_token_id"] or 0
    config = ModelConfig(
        vision=_take(VisionConfig, {"in_channels": vision.get("in_chans", 3)} | vision, f"{path}: vision_config"),
        text=_take(TextConfig, text | {"tie_word_embeddings": raw.get("tie_word_embeddings", False)}, str(path)),
        **{name: _token_id(name, value, path) for name, value in (special | {n: raw.get(n) for n in ids}).items()},
    )
    _check_sizes(config, path)
    return config


def _group(raw: Mapping[str, Any], name: str, path: Path) -> dict[str, Any]:
    if not isinstance(raw.get(name), dict):
        raise UserError(f"{path}: {name} is missing or no JSON object; restore it from the original checkpoint")
    return dict(raw[name])


def _rope(raw: Mapping[str, Any], text: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """`rope_theta` and `mrope_section`, wherever the file keeps them."""
    rope = raw.get("rope_scaling") or text.get("rope_parameters") or text.get("rope_scaling")
    if not isinstance(rope, dict) or "mrope_section" not in rope:
        raise UserError(
            f"{path}: rope_parameters (or rope_scaling) with mrope_section is missing;"
            " restore it from the original checkpoint"
        )
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in ("default", "mrope"):
        raise UserError(f"{path}: rope type {kind!r} is not supported")
    return {"rope_theta": rope.get("rope_theta", text.get("rope_theta", 1e6)), "mrope_section": rope["mrope_section"]}


def _token_id(name: str, value: Any, path: Path) -> int:
    if not _is_count(value, least=0):
        raise UserError(f"{path}: {name} is {value!r} and must be a token's number; restore the file")
    return int(value)


def _check_sizes(config: ModelConfig, path: Path) -> None:
    """UserError where fields contradict each other."""
    text, vision = config.text, config.vision
    for part, act in (("vision_config", vision.hidden_act), ("text_config", text.hidden_act)):
        if act != "silu":
            raise UserError(f"{path}: {part}.hidden_act {act!r} is not supported; expected 'silu'")
    whole = {
        "hidden_size must be a multiple of num_attention_heads": text.hidden_size % text.num_attention_heads == 0,
        "num_attention_heads must be a multiple of num_key_value_heads": (
            text.num_attention_heads % text.num_key_value_heads == 0
        ),
        "mrope_section must be three counts that add up to half a head": (
            len(text.mrope_section) == 3 and 2 * sum(text.mrope_section) == text.head_dim
        ),
        "vision_config.hidden_size must be a multiple of num_heads": vision.hidden_size % vision.num_heads == 0,
        "vision_config.out_hidden_size must be hidden_size": vision.out_hidden_size == text.hidden_size,
        "vision_config.window_size must hold at least one merged patch": vision.window_units > 0,
    }
    for rule, kept in whole.items():
        if not kept:
            raise UserError(f"{path}: {rule}; restore the file from the original checkpoint")


def to_json(config: ModelConfig) -> dict[str, Any]:
    """The `config.json` of transformers 5 for this model."""
    text = dataclasses.asdict(config.text)
    rope = {
        "rope_type": "default",
        "rope_theta": text.pop("rope_theta"),
        "mrope_section": list(text.pop("mrope_section")),
    }
    ids = {f.name: getattr(config, f.name) for f in dataclasses.fields(config) if f.name.endswith("_id")}
    special = {"eos_token_id": config.eos_token_id, "pad_token_id": config.pad_token_id, "bos_token_id": None}
    return {
        "architectures": ["Qwen2_5_VLForConditionalGeneration"],
        "model_type": "qwen2_5_vl",
        **ids,
        "tie_word_embeddings": text["tie_word_embeddings"],
        "text_config": {"model_type": "qwen2_5_vl_text", **text, **special, "rope_parameters": rope},
        "vision_config": {
            "model_type": "qwen2_5_vl_vision",
            **dataclasses.asdict(config.vision),
            "fullatt_block_indexes": list(config.vision.fullatt_block_indexes),
        },
    }


def _take(cls: type, raw: Mapping[str, Any], where: str) -> Any:
    """A `cls` of the fields it has in `raw`; each must be of the kind of the field's default."""
    values = {}
    for field in dataclasses.fields(cls):
        if field.name not in raw:
            continue
        value = raw[field.name]
        wanted = _wrong_kind(value, field.default)
        if wanted:
            raise UserError(f"{where}: {field.name} is {value!r:.60} and must be {wanted}; restore the file")
        values[field.name] = tuple(value) if isinstance(value, list) else value
    return cls(**values)


def _wrong_kind(value: Any, default: Any) -> str | None:
    """What `value` should be, in words; None where it is of the kind of `default`."""
    if isinstance(default, bool):
        return None if isinstance(value, bool) else "true or false"
    if isinstance(default, int):
        return None if _is_count(value, least=1) else "a whole number of at least 1"
    if isinstance(default, float):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return None if number and 0 < value < math.inf else "a number above 0"
    if isinstance(default, tuple):
        good = isinstance(value, list) and all(_is_count(item, least=0) for item in value)
        return None if good else "a list of whole numbers"
    return None if isinstance(value, str) else "a text"


def _is_count(value: Any, *, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < 2**31


def _refuse_unknown(raw: Mapping[str, Any], cls: type, where: str, also: tuple[str, ...]) -> None:
    known = {f.name for f in dataclasses.fields(cls)} | _IGNORED | set(also)
    for name in raw:
        if name not in known:
            raise UserError(
                f"{where}: field {name!r} is not one this program honours, so the model would differ; refusing"
            )
