"""ZOOM_IN: a part of an image, cut from its full resolution and shown at the processor's size for a new image."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from pixelis_jax.tools.base import BBOX, TARGET_IMAGE, Session, Tool
from pixelis_jax.types import Observation


def run(session: Session, arguments: Mapping[str, Any]) -> Observation:
    """The crop as a new image; the text names its number, the size at which it will be seen and its scale.

    The scale is the number of seen pixels a pixel of the target image as seen, averaged over both axes.
    """
    target = arguments.get("target_image", 1)
    place = session.box(arguments["bbox_2d"], target)
    x1, y1, x2, y2 = place.box
    frame = session.frame(target)
    crop = np.ascontiguousarray(frame.image[y1:y2, x1:x2])
    high, wide = session.fit(y2 - y1, x2 - x1)
    height, width = frame.image.shape[:2]
    before = (x2 - x1) * frame.seen[1] / width * ((y2 - y1) * frame.seen[0] / height)
    scale = (wide * high / before) ** 0.5
    text = f"Image {len(session.frames) + 1}, {wide}x{high}, {scale:.1f}x"
    return Observation(
        text=text + (" (box clamped to the image)" if place.clamped else ""),
        image=crop,
        region=session.region(place.box, target),
        target_image=target,
        out_of_image=place.clamped,
    )


TOOL = Tool(
    name="ZOOM_IN",
    description="Shows a box of an image at higher resolution.",
    parameters={"bbox_2d": BBOX, "target_image": TARGET_IMAGE},
    required=("bbox_2d",),
    run=run,
)
