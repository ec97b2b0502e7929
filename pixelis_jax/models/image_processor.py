"""Image preprocessing of Qwen2-VL: smart resize, and patches packed by attention window for the vision tower.

The patches equal those of Hugging Face's `Qwen2VLImageProcessorPil` byte for byte before normalisation; what differs is
the layout (windows first, u8 instead of normalised f32), which costs an eighth of the transfer and lets every image of
a bucket share one compiled shape.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence

import numpy as np
from PIL import Image

from pixelis_jax.models.config import VisionBase
from pixelis_jax.models.rows import power_bucket
from pixelis_jax.types import ImageBatch, UserError

MAX_ASPECT = 200  # as in the reference


@dataclasses.dataclass(frozen=True)
class PixelBudget:
    """Bounds of an image's area after resize, in pixels."""

    min_pixels: int
    max_pixels: int


def smart_resize(height: int, width: int, *, factor: int, budget: PixelBudget) -> tuple[int, int]:
    """(height, width) in multiples of `factor`, area inside the budget, aspect kept as far as that allows.

    Raises UserError for an empty image or an aspect ratio above 200.
    """
    if min(height, width) < 1:
        raise UserError(f"image of {width}x{height} px is empty")
    if max(height, width) / min(height, width) > MAX_ASPECT:
        raise UserError(f"image of {width}x{height} px: aspect ratio above {MAX_ASPECT}; crop it first")
    new = [round(side / factor) * factor for side in (height, width)]
    if new[0] * new[1] > budget.max_pixels:
        shrink = math.sqrt(height * width / budget.max_pixels)
        new = [max(factor, math.floor(side / shrink / factor) * factor) for side in (height, width)]
    elif new[0] * new[1] < budget.min_pixels:
        grow = math.sqrt(budget.min_pixels / (height * width))
        new = [math.ceil(side * grow / factor) * factor for side in (height, width)]
    return new[0], new[1]


def resize(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Bicubic resize of u8[height, width, 3] to `size` (height, width)."""
    if image.shape[:2] == size:
        return image
    return np.asarray(Image.fromarray(image).resize((size[1], size[0]), Image.Resampling.BICUBIC))


def size_of(image: np.ndarray) -> tuple[int, int]:
    """(height, width) of u8[height, width, 3], or of the frames u8[frames, height, width, 3] of one temporal patch."""
    height, width = image.shape[-3:-1]
    return height, width


def frame_groups(video: np.ndarray, config: VisionBase) -> list[np.ndarray]:
    """Frames u8[F, height, width, 3] of a video -> u8[frames of a patch, height, width, 3] each, the last one repeated.

    `pack` takes each group as an image of its own: the vision towers do not attend across groups.
    """
    step = config.temporal_patch_size
    padded = np.concatenate([video, np.repeat(video[-1:], -len(video) % step, axis=0)])
    return list(padded.reshape(-1, step, *video.shape[1:]))


def patchify(image: np.ndarray, config: VisionBase) -> np.ndarray:
    """u8[(frames,) height, width, 3] (sides multiples of `factor`) -> u8[N, patch_dim], merge blocks first as in HF.

    A still image fills every frame of the temporal patch.
    """
    merge, patch = config.spatial_merge_size, config.patch_size
    (height, width), channels = size_of(image), image.shape[-1]
    rows, columns = height // (merge * patch), width // (merge * patch)
    x = np.broadcast_to(image, (config.temporal_patch_size, height, width, channels))
    x = x.reshape(-1, rows, merge, patch, columns, merge, patch, channels)
    x = x.transpose(1, 4, 2, 5, 7, 0, 3, 6)  # row, column, row in block, column in block, channel, frame, y, x
    return x.reshape(rows * columns * merge**2, -1)


@functools.lru_cache(maxsize=512)
def window_layout(rows: int, columns: int, config: VisionBase) -> tuple[np.ndarray, np.ndarray]:
    """Where things go for an image of `rows` x `columns` merged tokens.

    Returns (`order` i32[W, units], `token_rows` i32[rows * columns]): the raster index of the merged token in each
    place of each window, -1 where none is; and its inverse, the place `w * units + l` of each raster token. A window at
    the right or lower edge is filled from its start, like the reference's.
    """
    side = config.window_units
    grid = np.arange(rows * columns).reshape(rows, columns)
    order = []
    for top in range(0, rows, side):
        for left in range(0, columns, side):
            inside = grid[top : top + side, left : left + side].ravel()
            order.append(np.pad(inside, (0, side * side - len(inside)), constant_values=-1))
    order_array = np.stack(order).astype(np.int32)
    token_rows = np.empty(rows * columns, np.int32)
    flat = order_array.ravel()
    token_rows[flat[flat >= 0]] = np.nonzero(flat >= 0)[0]
    return order_array, token_rows


@functools.lru_cache(maxsize=512)
def _patch_coords(rows: int, columns: int, merge: int) -> np.ndarray:
    """(row, column) i32[N, 2] of each patch in `patchify` order."""
    y, x = np.meshgrid(np.arange(rows * merge), np.arange(columns * merge), indexing="ij")
    both = np.stack([y, x], -1).reshape(rows, merge, columns, merge, 2)
    return both.transpose(0, 2, 1, 3, 4).reshape(-1, 2).astype(np.int32)


def windows_of(size: tuple[int, int], config: VisionBase) -> int:
    """Attention windows of an image of `size` (height, width) in pixels."""
    side = config.window_px
    return math.ceil(size[0] / side) * math.ceil(size[1] / side)


def window_bucket(budget: PixelBudget, config: VisionBase) -> int:
    """Windows that an image of a full budget and square shape needs, rounded up to a power of two."""
    return power_bucket(-(-budget.max_pixels // config.window_px**2))


def pack(images: Sequence[np.ndarray], config: VisionBase, *, windows: int, count: int | None = None) -> ImageBatch:
    """Resized images u8[h, w, 3], or groups of frames u8[frames, h, w, 3] -> ImageBatch.

    It has `count` (default: as many) images of `windows` windows; surplus places are zero and invalid. Raises
    ValueError where an image has more windows than the bucket.
    """
    count = len(images) if count is None else count
    units, unit = config.window_units**2, config.merge_unit
    patches = np.zeros((count, windows, units, unit, config.patch_dim), np.uint8)
    coords = np.zeros((count, windows, units, unit, 2), np.int32)
    valid = np.zeros((count, windows, units, unit), bool)
    for i, image in enumerate(images):
        height, width = size_of(image)
        rows, columns = height // config.factor, width // config.factor
        order, _ = window_layout(rows, columns, config)
        if len(order) > windows:
            raise ValueError(f"image of {width}x{height} px has {len(order)} windows, the bucket {windows}")
        there = order >= 0
        flat = patchify(image, config).reshape(rows * columns, unit, -1)
        patches[i, : len(order)][there] = flat[order[there]]
        coords[i, : len(order)][there] = _patch_coords(rows, columns, config.spatial_merge_size).reshape(-1, unit, 2)[
            order[there]
        ]
        valid[i, : len(order)][there] = True
    shape = (count, windows, units * unit)
    return ImageBatch(patches.reshape(*shape, -1), coords.reshape(*shape, 2), valid.reshape(shape))


def token_rows(size: tuple[int, int], config: VisionBase) -> np.ndarray:
    """Row of each merged token (raster order) in its image's part of the feature table, i32[rows * columns]."""
    return window_layout(size[0] // config.factor, size[1] // config.factor, config)[1]


def rows_per_image(windows: int, config: VisionBase) -> int:
    """Feature-table rows that an image of a bucket of `windows` windows takes."""
    return windows * config.window_units**2
