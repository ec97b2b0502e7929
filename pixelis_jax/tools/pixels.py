"""What the visual operations share: images on working copies of bounded size, their colours, masks and boxes."""

import functools
from typing import Any

import numpy as np

from pixelis_jax.tools.base import Box


@functools.cache
def opencv() -> Any:
    """The module cv2 of the extra `[tools]`, on one thread: the calls of a batch share the cores already."""
    import cv2

    cv2.setNumThreads(1)
    return cv2


def shrunk(image: np.ndarray, long_side_px: int) -> np.ndarray:
    """u8[h, w, 3]: the image by area with a long side of at most so many pixels; itself where it is small enough."""
    height, width = image.shape[:2]
    scale = long_side_px / max(height, width)
    if scale >= 1:
        return np.ascontiguousarray(image)
    cv2 = opencv()
    size = max(1, round(width * scale)), max(1, round(height * scale))
    small: np.ndarray = cv2.resize(np.ascontiguousarray(image), size, interpolation=cv2.INTER_AREA)
    return small


def enlarged(mask: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """A mask u8[h, w] of 0 and 1 brought to bool of another shape; its border is interpolated."""
    if mask.shape == shape:
        return mask > 0
    cv2 = opencv()
    larger: np.ndarray = cv2.resize(mask * np.uint8(255), shape[::-1], interpolation=cv2.INTER_LINEAR) >= 128
    return larger


def colors_of(image: np.ndarray) -> np.ndarray:
    """f32[h, w, 3]: CIELAB with its lightness halved, so that light and shadow on an object count less than its hue."""
    cv2 = opencv()
    lab: np.ndarray = cv2.cvtColor(np.ascontiguousarray(image), cv2.COLOR_RGB2LAB).astype(np.float32)
    lab[..., 0] *= 50 / 255
    return lab


def distances(lab: np.ndarray, color: np.ndarray) -> np.ndarray:
    """f32[...]: distance of each colour of f32[..., 3] from a colour f32[3]."""
    away = lab - np.asarray(color, np.float32)
    return np.sqrt(np.einsum("...c,...c->...", away, away))


def bounds(mask: np.ndarray) -> Box:
    """The smallest box around the true pixels of [height, width], which has some."""
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    return int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1


def cut(image: np.ndarray, box: Box) -> np.ndarray:
    """The part of an image in a box, without a copy."""
    x1, y1, x2, y2 = box
    return image[y1:y2, x1:x2]


def area_seen(share: float, seen: tuple[int, int]) -> int:
    """Pixels that a share of an image covers as the model sees it, at least 1."""
    return max(1, round(share * seen[0] * seen[1]))
