"""Objects of a dialogue: what SEGMENT_OBJECT_AT found, under the numbers by which other calls name it."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from pixelis_jax.tools.base import LARGEST, Box, Schema, Session, ToolError, shown

OBJECT_ID: Schema = {"type": "integer", "minimum": 1}
SAME = 0.95  # intersection over union from which two masks of an image are one object
_NAMED = 12  # ids that an error lists
_MEMORY = "objects"  # key in Session.memory: {id: Object}


@dataclasses.dataclass(frozen=True, eq=False)
class Object:
    """`mask` bool[height, width] of the image with this number, read-only; `box` is the smallest around it, px."""

    image: int
    mask: np.ndarray
    box: Box


def remember(session: Session, item: Object) -> int:
    """The object's id, from 1 in the order of finding; an object of the same image and place keeps the id it has."""
    known: Mapping[int, Object] = session.memory.get(_MEMORY, {})
    for number, other in known.items():
        if other.image == item.image and _overlap(item, other) > SAME:
            return number
    number = len(known) + 1
    session.memory[_MEMORY] = {**known, number: item}
    return number


def recall(session: Session, object_id: Any) -> Object:
    """The object with this id. Raises ToolError, which names the ids that exist."""
    known: Mapping[int, Object] = session.memory.get(_MEMORY, {})
    if type(object_id) is int and object_id in known:
        return known[object_id]
    if not known:
        raise ToolError("there are no objects yet; SEGMENT_OBJECT_AT finds one")
    ids = ", ".join(str(number) for number in list(known)[-_NAMED:])
    name = "of that number" if type(object_id) is int and abs(object_id) >= LARGEST else repr(shown(object_id))
    raise ToolError(f"there is no object {name}; objects are {'..., ' if len(known) > _NAMED else ''}{ids}")


def _overlap(one: Object, other: Object) -> float:
    """Intersection over union of two masks of the same image."""
    x1, y1 = max(one.box[0], other.box[0]), max(one.box[1], other.box[1])
    x2, y2 = min(one.box[2], other.box[2]), min(one.box[3], other.box[3])
    if x2 <= x1 or y2 <= y1:
        return 0.0
    common = int(np.count_nonzero(one.mask[y1:y2, x1:x2] & other.mask[y1:y2, x1:x2]))
    total = sum(int(np.count_nonzero(o.mask[o.box[1] : o.box[3], o.box[0] : o.box[2]])) for o in (one, other))
    return common / (total - common)
