"""What a record itself says its boxes are relative to, in a field of its own or in its metadata."""

import json
from collections.abc import Mapping
from typing import Any

from pixelis_jax.answers import boxes
from pixelis_jax.data.importers.base import Place, Record, Refusal, is_number, quoted
from pixelis_jax.data.importers.objects import FRAMES

NAMES = ("answer_frame", "coordinates", "bbox_type")
FORMATS = ("bbox_format", "box_format")
CORNERS = ("xyxy", "x1y1x2y2")
FIELDS = (*NAMES, "normalized", *FORMATS)
_NO_FRAMES = ("normalized", *FORMATS)
MOVED = "answers that are boxes: x, y, width, height made x1, y1, x2, y2, as the record says"


def said(record: Mapping[str, Any]) -> Record:
    """The fields of a record and of its metadata that speak of boxes, by where they stand."""
    metadata = record.get("metadata")
    inner = metadata if isinstance(metadata, Mapping) else {}
    places = {
        f"{before}{name}": found.get(name) for before, found in (("", record), ("metadata.", inner)) for name in FIELDS
    }
    return {name: value for name, value in places.items() if value not in (None, "")}


def frame(fields: Mapping[str, Any], answer: str, place: Place) -> str:
    """The frame that fields name; "" where they name none. Raises Refusal for an unknown one and for several."""
    named: dict[str, str] = {}
    for name, value in fields.items():
        if name.rpartition(".")[2] in _NO_FRAMES:
            continue
        word = value.strip().lower() if isinstance(value, str) else ""
        if word not in FRAMES:
            raise Refusal(place.where, name, f"unknown; use one of {', '.join(FRAMES)}", quoted(value))
        named[name] = FRAMES[word]
    if len({*named.values()}) > 1:
        raise Refusal(place.where, next(iter(named)), "fields name several frames of a box", quoted(", ".join(named)))
    found = next(iter(named.values()), "")
    for name, value in fields.items():
        if name.rpartition(".")[2] == "normalized":
            found = _normalized(found, name, value, answer, place)
    return found


def _normalized(found: str, name: str, value: Any, answer: str, place: Place) -> str:
    """The frame of boxes that a record calls normalized or not, `found` being what it names. Raises Refusal."""
    if not isinstance(value, bool) or (value and found == "pixels"):
        raise Refusal(place.where, name, "must be true or false, and true is not for pixels", quoted(value))
    if not value or found:
        return found
    box = boxes.parse(answer)
    if box is None or not all(0 <= number <= 1 for number in box):
        raise Refusal(place.where, name, "true, and not all numbers are from 0 to 1: say answer_frame", quoted(answer))
    return "relative"


def without(metadata: Mapping[str, Any]) -> Record:
    """Metadata without the fields that were read as its frame."""
    return {name: value for name, value in metadata.items() if name == "answer_frame" or name not in FIELDS}


def corners(fields: Mapping[str, Any], answer: str, place: Place) -> str:
    """An answer as x1, y1, x2, y2 where fields say that it is x, y, width, height. Raises Refusal for other ways."""
    for name in (f"{before}{name}" for before in ("", "metadata.") for name in FORMATS):
        word = str(fields.get(name, "xyxy")).strip().lower()
        numbers = _four(answer)
        if word in CORNERS or (numbers is None and boxes.parse(answer) is None):
            continue
        if word != "xywh" or numbers is None:
            raise Refusal(place.where, name, "unknown, or not that of the answer; use xyxy or xywh", quoted(word))
        x, y, width, height = numbers
        return json.dumps([x, y, round(x + width, 6), round(y + height, 6)])
    return answer


def _four(answer: str) -> list[Any] | None:
    """The four numbers that a text is; None for anything else."""
    try:
        found = json.loads(answer)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, list) and len(found) == 4 and all(map(is_number, found)) else None
