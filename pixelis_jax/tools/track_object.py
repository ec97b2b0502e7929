"""TRACK_OBJECT: where an object is in the frames of a video, and how it moves."""

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pixelis_jax.tools import cache, tracking
from pixelis_jax.tools.base import BBOX, Schema, Session, Tool, ToolError, shown
from pixelis_jax.tools.get_properties import named
from pixelis_jax.tools.objects import OBJECT_ID, Object
from pixelis_jax.tools.pixels import bounds, cut
from pixelis_jax.tools.tracking import Found, Tracker
from pixelis_jax.types import Observation

FRAMES: Schema = {"type": "array", "items": {"type": "integer"}, "minItems": 2}
MAX_FRAMES = 64  # that one call follows
STILL_SHARE = 0.01  # of the diagonal: an object that never gets farther from its first place is stationary
DIRECTIONS: tuple[str, ...] = ("right", "down-right", "down", "down-left", "left", "up-left", "up", "up-right")


def make(track: Tracker = tracking.track, *, name: str = "classical") -> Tool:
    """The tool with another tracker behind it; `name` keeps its results apart from those of others."""

    def run(session: Session, arguments: Mapping[str, Any]) -> Observation:
        if not session.video_frames:
            raise ToolError("TRACK_OBJECT needs a video; this is a still image")
        item, numbers, clamped = _wanted(session, arguments)
        found = _followed(session, item, numbers, (name, track))
        data = measured(session, numbers, found)
        return Observation(
            text=json.dumps(data, separators=(",", ":")),
            region=session.region(item.box, item.image),
            target_image=item.image,
            out_of_image=clamped,
            by_object="object_id" in arguments,
            data=data,
        )

    return Tool(
        name="TRACK_OBJECT",
        description="Follows an object through the frames of a video. Name it by object_id or by a box in the first.",
        parameters={"object_id": OBJECT_ID, "bbox_2d": BBOX, "frames": FRAMES},
        required=(),
        run=run,
        packages=("cv2",),
    )


def measured(session: Session, numbers: Sequence[int], found: Sequence[Found]) -> dict[str, Any]:
    """What the tool tells. Boxes are as seen, null in the frames that `lost` names; lengths are in px as seen.

    Path, displacement and direction are those of the middles of the boxes, from each frame in which the object was
    found to the next. `is_stationary` where no middle is farther than STILL_SHARE of the diagonal from the first.
    """
    seen, image = session.frame(numbers[0]).seen, session.frame(numbers[0]).image
    scale = seen[1] / image.shape[1], seen[0] / image.shape[0]
    places = [((b[0] + b[2]) / 2 * scale[0], (b[1] + b[3]) / 2 * scale[1]) for b in (f.box for f in found) if b]
    path = sum(math.dist(a, b) for a, b in itertools.pairwise(places))
    still = all(math.dist(places[0], place) <= STILL_SHARE * math.hypot(*seen) for place in places)
    dx, dy = (places[-1][i] - places[0][i] for i in (0, 1)) if places else (0.0, 0.0)
    moved = math.hypot(dx, dy)
    return {
        "frames": list(numbers),
        "boxes": [session.shown_box(f.box, n) if f.box else None for n, f in zip(numbers, found, strict=True)],
        "confidence": [round(f.confidence, 2) for f in found],
        "lost": [n for n, f in zip(numbers, found, strict=True) if f.box is None],
        "path_px": round(path, 1),
        "displacement_px": round(moved, 1),
        "direction": "none" if still or moved == 0 else DIRECTIONS[round(math.degrees(math.atan2(dy, dx)) / 45) % 8],
        "is_stationary": still,
    }


def _wanted(session: Session, arguments: Mapping[str, Any]) -> tuple[Object, list[int], bool]:
    """The object, the numbers of the frames in which it is looked for, and whether its box was clamped."""
    last = session.video_frames
    numbers = _frame_numbers(arguments["frames"], last) if "frames" in arguments else []
    by_box = {"target_image": numbers[0] if numbers else 1} if "bbox_2d" in arguments else {}
    named_by = {name: arguments[name] for name in ("object_id", "bbox_2d") if name in arguments}
    item, clamped = named(session, {**named_by, **(by_box if len(named_by) == 1 else {})})
    if item.image > last:
        raise ToolError(f"that object is in image {item.image}; frames of the video are 1 to {last}")
    if not numbers:
        numbers = list(range(item.image, min(last, item.image + MAX_FRAMES - 1) + 1))
    if len(numbers) < 2:
        raise ToolError("there is no frame after that object's; name at least 2 frames")
    return item, numbers, clamped


def _frame_numbers(values: Any, last: int) -> list[int]:
    if not 2 <= len(values) <= MAX_FRAMES:
        raise ToolError(f"frames must be 2 to {MAX_FRAMES} numbers")
    for value in values:
        if type(value) is not int:
            raise ToolError("frames must be whole numbers")
        if not 1 <= value <= last:
            raise ToolError(f"there is no frame {shown(value)}; frames are 1 to {last}")
    if any(a >= b for a, b in itertools.pairwise(values)):
        raise ToolError("frames must be in ascending order, each once")
    return list(values)


def _followed(session: Session, item: Object, numbers: Sequence[int], by: tuple[str, Tracker]) -> list[Found]:
    """One Found for each frame, those before the object's own followed backwards from it."""
    name, track = by
    images = {n: session.frame(n).image for n in {*numbers, item.image}}
    if any(image.shape != (*item.mask.shape, 3) for image in images.values()):
        raise ToolError("the frames are not of one size, so nothing can be followed through them")
    key = bounds(item.mask), np.packbits(cut(item.mask, item.box)).tobytes()
    found: dict[int, Found] = {}
    later = [n for n in numbers if n > item.image]
    earlier = [n for n in reversed(numbers) if n < item.image]
    for way in filter(None, (later, earlier)):
        order = [item.image, *way]
        digests = tuple(session.frame(n).digest for n in order)

        def compute(order: Sequence[int] = order) -> tuple[Found, ...]:
            return tuple(track([images[n] for n in order], item.mask))

        found |= dict(zip(order, cache.cached(("track", name, digests, *key), compute), strict=True))
    return [found[n] for n in numbers]


TOOL = make()
