"""Films: PixelSearch scenes in which shapes move in straight lines, a few small frames each, by address."""

import dataclasses

import numpy as np

from pixelis_jax.data.pixelsearch.address import generator
from pixelis_jax.data.pixelsearch.draw import background, draw_shapes
from pixelis_jax.data.pixelsearch.scene import Scene, Shape, make_scene

DIRECTIONS: dict[str, tuple[int, int]] = {"right": (1, 0), "left": (-1, 0), "down": (0, 1), "up": (0, -1)}
FRAMES = 5
SHORT_PX = 252  # short side of a frame
PREFIX = "pixelsearch-film:"


@dataclasses.dataclass(frozen=True)
class Motion:
    """How one shape moves: `direction` of DIRECTIONS or "none", `step_px` a frame (0 for "none")."""

    direction: str
    step_px: int


@dataclasses.dataclass(frozen=True)
class Film:
    """The first frame as a scene, and the motion of each of its shapes over `frames` frames."""

    scene: Scene
    motions: tuple[Motion, ...]
    frames: int = FRAMES

    @property
    def address(self) -> str:
        return f"{PREFIX}{self.scene.seed}/{self.scene.split}/{self.scene.index}"

    def shapes_at(self, frame: int) -> tuple[Shape, ...]:
        """The shapes in frame 0, 1, ...; those that move are drawn last."""
        pairs = sorted(zip(self.scene.shapes, self.motions, strict=True), key=lambda pair: pair[1].step_px > 0)
        return tuple(_moved(shape, motion, frame) for shape, motion in pairs)


def make_film(seed: int, split: str, index: int) -> Film:
    """The film at the address (seed, split, index). One or two of its shapes move; no path crosses another shape.

    A shape without a free way in any direction stands still, so a film in which nothing moves is possible, but rare.
    """
    scene = make_scene(seed, split, index, short_px=SHORT_PX)
    draw = generator(seed, split, index, "film")
    order = [int(i) for i in draw.permutation(len(scene.shapes))]
    movers = order[: 1 + int(draw.integers(2))]
    swept = {i: shape.box for i, shape in enumerate(scene.shapes)}
    motions = {i: Motion("none", 0) for i in order}
    for i in movers:
        for name in (list(DIRECTIONS)[int(d)] for d in draw.permutation(len(DIRECTIONS))):
            motion = Motion(name, int(draw.integers(SHORT_PX * 5 // 100, SHORT_PX * 10 // 100)))
            ends = [_moved(scene.shapes[i], motion, frame).box for frame in (0, FRAMES - 1)]
            lowest, highest = ([op(e[k] for e in ends) for k in range(4)] for op in (min, max))
            path = (lowest[0], lowest[1], highest[2], highest[3])
            others = [box for j, box in swept.items() if j != i]
            if _inside(path, scene) and not any(_touch(path, box) for box in others):
                motions[i], swept[i] = motion, path
                break
    return Film(scene, tuple(motions[i] for i in range(len(scene.shapes))))


def render_film(film: Film) -> list[np.ndarray]:
    """Its frames u8[height, width, 3], in order."""
    behind = background(film.scene)
    frames = []
    for frame in range(film.frames):
        canvas = behind.copy()
        draw_shapes(canvas, film.shapes_at(frame))
        frames.append(canvas)
    return frames


def _moved(shape: Shape, motion: Motion, frame: int) -> Shape:
    dx, dy = (frame * motion.step_px * axis for axis in DIRECTIONS.get(motion.direction, (0, 0)))
    x1, y1, x2, y2 = shape.box
    x, y = shape.content.center
    content = dataclasses.replace(shape.content, center=(x + dx, y + dy))
    return dataclasses.replace(shape, box=(x1 + dx, y1 + dy, x2 + dx, y2 + dy), content=content)


def _inside(box: tuple[int, ...], scene: Scene) -> bool:
    return box[0] >= 0 and box[1] >= 0 and box[2] <= scene.width and box[3] <= scene.height


def _touch(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    """Whether two boxes overlap or come closer than 4 px."""
    return a[0] < b[2] + 4 and b[0] < a[2] + 4 and a[1] < b[3] + 4 and b[1] < a[3] + 4
