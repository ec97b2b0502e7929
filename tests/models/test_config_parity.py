"""What contradicts itself in a checkpoint is read as the reference reads it, or refused; needs torch (`parity`)."""

import functools
import itertools
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
import small_families as small
from safetensors.numpy import load_file, save_file

from pixelis_jax.models import families, weights
from pixelis_jax.models.config import ModelConfig
from pixelis_jax.models.vlm import VLM
from pixelis_jax.types import UserError

torch = pytest.importorskip("torch", reason="live parity needs the `parity` extra (torch)")
import torch_families  # noqa: E402  only where torch is
import transformers  # noqa: E402

TOLERANCE = 1e-5
CONFIGS = {
    "qwen2_5_vl": reference.small_config(),
    "qwen3_vl": small.VISION_LANGUAGE["qwen3_vl"],
    "qwen2": small.TEXT_ONLY["qwen2"],
    "qwen3": small.TEXT_ONLY["qwen3"],
    "llama": small.TEXT_ONLY["llama, biased, stretched"],
}
HEAD, TIE = "lm_head.weight", "tie_word_embeddings"


class Checkpoint:
    """A random model of a family, which tests write anew with another config.json or other weights."""

    def __init__(self, config: ModelConfig, directory: Path) -> None:
        torch_families.write(directory, config, families.to_json(config))
        self.directory, self.tensors = directory, load_file(directory / weights.WEIGHTS)
        self.raw = json.loads((directory / "config.json").read_text())
        self.embedding = next(key for key in self.tensors if key.endswith("embed_tokens.weight"))

    def write(self, raw: dict, tensors: dict | None = None) -> Path:
        (self.directory / "config.json").write_text(json.dumps(raw))
        save_file(tensors or self.tensors, self.directory / weights.WEIGHTS, metadata={"format": "pt"})
        return self.directory

    def with_text(self, **fields) -> dict:
        """The config with other fields of the decoder; None takes one out."""
        raw = json.loads(json.dumps(self.raw))
        text = raw.get("text_config", raw)
        text |= fields
        for name in [name for name, value in fields.items() if value is None]:
            text.pop(name, None)
        return raw


@pytest.fixture(scope="module", params=CONFIGS)
def checkpoint(request, tmp_path_factory):
    return Checkpoint(CONFIGS[request.param], tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def vision_language(tmp_path_factory):
    return {name: Checkpoint(CONFIGS[name], tmp_path_factory.mktemp(name)) for name in ("qwen2_5_vl", "qwen3_vl")}


ROWS = small.padded(small.text_rows(), "right")


@functools.cache
def forward(config: ModelConfig):
    no_image = jnp.zeros((1, config.feature_width))
    return jax.jit(lambda variables, rows: VLM(config).apply(variables, rows, no_image, method="forward_logits"))


def ours(directory: Path) -> np.ndarray:
    model, variables = small.load(directory)
    return np.asarray(forward(model.config)(variables, ROWS))[ROWS.valid]


def theirs(directory: Path) -> np.ndarray:
    model, _ = torch_families.read(directory)
    given = torch_families.arguments(ROWS)
    if "vision_config" in json.loads((directory / "config.json").read_text()):
        given["mm_token_type_ids"] = torch.zeros_like(given["input_ids"], dtype=torch.int32)
    return torch_families.logits(model, given)[ROWS.valid]


def stored(checkpoint: Checkpoint, how: str) -> dict:
    tensors = dict(checkpoint.tensors)
    if how == "no head":
        del tensors[HEAD]
    elif how == "equal":
        tensors[HEAD] = tensors[checkpoint.embedding].copy()
    elif how == "head only":
        del tensors[checkpoint.embedding]
    return tensors


def test_a_head_is_tied_where_the_reference_ties_it(checkpoint):
    """Every place where a config may say it, with each kind of file; equal logits, or a refusal where it misses one."""
    inner = (None, True, False) if "text_config" in checkpoint.raw else (None,)
    compared = set()
    for outer, text, how in itertools.product((None, True, False), inner, ("no head", "equal", "other", "head only")):
        raw = checkpoint.with_text(**{TIE: text})
        raw = {name: value for name, value in raw.items() if name != TIE} | ({} if outer is None else {TIE: outer})
        directory = checkpoint.write(raw, stored(checkpoint, how))
        model, info = torch_families.read(directory)
        shared = model.lm_head.weight.data_ptr() == model.get_input_embeddings().weight.data_ptr()
        assert families.from_json(directory / "config.json").text.tie_word_embeddings is shared, (outer, text, how)
        kind = (shared, how)
        if kind in compared or how == "equal":
            continue
        compared.add(kind)
        if info.get("missing_keys"):
            with pytest.raises(UserError, match="1 weights are missing, first"):
                small.load(directory)
        else:
            assert np.abs(ours(directory) - theirs(directory)).max() < TOLERANCE, (outer, text, how)
    assert len(compared) == 5  # only different matrices are never tied


@pytest.mark.parametrize(
    ("family", "outer", "inner", "how", "words"),
    [
        ("qwen2_5_vl", False, True, "no head", "is false at the top level and true in text_config: the head is tied"),
        ("qwen2_5_vl", True, False, "no head", "is true at the top level and false in text_config: the head is tied"),
        ("qwen3_vl", None, True, "other", "is missing at the top level and true in text_config: the head is not tied"),
        ("qwen3_vl", True, True, "other", "lm_head.weight differs from model.language_model.embed_tokens.weight"),
        ("qwen2_5_vl", None, True, "equal", ""),
    ],
)
def test_what_decided_about_the_head_is_said(vision_language, family, outer, inner, how, words):
    checkpoint = vision_language[family]
    raw = checkpoint.with_text(**{TIE: inner})
    raw = {name: value for name, value in raw.items() if name != TIE} | ({} if outer is None else {TIE: outer})
    notes = families.from_json(checkpoint.write(raw, stored(checkpoint, how)) / "config.json").notes
    assert len(notes) == bool(words) and words in "".join(notes)


@pytest.mark.parametrize("how", ["a shard", "another type"])
def test_a_head_that_is_stored_elsewhere_or_otherwise_is_compared(vision_language, how, tmp_path):
    """The head in another file than the embedding, and in another type with the same values."""
    checkpoint = vision_language["qwen2_5_vl"]
    tensors = {key: value.astype(np.float16).astype(np.float32) for key, value in checkpoint.tensors.items()}
    for same in (True, False):
        tensors[HEAD] = tensors[checkpoint.embedding].copy() if same else checkpoint.tensors[HEAD]
        if how == "another type":
            checkpoint.write(checkpoint.raw | {TIE: True}, tensors | {HEAD: tensors[HEAD].astype(np.float16)})
            path = checkpoint.directory / "config.json"
        else:
            (tmp_path / "config.json").write_text(json.dumps(checkpoint.raw | {TIE: True}))
            shards = {"b.safetensors": {HEAD}, "a.safetensors": tensors.keys() - {HEAD}}
            for name, keys in shards.items():
                save_file({key: tensors[key] for key in keys}, tmp_path / name)
            index = {"weight_map": {key: name for name, keys in shards.items() for key in keys}}
            (tmp_path / weights.INDEX).write_text(json.dumps(index))
            path = tmp_path / "config.json"
        assert families.from_json(path).text.tie_word_embeddings is same


LOGITS_TOO = (0, 7)  # of the cases: a scaling without a base beside one with it, and a base at the top level only


def rope_cases(checkpoint: Checkpoint) -> list[dict]:
    """Configs in which the base of the rotary positions, or its type, stands in several places or in none."""
    text = checkpoint.raw.get("text_config", checkpoint.raw)
    own = {name: value for name, value in text["rope_parameters"].items() if name != "rope_theta"}
    own = {name: value for name, value in own.items() if value is not None}
    other = {"type": "mrope"} if "mrope_section" in own and "mrope_interleaved" not in own else {"type": "default"}
    change = checkpoint.with_text
    return [
        change(rope_scaling=own, rope_parameters=own | {"rope_theta": 30.0}),
        change(rope_scaling=own, rope_parameters=own | {"rope_theta": 30.0}, rope_theta=50.0),
        change(rope_scaling=own | {"rope_theta": 40.0}, rope_parameters=own | {"rope_theta": 30.0}, rope_theta=50.0),
        change(rope_parameters=own),
        change(rope_parameters=own, rope_theta=70.0),
        change(rope_parameters=own | {"rope_theta": 60.0}, rope_theta=70.0),
        change(rope_parameters=None) | {"rope_scaling": own, "rope_theta": 90.0},
        change(rope_parameters=own) | {"rope_theta": 90.0},
        change(rope_parameters=own | {"rope_theta": 80.0}) | {"rope_scaling": own, "rope_theta": 90.0},
        change(rope_scaling=None, rope_parameters=own | {"rope_theta": 20.0})
        if "rope_scaling" in text
        else change(rope_parameters=own | other | {"rope_theta": 20.0}),
    ]


def test_rotary_positions_have_the_base_that_the_reference_takes(checkpoint):
    seen = []
    for i, raw in enumerate(rope_cases(checkpoint)):
        directory = checkpoint.write(raw)
        read = transformers.AutoConfig.from_pretrained(directory).get_text_config().rope_parameters
        try:
            config = families.from_json(directory / "config.json")
        except UserError as error:  # nothing stands in for the sections of heads of another size
            assert "mrope_section is missing" in str(error) and "mrope_section" not in read
            continue
        assert config.text.rope_theta == read["rope_theta"]
        seen.append(config.text.rope_theta)
        if i in LOGITS_TOO:
            assert np.abs(ours(directory) - theirs(directory)).max() < TOLERANCE
    assert len(seen) >= len(rope_cases(checkpoint)) - 1 and len(set(seen)) > 4


def test_a_base_that_stands_twice_is_said_once(vision_language):
    checkpoint = vision_language["qwen2_5_vl"]
    own = {"rope_type": "default", "mrope_section": [2, 3, 3]}
    raw = checkpoint.with_text(rope_scaling=own, rope_parameters=own | {"rope_theta": 30.0})
    notes = families.from_json(checkpoint.write(raw) / "config.json").notes
    assert notes == ("rope_theta is given twice, as 1000000.0 and 30.0; taken is the first, as in transformers",)
    raw = checkpoint.with_text(rope_parameters=own) | {"rope_theta": 30.0}
    notes = families.from_json(checkpoint.write(raw) / "config.json").notes
    assert notes == (
        "rope_theta 30.0 at the top level is not read, as in transformers; taken is transformers' default, as"
        " text_config has none",
    )
    raw = checkpoint.with_text(rope_parameters=own | {"type": "yarn", "rope_theta": 30.0})
    notes = families.from_json(checkpoint.write(raw) / "config.json").notes
    assert notes == ("rope type is given twice, as 'default' and 'yarn'; taken is the first, as in transformers",)
    raw = checkpoint.with_text(rope_parameters=own | {"type": "mrope", "rope_theta": 30.0})
    assert families.from_json(checkpoint.write(raw) / "config.json").notes == ()


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl"])
def test_missing_sections_are_the_familys_for_heads_of_its_size(vision_language, family):
    checkpoint = vision_language[family]
    rope = {"rope_type": "default", "rope_theta": 1e4}
    sizes = {"hidden_size": 512, "num_attention_heads": 4, "num_key_value_heads": 2}
    raw = checkpoint.with_text(rope_parameters=rope, **sizes, **({"head_dim": 128} if family == "qwen3_vl" else {}))
    raw["vision_config"]["out_hidden_size"] = 512
    path = checkpoint.write(raw) / "config.json"
    with torch.device("meta"):
        model = transformers.AutoModelForImageTextToText.from_config(
            transformers.AutoConfig.from_pretrained(checkpoint.directory)
        )
    expected = model.get_decoder().rotary_emb.mrope_section
    assert list(families.from_json(path).text.mrope_section or ()) == list(expected)
    assert families.from_json(path).text.head_dim == 2 * sum(expected)


def test_the_norm_of_a_file_that_does_not_say_it(checkpoint):
    directory = checkpoint.write(checkpoint.with_text(rms_norm_eps=None))
    text = transformers.AutoConfig.from_pretrained(directory).get_text_config()
    assert families.from_json(directory / "config.json").text.rms_norm_eps == text.rms_norm_eps


def test_fields_that_change_nothing_are_read(checkpoint):
    """As unsloth, older versions of transformers and trainers leave them."""
    harmless = {
        "unsloth_fixed": True, "unsloth_version": "2025.6.1", "_attn_implementation_autoset": True, "use_cache": False,
        "_name_or_path": "a/b", "torch_dtype": "bfloat16", "dtype": "bfloat16", "transformers_version": "4.52.0",
        "architectures": ["Another"], "attn_implementation": "sdpa", "num_labels": 2, "tokenizer_class": "Qwen2",
        "temperature": 0.5, "do_sample": True, "max_length": 20, "repetition_penalty": 1.1, "pruned_heads": {},
        "is_decoder": False, "add_cross_attention": False, "cross_attention_hidden_size": None, "prefix": None,
        "_commit_hash": None,
    }  # fmt: skip
    directory = checkpoint.write(checkpoint.raw)
    before, expected = families.from_json(directory / "config.json"), theirs(directory)
    raw = checkpoint.with_text(**{name: value for name, value in harmless.items() if value is not None}) | harmless
    if "text_config" in raw:
        raw["vision_config"] |= {"_attn_implementation_autoset": True, "unsloth_fixed": True, "torch_dtype": "bfloat16"}
    directory = checkpoint.write(raw)
    assert families.from_json(directory / "config.json") == before
    assert families.from_json(directory / "config.json").notes == ()
    assert np.abs(theirs(directory) - expected).max() == 0
