"""The bundled files of PixelSearch (see assets/pixelsearch/LICENSES.md), read once and kept read-only."""

import functools
import hashlib
from pathlib import Path

import numpy as np
from PIL import Image

FOLDER = Path(__file__).resolve().parents[2] / "assets" / "pixelsearch"
PHOTOS: tuple[str, ...] = ("chelsea", "coffee", "gravel", "hubble_deep_field", "rocket")
CAP_ROWS = slice(4, 19)  # rows of a glyph cell between the top of a capital letter and the base line


@functools.cache
def sha256() -> str:
    """Digest of all bundled files, by name and content."""
    digest = hashlib.sha256()
    for path in sorted(FOLDER.iterdir()):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


@functools.cache
def digits() -> tuple[np.ndarray, np.ndarray]:
    """Handwritten digits: images u8[1797, 8, 8] scaled to 0..255, labels u8[1797]."""
    with np.load(FOLDER / "digits.npz") as data:
        images, labels = data["images"], data["labels"]
    return _frozen((images.astype(np.uint16) * 255 // 16).astype(np.uint8)), _frozen(labels)


@functools.cache
def digit_pool(split: str) -> np.ndarray:
    """Row numbers of the digit images of a split; "train" has 1400, "heldout" 397, and none is in both."""
    with np.load(FOLDER / "digits.npz") as data:
        held_out = data["held_out"]
    return _frozen(np.flatnonzero(held_out if split == "heldout" else ~held_out))


@functools.cache
def glyphs() -> dict[str, np.ndarray]:
    """Coverage u8[24, 12] of each printable character, DejaVu Sans Mono Bold."""
    with np.load(FOLDER / "glyphs.npz") as data:
        return {str(glyph): _frozen(bitmap) for glyph, bitmap in zip(str(data["glyphs"]), data["bitmaps"], strict=True)}


@functools.cache
def dimmed_photo(name: str) -> np.ndarray:
    """A background u8[height, width, 3] with half the photograph's contrast and colour, so that shapes stand out on it.

    It is doubled twice by integer bilinear interpolation (long side 765 px).
    """
    with Image.open(FOLDER / f"{name}.png") as file:
        image = np.asarray(file.convert("RGB")).astype(np.uint16)
    image = (image + image.sum(2, keepdims=True) // 3) // 4 + 40
    for _ in range(2):
        for axis in (0, 1):
            image = np.moveaxis(_double(np.moveaxis(image, axis, 0)), 0, axis)
    return _frozen(np.ascontiguousarray(image.astype(np.uint8)))


def _double(rows: np.ndarray) -> np.ndarray:
    """[n, ...] -> [2n - 1, ...]: the mean of two neighbours between each pair."""
    out = np.empty((2 * len(rows) - 1, *rows.shape[1:]), rows.dtype)
    out[::2] = rows
    out[1::2] = (rows[:-1] + rows[1:] + 1) // 2
    return out


def _frozen(array: np.ndarray) -> np.ndarray:
    array.setflags(write=False)
    return array
