"""What belongs together around a point of an image: the classical segmentation that needs no weights.

A region is what can be reached from a seed pixel through colours near to the seed's, with its holes filled. Several
tolerances are tried, and the region wins whose border lies on edges and which stays the same when the tolerance grows.
This is done twice: on the whole image at WORK_PX to find the object, then in a window around it at WINDOW_PX for its
outline. So the work is bounded, whatever the image, and the same pixels always give the same mask.
"""

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np

from pixelis_jax.tools.base import Box, ToolError
from pixelis_jax.tools.pixels import bounds, colors_of, cut, distances, enlarged, opencv, shrunk

Segmenter = Callable[[np.ndarray, tuple[int, int]], np.ndarray]  # u8[h, w, 3], (x, y) px -> bool[h, w] with the point

WORK_PX = 256  # long side of the copy on which the object is found
WINDOW_PX = 320  # long side of the copy on which its outline is drawn
LEVELS = (4.0, 6.0, 9.0, 13.0, 19.0, 27.0, 38.0)  # tolerances; distances are those of CIELAB with half its lightness
EDGE = 14.0  # difference of colour over 3 px that counts as a whole edge
LARGEST_SHARE = 0.9  # of the image that an object may cover
SMALL_SHARE = 0.0025  # of the image: what is smaller may be a sign written on an object
GOOD = 0.45  # score of a region that is an object
LEAST_SHARE = 0.15  # of a box that the object in it covers
CONTEXT = 0.15  # of a box's sides: the margin that is looked at around it
_RINGS = (0.03, 0.05)
_BOX_RINGS = (0.1, 0.2, 0.3)
_LOOKS = (1.0, 0.2)  # half sides of the windows in which an object is looked for, as shares of the image's
_DIRECTIONS = ((1, 0), (0, 1), (-1, 0), (0, -1), (0.7, 0.7), (-0.7, 0.7), (-0.7, -0.7), (0.7, -0.7))


@dataclasses.dataclass(frozen=True)
class Region:
    """A filled region of a working copy. `score` is 0..1; `color` is the colour it grew from, `level` how far."""

    mask: np.ndarray  # u8[h, w], 0 or 1
    score: float
    area_px: int
    sides: int  # borders of the picture that it touches
    level: float
    color: np.ndarray  # f32[3]


def segment(image: np.ndarray, point: tuple[int, int]) -> np.ndarray:
    """bool[height, width]: the object at an (x, y) pixel of u8[height, width, 3], with its holes and a thin outline.

    A region that is as small as a letter gives way to the one it stands on. Raises ToolError "no object at this
    point" where no region has a clear border, and where it is the background: it covers more than LARGEST_SHARE of
    the image, or touches all four borders.
    """
    height, width = image.shape[:2]
    x, y = point
    window, found = (0, 0, width, height), None
    for share in _LOOKS:
        dx, dy = round(width * share), round(height * share)
        closer = max(0, x - dx), max(0, y - dy), min(width, x + dx + 1), min(height, y + dy + 1)
        least = SMALL_SHARE * height * width / ((closer[2] - closer[0]) * (closer[3] - closer[1]))
        seen = _find(cut(image, closer), (x - closer[0], y - closer[1]), least)
        if seen is not None:
            window, found = closer, seen
            if seen.area_px >= least * seen.mask.size:
                break
    mask = None if found is None else _refine(image, found, window)
    if mask is None or not mask[y, x] or mask.mean() > LARGEST_SHARE or _sides(mask) == 4:
        raise ToolError("no object at this point")
    return mask


def segment_box(image: np.ndarray, box: Box) -> np.ndarray:
    """bool[height, width]: the object in a box of u8[height, width, 3], nothing of it outside the box.

    It is the region at the middle of the box, seen with a margin of CONTEXT, so that the edge of an object that fills
    the box is visible; what fills less than LEAST_SHARE is taken for writing on it. The whole box is the object where
    no such region has a clear border, or it goes on outside for more than half.
    """
    x1, y1, x2, y2 = box
    height, width = image.shape[:2]
    dx, dy = 2 + int((x2 - x1) * CONTEXT), 2 + int((y2 - y1) * CONTEXT)
    left, top = max(0, x1 - dx), max(0, y1 - dy)
    window = image[top : min(height, y2 + dy), left : min(width, x2 + dx)]
    whole = np.zeros((height, width), bool)
    whole[y1:y2, x1:x2] = True
    middle = (x1 + x2) // 2 - left, (y1 + y2) // 2 - top
    found = _find(window, middle, LEAST_SHARE * (x2 - x1) * (y2 - y1) / (window.shape[0] * window.shape[1]), _BOX_RINGS)
    if found is None:
        return whole
    mask = _refine(window, found, (0, 0, window.shape[1], window.shape[0]))
    inside = mask[y1 - top : y2 - top, x1 - left : x2 - left]
    if np.count_nonzero(inside) < LEAST_SHARE * inside.size or 2 * np.count_nonzero(inside) < np.count_nonzero(mask):
        return whole
    whole[y1:y2, x1:x2] = inside
    return whole


def _find(
    image: np.ndarray, point: tuple[int, int], least_share: float, rings: tuple[float, ...] = _RINGS
) -> Region | None:
    """The object's region on the working copy of an image; None where there is none.

    It covers at least this share of the image, unless nothing else stands there. Where the point's own region is
    smaller, regions around it are tried, from seeds on rings with these radii as shares of the short side.
    """
    copy = shrunk(image, WORK_PX)
    high, wide = copy.shape[:2]
    least = least_share * high * wide
    x, y = point[0] * wide // image.shape[1], point[1] * high // image.shape[0]
    lab = colors_of(copy)
    edges = _edges(lab)
    own = _grown(lab, edges, (x, y), (x, y))
    if own is not None and own.area_px >= least and own.score >= GOOD:
        return own
    tried = np.zeros((high, wide), np.uint8) if own is None else own.mask.copy()
    best: Region | None = None
    for share in rings:
        radius = max(2.0, share * min(high, wide))
        for dx, dy in _DIRECTIONS:
            seed = round(x + dx * radius), round(y + dy * radius)
            if not (0 <= seed[0] < wide and 0 <= seed[1] < high) or tried[seed[1], seed[0]]:
                continue
            other = _grown(lab, edges, seed, (x, y))
            if other is None:
                continue
            tried |= other.mask
            better = best is None or other.score > best.score
            if better and other.area_px >= least and other.score >= GOOD:
                best = other
        if best is not None:
            return best
    return own if own is not None and own.score >= GOOD else None


def _grown(lab: np.ndarray, edges: np.ndarray, seed: tuple[int, int], point: tuple[int, int]) -> Region | None:
    """The best region around a seed that has the point in it and is not the background."""
    x, y = seed
    color = np.median(lab[max(0, y - 1) : y + 2, max(0, x - 1) : x + 2].reshape(-1, 3), axis=0)
    if np.abs(color - lab[y, x]).sum() > LEVELS[0]:
        color = lab[y, x]
    regions = [r for r in _levels(lab, edges, seed, color) if r.mask[point[1], point[0]]]
    return max(regions, key=lambda region: region.score, default=None)


def _levels(lab: np.ndarray, edges: np.ndarray, seed: tuple[int, int], color: np.ndarray) -> Iterator[Region]:
    """Regions of growing tolerance, up to the one that is the background."""
    cv2 = opencv()
    distance = distances(lab, color)
    before: Region | None = None
    for level in LEVELS:
        near = (distance <= level).astype(np.uint8)
        cv2.floodFill(near, None, seed, 2)
        mask = _filled((near == 2).astype(np.uint8), seed)
        region = _scored(mask, edges, level, color)
        if before is not None:
            # A region that grows with the tolerance has no border of its own.
            yield dataclasses.replace(before, score=before.score * before.area_px / region.area_px)
        if region.sides == 4 or region.area_px > LARGEST_SHARE * mask.size:
            return
        before = region
    assert before is not None
    yield before


def _filled(mask: np.ndarray, seed: tuple[int, int]) -> np.ndarray:
    """u8 0/1: the connected region of u8 0/1 that holds the seed, without holes."""
    cv2 = opencv()
    contours, _ = cv2.findContours(mask, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE)
    filled = np.zeros_like(mask)
    cv2.drawContours(filled, contours, -1, 1, cv2.FILLED)
    return filled


def _scored(mask: np.ndarray, edges: np.ndarray, level: float, color: np.ndarray) -> Region:
    """How much of the region's border lies on edges. Where it leaves the picture is half as good as an edge."""
    cv2 = opencv()
    border = cv2.morphologyEx(np.pad(mask, 1), cv2.MORPH_GRADIENT, np.ones((3, 3), np.uint8))[1:-1, 1:-1] & mask
    count = cv2.countNonZero(border)
    strength = float(edges[border > 0].sum()) / max(count, 1)
    cut = sum(int(np.count_nonzero(side)) for side in (mask[0], mask[-1], mask[:, 0], mask[:, -1]))
    score = strength * (1 - 0.5 * min(1.0, cut / max(count, 1)))
    return Region(mask, score, cv2.countNonZero(mask), _sides(mask), level, color)


def _refine(image: np.ndarray, found: Region, window: Box) -> np.ndarray:
    """bool[height, width]: a region of a window of the image, drawn anew from its own surroundings at full size."""
    x1, y1, x2, y2 = window
    width, height = x2 - x1, y2 - y1
    high, wide = found.mask.shape
    left, top, right, bottom = bounds(found.mask > 0)
    dx, dy = 2 + (right - left) // 8, 2 + (bottom - top) // 8
    left, top = max(0, left - dx) * width // wide, max(0, top - dy) * height // high
    right, bottom = -(-min(wide, right + dx) * width // wide), -(-min(high, bottom + dy) * height // high)
    rough = enlarged(found.mask, (height, width))[top:bottom, left:right]
    part = x1 + left, y1 + top, x1 + right, y1 + bottom
    full = np.zeros(image.shape[:2], bool)
    cut(full, part)[...] = enlarged(draw_in(cut(image, part), rough, found).mask, rough.shape)
    return full


def draw_in(window: np.ndarray, rough: np.ndarray, found: Region) -> Region:
    """The region of a window u8[h, w, 3] that fits a rough mask bool[h, w], on a copy of at most WINDOW_PX."""
    cv2 = opencv()
    copy = shrunk(window, WINDOW_PX)
    guess = cv2.resize(rough.astype(np.uint8), copy.shape[1::-1], interpolation=cv2.INTER_NEAREST)
    lab = colors_of(copy)
    edges = _edges(lab)
    near = lab[(guess > 0) & (distances(lab, found.color) <= found.level)]
    color = np.median(near, axis=0) if len(near) else found.color
    distance = distances(lab, color)
    best: Region | None = None
    for level in (max(LEVELS[0], found.level * 0.7), found.level, found.level * 1.4):
        mask = _fitting((distance <= level).astype(np.uint8), guess)
        if mask is not None:
            region = _scored(mask, edges, level, color)
            if best is None or region.score > best.score:
                best = region
    if best is None:
        best = dataclasses.replace(found, mask=guess)
    return dataclasses.replace(best, mask=_with_line(best.mask, lab))


def _fitting(near: np.ndarray, guess: np.ndarray) -> np.ndarray | None:
    """The filled component of u8 0/1 that covers most of the guess; None where that is less than half of it."""
    cv2 = opencv()
    contours, _ = cv2.findContours(near, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE)
    best, most = None, cv2.countNonZero(guess) // 2
    for contour in sorted(contours, key=len, reverse=True)[:8]:
        filled = cv2.drawContours(np.zeros_like(near), [contour], -1, 1, cv2.FILLED)
        covered = cv2.countNonZero(filled & guess)
        if covered > most:
            best, most = filled, covered
    return best


def _with_line(mask: np.ndarray, lab: np.ndarray) -> np.ndarray:
    """The mask and the line around it, where one of even colour and width runs all the way round.

    Pixels are taken in rings by their distance from the mask. A line's rings have one colour, and the next ring has
    another: a plain background, which has no end, is none.
    """
    cv2 = opencv()
    away = cv2.distanceTransform(1 - mask, cv2.DIST_L2, 3)
    widest = max(3, round(0.12 * float(cv2.countNonZero(mask)) ** 0.5))
    rings = [(away > k) & (away <= k + 1) for k in range(widest + 2)]
    for start in (1, 2, 0):
        ring = lab[rings[start]]
        if not len(ring):
            return mask
        color = np.median(ring, axis=0)
        spread = float(np.median(np.abs(ring - color).sum(1)))
        tolerance = min(max(3 * spread, 4.0), 14.0)
        shares = [float((distances(lab[r], color) <= tolerance).mean()) if r.any() else 1.0 for r in rings]
        last = start
        while last + 1 < len(shares) and shares[last + 1] >= 0.7:
            last += 1
        if shares[start] >= 0.7 and last < widest:
            return mask | (away <= last + 1).astype(np.uint8)
    return mask


def _edges(lab: np.ndarray) -> np.ndarray:
    """f32[h, w], 0..1: how far a pixel's 3x3 neighbourhood spans colours; 1 is a whole edge."""
    cv2 = opencv()
    span = cv2.morphologyEx(lab, cv2.MORPH_GRADIENT, np.ones((3, 3), np.uint8))
    return np.minimum(np.sqrt(np.einsum("hwc,hwc->hw", span, span)) / EDGE, 1)


def _sides(mask: np.ndarray) -> int:
    return sum(bool(side.any()) for side in (mask[0], mask[-1], mask[:, 0], mask[:, -1]))
