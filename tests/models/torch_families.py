"""The reference implementation (transformers on torch) of a small random model of any family."""

from pathlib import Path

import numpy as np
import torch
import transformers
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from pixelis_jax.models.config import ModelConfig, VisionBase


def write(directory: Path, config: ModelConfig, as_json: dict) -> transformers.PreTrainedModel:
    """Every parameter random; `directory` gets config.json and weights as transformers writes them."""
    made = transformers.AutoConfig.for_model(**as_json)
    auto = transformers.AutoModelForCausalLM if config.vision is None else transformers.AutoModelForImageTextToText
    model = auto.from_config(made, attn_implementation="eager", dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(17)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator) * (0.2 if parameter.ndim == 1 else 0.12)
            parameter.copy_(parameter + noise if parameter.ndim == 1 else noise)
    model.save_pretrained(directory)
    return model


def read(directory: Path, dtype=torch.float32) -> tuple[transformers.PreTrainedModel, dict]:
    """(model, what its loader complains of)."""
    vision = "vision_config" in (directory / "config.json").read_text()
    auto = transformers.AutoModelForImageTextToText if vision else transformers.AutoModelForCausalLM
    model, info = auto.from_pretrained(directory, dtype=dtype, attn_implementation="eager", output_loading_info=True)
    return model.eval(), {name: list(keys) for name, keys in info.items() if keys}


def arguments(rows) -> dict[str, torch.Tensor]:
    """Of a TokenBatch."""
    return {
        "input_ids": torch.tensor(np.asarray(rows.tokens)).long(),
        "attention_mask": torch.tensor(np.asarray(rows.valid)).long(),
    }


@torch.no_grad()
def logits(model, given: dict[str, torch.Tensor]) -> np.ndarray:
    return model(**given).logits.float().numpy()


@torch.no_grad()
def layers(model, given: dict[str, torch.Tensor]) -> list[np.ndarray]:
    """Output of each decoder layer."""
    seen = []
    decoder = model.get_decoder()
    hooks = [
        layer.register_forward_hook(lambda m, a, out: seen.append((out[0] if isinstance(out, tuple) else out).numpy()))
        for layer in decoder.layers
    ]
    model(**given)
    for hook in hooks:
        hook.remove()
    return seen


@torch.no_grad()
def greedy(model, given: dict[str, torch.Tensor], *, tokens: int, eos, suppress=()) -> list[list[int]]:
    """Greedy continuation of left-padded rows, cut behind the first end of turn: `eos` is an id or a list of them."""
    made = model.generate(
        **given,
        do_sample=False,
        max_new_tokens=tokens,
        eos_token_id=eos,
        pad_token_id=0,
        **({"suppress_tokens": list(suppress)} if suppress else {}),
    ).numpy()[:, given["input_ids"].shape[1] :]
    ends = np.isin(made, eos)
    counts = np.where(ends.any(axis=1), ends.argmax(axis=1) + 1, made.shape[1])
    return [row[:count].tolist() for row, count in zip(made, counts, strict=True)]


def pixels(pictures: list[np.ndarray], vision: VisionBase) -> dict[str, torch.Tensor]:
    """`pixel_values` and `image_grid_thw` of images whose sides the processor keeps."""
    processor = Qwen2VLImageProcessorPil(
        do_resize=False,
        patch_size=vision.patch_size,
        merge_size=vision.spatial_merge_size,
        temporal_patch_size=vision.temporal_patch_size,
        image_mean=vision.image_mean,
        image_std=vision.image_std,
    )
    out = processor(images=pictures, return_tensors="np")
    return {"pixel_values": torch.tensor(out["pixel_values"]), "image_grid_thw": torch.tensor(out["image_grid_thw"])}


def image_arguments(rows, pictures: list[np.ndarray], vision: VisionBase) -> dict[str, torch.Tensor]:
    """Of a TokenBatch with the images that its rows show, in their order."""
    kind = torch.tensor((np.asarray(rows.image_index) >= 0).astype(np.int32))
    return arguments(rows) | {"mm_token_type_ids": kind} | (pixels(pictures, vision) if pictures else {})


def shapes(as_json: dict) -> dict[str, tuple[int, ...]]:
    """Key and shape of every weight of a configuration, nothing allocated."""
    vision = "vision_config" in as_json
    auto = transformers.AutoModelForImageTextToText if vision else transformers.AutoModelForCausalLM
    with torch.device("meta"):
        model = auto.from_config(transformers.AutoConfig.for_model(**as_json))
    return {key: tuple(value.shape) for key, value in model.state_dict().items()}
