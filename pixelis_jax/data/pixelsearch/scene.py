"""What stands in a PixelSearch scene: canvas, background, shapes and their contents, as plain numbers.

All lengths are shares of the canvas's short side s, so a shrunk overview looks alike at any size. At an overview of
112 px a digit or letter is 3 to 4 px high; a crop of 1.35 times its shape, shown at 56 px, shows it at 8 to 13 px.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from pixelis_jax.data.pixelsearch import assets
from pixelis_jax.data.pixelsearch.address import generator
from pixelis_jax.types import UserError

SPLITS: tuple[str, ...] = ("train", "heldout")
SHAPES: tuple[str, ...] = ("circle", "square", "triangle", "diamond", "cross")
COLORS: dict[str, tuple[int, int, int]] = {
    "red": (215, 35, 40),
    "orange": (250, 140, 20),
    "yellow": (245, 225, 50),
    "green": (40, 150, 55),
    "cyan": (70, 215, 225),
    "blue": (35, 75, 215),
    "purple": (125, 45, 160),
    "pink": (245, 145, 195),
}
BACKGROUNDS: tuple[str, ...] = ("plain", "gradient", "noise", "photo")
LETTERS = "ABCDEFGHJKLMNPRSTUVWXYZ"  # I, O and Q look like other characters at 10 px

# Shape side in thousandths of s. A triangle or diamond narrows where its content stands, so it is larger.
_SIZE: dict[str, tuple[int, int]] = {
    "circle": (110, 145),
    "square": (105, 135),
    "triangle": (125, 155),
    "diamond": (120, 155),
    "cross": (115, 150),
}
_DIGIT_HEIGHT = (28, 34)  # thousandths of s
_TEXT_HEIGHT = (30, 34)  # thousandths of s
_CELLS = 3  # cells along the short side


@dataclasses.dataclass(frozen=True)
class Content:
    """A digit or a text code inside a shape. `matrix` ((xx, xy), (yx, yy)) in 1/1024 maps target to source axes."""

    kind: str  # "digit" or "text"
    value: str  # what is to be read
    center: tuple[int, int]  # (x, y), px
    height_px: int
    matrix: tuple[tuple[int, int], tuple[int, int]]
    digit_image: int = -1  # row of the digit set; -1 for text


@dataclasses.dataclass(frozen=True)
class Shape:
    """A filled shape in the box (x1, y1, x2, y2), px, upper borders excluded; `rgb` is its colour, slightly varied."""

    kind: str
    color: str
    rgb: tuple[int, int, int]
    box: tuple[int, int, int, int]
    content: Content


@dataclasses.dataclass(frozen=True)
class Scene:
    """All that `draw.render` needs; `background` is one of BACKGROUNDS, its pattern is drawn from the address."""

    seed: int
    split: str
    index: int
    height: int
    width: int
    background: str
    shapes: tuple[Shape, ...]


def make_scene(seed: int, split: str, index: int, *, short_px: int | None = None) -> Scene:
    """Scene at the address (seed, split, index); split is "train" or "heldout".

    `short_px`, a multiple of 3, sets the short side; the other scenes of the address differ from it in all they draw.

    Held-out scenes use held-out digit images and held-out letter pairs only. Every scene has 3 to 5 shapes, each
    (colour, shape) pair once, at least one digit, one text code, and one shape whose kind stands alone.
    """
    if split not in SPLITS:
        raise UserError(f"PixelSearch has no split {split!r}; use one of {', '.join(SPLITS)}")
    draw = generator(seed, split, index, "scene") if short_px is None else generator(seed, split, index, short_px)
    height, width = _canvas(draw, short_px)
    pairs = _pairs(draw, count=_between(draw, 3, 5))
    boxes = _boxes(draw, height=height, width=width, kinds=[kind for kind, _ in pairs])
    kinds = _content_kinds(draw, len(pairs))
    shapes = tuple(
        Shape(
            kind=kind,
            color=color,
            rgb=_varied(draw, COLORS[color]),
            box=box,
            content=_content(draw, split, content, shape=kind, box=box, short=min(height, width)),
        )
        for (kind, color), box, content in zip(pairs, boxes, kinds, strict=True)
    )
    background = BACKGROUNDS[_between(draw, 0, len(BACKGROUNDS) - 1)]
    return Scene(seed, split, index, height, width, background, shapes)


def is_held_out(code: str) -> bool:
    """Whether a pair of letters is kept for held-out scenes (one pair in seven)."""
    return (LETTERS.index(code[0]) * 3 + LETTERS.index(code[1])) % 7 == 0


def _between(draw: np.random.Generator, low: int, high: int) -> int:
    """Uniform integer, both ends included."""
    return int(draw.integers(low, high + 1))


def _canvas(draw: np.random.Generator, short_px: int | None) -> tuple[int, int]:
    """(height, width): 1:1, 4:3 or 3:4 with sides of 512 to 1024 px; the short side is a multiple of 3.

    That of a square is one of 7 too: side / 112 is then exact in binary, and the Qwen2-VL resize, which rounds down,
    gives 112 x 112 at a budget of 112 * 112 px and never 84 x 84.
    """
    aspect = _between(draw, 0, 2)
    short = 21 * _between(draw, 25, 48) if aspect == 0 else 3 * _between(draw, 171, 256)
    short = short if short_px is None else short_px
    long = short if aspect == 0 else short * 4 // 3
    return (short, long) if aspect == 1 else (long, short)


def _pairs(draw: np.random.Generator, *, count: int) -> list[tuple[str, str]]:
    """(kind, colour) pairs, all different; the kind of one of them does not come again."""
    alone, *others = (SHAPES[i] for i in draw.permutation(len(SHAPES)))
    rest = [(kind, color) for kind in others for color in COLORS]
    chosen = [rest[i] for i in draw.permutation(len(rest))[: count - 1]]
    chosen.append((alone, list(COLORS)[_between(draw, 0, len(COLORS) - 1)]))
    return [chosen[i] for i in draw.permutation(count)]


def _boxes(
    draw: np.random.Generator, *, height: int, width: int, kinds: Sequence[str]
) -> list[tuple[int, int, int, int]]:
    """One box a shape, each in its own cell of a grid of square cells."""
    short = min(height, width)
    cell = short // _CELLS
    columns = width // cell
    margin = cell // 40
    boxes = []
    for kind, place in zip(kinds, draw.permutation(columns * (height // cell)), strict=False):
        side = short * _between(draw, *_SIZE[kind]) // 1000
        x = int(place) % columns * cell + _between(draw, margin, cell - margin - side)
        y = int(place) // columns * cell + _between(draw, margin, cell - margin - side)
        boxes.append((x, y, x + side, y + side))
    return boxes


def _content_kinds(draw: np.random.Generator, count: int) -> list[str]:
    """About 60 % digits, with at least one of each kind."""
    kinds = ["digit", "text"] + ["digit" if _between(draw, 1, 10) <= 7 else "text" for _ in range(count - 2)]
    return [kinds[i] for i in draw.permutation(count)]


def _varied(draw: np.random.Generator, rgb: tuple[int, int, int]) -> tuple[int, int, int]:
    red, green, blue = (min(255, max(0, value + _between(draw, -10, 10))) for value in rgb)
    return red, green, blue


def _content(
    draw: np.random.Generator, split: str, kind: str, *, shape: str, box: tuple[int, int, int, int], short: int
) -> Content:
    x1, y1, x2, y2 = box
    jitter = short // 200
    # A triangle is wide enough only in its lower part.
    middle = y1 + (y2 - y1) * 66 // 100 if shape == "triangle" else (y1 + y2) // 2
    center = ((x1 + x2) // 2 + _between(draw, -jitter, jitter), middle + _between(draw, -jitter, jitter))
    if kind == "text":
        height = short * _between(draw, *_TEXT_HEIGHT) // 1000
        lean = _between(draw, -100, 100)
        return Content(kind, _code(draw, split), center, height, ((1024, lean), (0, 1024)))
    images, labels = assets.digit_pool(split), assets.digits()[1]
    row = int(images[_between(draw, 0, len(images) - 1)])
    height = short * _between(draw, *_DIGIT_HEIGHT) // 1000
    scale_x, scale_y = _between(draw, 950, 1150), _between(draw, 980, 1080)
    turn, lean = _between(draw, -150, 150), _between(draw, -120, 120)
    return Content(kind, str(labels[row]), center, height, ((scale_x, lean - turn), (turn, scale_y)), row)


def _code(draw: np.random.Generator, split: str) -> str:
    while True:
        code = LETTERS[_between(draw, 0, len(LETTERS) - 1)] + LETTERS[_between(draw, 0, len(LETTERS) - 1)]
        if is_held_out(code) == (split == "heldout"):
            return code
