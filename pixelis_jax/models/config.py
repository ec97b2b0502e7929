"""Model configuration, read from a Hugging Face `config.json` and written back to one."""

import dataclasses
import json
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


def from_json(path: Path) -> ModelConfig:
    """Read `config.json`. UserError where the family is another one or a field is one we do not honour."""
    try:
        raw = json.loads(path.read_text())
    except FileNotFoundError:
        raise UserError(f"{path.parent}: no config.json there; give a Hugging Face model directory") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not valid JSON ({error}); restore the file from the original checkpoint") from None
    family = raw.get("model_type")
    if family != "qwen2_5_vl":
        raise UserError(f"{path}: model_type {family!r} is not supported; expected 'qwen2_5_vl'")
    # Files before transformers 5 keep the decoder's fields at the top level.
    text = {**{k: v for k, v in raw.items() if not isinstance(v, dict)}, **raw.get("text_config", {})}
    rope = raw.get("rope_scaling") or text.get("rope_parameters") or text.get("rope_scaling") or {}
    if rope.get("rope_type", rope.get("type", "default")) not in ("default", "mrope"):
        raise UserError(f"{path}: rope type {rope.get('rope_type', rope.get('type'))!r} is not supported")
    if text.get("use_sliding_window"):
        raise UserError(f"{path}: use_sliding_window=true is not supported")
    text |= {"rope_theta": rope.get("rope_theta", text.get("rope_theta", 1e6)), "mrope_section": rope["mrope_section"]}
    vision = dict(raw["vision_config"])
    vision.setdefault("in_channels", vision.get("in_chans", 3))
    ids = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
    _refuse_unknown(raw["vision_config"], VisionConfig, f"{path}: vision_config", ())
    _refuse_unknown(text, TextConfig, str(path), (*ids, "eos_token_id", "pad_token_id"))
    config = ModelConfig(
        vision=_take(VisionConfig, vision),
        text=_take(TextConfig, text | {"tie_word_embeddings": raw.get("tie_word_embeddings", False)}),
        pad_token_id=raw.get("pad_token_id") or text.get("pad_token_id") or 0,
        eos_token_id=raw.get("eos_token_id") or text["eos_token_id"],
        **{name: raw[name] for name in ids},
    )
    for part, act in (("vision_config", config.vision.hidden_act), ("text_config", config.text.hidden_act)):
        if act != "silu":
            raise UserError(f"{path}: {part}.hidden_act {act!r} is not supported; expected 'silu'")
    return config


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


def _take(cls: type, raw: Mapping[str, Any]) -> Any:
    values = {f.name: raw[f.name] for f in dataclasses.fields(cls) if f.name in raw}
    return cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})


def _refuse_unknown(raw: Mapping[str, Any], cls: type, where: str, also: tuple[str, ...]) -> None:
    known = {f.name for f in dataclasses.fields(cls)} | _IGNORED | set(also)
    for name in raw:
        if name not in known:
            raise UserError(
                f"{where}: field {name!r} is not one this program honours, so the model would differ; refusing"
            )
