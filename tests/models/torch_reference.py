"""The reference implementation (transformers on torch) behind the few calls that parity needs."""

import numpy as np
import torch
from reference import CASES, PAD, images, token_rows
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil


def shapes(config: dict) -> dict[str, tuple[int, ...]]:
    """Key and shape of every weight that the reference holds."""
    with torch.device("meta"):
        model = Qwen2_5_VLForConditionalGeneration(Qwen2_5_VLConfig(**config))
    return {key: tuple(value.shape) for key, value in model.state_dict().items()}


def build(config: dict, weights: dict[str, np.ndarray]) -> Qwen2_5_VLForConditionalGeneration:
    """The model in fp32 with exactly these weights (strict)."""
    model = Qwen2_5_VLForConditionalGeneration._from_config(Qwen2_5_VLConfig(**config), attn_implementation="eager")
    model.load_state_dict({key: torch.tensor(value) for key, value in weights.items()}, strict=True)
    return model.float().eval()


def pixels(pictures: list[np.ndarray]) -> dict[str, torch.Tensor]:
    """`pixel_values` and `image_grid_thw` of images whose sides the processor keeps."""
    if not pictures:
        return {}
    out = Qwen2VLImageProcessorPil(do_resize=False)(images=pictures, return_tensors="np")
    return {"pixel_values": torch.tensor(out["pixel_values"]), "image_grid_thw": torch.tensor(out["image_grid_thw"])}


def inputs(case: str, *, side: str) -> dict[str, torch.Tensor]:
    """Arguments of the reference's forward for a case, its rows padded on `side`."""
    rows, _ = token_rows(case)
    order = [part for parts in CASES[case] for part in parts[1::2]]
    return batch([row.tokens for row in rows], [row.image_index for row in rows], side=side) | pixels(
        [images()[i] for i in order]
    )


def batch(
    tokens: list[list[int]], image_index: list[list[int]], *, side: str, pad: int = PAD
) -> dict[str, torch.Tensor]:
    """`input_ids`, `attention_mask` and `mm_token_type_ids` (1 at image placeholders) of padded rows."""
    length = max(map(len, tokens))
    ids = np.full((len(tokens), length), pad)
    mask, kind = np.zeros_like(ids), np.zeros_like(ids)
    for i, row in enumerate(tokens):
        where = slice(length - len(row), length) if side == "left" else slice(0, len(row))
        ids[i, where], mask[i, where] = row, 1
        kind[i, where] = np.array(image_index[i]) >= 0
    return {
        "input_ids": torch.tensor(ids),
        "attention_mask": torch.tensor(mask),
        "mm_token_type_ids": torch.tensor(kind, dtype=torch.int32),
    }


@torch.no_grad()
def logits(model: Qwen2_5_VLForConditionalGeneration, arguments: dict[str, torch.Tensor]) -> np.ndarray:
    return model(**arguments).logits.numpy()


@torch.no_grad()
def greedy(model: Qwen2_5_VLForConditionalGeneration, arguments: dict[str, torch.Tensor], *, tokens: int) -> np.ndarray:
    """i64[B, tokens] greedy continuation of left-padded rows, without placeholders; after the end of turn: padding."""
    cfg = model.config
    made = model.generate(
        **arguments,
        do_sample=False,
        max_new_tokens=tokens,
        eos_token_id=cfg.eos_token_id if cfg.eos_token_id is not None else cfg.text_config.eos_token_id,
        pad_token_id=PAD,
        suppress_tokens=[cfg.image_token_id, cfg.video_token_id],
    ).numpy()[:, arguments["input_ids"].shape[1] :]
    return np.pad(made, ((0, 0), (0, tokens - made.shape[1])), constant_values=PAD)
