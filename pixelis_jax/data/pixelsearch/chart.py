"""Reading charts: a canvas full of digits and letters, for the auxiliary loss that teaches the vision tower to read.

A scene asks for one character at a time; a chart labels every merged vision token with the character whose centre lies
in it, wherever the character stands relative to the patches.
"""

import numpy as np

from pixelis_jax.data.pixelsearch import assets
from pixelis_jax.data.pixelsearch.address import generator
from pixelis_jax.data.pixelsearch.draw import draw_content, ink_on
from pixelis_jax.data.pixelsearch.scene import COLORS, LETTERS, Content

CLASSES: tuple[str, ...] = ("", *"0123456789", *LETTERS)  # "" marks a token in which no character has its centre
GRID = 4  # merged tokens a side
_CELL = 56  # px a token; the chart is seen at half its size
_HEIGHT = (34, 52)  # px of a character
_MARGIN = 34  # px that a character's centre keeps from the edge


def make_chart(seed: int, split: str, index: int) -> tuple[np.ndarray, np.ndarray]:
    """(u8[224, 224, 3], labels i32[16]) at the address; digit images are those of the split. Labels index CLASSES.

    Characters stand about one cell apart, on a lattice with a random offset, so that they fall anywhere on the patches.
    """
    draw = generator(seed, split, index, "chart")
    side = GRID * _CELL
    tiles = [_paint(draw) for _ in range(4)]
    canvas = np.empty((side, side, 3), np.uint8)
    middle = int(draw.integers(_CELL, side - _CELL))
    for i, rgb in enumerate(tiles):  # four tiles: characters on several colours, sometimes across two
        rows, columns = (slice(0, middle), slice(middle, side))[i // 2], (slice(0, middle), slice(middle, side))[i % 2]
        canvas[rows, columns] = rgb
    labels = np.zeros((GRID, GRID), np.int32)
    shift = draw.integers(0, _CELL, 2)
    for row in range(GRID):
        for column in range(GRID):
            x, y = (int(v) for v in (column, row) * np.array(_CELL) + shift + draw.integers(-4, 5, 2))
            if not (_MARGIN <= x < side - _MARGIN and _MARGIN <= y < side - _MARGIN):
                continue
            content = _character(draw, split, center=(x, y))
            ink = ink_on(tiles[2 * (y >= middle) + (x >= middle)])
            draw_content(canvas, content, ink=ink)
            labels[y // _CELL, x // _CELL] = CLASSES.index(content.value)
    return canvas, labels.ravel()


def _paint(draw: np.random.Generator) -> tuple[int, int, int]:
    """A named colour, slightly varied, or any grey."""
    if draw.integers(0, 3) == 0:
        return (int(draw.integers(20, 236)),) * 3
    base = list(COLORS.values())[int(draw.integers(0, len(COLORS)))]
    red, green, blue = (min(255, max(0, value + int(draw.integers(-12, 13)))) for value in base)
    return red, green, blue


def _character(draw: np.random.Generator, split: str, *, center: tuple[int, int]) -> Content:
    height = int(draw.integers(_HEIGHT[0], _HEIGHT[1] + 1))
    turn, lean = int(draw.integers(-150, 151)), int(draw.integers(-120, 121))
    if draw.integers(0, 5) < 3:
        images, labels = assets.digit_pool(split), assets.digits()[1]
        row = int(images[int(draw.integers(0, len(images)))])
        matrix = ((int(draw.integers(950, 1151)), lean - turn), (turn, int(draw.integers(980, 1081))))
        return Content("digit", str(labels[row]), center, height, matrix, row)
    return Content("text", LETTERS[int(draw.integers(0, len(LETTERS)))], center, height, ((1024, lean), (0, 1024)))
