"""V*Bench-style folders: one a category, in it images and a JSON file of the same name for each.

The first of `options` is the right one, so they are shuffled by address. `bbox` are boxes [x, y, width, height] of the
`target_object`s in pixels of the image; they become `metadata["target_boxes"]`, [x1, y1, x2, y2].
"""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pixelis_jax.answers import text as texts
from pixelis_jax.answers.choices import LETTERS
from pixelis_jax.data.importers import choices, marks, questions
from pixelis_jax.data.importers.base import Context, Place, Record, Refusal, leftovers, quoted
from pixelis_jax.data.importers.box_answers import Seen
from pixelis_jax.data.importers.choices import Asked, Choices
from pixelis_jax.data.importers.fields import base_record, pictures_of, placed
from pixelis_jax.data.pixelsearch.address import generator
from pixelis_jax.tools.base import BBOX, check_value
from pixelis_jax.types import UserError

IMAGE_ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")
_LARGEST = 2**24  # bytes of a JSON file about one image
FILE = "_image_file"  # under which a record of a pair has its image's name


def fits(record: Record) -> bool:
    """Whether the record was read from a pair of files."""
    return FILE in record


def partner(file: Path) -> Path | None:
    """The image beside a JSON file; None where there is none."""
    found = (file.with_suffix(ending) for end in IMAGE_ENDINGS for ending in (end, end.upper()))
    return next((image for image in found if image.is_file()), None)


def is_pair(file: Path) -> bool:
    """Whether a JSON file is about the image beside it: an object with question and options."""
    if partner(file) is None or file.stat().st_size > _LARGEST:
        return False
    try:
        value = json.loads(file.read_bytes())
    except (ValueError, RecursionError):
        return True  # it is read, and refused with its name
    return isinstance(value, dict) and {"question", "options"} <= value.keys()


def convert(record: Record, place: Place, context: Context) -> list[Record | UserError]:
    """The one record in our form. Raises Refusal."""
    if "question" not in record:
        raise Refusal(place.where, "question", "missing")
    category = place.file.parent.name
    name = f"{category}/{place.file.stem}"
    used = {FILE, "question", "options", "bbox", "target_object", "category"}
    made = base_record({"category": category, **record}, place, context, used)
    made["provenance"]["original_sample_id"] = name
    options = choices.of_value(record.get("options"), place, "options").texts
    if len({texts.key(option) for option in options}) != len(options):
        raise Refusal(place.where, "options", "must be at least two, and all different")
    shuffled = shuffle(options, name)
    question = record["question"]
    if not isinstance(question, str) or not question.strip():
        raise Refusal(place.where, "question", "missing or empty")
    pictures = pictures_of(record[FILE], "image", place, context)
    marks.check_count([question, *options], len(pictures), place, "question")
    asked = Asked(question, [LETTERS[shuffled.index(options[0])]], Choices(tuple(shuffled)), "choice")
    typed = questions.typed(asked, Seen(pictures), place, context)
    made["metadata"] |= typed.pop("metadata")
    made.update(typed, trajectory=[])
    made.update(placed(pictures, is_video=False))
    made["metadata"].update({"category": category, **_targets(record, pictures[0].size, place)})
    if more := leftovers(record, used):
        made["metadata"]["other_fields"] = more
    return [made]


def shuffle(options: Sequence[str], name: str) -> list[str]:
    """The options in an order that depends on `name` alone."""
    shuffled, random = list(options), generator("import", "options", name)
    for last in range(len(shuffled) - 1, 0, -1):
        other = int(random.integers(last + 1))
        shuffled[last], shuffled[other] = shuffled[other], shuffled[last]
    return shuffled


def _targets(record: Record, size: tuple[int, int] | None, place: Place) -> Record:
    """What is known of the objects asked for. Raises Refusal for boxes outside the image."""
    targets: Record = {}
    if record.get("target_object") is not None:
        targets["target_object"] = record["target_object"]
    boxes = record.get("bbox")
    if boxes in (None, []):
        return targets
    boxes = boxes if isinstance(boxes, list) and isinstance(boxes[0], list) else [boxes]
    return {**targets, "target_boxes": [_box(box, size, place) for box in boxes]}


def _box(box: Any, size: tuple[int, int] | None, place: Place) -> list[float]:
    if check_value(box, BBOX):
        raise Refusal(place.where, "bbox", "must be a list of boxes [x, y, width, height]", quoted(box))
    x, y, width, height = box
    high, wide = size or (math.inf, math.inf)
    if width <= 0 or height <= 0 or x + width <= 0 or y + height <= 0 or x >= wide or y >= high:
        raise Refusal(place.where, "bbox", "is empty or lies outside the image", quoted(box))
    return [max(x, 0), max(y, 0), min(x + width, wide), min(y + height, high)]
