"""The colour of an object: which RGB value most of its pixels have, and what that is called."""

import functools

import numpy as np

# Typical values of each name, sRGB. A colour has the name of the nearest of them in CIELAB (CIE 1976, D65), by
# Euclidean distance. The first value of a row is the plainest; the others are darker, lighter and paler kinds.
NAMES: dict[str, tuple[tuple[int, int, int], ...]] = {
    "red": ((220, 30, 35), (255, 0, 0), (178, 30, 35), (130, 0, 0), (255, 80, 70)),
    "orange": ((250, 140, 20), (255, 165, 0), (255, 110, 0), (230, 120, 30), (255, 180, 90), (255, 215, 175)),
    "yellow": ((245, 225, 50), (255, 255, 0), (255, 215, 0), (225, 195, 20), (250, 245, 150)),
    "green": (
        *((40, 150, 55), (0, 255, 0), (0, 128, 0), (0, 80, 0), (120, 200, 80)),
        *((150, 240, 150), (130, 140, 30), (60, 180, 110), (85, 107, 47)),
    ),
    "cyan": ((70, 215, 225), (0, 255, 255), (0, 180, 190), (0, 128, 128), (170, 240, 240)),
    "blue": (
        *((35, 75, 215), (0, 0, 255), (0, 0, 128), (30, 120, 230), (100, 150, 240)),
        *((135, 195, 245), (20, 30, 80), (70, 110, 170)),
    ),
    "purple": (
        (125, 45, 160),
        (128, 0, 128),
        (80, 0, 130),
        (160, 80, 230),
        (200, 0, 220),
        (190, 150, 230),
        (70, 30, 80),
    ),
    "pink": ((245, 145, 195), (255, 192, 203), (255, 105, 180), (255, 20, 147), (240, 160, 160)),
    "brown": (
        *((139, 69, 19), (101, 67, 33), (165, 100, 50), (70, 40, 20), (205, 150, 95), (150, 75, 60)),
        *((120, 100, 80), (210, 180, 140)),
    ),
    "black": ((10, 10, 10), (35, 35, 35)),
    "white": ((250, 250, 250), (230, 230, 230)),
    "gray": ((128, 128, 128), (160, 160, 160), (192, 192, 192), (95, 95, 95), (65, 65, 65)),
}
_SAMPLE = 4096  # pixels of an object that are looked at, evenly spaced
_BINS = 16  # a channel
_NEAR = 24  # sRGB steps a channel around the commonest colour


def name_of(rgb: tuple[int, int, int]) -> str:
    """The name in NAMES of an sRGB colour."""
    names, anchors = _anchors()
    return names[int(np.argmin(((anchors - lab_of(np.array(rgb))) ** 2).sum(1)))]


def lab_of(rgb: np.ndarray) -> np.ndarray:
    """f64[..., 3]: CIELAB of sRGB 0..255 for the white point D65 (IEC 61966-2-1, CIE 15)."""
    share = np.asarray(rgb, np.float64) / 255
    linear = np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)
    matrix = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    x, y, z = np.moveaxis(linear @ (matrix / matrix.sum(1, keepdims=True)).T, -1, 0)
    x, y, z = (np.where(t > (6 / 29) ** 3, np.cbrt(t), t / (3 * (6 / 29) ** 2) + 4 / 29) for t in (x, y, z))
    return np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], axis=-1)


def dominant(pixels: np.ndarray) -> tuple[int, int, int]:
    """The commonest colour of u8[n, 3], n at least 1: the fill of an object, whatever is written on it.

    It is the median of the pixels near the highest place of a histogram that is smoothed over neighbouring bins.
    """
    sample = pixels[:: -(-len(pixels) // _SAMPLE)]
    bins = sample.astype(np.int64) * _BINS // 256
    counts = np.zeros((_BINS + 2,) * 3, np.int64)
    np.add.at(counts, tuple(bins.T + 1), 1)
    for axis in range(3):
        counts = counts + np.roll(counts, 1, axis) + np.roll(counts, -1, axis)
    inner = counts[1:-1, 1:-1, 1:-1]
    place = np.array(np.unravel_index(int(inner.argmax()), inner.shape))
    middle = np.median(sample[(np.abs(bins - place) <= 1).all(1)], axis=0)
    near = sample[(np.abs(sample.astype(np.int64) - middle) <= _NEAR).all(1)]
    red, green, blue = np.median(near, axis=0) if len(near) else middle
    return int(red), int(green), int(blue)


@functools.cache
def _anchors() -> tuple[tuple[str, ...], np.ndarray]:
    names = tuple(name for name, values in NAMES.items() for _ in values)
    return names, lab_of(np.array([rgb for values in NAMES.values() for rgb in values]))
