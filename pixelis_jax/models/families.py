"""The model families that can be read, and their `config.json`: one decoder, which a family's facts configure."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pixelis_jax.models import checkpoint_files, preprocessor, tying
from pixelis_jax.models.config import (
    VISION_THETA,
    Llama3Rope,
    ModelConfig,
    Qwen3VisionConfig,
    TextConfig,
    VisionBase,
    VisionConfig,
    check_sizes,
    eos_token_ids,
    group,
    read_object,
    refuse_unknown,
    take,
    token_id,
)
from pixelis_jax.types import UserError


@dataclasses.dataclass(frozen=True)
class Family:
    """What a `model_type` decides. `fixed` are fields of TextConfig that its files do not hold.

    `own` are fields of its files beyond the common ones; `defaults` is what `transformers` takes for a missing field,
    in which None means derived from others. `prefixed` files call their parts model.visual and model.language_model.
    `coordinates` is the frame in which its models were taught to give boxes. `flat` files may keep the decoder's fields
    at the top level; `sections` stand for a missing `mrope_section`.
    """

    architecture: str
    rope_theta: float
    fixed: Mapping[str, Any]
    own: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    vision: type[VisionBase] | None = None
    vision_act: str = ""
    prefixed: bool = False
    coordinates: str = "pixels"
    flat: bool = False
    sections: tuple[int, ...] = ()


_PLAIN = {"mrope_section": None}
FAMILIES: dict[str, Family] = {
    "qwen2_5_vl": Family(
        architecture="Qwen2_5_VLForConditionalGeneration",
        rope_theta=1e6,
        fixed={},
        defaults={"rms_norm_eps": 1e-5},
        vision=VisionConfig,
        vision_act="silu",
        flat=True,
        sections=(16, 24, 24),
    ),
    "qwen3_vl": Family(
        architecture="Qwen3VLForConditionalGeneration",
        rope_theta=5e5,
        fixed={"qk_norm": True, "mrope_interleaved": True},
        own=("head_dim", "attention_bias"),
        defaults={"head_dim": 128, "attention_bias": False},
        vision=Qwen3VisionConfig,
        vision_act="gelu_pytorch_tanh",
        prefixed=True,
        coordinates="norm1000",
        sections=(24, 20, 20),
    ),
    "qwen3": Family(
        architecture="Qwen3ForCausalLM",
        rope_theta=1e4,
        fixed={**_PLAIN, "qk_norm": True},
        own=("head_dim", "attention_bias"),
        defaults={"head_dim": 128, "attention_bias": False},
    ),
    "qwen2": Family(architecture="Qwen2ForCausalLM", rope_theta=1e4, fixed=_PLAIN),
    "llama": Family(
        architecture="LlamaForCausalLM",
        rope_theta=1e4,
        fixed=_PLAIN,
        own=("head_dim", "attention_bias", "mlp_bias"),
        defaults={"head_dim": None, "num_key_value_heads": None, "attention_bias": False, "mlp_bias": False},
    ),
}

_SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
)
_COMMON = (*_SIZES, "rms_norm_eps", "max_position_embeddings", "hidden_act", "tie_word_embeddings")
_IDS = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
_SPECIAL = ("pad_token_id", "eos_token_id")
_IGNORED = frozenset(  # fields that change nothing in a forward pass, or repeat what others say
    """
    architectures model_type torch_dtype dtype transformers_version use_cache initializer_range attention_dropout
    bos_token_id unk_token_id sep_token_id decoder_start_token_id sliding_window max_window_layers in_chans
    spatial_patch_size tokens_per_second vision_token_id _name_or_path name_or_path _model_name_or_path _commit_hash
    pretraining_tp transformers.js_config output_attentions output_hidden_states return_dict chunk_size_feed_forward
    is_encoder_decoder is_decoder id2label label2id num_labels problem_type finetuning_task task_specific_params
    tokenizer_class prefix torchscript use_bfloat16 tf_legacy_loss attn_implementation _attn_implementation
    _attn_implementation_autoset _attn_implementation_internal unsloth_fixed unsloth_version model_name auto_map
    """.split()
)
_GENERATION = frozenset(  # how texts were to be sampled, which is `config.sampling` here
    """
    bad_words_ids begin_suppress_tokens diversity_penalty do_sample early_stopping encoder_no_repeat_ngram_size
    encoder_repetition_penalty epsilon_cutoff eta_cutoff exponential_decay_length_penalty forced_bos_token_id
    forced_eos_token_id length_penalty max_length max_new_tokens min_length min_p no_repeat_ngram_size num_beam_groups
    num_beams num_return_sequences output_scores remove_invalid_values repetition_penalty return_dict_in_generate
    suppress_tokens temperature top_k top_p typical_p
    """.split()
)
_UNUSED = _IGNORED | _GENERATION
_ONLY: dict[str, Any] = {  # fields that can have one value here; None: none, or an empty one
    "use_sliding_window": False,
    "rope_interleaved": False,
    "is_llama_config": True,
    "add_cross_attention": False,
    "tie_encoder_decoder": False,
    "cross_attention_hidden_size": None,
    "pruned_heads": None,
    "per_layer_config": None,
}
_ROPE = ("rope_theta", "rope_scaling", "rope_parameters")


def from_json(path: Path) -> ModelConfig:
    """Read `config.json`. UserError where the family is another one, a field is one we do not honour or is damaged.

    Channel statistics are those of `preprocessor_config.json` beside it, where there is one.
    """
    checkpoint_files.refuse_no_model(path)
    raw = read_object(path)
    model_type = raw.get("model_type")
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        names = [repr(name) for name in FAMILIES]
        raise UserError(
            f"{path}: model_type {model_type!r:.60} is not supported; expected {', '.join(names[:-1])} or {names[-1]}"
        )
    family = FAMILIES[model_type]
    checkpoint_files.refuse_quantized(raw, path)
    notes = ["auto_map names program code of the checkpoint's own, which is not run"] if raw.get("auto_map") else []
    vision, special = None, {name: raw.get(name) for name in _IDS} if family.vision else {}
    if family.vision:
        vision = _vision(family.vision, family.vision_act, group(raw, "vision_config", path), path)
    text = _decoder_fields(family, raw, path, notes)
    text["tie_word_embeddings"] = tying.decide(raw, path, in_text=family.flat, notes=notes)
    special |= {name: raw.get(name) or text.get(name) for name in _SPECIAL}
    special["pad_token_id"] = special["pad_token_id"] or 0
    special["eos_token_id"], *others = eos_token_ids(special["eos_token_id"], path)
    config = ModelConfig(
        vision=vision,
        text=_text(family, text, path, notes),
        model_type=model_type,
        other_eos_token_ids=tuple(others),
        notes=tuple(notes),
        **(dict.fromkeys(_IDS, -1) | {name: token_id(name, value, path) for name, value in special.items()}),
    )
    check_sizes(config, path)
    return config


def _decoder_fields(family: Family, raw: Mapping[str, Any], path: Path, notes: list[str]) -> dict[str, Any]:
    """The fields of the decoder: those of `text_config`, else, in `flat` files, of the top level.

    As in the reference the top level is never read beside a `text_config`; a note says where that matters.
    """
    outer = {name: value for name, value in raw.items() if name not in ("text_config", "vision_config", *_IDS)}
    if not family.vision or (family.flat and "text_config" not in raw):
        return outer
    text = {name: value for name, value in group(raw, "text_config", path).items() if name not in _IDS}
    decoder = {*_COMMON, *family.own, *_ROPE, *_ONLY, "layer_types", *_SPECIAL}
    refuse_unknown(outer, decoder | _UNUSED, str(path))
    _refuse_others(outer, path)
    for name in ("rope_scaling", "rope_parameters"):
        _rope_kind(family, outer.get(name) or {}, path)
    for name in sorted(decoder.difference(_SPECIAL, (tying.FIELD,))):
        if outer.get(name) not in (None, text.get(name)):
            taken = (
                f"{text[name]!r:.60} in text_config"
                if name in text
                else "transformers' default, as text_config has none"
            )
            notes.append(
                f"{name} {outer[name]!r:.60} at the top level is not read, as in transformers; taken is {taken}"
            )
    return text


def _refuse_others(raw: Mapping[str, Any], path: Path) -> None:
    for name, only in _ONLY.items():
        if raw.get(name, only) != only and not (only is None and not raw[name]):
            raise UserError(f"{path}: {name}={json.dumps(raw[name]):.60} is not supported")


def _text(family: Family, raw: Mapping[str, Any], path: Path, notes: list[str]) -> TextConfig:
    """The decoder's configuration of its fields in the file."""
    where = str(path)
    rope, scaling = _rope(family, raw, path, notes)
    _refuse_others(raw, path)
    kinds = raw.get("layer_types") or []
    if not isinstance(kinds, list) or any(kind != "full_attention" for kind in kinds):
        raise UserError(f"{where}: layer_types other than 'full_attention' are not supported")
    if kinds and len(kinds) != (layers := raw.get("num_hidden_layers", len(kinds))):
        raise UserError(
            f"{where}: layer_types are {len(kinds)} and num_hidden_layers is {layers!r:.40}; restore the file"
        )
    honoured = {*_COMMON, *family.own}
    refuse_unknown(raw, honoured | _UNUSED | {*_ONLY, *_ROPE, *_SPECIAL, "layer_types", "head_dim"}, where)
    given = {"tie_word_embeddings": False} | {name: value for name, value in raw.items() if name in honoured}
    given |= {name: value for name, value in family.defaults.items() if given.get(name) is None}
    if given.get("num_key_value_heads", 0) is None:
        given["num_key_value_heads"] = given.get("num_attention_heads")
    if given.get("head_dim", 0) is None:
        del given["head_dim"]
    config: TextConfig = take(TextConfig, given | rope, where, needed=_SIZES, **family.fixed, **scaling)
    if "attention_bias" in family.own:
        config = dataclasses.replace(config, output_bias=config.attention_bias)
    if config.hidden_act != "silu":
        raise UserError(f"{path}: text_config.hidden_act {config.hidden_act!r} is not supported; expected 'silu'")
    if "head_dim" not in given and config.hidden_size % config.num_attention_heads:
        raise UserError(f"{path}: hidden_size must be a multiple of num_attention_heads; restore the file")
    if "head_dim" not in family.own and raw.get("head_dim") not in (None, config.head_dim):
        raise UserError(
            f"{path}: head_dim {raw['head_dim']!r:.40} is not supported in this family; expected {config.head_dim},"
            " hidden_size / num_attention_heads"
        )
    given_rope = raw.get("rope_scaling") or raw.get("rope_parameters") or {}
    sections = config.mrope_section
    if sections and "mrope_section" not in given_rope and 2 * sum(sections) != config.head_dim:
        raise UserError(
            f"{path}: rope_parameters (or rope_scaling) with mrope_section is missing, and {sections}, which"
            f" transformers takes then, is not for heads of {config.head_dim}; restore it from the original checkpoint"
        )
    return config


def _rope(
    family: Family, raw: Mapping[str, Any], path: Path, notes: list[str]
) -> tuple[dict[str, Any], dict[str, Llama3Rope]]:
    """(`rope_theta` and, with images, `mrope_section`, unchecked; `rope_scaling` where there is some).

    As the reference does: `rope_scaling` replaces `rope_parameters` as a whole; a theta that it lacks is the decoder's
    `rope_theta`, else the family's.
    """
    scaled, plain = raw.get("rope_scaling") or {}, raw.get("rope_parameters") or {}
    rope = scaled or plain
    kind = _rope_kind(family, rope, path)
    stretch = tuple(field.name for field in dataclasses.fields(Llama3Rope)) if kind == "llama3" else ()
    sections = {"mrope_section", "mrope_interleaved"} if family.vision else set()
    refuse_unknown(rope, {"type", "rope_type", "rope_theta", *sections, *stretch}, f"{path}: rope_parameters")
    interleaved = family.fixed.get("mrope_interleaved", False)
    if rope.get("mrope_interleaved", interleaved) is not interleaved:
        raise UserError(f"{path}: mrope_interleaved={json.dumps(not interleaved)} is not supported in this family")
    found = {"rope_theta": rope.get("rope_theta", raw.get("rope_theta", family.rope_theta))}
    found |= {"mrope_section": rope.get("mrope_section", list(family.sections))} if family.vision else {}
    twice = [("rope type", kind, rope.get("type")), ("rope_theta", found["rope_theta"], raw.get("rope_theta"))]
    if plain is not rope:
        twice += [(name, found.get(name, rope.get(name)), value) for name, value in plain.items() if "type" not in name]
    for name, used, other in twice:
        if other not in (None, used) and {used, other} != {"default", "mrope"}:
            notes.append(
                f"{name} is given twice, as {used!r} and {other!r:.60}; taken is the first, as in transformers"
            )
    if not stretch:
        return found, {}
    where = f"{path}: rope_parameters"
    longest = "original_max_position_embeddings"
    rope = {longest: raw["max_position_embeddings"]} | rope if "max_position_embeddings" in raw else rope
    scaling: Llama3Rope = take(Llama3Rope, rope, where, needed=stretch)
    if scaling.low_freq_factor >= scaling.high_freq_factor:
        raise UserError(f"{where}: low_freq_factor must be below high_freq_factor; restore the file")
    return found, {"rope_scaling": scaling}


def _rope_kind(family: Family, rope: Any, path: Path) -> str:
    """The type of rotary positions. UserError where it is not computed here."""
    if not isinstance(rope, dict):
        raise UserError(f"{path}: rope_parameters (or rope_scaling) is no JSON object; restore the file")
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in ("default", "mrope" if family.vision else "llama3"):
        raise UserError(f"{path}: rope type {kind!r:.60} is not computed here; take a checkpoint without it")
    return str(kind)


def _vision(cls: type[VisionBase], act: str, raw: dict[str, Any], path: Path) -> VisionBase:
    """The vision tower's configuration of its fields in the file."""
    where = f"{path}: vision_config"
    rope = raw.pop("rope_parameters", None) or {}
    plain = {"rope_type": "axial", "rope_theta": VISION_THETA}
    if not isinstance(rope, dict) or plain | rope != plain:
        raise UserError(f"{where}.rope_parameters {json.dumps(rope):.100} are not supported")
    fields = {field.name for field in dataclasses.fields(cls)}.difference(preprocessor.STATISTICS)
    refuse_unknown(raw, fields | _UNUSED, where)
    vision: VisionBase = take(cls, {"in_channels": raw.get("in_chans", 3)} | raw, where)
    if vision.hidden_act != act:
        raise UserError(f"{where}.hidden_act {vision.hidden_act!r} is not supported; expected {act!r}")
    return preprocessor.as_preprocessed(vision, path.parent)


def to_json(config: ModelConfig) -> dict[str, Any]:
    """The `config.json` of transformers 5 for this model."""
    family, text = FAMILIES[config.model_type], config.text
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": text.rope_theta}
    if text.mrope_section is not None:
        rope["mrope_section"] = list(text.mrope_section)
    if text.mrope_interleaved:
        rope["mrope_interleaved"] = True
    if text.rope_scaling is not None:
        rope |= {"rope_type": "llama3", **dataclasses.asdict(text.rope_scaling)}
    ends = [config.eos_token_id, *config.other_eos_token_ids]
    special = {"eos_token_id": ends if len(ends) > 1 else ends[0], "pad_token_id": config.pad_token_id}
    decoder = {name: getattr(text, name) for name in (*_COMMON, *family.own)} | special
    decoder |= {"bos_token_id": None, "rope_parameters": rope}
    top = {"architectures": [family.architecture], "model_type": config.model_type}
    if config.vision is None:
        return top | decoder
    vision = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in dataclasses.asdict(config.vision).items()
        if name not in preprocessor.STATISTICS
    }
    return {
        **top,
        **{name: getattr(config, name) for name in _IDS},
        **special,
        "tie_word_embeddings": text.tie_word_embeddings,
        "text_config": {"model_type": f"{config.model_type}_text", **decoder},
        "vision_config": {"model_type": f"{config.model_type}_vision", **vision},
    }
