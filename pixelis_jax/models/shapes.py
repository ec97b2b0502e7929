"""Shapes of published models, for planning and measuring without their weights.

A checkpoint on disk is always read by its own `config.json`; these are the same numbers. A test holds every key and
shape against `transformers`, and the number of parameters against the model cards.
"""

from pixelis_jax.models.config import ModelConfig, TextConfig, VisionConfig
from pixelis_jax.types import UserError


def _qwen2_5_vl(
    *,
    hidden: int,
    mlp: int,
    layers: int,
    heads: tuple[int, int],
    vocabulary: int = 152064,
    vision_mlp: int = 3420,
    tied: bool = False,
) -> ModelConfig:
    return ModelConfig(
        vision=VisionConfig(out_hidden_size=hidden, intermediate_size=vision_mlp, tokens_per_second=2),
        text=TextConfig(
            vocab_size=vocabulary,
            hidden_size=hidden,
            intermediate_size=mlp,
            num_hidden_layers=layers,
            num_attention_heads=heads[0],
            num_key_value_heads=heads[1],
            tie_word_embeddings=tied,
            max_position_embeddings=128000,
        ),
        image_token_id=151655,
        video_token_id=151656,
        vision_start_token_id=151652,
        vision_end_token_id=151653,
        pad_token_id=151643,
        eos_token_id=151645,
    )


# Qwen2.5-VL technical report, arXiv:2502.13923, table 1, and the published config.json files.
SHAPES: dict[str, ModelConfig] = {
    "qwen2_5_vl_3b": _qwen2_5_vl(hidden=2048, mlp=11008, layers=36, heads=(16, 2), vocabulary=151936, tied=True),
    "qwen2_5_vl_7b": _qwen2_5_vl(hidden=3584, mlp=18944, layers=28, heads=(28, 4)),
    "qwen2_5_vl_32b": _qwen2_5_vl(hidden=5120, mlp=27648, layers=64, heads=(40, 8), vision_mlp=3456),
    "qwen2_5_vl_72b": _qwen2_5_vl(hidden=8192, mlp=29568, layers=80, heads=(64, 8), vision_mlp=3456),
}


def shape(name: str) -> ModelConfig:
    """The configuration of a published model. UserError names the ones there are."""
    if name not in SHAPES:
        raise UserError(f"no published shape {name!r}; there are {', '.join(SHAPES)}")
    return SHAPES[name]
