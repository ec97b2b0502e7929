"""What the parity tests and the golden files share: a random small model and inputs of awkward shapes."""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from pixelis_jax.models import families, image_processor
from pixelis_jax.models.config import ModelConfig, TextConfig, VisionBase, VisionConfig
from pixelis_jax.models.rows import Row, pad_rows
from pixelis_jax.types import ImageBatch, TokenBatch

GOLDEN = Path(__file__).parent / "goldens" / "qwen2_5_vl.npz"
IMAGE, START, END, PAD = 90, 91, 92, 0
# Sizes (height, width) in pixels: window-aligned, ragged windows, one row of tokens.
SIZES = ((112, 112), (84, 140), (28, 196))
# A row is text lengths with images (indices of SIZES) between them.
CASES = {
    "one_image": ((5, 0, 7),),
    "two_images": ((3, 0, 4, 1, 6),),
    "no_image": ((9,),),
    "mixed_batch": ((4, 1, 5), (11,), (2, 2, 3, 0, 4)),
}


def small_config() -> ModelConfig:
    """All parts of the architecture in small: ragged windows, two full-attention layers, GQA 4:2, untied head."""
    vision = VisionConfig(
        depth=4,
        hidden_size=64,
        intermediate_size=96,
        num_heads=2,
        window_size=56,
        out_hidden_size=64,
        fullatt_block_indexes=(1, 3),
    )
    text = TextConfig(
        vocab_size=100, hidden_size=64, intermediate_size=80, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, mrope_section=(2, 3, 3), tie_word_embeddings=False, max_position_embeddings=512,
    )  # fmt: skip
    return ModelConfig(vision, text, IMAGE, 93, START, END, PAD, 1)


def images(sizes: tuple[tuple[int, int], ...] = SIZES) -> list[np.ndarray]:
    generator = np.random.default_rng(7)
    return [generator.integers(0, 256, (*size, 3), dtype=np.uint8) for size in sizes]


def windows(vision: VisionBase, sizes: tuple[tuple[int, int], ...] = SIZES) -> int:
    return max(image_processor.windows_of(size, vision) for size in sizes)


def image_rows(case: str, vision: VisionBase, sizes: tuple[tuple[int, int], ...] = SIZES) -> list[Row]:
    """Rows of a case; their images, of `sizes`, stand in one table."""
    generator = np.random.default_rng(11)
    step = image_processor.rows_per_image(windows(vision, sizes), vision)
    rows = []
    for parts in CASES[case]:
        row = Row()
        for i, part in enumerate(parts):
            if i % 2 == 0:
                row.append_text(generator.integers(2, 80, part).tolist())
                continue
            height, width = sizes[part]
            row.append_text([START])
            row.append_image(
                (height // vision.factor, width // vision.factor),
                part * step + image_processor.token_rows(sizes[part], vision),
                placeholder=IMAGE,
            )
            row.append_text([END])
        rows.append(row)
    return rows


def token_rows(case: str) -> tuple[list[Row], ImageBatch]:
    """Rows of a case and the image batch whose feature table they index."""
    vision = small_config().need_vision()
    return image_rows(case, vision), image_processor.pack(images(), vision, windows=windows(vision))


def token_batch(case: str) -> tuple[TokenBatch, ImageBatch]:
    rows, batch = token_rows(case)
    return pad_rows(rows, length=max(map(len, rows)), pad=PAD), batch


def config_json() -> dict:
    return families.to_json(small_config())


def random_weights(shapes: dict[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """int8 weights a key, multiples of 1 / 512: exact in every format, and the same wherever they are read."""
    generator = np.random.default_rng(23)
    return {key: generator.integers(-50, 51, shape).astype(np.int8) for key, shape in sorted(shapes.items())}


def floats(weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """f32 weights of their int8 form; norms are around 1."""
    return {
        key: value.astype(np.float32) / 512 + (1.0 if value.ndim == 1 and key.endswith("weight") else 0.0)
        for key, value in weights.items()
    }


def write_directory(directory: Path, weights: dict[str, np.ndarray]) -> None:
    """A checkpoint directory (config and weights) of the small model."""
    (directory / "config.json").write_text(json.dumps(config_json()))
    save_file(
        {key: np.ascontiguousarray(value) for key, value in floats(weights).items()}, directory / "model.safetensors"
    )


def left_padded(rows: list[Row], length: int) -> TokenBatch:
    """Like `pad_rows`, with the padding on the left."""
    batch = pad_rows(rows, length=length, pad=PAD)
    for i, row in enumerate(rows):
        for leaf in (batch.tokens, batch.valid, batch.policy, batch.positions, batch.image_index):
            leaf[i] = np.roll(leaf[i], length - len(row), axis=-1)
    return batch
