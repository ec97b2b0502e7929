"""What a record itself says of its boxes in fields of its own or in its metadata: frame, order of numbers, picture."""

from collections.abc import Mapping
from typing import Any

from pixelis_jax.answers.boxes import Box, Size
from pixelis_jax.data.importers import box_words
from pixelis_jax.data.importers.base import Place, Record, Refusal, is_number, quoted
from pixelis_jax.data.importers.box_words import Order
from pixelis_jax.data.importers.objects import FRAMES

NAMES = ("answer_frame", "coordinates", "bbox_type")
FORMATS = ("bbox_format", "box_format")
TARGET = "target_image"
FIELDS = (*NAMES, "normalized", *FORMATS, TARGET)
KEPT = ("answer_frame", TARGET)  # in metadata, where training reads them
_SIDES = (
    *(("width", "height"), ("image_width", "image_height"), ("img_width", "img_height")),
    *(("input_width", "input_height"), ("resized_width", "resized_height")),
)

Frame = str | list[float]  # "pixels", "norm1000", "relative", or [height, width]


def said(record: Mapping[str, Any]) -> Record:
    """The fields of a record and of its metadata that speak of boxes, by where they stand."""
    metadata = record.get("metadata")
    inner = metadata if isinstance(metadata, Mapping) else {}
    names = (*FIELDS, *(name for pair in _SIDES for name in pair))
    places = {
        f"{before}{name}": found.get(name) for before, found in (("", record), ("metadata.", inner)) for name in names
    }
    return {name: value for name, value in places.items() if value not in (None, "")}


def frame(fields: Mapping[str, Any], box: Box | None, place: Place) -> Frame:
    """The frame that fields name for a box; "" where they name none. Raises Refusal for an unknown one and several."""
    named: dict[str, Frame] = {}
    for name, value in fields.items():
        if name.rpartition(".")[2] in NAMES:
            named[name] = _frame(name, value, place)
    found: Frame = next(iter(named.values()), "")
    if any(value != found for value in named.values()):
        raise Refusal(place.where, next(iter(named)), "fields name several frames of a box", quoted(", ".join(named)))
    for name, value in fields.items():
        if name.rpartition(".")[2] == "normalized":
            found = _normalized(found, name, value, box, place)
    if not found and any(_format_word(fields, name) in box_words.SHARES for name in fields):
        found = "relative"
    return found


def _frame(name: str, value: Any, place: Place) -> Frame:
    word = value.strip().lower() if isinstance(value, str) else ""
    if word in FRAMES:
        return FRAMES[word]
    if isinstance(value, list) and len(value) == 2 and all(is_number(side) and side >= 1 for side in value):
        return [float(side) for side in value]
    reason = f"unknown; use one of {', '.join(FRAMES)}, or [height, width]"
    raise Refusal(place.where, name, reason, quoted(value))


def _normalized(found: Frame, name: str, value: Any, box: Box | None, place: Place) -> Frame:
    """The frame of boxes that a record calls normalized or not, `found` being what it names. Raises Refusal."""
    if not isinstance(value, bool) or (value and found == "pixels"):
        raise Refusal(place.where, name, "must be true or false, and true is not for pixels", quoted(value))
    if not value or found:
        return found
    if box and not all(0 <= number <= 1 for number in box):
        raise Refusal(place.where, name, "true, and not all numbers are from 0 to 1: say answer_frame", quoted([*box]))
    return "relative"


def order(fields: Mapping[str, Any], place: Place) -> Order | None:
    """The order of numbers that fields name; None where they name none. Raises Refusal for an unknown one."""
    found: Order | None = None
    for name, value in fields.items():
        if name.rpartition(".")[2] in FORMATS:
            found = box_words.order_of(value) if isinstance(value, str) else None
            if found is None:
                raise Refusal(place.where, name, "unknown; use xyxy, xywh, yxyx, cxcywh, coco or yolo", quoted(value))
    return found


def names_order(fields: Mapping[str, Any]) -> bool:
    """Whether fields speak of the order of numbers."""
    return any(name.rpartition(".")[2] in FORMATS for name in fields)


def size(fields: Mapping[str, Any]) -> tuple[Size | None, str]:
    """((height, width) of the picture that fields tell, their names)."""
    for before in ("", "metadata."):
        for names in _SIDES:
            wide, high = (fields.get(f"{before}{name}") for name in names)
            sides = [float(side) for side in (high, wide) if side is not None and is_number(side) and side > 1]
            if len(sides) == 2:
                return (sides[0], sides[1]), f"{before}{names[0]}, {names[1]}"
    return None, ""


def target(fields: Mapping[str, Any], count: int, place: Place) -> int:
    """The picture, from 1, that fields name for a box, of `count`; 0 where they name none. Raises Refusal."""
    for name in (TARGET, f"metadata.{TARGET}"):
        value = fields.get(name)
        if value is not None:
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= count:
                raise Refusal(place.where, name, "must be the number of a picture, from 1", f"{quoted(value)}, {count}")
            return value
    return 0


def without(metadata: Mapping[str, Any]) -> Record:
    """Metadata without the fields that were read as its frame."""
    return {name: value for name, value in metadata.items() if name in KEPT or name not in FIELDS}


def _format_word(fields: Mapping[str, Any], name: str) -> str:
    value = fields[name]
    return value.strip().lower() if name.rpartition(".")[2] in FORMATS and isinstance(value, str) else ""
