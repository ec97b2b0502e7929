"""Reading charts: a grid of digits and letters, all large enough to be read at once. Pretraining learns to read from them.

A scene holds a handful of characters, a chart sixteen: the vision tower sees many more of them an image.
"""

import numpy as np

from pixelis_jax.data.pixelsearch import assets
from pixelis_jax.data.pixelsearch.address import generator
from pixelis_jax.data.pixelsearch.draw import draw_content, ink_on
from pixelis_jax.data.pixelsearch.questions import Question
from pixelis_jax.data.pixelsearch.scene import COLORS, LETTERS, Content

ROWS = 4  # of ROWS characters each
_CELL = 56  # px; half of it when the chart is seen at 112 px
_HEIGHT = (32, 50)  # px of a character


def make_chart(seed: int, split: str, index: int) -> tuple[np.ndarray, list[Question]]:
    """(u8[224, 224, 3], questions): each row to be read, and the whole chart. Digits are those of the split."""
    draw = generator(seed, split, index, "chart")
    canvas = np.zeros((ROWS * _CELL, ROWS * _CELL, 3), np.uint8)
    values = []
    for place in range(ROWS * ROWS):
        y, x = place // ROWS * _CELL, place % ROWS * _CELL
        rgb = _paint(draw)
        canvas[y : y + _CELL, x : x + _CELL] = rgb
        content = _character(draw, split, center=(x + _CELL // 2, y + _CELL // 2))
        # A cell of its own: a character that leans over the edge is cut there.
        cell = np.ascontiguousarray(np.pad(canvas[y : y + _CELL, x : x + _CELL], ((_CELL, _CELL), (_CELL, _CELL), (0, 0))))
        draw_content(cell, _moved(content, _CELL - x, _CELL - y), ink=ink_on(rgb))
        canvas[y : y + _CELL, x : x + _CELL] = cell[_CELL : 2 * _CELL, _CELL : 2 * _CELL]
        values.append(content.value)
    rows = [values[i : i + ROWS] for i in range(0, len(values), ROWS)]
    asked = [_question(f"Read row {i + 1}.", row) for i, row in enumerate(rows)]
    # Half of the draws ask for everything.
    return canvas, asked + [_question("Read all rows.", values)] * ROWS


def _question(text: str, values: list[str]) -> Question:
    return Question("reading", text, ", ".join(values), "exact", False, None)


def _paint(draw: np.random.Generator) -> tuple[int, int, int]:
    """A named colour, slightly varied, or any grey."""
    if draw.integers(0, 3) == 0:
        return (int(draw.integers(20, 236)),) * 3
    base = list(COLORS.values())[int(draw.integers(0, len(COLORS)))]
    red, green, blue = (min(255, max(0, value + int(draw.integers(-12, 13)))) for value in base)
    return red, green, blue


def _character(draw: np.random.Generator, split: str, *, center: tuple[int, int]) -> Content:
    height = int(draw.integers(_HEIGHT[0], _HEIGHT[1] + 1))
    room = (_CELL - height) // 2
    x, y = (c + int(draw.integers(-room, room + 1)) for c in center)
    turn, lean = int(draw.integers(-150, 151)), int(draw.integers(-120, 121))
    matrix = ((int(draw.integers(950, 1151)), lean - turn), (turn, int(draw.integers(980, 1081))))
    if draw.integers(0, 5) < 3:
        images, labels = assets.digit_pool(split), assets.digits()[1]
        row = int(images[int(draw.integers(0, len(images)))])
        return Content("digit", str(labels[row]), (x, y), height, matrix, row)
    return Content("text", LETTERS[int(draw.integers(0, len(LETTERS)))], (x, y), height, ((1024, lean), (0, 1024)))


def _moved(content: Content, dx: int, dy: int) -> Content:
    x, y = content.center
    return Content(content.kind, content.value, (x + dx, y + dy), content.height_px, content.matrix, content.digit_image)
