"""SAM2 behind the interface of a segmenter: masks by a network, where its weights and torch are there.

    tools = {**TOOLS, "SEGMENT_OBJECT_AT": segment_object_at.make(sam2.segmenter("DIR"), name="sam2 DIR")}

The directory is in Hugging Face layout (config, weights, processor). Nothing is downloaded; torch, torchvision and
the weights are loaded at the first call. Ravi et al. 2024, "SAM 2: Segment Anything in Images and Videos".
"""

import importlib.util
import threading
from pathlib import Path
from typing import Any

import numpy as np

from pixelis_jax.tools.base import ToolError
from pixelis_jax.tools.segmentation import Segmenter
from pixelis_jax.types import UserError

PACKAGES: tuple[str, ...] = ("torch", "torchvision")  # of no extra: the wheel depends on the machine


def segmenter(folder: str | Path, *, device: str = "cpu") -> Segmenter:
    """A segmenter that asks the SAM2 model in a directory for the mask around a point.

    Of the masks it proposes, the one it scores highest among those that hold the point is taken. Raises UserError where
    the directory holds no model or a package is missing, at once, and where the model can't be read, at the first call.
    """
    path = Path(folder)
    if not (path / "config.json").is_file():
        raise UserError(f"{path}: has no config.json; give the directory of a SAM2 model in Hugging Face layout")
    for package in PACKAGES:
        if importlib.util.find_spec(package) is None:
            raise UserError(f"SAM2 needs the package {package}, which is not installed: pip install {package}")
    lock = threading.Lock()
    loaded: list[tuple[Any, Any, Any]] = []

    def segment(image: np.ndarray, point: tuple[int, int]) -> np.ndarray:
        with lock:  # the model is loaded once, and runs for one call at a time
            if not loaded:
                loaded.append(_load(path, device))
            return _mask(*loaded[0], image, point)

    return segment


def _load(path: Path, device: str) -> tuple[Any, Any, Any]:
    """The modules torch, processor and model. Raises UserError."""
    try:
        import torch
        from transformers import Sam2Model, Sam2Processor

        processor = Sam2Processor.from_pretrained(path, local_files_only=True)
        model: Any = Sam2Model.from_pretrained(path, local_files_only=True)
        model = model.to(device).eval()
    except Exception as error:  # loaders raise errors of many kinds
        reason = " ".join(str(error).split())[:120]
        raise UserError(f"{path}: can't be loaded as a SAM2 model ({reason}); download it again") from error
    return torch, processor, model


def _mask(torch: Any, processor: Any, model: Any, image: np.ndarray, point: tuple[int, int]) -> np.ndarray:
    """bool[h, w] of u8[h, w, 3]. Raises ToolError where no proposed mask holds the point."""
    x, y = point
    inputs = processor(
        images=np.ascontiguousarray(image),
        input_points=[[[[x + 0.5, y + 0.5]]]],  # image, object, point
        input_labels=[[[1]]],
        return_tensors="pt",
    ).to(model.device)
    with torch.inference_mode():
        outputs = model(**inputs, multimask_output=True)
    masks = processor.post_process_masks(outputs.pred_masks.cpu(), inputs["original_sizes"].cpu())[0][0]
    scores = outputs.iou_scores[0, 0].float().cpu().numpy()
    masks = np.asarray(masks, bool)  # bool[n, h, w]
    for number in np.argsort(-scores, kind="stable"):
        if masks[number, y, x]:
            return masks[number]
    raise ToolError("no object at this point")
