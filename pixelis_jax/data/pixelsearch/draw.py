"""Scene -> pixels, in integer arithmetic only, so that the same scene has the same pixels on any machine."""

from collections.abc import Iterable

import numpy as np

from pixelis_jax.data.pixelsearch import assets
from pixelis_jax.data.pixelsearch.address import generator
from pixelis_jax.data.pixelsearch.scene import Content, Scene, Shape

_WHITE, _BLACK = 245, 15


def render(scene: Scene) -> np.ndarray:
    """u8[height, width, 3]. Only the background touches every pixel; a shape touches its own box."""
    canvas = background(scene)
    draw_shapes(canvas, scene.shapes)
    return canvas


def draw_shapes(canvas: np.ndarray, shapes: Iterable[Shape]) -> None:
    """Draws shapes with their contents in place, later ones above earlier ones."""
    for shape in shapes:
        _draw_shape(canvas, shape)
        draw_content(canvas, shape.content, ink=ink_on(shape.rgb))


def shape_mask(kind: str, side: int) -> np.ndarray:
    """bool[side, side]: the pixels of a shape that fills its box."""
    axis = 2 * np.arange(side, dtype=np.int32) + 1 - side  # pixel centres in half pixels from the box's middle
    x, y = axis[None, :], axis[:, None]
    if kind == "circle":
        return x * x + y * y <= side * side
    if kind == "square":
        return np.ones((side, side), bool)
    if kind == "triangle":
        return 2 * np.abs(x) <= y + side
    if kind == "diamond":
        return np.abs(x) + np.abs(y) <= side
    return (100 * np.abs(x) <= 46 * side) | (100 * np.abs(y) <= 46 * side)  # cross


def _luma(rgb: tuple[int, int, int]) -> int:
    return (299 * rgb[0] + 587 * rgb[1] + 114 * rgb[2]) // 1000


def background(scene: Scene) -> np.ndarray:
    """u8[height, width, 3]: what lies behind the shapes of a scene."""
    draw = generator(scene.seed, scene.split, scene.index, "background")
    shape = (scene.height, scene.width, 3)
    first, second = _muted(draw), _muted(draw)
    if scene.background == "plain":
        row = np.tile(first.astype(np.uint8), scene.width).reshape(scene.width, 3)
        return np.broadcast_to(row, shape).copy()
    if scene.background == "gradient":
        # Every row is a window of one strip, moved by one pixel a row: a diagonal gradient.
        length = scene.height + scene.width
        share = np.arange(length, dtype=np.int32)[:, None]
        strip = ((first * (length - share) + second * share) // length).astype(np.uint8)
        windows = np.lib.stride_tricks.sliding_window_view(strip, scene.width, axis=0)  # [rows, 3, width]
        rows = windows[: scene.height] if draw.integers(0, 2) else windows[scene.height - 1 :: -1]
        return np.ascontiguousarray(rows.transpose(0, 2, 1))
    if scene.background == "noise":
        grain = min(scene.height, scene.width) // int(draw.integers(48, 160))
        cells = (-(-scene.height // grain), -(-scene.width // grain), 1)
        tile = np.clip(first + draw.integers(-30, 31, cells), 0, 255).astype(np.uint8)
        rows = np.ascontiguousarray(tile.repeat(grain, 1)[:, : scene.width])
        return rows.repeat(grain, 0)[: scene.height]
    return _photo_background(draw, scene.height, scene.width)


def _muted(draw: np.random.Generator) -> np.ndarray:
    """A greyish colour i32[3]: no colour name of a shape fits it."""
    return (draw.integers(50, 210) + draw.integers(-14, 15, 3)).astype(np.int32)


def _photo_background(draw: np.random.Generator, height: int, width: int) -> np.ndarray:
    """A window of a dimmed photograph, enlarged by nearest neighbour."""
    image = assets.dimmed_photo(assets.PHOTOS[int(draw.integers(0, len(assets.PHOTOS)))])
    if draw.integers(0, 2):
        image = image[:, ::-1]
    # The largest window of the canvas's aspect, shrunk to 60..100 %.
    share = int(draw.integers(600, 1001))
    wide = min(image.shape[1], image.shape[0] * width // height) * share // 1000
    high = min(image.shape[0], wide * height // width)
    left, top = (int(draw.integers(0, room + 1)) for room in (image.shape[1] - wide, image.shape[0] - high))
    window = image[top : top + high, left : left + wide]
    columns = np.arange(width, dtype=np.int64) * wide // width
    rows = np.arange(height, dtype=np.int64) * high // height
    return window.take(columns, 1).take(rows, 0)


def _draw_shape(canvas: np.ndarray, shape: Shape) -> None:
    x1, y1, x2, y2 = shape.box
    side = x2 - x1
    mask = shape_mask(shape.kind, side)
    edge = max(2, side // 30)
    padded = np.pad(mask, edge)
    inner = mask.copy()
    for dy, dx in ((0, edge), (2 * edge, edge), (edge, 0), (edge, 2 * edge)):
        inner &= padded[dy : dy + side, dx : dx + side]
    target = canvas[y1:y2, x1:x2]
    outline = ink_on(shape.rgb)
    np.copyto(target, np.uint8(outline), where=mask[..., None])
    np.copyto(target, np.array(shape.rgb, np.uint8), where=inner[..., None])


def ink_on(rgb: tuple[int, int, int]) -> int:
    """White on dark colours, black on light ones."""
    return _WHITE if _luma(rgb) < 128 else _BLACK


def draw_content(canvas: np.ndarray, content: Content, *, ink: int) -> None:
    """Draws a digit or a text code in place; all of it has to lie inside the canvas u8[height, width, 3]."""
    if content.kind == "digit":
        source = assets.digits()[0][content.digit_image]
    else:
        source = np.concatenate([assets.glyphs()[letter][assets.CAP_ROWS] for letter in content.value], axis=1)
    # Room for the affine map's corners around the content's own box.
    height = content.height_px * 5 // 4
    width = content.height_px * source.shape[1] // source.shape[0] * 5 // 4
    alpha = _resample(source, content, height, width)
    if content.kind == "digit":
        alpha = np.clip(2 * alpha - 110, 0, 255)  # the 8x8 source is soft; a pen stroke is not
    x, y = content.center[0] - width // 2, content.center[1] - height // 2
    target = canvas[y : y + height, x : x + width]
    alpha = alpha[..., None]
    target[...] = (target * (255 - alpha) + ink * alpha + 127) // 255


def _resample(source: np.ndarray, content: Content, height: int, width: int) -> np.ndarray:
    """i32[height, width]: `source` under the content's affine map, bilinear in fixed point with 16 fraction bits."""
    (xx, xy), (yx, yy) = content.matrix
    x = (2 * np.arange(width, dtype=np.int64) + 1 - width)[None, :]  # half pixels from the middle
    y = (2 * np.arange(height, dtype=np.int64) + 1 - height)[:, None]
    step = (source.shape[0] << 15) // content.height_px  # source pixels a half target pixel
    padded = np.pad(source, 2).astype(np.int32)
    u = (((xx * x + xy * y) * step) >> 10) + (padded.shape[1] - 1 << 15)
    v = (((yx * x + yy * y) * step) >> 10) + (padded.shape[0] - 1 << 15)
    u, v = np.clip(u, 0, (padded.shape[1] - 2) << 16), np.clip(v, 0, (padded.shape[0] - 2) << 16)
    column, row = u >> 16, v >> 16
    right, down = ((u >> 8) & 255).astype(np.int32), ((v >> 8) & 255).astype(np.int32)
    upper = padded[row, column] * (256 - right) + padded[row, column + 1] * right
    lower = padded[row + 1, column] * (256 - right) + padded[row + 1, column + 1] * right
    return (upper * (256 - down) + lower * down) >> 16
