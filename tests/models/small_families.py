"""Small random models of every family: the reference writes them, ours reads them."""

import dataclasses
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import reference
from reference import CASES, END, IMAGE, START

from pixelis_jax import parallel
from pixelis_jax.models import families, image_processor, weights
from pixelis_jax.models import policy as policies
from pixelis_jax.models.config import Llama3Rope, ModelConfig, Qwen3VisionConfig, TextConfig, VisionBase
from pixelis_jax.models.rows import Row, pad_rows
from pixelis_jax.models.vlm import VLM
from pixelis_jax.rollout.engine import Engine, SamplingConfig, row_keys
from pixelis_jax.types import ImageBatch, TokenBatch

LENGTHS = (9, 5, 12)
PADDED = 16
GREEDY_TOKENS = 12
EOS = 1


def _text(**changes) -> TextConfig:
    fields = {
        "vocab_size": 100, "hidden_size": 64, "intermediate_size": 80, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "mrope_section": None, "rope_theta": 1e4,
        "max_position_embeddings": 512, "attention_bias": False, "tie_word_embeddings": False,
    }  # fmt: skip
    return TextConfig(**fields | changes)


def _model(model_type: str, **changes) -> ModelConfig:
    return ModelConfig(None, _text(**changes), -1, -1, -1, -1, 0, EOS, model_type)


BIASED = {"attention_bias": True, "output_bias": True}
# Of 32 frequencies at this theta, some are kept, some mixed, some divided.
STRETCHED = Llama3Rope(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64)
TEXT_ONLY: dict[str, ModelConfig] = {
    "qwen3": _model("qwen3", qk_norm=True, head_dim=24),
    "qwen3, tied, biased": _model("qwen3", qk_norm=True, head_dim=16, tie_word_embeddings=True, **BIASED),
    "qwen2": _model("qwen2", attention_bias=True),
    "llama, tied": _model("llama", tie_word_embeddings=True),
    "llama, biased, stretched": _model(
        "llama", mlp_bias=True, head_dim=32, rope_scaling=STRETCHED, rms_norm_eps=1e-5, **BIASED
    ),
}


def text_rows() -> list[Row]:
    generator = np.random.default_rng(5)
    rows = [Row() for _ in LENGTHS]
    for row, n in zip(rows, LENGTHS, strict=True):
        row.append_text(generator.integers(2, 90, n).tolist())
    return rows


def padded(rows: list[Row], side: str, length: int = PADDED) -> TokenBatch:
    return reference.left_padded(rows, length) if side == "left" else pad_rows(rows, length=length, pad=reference.PAD)


def load(directory: Path, dtype=jnp.float32) -> tuple[VLM, dict]:
    """(model, variables) of a checkpoint directory on one device."""
    config = families.from_json(directory / "config.json")
    model = VLM(config, dtype)
    abstract = policies.abstract_params(model)
    shardings = parallel.param_shardings(parallel.make_mesh(parallel.MeshShape(), jax.devices()[:1]), abstract)
    placed = jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), abstract, shardings)
    return model, {"params": weights.load(directory, config, abstract=placed)}


def save(directory: Path, model: VLM, params) -> None:
    weights.save(directory, params, config=model.config)
    (directory / "config.json").write_text(json.dumps(families.to_json(model.config)))


def greedy(
    model: VLM, variables, rows: list[Row], features, *, tokens: int = GREEDY_TOKENS, end=EOS
) -> list[list[int]]:
    """Greedy continuation of each row through prefill and decoding with the cache."""
    length = max(map(len, rows))
    sampling = SamplingConfig(temperature=0.0, max_new_tokens=tokens, context_tokens=length + tokens)
    engine = Engine(model, sampling, end_of_turn=end)
    state = engine.prefill(variables, pad_rows(rows, length=length, pad=0), features, repeat=1)
    zeros = np.zeros(len(rows), np.uint32)
    keys = row_keys(np.uint32(0), np.uint32(0), zeros, zeros, np.uint32(0))
    out = jax.device_get(engine.generate(variables, state, keys, jnp.ones(len(rows), bool))[0])
    return [out.tokens[i, : out.count[i]].tolist() for i in range(len(rows))]


@dataclasses.dataclass(frozen=True)
class Seen:
    """What one forward shows."""

    logits: np.ndarray
    layers: list[np.ndarray]
    logp: np.ndarray


class Ours:
    """A checkpoint in our implementation; one compiled forward gives logits, layers and log-probs."""

    def __init__(self, directory: Path) -> None:
        self.model, self.variables = load(directory)
        self._forward = jax.jit(self._see)

    def _see(self, rows: TokenBatch, features):
        logits, kept = self.model.apply(
            self.variables, rows, features, method="forward_logits", capture_intermediates=True, mutable="intermediates"
        )
        decoder = kept["intermediates"]["language_model"]
        count = self.model.config.text.num_hidden_layers
        layers = [decoder[f"layers_{i}"]["__call__"][0][0] for i in range(count)]
        every = dataclasses.replace(rows, policy=rows.valid)
        return logits, layers, self.model.apply(self.variables, every, features, method="score").logp

    def see(self, rows: TokenBatch, features=None) -> Seen:
        features = np.zeros((1, self.model.config.text.hidden_size), np.float32) if features is None else features
        return Seen(*jax.device_get(self._forward(rows, features)))


# Vision-language families ---------------------------------------------------------------------------------------------
VIDEO = 93
# Sizes (height, width) in pixels: a square, more columns than rows, a single row of merged tokens.
SIZES = ((96, 96), (64, 160), (32, 224))


def _qwen3_vl(**changes) -> ModelConfig:
    vision = Qwen3VisionConfig(
        depth=4, hidden_size=64, intermediate_size=96, num_heads=2, out_hidden_size=64, num_position_embeddings=36,
        deepstack_visual_indexes=(0, 2),
    )  # fmt: skip
    fields = {"qk_norm": True, "head_dim": 24, "mrope_section": (6, 3, 3), "mrope_interleaved": True}
    return ModelConfig(vision, _text(**fields | changes), IMAGE, VIDEO, START, END, 0, EOS, "qwen3_vl")


VISION_LANGUAGE: dict[str, ModelConfig] = {
    "qwen3_vl": _qwen3_vl(),
    "qwen3_vl, tied, biased": _qwen3_vl(
        tie_word_embeddings=True, head_dim=16, mrope_section=(4, 2, 2), attention_bias=True, output_bias=True
    ),
}


def images() -> list[np.ndarray]:
    return reference.images(SIZES)


def image_batch(vision: VisionBase) -> ImageBatch:
    return image_processor.pack(images(), vision, windows=reference.windows(vision, SIZES))


def image_rows(case: str, vision: VisionBase) -> list[Row]:
    """Rows of a case; their images stand in the table of `image_batch`."""
    return reference.image_rows(case, vision, SIZES)


def order(case: str) -> list[int]:
    """Images of a case in the order in which the rows show them."""
    return [part for parts in CASES[case] for part in parts[1::2]]
