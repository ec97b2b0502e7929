"""pixelis-tiny: the embedded model's directory (config, tokenizer, template, processor), made from a seed."""

import itertools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from pixelis_jax import adapters
from pixelis_jax.data import dialogues
from pixelis_jax.data.pixelsearch.address import generator as random_at
from pixelis_jax.data.pixelsearch.draw import render
from pixelis_jax.data.pixelsearch.oracle import demonstrate
from pixelis_jax.data.pixelsearch.questions import questions, task_of
from pixelis_jax.data.pixelsearch.scene import make_scene
from pixelis_jax.data.synthesis.samples import SynthesisConfig, make_block
from pixelis_jax.models import families
from pixelis_jax.models import tokenizer as bpe
from pixelis_jax.models.config import ModelConfig, TextConfig, VisionConfig
from pixelis_jax.models.image_processor import PixelBudget, smart_resize
from pixelis_jax.models.processor import SYSTEM_PROMPT
from pixelis_jax.tools.base import View
from pixelis_jax.tools.base import schemas as tool_schemas
from pixelis_jax.types import Task

VOCAB_SIZE = 1280
FACTOR = 28  # px a side of a vision token
_CORPUS_SCENES = 400
_CORPUS_BLOCKS = 60  # of generated CoTA samples, seven each

# ChatML for plain dialogues and, with `tools`, for tool dialogues; equal to Processor.append_prompt (tested).
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.content is string %}{{ m.content }}"
    "{% else %}{% for part in m.content %}"
    "{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_config(tokenizer: Tokenizer, *, width: int, layers: int, vision_width: int, vision_depth: int) -> ModelConfig:
    """Qwen2.5-VL in small: heads of 32, two query heads a key/value head, attention windows of 56 px."""
    heads = width // 32
    vision = VisionConfig(
        depth=vision_depth,
        hidden_size=vision_width,
        intermediate_size=3 * vision_width,
        num_heads=vision_width // 32,
        window_size=56,
        out_hidden_size=width,
        fullatt_block_indexes=tuple(range(1, vision_depth, 2)),
    )
    text = TextConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        # Height and width need frequencies that tell neighbouring columns apart: the defaults leave width blind.
        rope_theta=30.0,
        mrope_section=(2, 7, 7),
        tie_word_embeddings=True,
        max_position_embeddings=2048,
    )

    return ModelConfig(vision=vision, text=text, **special_tokens(tokenizer))


def special_tokens(tokenizer: Tokenizer) -> dict[str, Any]:
    """ModelConfig's ids of special tokens, by field."""
    names = {
        "image_token_id": "<|image_pad|>",
        "video_token_id": "<|video_pad|>",
        "vision_start_token_id": "<|vision_start|>",
        "vision_end_token_id": "<|vision_end|>",
        "pad_token_id": "<|endoftext|>",
        "eos_token_id": "<|im_end|>",
    }
    vocabulary = tokenizer.get_vocab()
    return {field: vocabulary[name] for field, name in names.items()}


def make_tokenizer(seed: int, schemas: str, cota: SynthesisConfig | None = None) -> Tokenizer:
    """BPE over the dialogues of `_CORPUS_SCENES` training scenes, and of CoTA samples; the same for the same seed."""
    texts = _corpus(seed, schemas)
    more: Iterator[str] = iter(()) if cota is None else _cota_corpus(cota)
    return bpe.train(itertools.chain(texts, more), vocab_size=VOCAB_SIZE)


def _corpus(seed: int, schemas: str) -> Iterator[str]:
    budget = PixelBudget(56 * 56, 112 * 112)
    for index in range(_CORPUS_SCENES):
        made = make_scene(seed, "train", index)
        image = render(made)
        generator = random_at(seed, index, "corpus")
        for question in questions(made):
            yield from _dialogue(task_of(made, image, question), generator, budget, schemas)


def _cota_corpus(config: SynthesisConfig) -> Iterator[str]:
    available = config.tools()
    for block in range(_CORPUS_BLOCKS):
        for sample in make_block(config, block).samples:
            yield f"<|im_start|>system\n{SYSTEM_PROMPT.format(schemas=tool_schemas(available))}<|im_end|>\n"
            yield f"<|im_start|>user\n{sample.question}<|im_end|>\n<|im_start|>assistant\n"
            for message in dialogues.messages(sample, sample.images, view=config.view, tools=available):
                yield message.text
                if message.observation is not None:
                    yield message.observation.text


def _dialogue(task: Task, generator: Any, budget: PixelBudget, schemas: str) -> Iterator[str]:
    def fit(height: int, width: int) -> tuple[int, int]:
        return smart_resize(height, width, factor=FACTOR, budget=budget)

    view = View(fit, fit)
    for direct in (False, True):
        sample = demonstrate(task, generator, direct=direct, box_noise=0.2, view=view)
        yield f"<|im_start|>system\n{SYSTEM_PROMPT.format(schemas=schemas)}<|im_end|>\n<|im_start|>user\n"
        yield f"{task.question}<|im_end|>\n<|im_start|>assistant\n"
        for message in dialogues.messages(sample, task.images, view=view):
            yield message.text
            if message.observation is not None:
                yield message.observation.text


def carry_embeddings(embeddings: np.ndarray, old: Tokenizer, new: Tokenizer) -> np.ndarray:
    """f32[V', D]: `embeddings` f32[V, D] of one byte-level BPE vocabulary for another.

    A token of both keeps its row; another gets the mean of the rows that `old` cuts its text into (Gee et al. 2024,
    arXiv:2402.09977).
    """
    known = old.get_vocab()
    rows = np.empty((new.get_vocab_size(), embeddings.shape[1]), np.float32)
    for token, row in new.get_vocab().items():
        pieces = [known[token]] if token in known else [piece.id for piece in old.model.tokenize(token)]
        rows[row] = embeddings[pieces].mean(axis=0)
    return rows


def write_directory(
    directory: Path,
    tokenizer: Tokenizer,
    config: ModelConfig,
    *,
    overview: PixelBudget,
    settings: Mapping[str, Any] | None = None,
) -> None:
    """Everything of a Hugging Face model directory but the weights.

    `settings` is the config of the training run in JSON types; of it `pixelis.json` keeps pixel budgets and token
    limits, so that the model is used as it was trained.
    """
    directory.mkdir(parents=True, exist_ok=True)
    vision = config.need_vision()
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    files: dict[str, dict[str, Any]] = {
        "config.json": families.to_json(config),
        "generation_config.json": {"eos_token_id": config.eos_token_id, "pad_token_id": config.pad_token_id},
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
            "model_max_length": config.text.max_position_embeddings,
            "clean_up_tokenization_spaces": False,
        },
        "preprocessor_config.json": {
            "image_processor_type": "Qwen2VLImageProcessor",
            "patch_size": vision.patch_size,
            "merge_size": vision.spatial_merge_size,
            "temporal_patch_size": vision.temporal_patch_size,
            "image_mean": vision.image_mean,
            "image_std": vision.image_std,
            "size": {"shortest_edge": overview.min_pixels, "longest_edge": overview.max_pixels},
        },
    }
    for name, content in files.items():
        (directory / name).write_text(json.dumps(content, indent=2) + "\n")
    if settings is not None:
        adapters.write_settings(directory, settings, origin=f"step {settings['total_steps']} of {settings['job']}")
