"""Model configuration, and the checks of a JSON file's fields that all families share (models/families.py)."""

import dataclasses
import json
import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from pixelis_jax.types import UserError

# Channel statistics on the 0..1 scale: those of OpenAI CLIP in Qwen2.5-VL, one half in Qwen3-VL.
CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
HALF = (0.5, 0.5, 0.5)
DEEPEST = 1024  # layers, which are written out one by one
WIDEST = 64  # merged patches along a window of the vision tower: no published model has more than 4
VISION_THETA = 10_000.0  # of the rotary positions (row, column) in every vision tower


@dataclasses.dataclass(frozen=True)
class VisionBase:
    """What images become before a vision tower: patches of some pixels, merged into tokens."""

    depth: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    in_channels: int = 3
    patch_size: int = 14
    spatial_merge_size: int = 2
    temporal_patch_size: int = 2
    out_hidden_size: int = 2048
    hidden_act: str = "silu"
    image_mean: tuple[float, ...] = CLIP_MEAN  # of preprocessor_config.json, as the next one
    image_std: tuple[float, ...] = CLIP_STD

    @property
    def patch_dim(self) -> int:
        return self.in_channels * self.temporal_patch_size * self.patch_size**2

    @property
    def merge_unit(self) -> int:
        """Patches merged into one token."""
        return self.spatial_merge_size**2

    @property
    def window_units(self) -> int:
        """Side of a window, in merged tokens. A tower without window attention packs token by token."""
        return 1

    @property
    def window_patches(self) -> int:
        """Patches in a full window."""
        return self.window_units**2 * self.merge_unit

    @property
    def window_px(self) -> int:
        """Side of a window in pixels."""
        return self.window_units * self.factor

    @property
    def factor(self) -> int:
        """Image sides are multiples of this many pixels."""
        return self.patch_size * self.spatial_merge_size


@dataclasses.dataclass(frozen=True)
class VisionConfig(VisionBase):
    """Qwen2.5-VL vision tower. Sizes in pixels where the name says so, else in features or counts."""

    depth: int = 32
    hidden_size: int = 1280
    intermediate_size: int = 3420
    num_heads: int = 16
    tokens_per_second: int = 4
    window_size: int = 112
    fullatt_block_indexes: tuple[int, ...] = (7, 15, 23, 31)

    @property
    def window_units(self) -> int:
        return self.window_size // self.patch_size // self.spatial_merge_size


@dataclasses.dataclass(frozen=True)
class Qwen3VisionConfig(VisionBase):
    """Qwen3-VL vision tower; the defaults are those of its largest one."""

    depth: int = 27
    hidden_size: int = 1152
    intermediate_size: int = 4304
    num_heads: int = 16
    patch_size: int = 16
    hidden_act: str = "gelu_pytorch_tanh"
    num_position_embeddings: int = 2304
    deepstack_visual_indexes: tuple[int, ...] = (8, 16, 24)
    image_mean: tuple[float, ...] = HALF
    image_std: tuple[float, ...] = HALF


@dataclasses.dataclass(frozen=True)
class Llama3Rope:
    """Rotary frequencies stretched for longer contexts, as in Llama 3.1 (models/decoder.py)."""

    factor: float = 8.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192


@dataclasses.dataclass(frozen=True)
class TextConfig:
    """A decoder with GQA, RMSNorm and SwiGLU; the defaults are Qwen2.5-VL-3B's."""

    vocab_size: int = 151936
    hidden_size: int = 2048
    intermediate_size: int = 11008
    num_hidden_layers: int = 36
    num_attention_heads: int = 16
    num_key_value_heads: int = 2
    head_dim: int = 0  # 0: hidden_size / num_attention_heads
    attention_bias: bool = True  # on q, k and v
    output_bias: bool = False  # on o
    mlp_bias: bool = False
    qk_norm: bool = False  # RMSNorm over each head of q and k
    rms_norm_eps: float = 1e-6
    rope_theta: float = 1e6
    rope_scaling: Llama3Rope | None = None
    mrope_section: tuple[int, ...] | None = (16, 24, 24)  # frequencies of (time, height, width); None: one position
    mrope_interleaved: bool = False
    tie_word_embeddings: bool = True
    max_position_embeddings: int = 32768
    hidden_act: str = "silu"

    def __post_init__(self) -> None:
        if not self.head_dim:
            object.__setattr__(self, "head_dim", self.hidden_size // self.num_attention_heads)


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """A whole model: vision tower (None in a text-only one), decoder, special tokens (-1: there is none)."""

    vision: VisionBase | None
    text: TextConfig
    image_token_id: int
    video_token_id: int
    vision_start_token_id: int
    vision_end_token_id: int
    pad_token_id: int
    eos_token_id: int
    model_type: str = "qwen2_5_vl"
    other_eos_token_ids: tuple[int, ...] = ()  # where the file's eos_token_id is a list, those after the first
    # What was decided while the files were read, in lines for the user; no part of what the model is.
    notes: tuple[str, ...] = dataclasses.field(default=(), compare=False)

    @property
    def feature_width(self) -> int:
        """Width of an image's features: wider than the decoder with deepstack."""
        levels = len(self.vision.deepstack_visual_indexes) if isinstance(self.vision, Qwen3VisionConfig) else 0
        return self.text.hidden_size * (1 + levels)

    def need_vision(self) -> VisionBase:
        """The vision tower. UserError in a text-only model."""
        if self.vision is None:
            raise UserError(
                f"an image for a text-only model (model_type {self.model_type!r}): take a vision-language model, or"
                " tasks without images"
            )
        return self.vision


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


def group(raw: Mapping[str, Any], name: str, path: Path) -> dict[str, Any]:
    """An object inside a file's object."""
    if not isinstance(raw.get(name), dict):
        raise UserError(f"{path}: {name} is missing or no JSON object; restore it from the original checkpoint")
    return dict(raw[name])


def token_id(name: str, value: Any, path: Path) -> int:
    """A token's number."""
    if not _is_count(value, least=0):
        raise UserError(f"{path}: {name} is {value!r} and must be a token's number; restore the file")
    return int(value)


def eos_token_ids(value: Any, path: Path) -> tuple[int, ...]:
    """The numbers of the tokens that end a text: a file has one of them or a list."""
    ids = value if isinstance(value, list) and value else [value]
    return tuple(token_id("eos_token_id", item, path) for item in ids)


def take(cls: type, raw: Mapping[str, Any], where: str, *, needed: Collection[str] = (), **known: Any) -> Any:
    """A `cls` of the fields it has in `raw`, each of the kind of the field's default, and of those already `known`."""
    for name in needed:
        if name not in raw:
            raise UserError(f"{where}: {name} is missing; restore it from the original checkpoint")
    values = {}
    for field in dataclasses.fields(cls):
        if field.name not in raw or field.name in known:
            continue
        value = raw[field.name]
        wanted = wrong_kind(value, field.default)
        if wanted:
            raise UserError(f"{where}: {field.name} is {value!r:.60} and must be {wanted}; restore the file")
        values[field.name] = tuple(value) if isinstance(value, list) else value
    return cls(**values, **known)


def wrong_kind(value: Any, default: Any) -> str | None:
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


def refuse_unknown(raw: Mapping[str, Any], known: Collection[str], where: str) -> None:
    """UserError for a field that is not `known` to do what this program does."""
    for name in raw:
        if name not in known:
            raise UserError(
                f"{where}: field {name!r} is not one this program honours, so the model would differ; refusing"
            )


def check_sizes(config: ModelConfig, path: Path) -> None:
    """UserError where fields contradict each other."""
    text, vision = config.text, config.vision
    rules = {
        "num_attention_heads must be a multiple of num_key_value_heads": (
            text.num_attention_heads % text.num_key_value_heads == 0
        ),
        "head_dim must be even": text.head_dim % 2 == 0,
        f"num_hidden_layers must be {DEEPEST} or less": text.num_hidden_layers <= DEEPEST,
        "rms_norm_eps must be below 1": text.rms_norm_eps < 1,
        "rope_theta must be 1e30 or less": text.rope_theta <= 1e30,
    }
    for field in dataclasses.fields(config):
        if field.name.endswith("_token_id"):
            rules[f"{field.name} must be below vocab_size"] = getattr(config, field.name) < text.vocab_size
    rules["eos_token_id must be below vocab_size"] = (
        max((config.eos_token_id, *config.other_eos_token_ids)) < text.vocab_size
    )
    if text.mrope_section is not None:
        rules["mrope_section must be three counts that add up to half a head"] = (
            len(text.mrope_section) == 3 and 2 * sum(text.mrope_section) == text.head_dim
        )
    if vision is not None:
        rules["vision_config.hidden_size must be a multiple of num_heads, in heads of a multiple of 4"] = (
            vision.hidden_size % (4 * vision.num_heads) == 0
        )
        rules[f"vision_config.depth must be {DEEPEST} or less"] = vision.depth <= DEEPEST
        rules["vision_config.out_hidden_size must be hidden_size"] = vision.out_hidden_size == text.hidden_size
        rules["vision_config.window_size must hold at least one merged patch"] = vision.window_units > 0
        rules[f"vision_config.window_size must hold {WIDEST} merged patches a side or less"] = (
            vision.window_units <= WIDEST
        )
    if isinstance(vision, VisionConfig):
        rules["vision_config.fullatt_block_indexes must be below depth"] = (
            max(vision.fullatt_block_indexes, default=-1) < vision.depth
        )
    if isinstance(vision, Qwen3VisionConfig):
        levels = vision.deepstack_visual_indexes
        rules["vision_config.num_position_embeddings must be a square"] = (
            math.isqrt(vision.num_position_embeddings) ** 2 == vision.num_position_embeddings
        )
        rules["vision_config.deepstack_visual_indexes must rise and be below depth"] = (
            list(levels) == sorted(set(levels)) and max(levels, default=-1) < vision.depth
        )
        rules["vision_config.deepstack_visual_indexes must not be more than num_hidden_layers"] = (
            len(levels) <= text.num_hidden_layers
        )
    for rule, kept in rules.items():
        if not kept:
            raise UserError(f"{path}: {rule}; restore the file from the original checkpoint")
