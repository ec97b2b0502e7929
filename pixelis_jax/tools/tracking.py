"""Where an object is in other frames of a video: the classical tracker, which needs no weights.

In each frame the place is looked for at which the object's pixels of the first frame differ least in colour: all places
on a small copy, weighed by how far the object would have jumped. There its size, turn and place are tried anew on a
finer copy. The first frame's pixels are what all others are compared with, so errors don't add up; the work for a frame
is fixed. How well an object must fit is learnt from the first frame: better than any place where it is not.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np

from pixelis_jax.tools.base import Box
from pixelis_jax.tools.pixels import bounds, colors_of, cut, distances, opencv, shrunk

SEARCH_PX = 160  # long side of the copies that are searched, half more for an object below SMALL_PX there
SMALL_PX = 10
FINE_PX = 48  # long side of the object where its size and turn are tried
RIM_PX = 2  # room around the object on that copy
OUTLINE_PX = 256  # long side of the object's mask from which boxes are taken
VISIBLE = 0.5  # share of an object that must be inside the picture
LIMITS = (6.0, 20.0)  # the least and the most colour difference (`pixels.colors_of`) up to which a place is the object
_MARGIN = 0.6  # of the difference at the best other place, of half that at the usual one
_JUMP = 8.0  # colour difference that a jump over the whole diagonal counts for
_GAIN = 0.3  # colour difference by which another size or turn must fit better
_SIZES = (0.94, 0.97, 1.03, 1.06)
_TIE = 0.01  # colour difference that a step of a pixel counts for
_SAMPLE = 256  # pixels of an object, and of its rim, that are compared on the finer copy
_SMALLEST = 0.25  # size, and the inverse of the largest
_TURNS_DEG = (-8.0, -4.0, 4.0, 8.0)


@dataclasses.dataclass(frozen=True)
class Found:
    """The object in one frame: its box in px, None where it is lost, and how well it fits, 0..1, lost below 0.5."""

    box: Box | None
    confidence: float


# Frames u8[h, w, 3] of one size and the object's mask bool[h, w] in the first of them -> one Found a frame.
Tracker = Callable[[Sequence[np.ndarray], np.ndarray], list[Found]]


_Pose = tuple[float, float]  # size relative to the first frame, turn in degrees, counter-clockwise as seen
_SAME: _Pose = (1.0, 0.0)


@dataclasses.dataclass(frozen=True)
class _Look:
    """How an object looks: colours f32[h, w, 3], and where they are its own, f32[h, w] of 0 and 1."""

    colors: np.ndarray
    own: np.ndarray

    def turned(self, pose: _Pose) -> "_Look":
        """The same object in another pose."""
        own = (_turned(self.own, pose) >= 0.5).astype(np.float32)
        return _Look(_turned(self.colors, pose), own) if own.any() else self


def track(frames: Sequence[np.ndarray], mask: np.ndarray) -> list[Found]:
    """One Found a frame u8[h, w, 3]; `mask` bool[h, w] is the object in the first, which counts as found."""
    height, width = mask.shape
    box = bounds(mask)
    size = max(box[2] - box[0], box[3] - box[1])
    search_px = SEARCH_PX if size * SEARCH_PX >= SMALL_PX * max(mask.shape) else SEARCH_PX * 3 // 2
    copies = [colors_of(opencv().blur(shrunk(frame, search_px), (3, 3))) for frame in frames]
    scale = copies[0].shape[1] / width, copies[0].shape[0] / height
    search = _Search(copies[0], _small_look(copies[0], mask, scale), box, scale)
    fine = _Fine(frames[0], mask, box)
    center = before = ((box[0] + box[2]) / 2, (box[1] + box[3]) / 2)
    pose = _SAME
    found = [Found(box, 1.0)]
    for frame, copy in zip(frames[1:], copies[1:], strict=True):
        ahead = 2 * center[0] - before[0], 2 * center[1] - before[1]
        place, difference, whole = search.best(copy, pose, near=(center, ahead))
        if place is None:
            found.append(Found(None, _confidence(difference, search.limit)))
            before = center
            continue
        if whole:
            place, pose = fine.best(frame, place, pose, reach_px=1.5 / min(scale))
        before, center = center, place
        found.append(Found(fine.box_at(place, pose, (height, width)), _confidence(difference, search.limit)))
    return found


def _turned(image: np.ndarray, pose: _Pose) -> np.ndarray:
    """f32[h, w] or f32[h, w, 3] scaled and turned around its middle, on a canvas that holds all of it."""
    scale, angle = pose
    if pose == _SAME:
        return image
    cv2 = opencv()
    height, width = image.shape[:2]
    c, s = abs(math.cos(math.radians(angle))) * scale, abs(math.sin(math.radians(angle))) * scale
    size = max(1, math.ceil(width * c + height * s)), max(1, math.ceil(width * s + height * c))
    matrix = cv2.getRotationMatrix2D(((width - 1) / 2, (height - 1) / 2), angle, scale)
    matrix[:, 2] += (size[0] - width) / 2, (size[1] - height) / 2
    border = cv2.BORDER_CONSTANT if image.ndim == 2 else cv2.BORDER_REPLICATE  # nothing around a mask is the object
    turned: np.ndarray = cv2.warpAffine(image, matrix, size, borderMode=border)
    return turned


def _core(own: np.ndarray) -> np.ndarray:
    """An object's pixels without their outermost, which are mixed with what lies behind; all of a thin object's."""
    core: np.ndarray = opencv().erode(own, np.ones((3, 3), np.uint8), borderValue=0)
    return core if core.sum() * 4 > own.sum() else own


def _fitted(
    window: np.ndarray, look: _Look, middle: tuple[float, float], *, reach: int, contrast: float
) -> tuple[tuple[float, float], float]:
    """The middle (x, y) of a look's best place in a window f32[h, w, 3], within `reach` px of another, and its misfit.

    The misfit is the mean difference within the object less 0.4 times that in a rim around it, where the object's
    colours must not go on: without the rim a plain object would fit anywhere within itself, the smaller the better.
    A pixel counts for at most LIMITS[1], the rim for at most `contrast`, which it had at first.
    """
    high, wide = look.own.shape
    left, top = round(middle[0] - wide / 2), round(middle[1] - high / 2)
    inside = _misfits(window, look, look.own, (left, top), reach)
    misfit = inside - 0.4 * np.minimum(_misfits(window, look, _rim(look.own), (left, top), reach), contrast)
    steps = np.arange(-reach, reach + 1)
    nearest = misfit + _TIE * np.hypot(steps[None], steps[:, None])  # of equal places
    row, column = np.unravel_index(int(nearest.argmin()), nearest.shape)
    at = left + int(column) - reach + wide / 2, top + int(row) - reach + high / 2
    return at, float(misfit[row, column])


def _misfits(window: np.ndarray, look: _Look, part: np.ndarray, corner: tuple[int, int], reach: int) -> np.ndarray:
    """f32[n, n]: mean difference over a part of a look whose (left, top) is up to `reach` px from a corner."""
    rows, columns = np.nonzero(part)
    stride = max(1, -(-len(rows) // _SAMPLE))
    rows, columns = rows[::stride], columns[::stride]
    steps = np.arange(-reach, reach + 1)
    y = np.clip(corner[1] + steps[:, None, None] + rows, 0, window.shape[0] - 1)
    x = np.clip(corner[0] + steps[None, :, None] + columns, 0, window.shape[1] - 1)
    return np.minimum(distances(window[y, x], look.colors[rows, columns]), LIMITS[1]).mean(-1)


def _rim(own: np.ndarray) -> np.ndarray:
    """The pixels around an object, of which its canvas has room for one at least."""
    rim: np.ndarray = opencv().dilate(own, np.ones((3, 3), np.uint8)) - own
    return rim


def _spread(colors: np.ndarray, own: np.ndarray) -> np.ndarray:
    """Colours f32[h, w, 3] in which each pixel that is not the object's own has those of the nearest that is."""
    from scipy import ndimage

    rows, columns = ndimage.distance_transform_edt(own == 0, return_distances=False, return_indices=True)
    return np.ascontiguousarray(colors[rows, columns])


def _confidence(difference: float, limit: float) -> float:
    """1 for equal pixels, 0.5 at the limit."""
    return max(0.0, 1 - difference / (2 * limit))


def _small_look(copy: np.ndarray, mask: np.ndarray, scale: tuple[float, float]) -> _Look:
    cv2 = opencv()
    share = cv2.resize(mask.astype(np.float32), copy.shape[1::-1], interpolation=cv2.INTER_AREA)
    own = (share >= min(0.5, float(share.max()))).astype(np.float32)
    own = _core(own)
    part = bounds(own)
    return _Look(cut(copy, part), cut(own, part))


class _Search:
    """All places of an object on a copy of a frame, by Fourier transforms. Places are (x, y) in px of the full frame.

    The squared difference over the object's pixels inside the picture is a sum of correlations:
    sum own (look - frame)^2 = own look^2 * inside - 2 own look * frame + own * frame^2.
    """

    def __init__(self, copy: np.ndarray, look: _Look, box: Box, scale: tuple[float, float]):
        from scipy import fft

        self.look, self.scale = look, scale
        self.base = np.asarray((look.colors * look.own[..., None]).sum((0, 1)) / look.own.sum(), np.float32)
        # Room for an object that has grown and stands on the border.
        self.room = max(look.own.shape)
        self.shape = tuple(fft.next_fast_len(side + 2 * self.room, real=True) for side in copy.shape[:2])
        self.inside = fft.rfft2(self._placed(np.ones((1, *copy.shape[:2]), np.float32)))
        self.diagonal = math.hypot(copy.shape[0], copy.shape[1])
        self.limit = LIMITS[1]
        differences, _ = self._differences(copy, look)
        xs, ys = self._places(look, differences.shape)
        center = (box[0] + box[2]) / 2 * scale[0], (box[1] + box[3]) / 2 * scale[1]
        away = (np.abs(xs - center[0])[None] > look.own.shape[1] / 2) | (
            np.abs(ys - center[1])[:, None] > look.own.shape[0] / 2
        )
        others = differences[away & np.isfinite(differences)]
        if others.size:
            least, usual = float(others.min()), float(np.median(others))
            self.limit = float(np.clip(_MARGIN * min(least, usual / 2), *LIMITS))

    def best(
        self, copy: np.ndarray, pose: _Pose, near: Sequence[tuple[float, float]]
    ) -> tuple[tuple[float, float] | None, float, bool]:
        """The place that fits best, its difference, and whether all of the object is inside the picture there.

        Jumps are measured from the nearest of the places `near`. The place is None where none is within the limit;
        the difference is the least one then.
        """
        look = self.look.turned(pose)
        differences, shares = self._differences(copy, look)
        least = float(differences.min())
        if not least <= self.limit:
            return None, min(least, 2 * self.limit), False
        xs, ys = self._places(look, differences.shape)
        jumps = [np.hypot((xs - x * self.scale[0])[None], (ys - y * self.scale[1])[:, None]) for x, y in near]
        weighed = np.where(
            differences <= self.limit, differences + _JUMP / self.diagonal * np.min(jumps, axis=0), np.inf
        )
        row, column = np.unravel_index(int(weighed.argmin()), weighed.shape)
        place = float(xs[column]) / self.scale[0], float(ys[row]) / self.scale[1]
        return place, float(differences[row, column]), bool(shares[row, column] > 0.99)

    def _differences(self, copy: np.ndarray, look: _Look) -> tuple[np.ndarray, np.ndarray]:
        """Root mean square difference and visible share at each place; the first is inf below VISIBLE."""
        from scipy import fft

        seen = np.moveaxis(copy - self.base, -1, 0)
        frame = fft.rfft2(self._placed(np.concatenate([seen, (seen**2).sum(0, keepdims=True)])))
        wanted = np.moveaxis((look.colors - self.base) * look.own[..., None], -1, 0)
        planes = np.concatenate([wanted, look.own[None], (wanted**2).sum(0, keepdims=True)])
        planes = np.conj(fft.rfft2(planes, s=self.shape))
        total = planes[4] * self.inside[0] + planes[3] * frame[3] - 2 * (planes[:3] * frame[:3]).sum(0)
        sums = fft.irfft2(np.stack([total, planes[3] * self.inside[0]]), s=self.shape)
        # Places whose middle is inside the picture.
        high, wide = look.own.shape
        top, left = self.room - high // 2, self.room - wide // 2
        squares, counts = sums[:, max(0, top) : top + copy.shape[0], max(0, left) : left + copy.shape[1]]
        shares = counts / look.own.sum()
        means = np.maximum(squares, 0) / np.maximum(counts, 0.5)
        return np.where(shares >= VISIBLE - 1e-3, np.sqrt(means), np.inf), shares

    def _places(self, look: _Look, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        """x and y of the object's middle at each column and row of the differences, in px of the copy."""
        high, wide = look.own.shape
        return np.arange(shape[1]) - wide // 2 + wide / 2, np.arange(shape[0]) - high // 2 + high / 2

    def _placed(self, planes: np.ndarray) -> np.ndarray:
        """f32[n, *shape]: the planes with empty room around them."""
        canvas = np.zeros((len(planes), *self.shape), np.float32)
        canvas[:, self.room : self.room + planes.shape[1], self.room : self.room + planes.shape[2]] = planes
        return canvas


class _Fine:
    """Size, turn and exact place of an object, on copies in which its long side is at most FINE_PX."""

    def __init__(self, frame: np.ndarray, mask: np.ndarray, box: Box):
        cv2 = opencv()
        x1, y1, x2, y2 = box
        self.scale = min(1.0, FINE_PX / max(x2 - x1, y2 - y1))
        size = max(1, round((x2 - x1) * self.scale)), max(1, round((y2 - y1) * self.scale))
        share = cut(mask, box).astype(np.float32)
        own = cv2.resize(share, size, interpolation=cv2.INTER_AREA)
        colors = cv2.resize(np.ascontiguousarray(cut(frame, box)), size, interpolation=cv2.INTER_AREA)
        own = np.pad((own >= min(0.5, float(own.max()))).astype(np.float32), RIM_PX)
        colors = np.pad(colors_of(colors), ((RIM_PX, RIM_PX), (RIM_PX, RIM_PX), (0, 0)), mode="edge")
        self.look = _Look(np.where(own[..., None] > 0, colors, _spread(colors, _core(own))), own)
        window, _, _ = self._window(frame, ((x1 + x2) / 2, (y1 + y2) / 2), _SAME, 1.0)
        high, wide = own.shape
        corner = round((window.shape[1] - wide) / 2), round((window.shape[0] - high) / 2)
        self.contrast = float(_misfits(window, self.look, _rim(own), corner, 0)[0, 0])
        self.outline = shrunk(share, OUTLINE_PX)
        self.unit = (x2 - x1) / self.outline.shape[1], (y2 - y1) / self.outline.shape[0]  # px a px of the outline

    def best(
        self, frame: np.ndarray, place: tuple[float, float], pose: _Pose, *, reach_px: float
    ) -> tuple[tuple[float, float], _Pose]:
        """The place (x, y) and the pose in which the object fits best, near a place and a pose."""
        window, corner, scale = self._window(frame, place, pose, reach_px)
        middle = window.shape[1] / 2, window.shape[0] / 2
        middle, least = _fitted(
            window, self.look.turned(pose), middle, reach=math.ceil(reach_px * self.scale), contrast=self.contrast
        )
        first = pose
        for sizes, turns in ((_SIZES, (0.0,)), ((1.0,), _TURNS_DEG)):
            for candidate in [(first[0] * size, first[1] + turn) for size in sizes for turn in turns]:
                if _SMALLEST <= candidate[0] <= 1 / _SMALLEST:
                    at, misfit = _fitted(window, self.look.turned(candidate), middle, reach=2, contrast=self.contrast)
                    if misfit < least - _GAIN:
                        least, pose, middle = misfit, candidate, at
            first = pose
        return (corner[0] + middle[0] / scale[0], corner[1] + middle[1] / scale[1]), pose

    def _window(
        self, frame: np.ndarray, place: tuple[float, float], pose: _Pose, reach_px: float
    ) -> tuple[np.ndarray, tuple[int, int], tuple[float, float]]:
        """Colours around a place on a copy at this scale, the corner in px of the frame, the scale along x and y."""
        cv2 = opencv()
        height, width = frame.shape[:2]
        high, wide = self.look.turned(pose).own.shape
        half = (math.ceil(side / self.scale * 0.6 + reach_px + 1) for side in (wide, high))
        (x1, x2), (y1, y2) = ((round(c) - h, round(c) + h) for c, h in zip(place, half, strict=True))
        part = frame[max(0, y1) : max(1, y2), max(0, x1) : max(1, x2)]
        sides = max(0, -y1), max(0, y2 - height), max(0, -x1), max(0, x2 - width)
        part = cv2.copyMakeBorder(part, *sides, cv2.BORDER_REPLICATE) if any(sides) else np.ascontiguousarray(part)
        size = max(1, round((x2 - x1) * self.scale)), max(1, round((y2 - y1) * self.scale))
        copy = cv2.resize(part, size, interpolation=cv2.INTER_AREA) if self.scale < 1 else part
        return colors_of(copy), (x1, y1), (copy.shape[1] / part.shape[1], copy.shape[0] / part.shape[0])

    def box_at(self, place: tuple[float, float], pose: _Pose, shape: tuple[int, int]) -> Box:
        """The object's box in px with its middle at a place, cut at the borders of a picture of this (height, width).

        It has a pixel at least.
        """
        share = _turned(self.outline, pose)
        part = bounds(share >= min(0.5, float(share.max())))
        sides = []
        for axis in (0, 1):
            corner = place[axis] - share.shape[1 - axis] / 2 * self.unit[axis]
            limit = shape[1 - axis]
            low, high = (round(corner + part[axis + k] * self.unit[axis]) for k in (0, 2))
            low = min(max(low, 0), limit - 1)
            sides.append((low, min(max(high, low + 1), limit)))
        return sides[0][0], sides[1][0], sides[0][1], sides[1][1]
