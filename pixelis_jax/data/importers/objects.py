"""Objects and boxes that placeholders in texts stand for, as ms-swift writes them.

{"objects": {"ref": ["the red square"], "bbox": [[10.5, 20, 60, 70]], "bbox_type": "real" or "norm1", "image_id": [0]}},
or a list of {"caption", "bbox", "bbox_type", "image"}, or its JSON: `<ref-object>` and `<bbox>` take them in turn.
"""

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pixelis_jax.data.importers.base import Place, Refusal, is_number, quoted

FIELD = "objects"
_PLACEHOLDER = re.compile(r"<ref-object>|<bbox>(?![^<>]{0,200}</bbox>)")
FRAMES = {
    **{
        "real": "pixels",
        "pixel": "pixels",
        "pixels": "pixels",
        "abs": "pixels",
        "absolute": "pixels",
        "none": "pixels",
    },
    **{
        "norm1": "relative",
        "norm": "relative",
        "relative": "relative",
        "norm1000": "norm1000",
        "norm_1000": "norm1000",
    },
}


@dataclasses.dataclass(frozen=True)
class Objects:
    """What placeholders stand for, in turn. `frame` is that of the boxes, `images` their pictures from 1."""

    refs: tuple[str, ...] = ()
    boxes: tuple[str, ...] = ()
    images: tuple[int, ...] = ()
    frame: str = "pixels"


def of_record(value: Any, place: Place) -> Objects:
    """The objects of a field. Raises Refusal for what is none."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise Refusal(place.where, FIELD, "is not valid JSON", quoted(value)) from None
    if isinstance(value, list):
        value = _of_list(value, place)
    if value is None or value in ({}, []):
        return Objects()
    if not isinstance(value, Mapping):
        raise Refusal(place.where, FIELD, "must be an object with ref and bbox", quoted(value))
    refs, boxes = value.get("ref") or [], value.get("bbox") or []
    if not isinstance(refs, list) or not all(isinstance(ref, str) for ref in refs):
        raise Refusal(place.where, FIELD, "ref must be a list of texts", quoted(refs))
    if not isinstance(boxes, list):
        raise Refusal(place.where, FIELD, "bbox must be a list of boxes", quoted(boxes))
    if boxes and all(is_number(number) for number in boxes):
        boxes = [boxes]
    kind = value.get("bbox_type") or "real"
    if not isinstance(kind, str) or kind.lower() not in FRAMES:
        raise Refusal(place.where, FIELD, f"bbox_type is unknown; use one of {', '.join(FRAMES)}", quoted(kind))
    images = value.get("image_id") or [0] * len(boxes)
    images = images if isinstance(images, list) else [images] * len(boxes)
    if len(images) != len(boxes) or not all(type(number) is int and 0 <= number < 1000 for number in images):
        raise Refusal(place.where, FIELD, "image_id must be a whole number from 0 for each box", quoted(images))
    shown = tuple(_shown(box, place) for box in boxes)
    return Objects(tuple(refs), shown, tuple(number + 1 for number in images), FRAMES[kind.lower()])


def _of_list(value: Sequence[Any], place: Place) -> Mapping[str, Any]:
    """The older form: one object for each thing."""
    if not all(isinstance(item, Mapping) for item in value):
        raise Refusal(place.where, FIELD, "must be an object with ref and bbox", quoted(value))
    names = [item.get("caption", item.get("ref")) for item in value]
    types = {item.get("bbox_type") or "real" for item in value}
    if len(types) > 1:
        raise Refusal(place.where, FIELD, "boxes of several bbox_types in one record")
    return {
        "ref": [name for name in names if name is not None],
        "bbox": [item["bbox"] for item in value if item.get("bbox") is not None],
        "bbox_type": next(iter(types), "real"),
        "image_id": [item.get("image", 0) for item in value if item.get("bbox") is not None],
    }


def _shown(box: Any, place: Place) -> str:
    """A box, a point, or several boxes of one object, as text."""
    if isinstance(box, list) and len(box) in (2, 4) and all(is_number(number) for number in box):
        return json.dumps(box)
    if isinstance(box, list) and box and all(isinstance(item, list) for item in box):
        return ", ".join(_shown(item, place) for item in box)
    raise Refusal(place.where, FIELD, "a bbox must be 4 numbers, or 2 for a point", quoted(box))


def are_in(texts: Sequence[str]) -> bool:
    """Whether there is a placeholder."""
    return any("<" in text and _PLACEHOLDER.search(text) for text in texts)


def filled(texts: Sequence[str], found: Objects, place: Place, field: str) -> tuple[list[str], list[int]]:
    """(texts of a record in their order with what their placeholders stand for, of each text the last box's picture).

    Raises Refusal unless there are as many placeholders as objects of each kind; the picture is 0 without a box.
    """
    refs, boxes = iter(found.refs), iter(zip(found.boxes, found.images, strict=True))
    known = {"<ref-object>": len(found.refs), "<bbox>": len(found.boxes)}
    spelled = [match for text in texts for match in _PLACEHOLDER.findall(text)]
    counts = {name: spelled.count(name) for name in known}
    for name, count in counts.items():
        if count and count != known[name]:
            told = f"{count} for {known[name]}"
            raise Refusal(place.where, field, f"{name} is not as often in the texts as {FIELD} has it", told)
    made: list[str] = []
    images: list[int] = []

    def take(match: re.Match[str]) -> str:
        if match[0] == "<ref-object>":
            return next(refs)
        box, images[-1] = next(boxes)
        return box

    for text in texts:
        images.append(0)
        made.append(_PLACEHOLDER.sub(take, text))
    return made, images
