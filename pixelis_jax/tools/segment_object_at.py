"""SEGMENT_OBJECT_AT: the object at a point, under a number that other calls can name, outlined in a new image."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from pixelis_jax.tools import cache, objects, segmentation
from pixelis_jax.tools.base import POINT, TARGET_IMAGE, Box, Session, Tool
from pixelis_jax.tools.objects import Object
from pixelis_jax.tools.pixels import area_seen, bounds, cut, opencv
from pixelis_jax.tools.segmentation import Segmenter
from pixelis_jax.types import Observation

_LINE, _RIM = (255, 0, 255), (0, 0, 0)  # within the object and around it: one of both is seen on any colour
_LINE_SHARE = 1 / 320  # of the long side: width of each of the two lines


def make(segment: Segmenter = segmentation.segment, *, name: str = "classical") -> Tool:
    """The tool with another segmenter behind it; `name` keeps its results apart from those of others."""

    def run(session: Session, arguments: Mapping[str, Any]) -> Observation:
        target = arguments.get("target_image", 1)
        x, y = session.point(arguments["point"], target)
        frame = session.frame(target)
        height, width = frame.image.shape[:2]

        def found() -> tuple[np.ndarray, Box]:
            mask = segment(frame.image, (x, y))
            return mask, bounds(mask)

        mask, box = cache.cached(("segment", name, frame.digest, x, y), found)
        seen = session.fit(height, width)
        data = {
            "object_id": objects.remember(session, Object(target, mask, box)),
            "bbox_2d": session.shown_box(box, target),
            "area_px": area_seen(np.count_nonzero(cut(mask, box)) / mask.size, frame.seen),
            "image": len(session.frames) + 1,
        }
        return Observation(
            text=json.dumps(data, separators=(",", ":")),
            image=outlined(frame.image, mask, box, scale=max(height / seen[0], width / seen[1])),
            region=((x + 0.5) / width, (y + 0.5) / height, 0.0, 0.0),
            target_image=target,
            data=data,
        )

    return Tool(
        name="SEGMENT_OBJECT_AT",
        description="Finds the object at a point, gives it an object_id, and shows it outlined.",
        parameters={"point": POINT, "target_image": TARGET_IMAGE},
        required=("point",),
        run=run,
        packages=("cv2",),
    )


def outlined(image: np.ndarray, mask: np.ndarray, box: Box, *, scale: float) -> np.ndarray:
    """A copy of u8[h, w, 3] with the border of a mask drawn in two colours, one on either side of it.

    Each line is as wide as a pixel seen, `scale` px, or a fixed share of the long side if that is more, but the inner
    one takes at most an eighth of the object's box.
    """
    cv2 = opencv()
    height, width = mask.shape
    x1, y1, x2, y2 = box
    line = max(1, round(scale), round(max(height, width) * _LINE_SHARE))
    inner = max(1, min(line, min(x2 - x1, y2 - y1) // 8))
    left, top, right, bottom = max(0, x1 - line), max(0, y1 - line), min(width, x2 + line), min(height, y2 + line)
    around = left, top, right, bottom
    # Beyond the image there is no object: a border that lies on the image's own is drawn as well.
    part = np.pad(cut(mask, around).astype(np.uint8), 1)
    inside = cv2.distanceTransform(part, cv2.DIST_L2, 5)[1:-1, 1:-1]
    outside = cv2.distanceTransform(1 - part, cv2.DIST_L2, 5)[1:-1, 1:-1]
    drawn = image.copy()
    target = cut(drawn, around)
    target[(inside > 0) & (inside <= inner)] = _LINE
    target[(outside > 0) & (outside <= line)] = _RIM
    return drawn


TOOL = make()
