"""GET_PROPERTIES: colour, size, place and form of an object, measured on its pixels."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from pixelis_jax.tools import cache, colors, objects, shapes
from pixelis_jax.tools.base import BBOX, TARGET_IMAGE, Session, Tool, ToolError
from pixelis_jax.tools.objects import OBJECT_ID, Object
from pixelis_jax.tools.pixels import area_seen, cut, opencv
from pixelis_jax.tools.segmentation import segment_box
from pixelis_jax.tools.shapes import Form
from pixelis_jax.types import Observation

# Size classes by the share of the image, upper borders excluded; what is larger is "very_large".
SIZES: tuple[tuple[float, str], ...] = ((0.01, "tiny"), (0.05, "small"), (0.2, "medium"), (0.5, "large"))
_OUTLINE = 0.06  # of the square root of the area: how much of an object's rim its colour leaves out


def run(session: Session, arguments: Mapping[str, Any]) -> Observation:
    """The properties of an object that was found before, or of the one in a box (`segmentation.segment_box`)."""
    item, clamped = named(session, arguments)
    frame = session.frame(item.image)
    key = ("properties", frame.digest, item.box, np.packbits(cut(item.mask, item.box)).tobytes())
    form, rgb = cache.cached(key, lambda: measured(frame.image, item))
    share = form.area_px / item.mask.size
    data = {
        "color": colors.name_of(rgb),
        "rgb": list(rgb),
        "area_px": area_seen(share, frame.seen),
        "relative_area": float(f"{share:.3g}"),
        "size": size_class(share),
        "centroid": session.shown_point(form.centroid, item.image),
        "orientation_deg": round(form.orientation_deg),
        "circularity": round(form.circularity, 2),
        "aspect": float(f"{form.aspect:.3g}"),
        "shape": form.shape,
    }
    return Observation(
        text=json.dumps(data, separators=(",", ":")),
        region=session.region(item.box, item.image),
        target_image=item.image,
        out_of_image=clamped,
        by_object="object_id" in arguments,
        data=data,
    )


def named(session: Session, arguments: Mapping[str, Any]) -> tuple[Object, bool]:
    """The object that a call names by `object_id` or by `bbox_2d` [, `target_image`], and whether the box was clamped.

    Of a box, `Object.box` is the box of the call and not that of the mask. Raises ToolError.
    """
    if ("object_id" in arguments) == ("bbox_2d" in arguments):
        raise ToolError("give either object_id or bbox_2d")
    if "object_id" in arguments:
        item = objects.recall(session, arguments["object_id"])
        if arguments.get("target_image", item.image) != item.image:
            raise ToolError(f"that object is in image {item.image}; leave target_image out")
        return item, False
    target = arguments.get("target_image", 1)
    place = session.box(arguments["bbox_2d"], target)
    frame = session.frame(target)
    mask = cache.cached(("segment_box", frame.digest, place.box), lambda: segment_box(frame.image, place.box))
    return Object(target, mask, place.box), place.clamped


def measured(image: np.ndarray, item: Object) -> tuple[Form, tuple[int, int, int]]:
    """Form of an object and its commonest colour, for which its rim and what is written on it don't count."""
    cv2 = opencv()
    mask = cut(item.mask, item.box)
    form = shapes.form_of(mask)
    x, y = form.centroid
    depth = cv2.distanceTransform(np.pad(mask.astype(np.uint8), 1), cv2.DIST_L2, 3)[1:-1, 1:-1]
    fill = depth > 1 + _OUTLINE * form.area_px**0.5
    if np.count_nonzero(fill) * 4 < form.area_px:  # a thin object is all rim
        fill = mask
    moved = dataclasses.replace(form, centroid=(item.box[0] + x, item.box[1] + y))
    return moved, colors.dominant(cut(image, item.box)[fill])


def size_class(share: float) -> str:
    """The word for a share of the image."""
    return next((name for limit, name in SIZES if share < limit), "very_large")


TOOL = Tool(
    name="GET_PROPERTIES",
    description="Measures an object's color, size, place and shape. Name it by object_id or by a box around it.",
    parameters={"object_id": OBJECT_ID, "bbox_2d": BBOX, "target_image": TARGET_IMAGE},
    required=(),
    run=run,
    packages=("cv2",),
)
