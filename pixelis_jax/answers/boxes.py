"""Boxes as models and data write them, and the frame that their numbers stand in.

Read are `[x1, y1, x2, y2]`, with round brackets, nested or without any, `(x1,y1),(x2,y2)`, `{"bbox_2d": [...]}`, a list
of one such object, code fences, and marks such as `<|box_start|>..<|box_end|>` or `<bbox>..</bbox>` around.
"""

import ast
import json
import math
import re
from typing import Any

from pixelis_jax.answers import text as texts

Box = tuple[float, float, float, float]  # x1, y1, x2, y2 with x1 < x2 and y1 < y2
Size = tuple[float, float]  # height, width

MAX_CHARACTERS = 1000
NAMES = ("bbox_2d", "bbox", "box_2d", "box", "bounding_box", "coordinates")
_CORNERS = (("x1", "y1", "x2", "y2"), ("xmin", "ymin", "xmax", "ymax"), ("x_min", "y_min", "x_max", "y_max"),
            ("left", "top", "right", "bottom"))  # fmt: skip
_SIZED = (("x", "y", "width", "height"), ("x", "y", "w", "h"), ("left", "top", "width", "height"))
_ASSIGNED = re.compile(
    r"[\[({]?\s*(\w+\s*[=:]\s*[-+.\de]+(?:\s*[,;\s]\s*\w+\s*[=:]\s*[-+.\de]+){3})\s*[\])}]?", re.ASCII
)  # x1=10, y1=20, x2=60, y2=70
_PAIR = re.compile(r"(\w+)\s*[=:]\s*([-+.\de]+)", re.ASCII)
_MARK = re.compile(r"<\|(?:box|quad)_(?:start|end)\|>|</?(?:box|bbox|bbox_2d)>")
_REFERENCE = re.compile(r"<\|object_ref_start\|>.*?<\|object_ref_end\|>|<ref>.*?</ref>", re.DOTALL)
_LABEL = re.compile(r"^[\"']?(?:bbox_2d|bbox|bounding box|box|coordinates)[\"']?\s*[:=]\s*(?=[\[(\d{-])", re.IGNORECASE)
_CORNERS_GAP = re.compile(r"([)\]])\s*(?:-|to|->)\s*([(\[])")
_NUMERIC = re.compile(r"[-+\d.,;e\s\[\](){}]+", re.ASCII)
_DECIMAL = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d{1,3})?", re.ASCII | re.IGNORECASE)
_BRACKETS = str.maketrans("(){};", "[][],")
_GAP = re.compile(r"(?<=[\d.\]])\s+(?=[-+\d.\[])", re.ASCII)


def parse(text: str) -> Box | None:
    """The one box that a text is; None for all else: a sentence, two boxes, a box without an area."""
    return _rising(four(text))


def of(value: Any) -> Box | None:
    """The box of a JSON value: four numbers, two pairs, an object that names them, or a list of one of these."""
    return _rising(four(value))


def four(value: Any) -> Box | None:
    """The four numbers that a text or a JSON value is, in any order, as `parse` and `of` read them."""
    if isinstance(value, str):
        return _of_text(value)
    if isinstance(value, dict):
        named = [value[name] for name in NAMES if name in value]
        corners, sized = (
            [[value[name] for name in names] for names in table if all(name in value for name in names)]
            for table in (_CORNERS, _SIZED)
        )
        found = named + corners or [_from_size(values) for values in sized]
        return four(found[0]) if len(found) == 1 else None
    if not isinstance(value, list | tuple):
        return None
    if len(value) == 1:
        return four(value[0])
    if len(value) == 2 and all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in value):
        return _rising(four([*value[0], *value[1]]))
    value = [_number_of(item) for item in value]
    if len(value) != 4 or not all(_is_number(item) for item in value):
        return None
    a, b, c, d = map(float, value)
    return a, b, c, d


def _rising(numbers: Box | None) -> Box | None:
    return numbers if numbers and numbers[0] < numbers[2] and numbers[1] < numbers[3] else None


def _of_text(text: str) -> Box | None:
    if len(text) > MAX_CHARACTERS or not any(c.isdigit() for c in text):
        return None
    bare = _MARK.sub("", _REFERENCE.sub("", texts.unwrap(text)))
    bare = texts.normalise(_LABEL.sub("", texts.unwrap(texts.normalise_marks(bare)), count=1))
    bare = _CORNERS_GAP.sub(r"\1,\2", bare)
    if assigned := _ASSIGNED.fullmatch(bare):
        pairs = _PAIR.findall(assigned[1])
        return four(dict(pairs)) if len(dict(pairs)) == 4 else None
    if _NUMERIC.fullmatch(bare):
        bare = "[" + _GAP.sub(",", bare.translate(_BRACKETS)) + "]"
    return four(_read(bare))


def iou(a: Box, b: Box) -> float:
    """Intersection over union."""
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    shared = max(width, 0.0) * max(height, 0.0)
    return shared / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - shared)


def rescaled(box: Box, source: Size, target: Size) -> Box:
    """A box in an image of size `source` -> the same place in one of size `target`; sizes are (height, width)."""
    across, down = target[1] / source[1], target[0] / source[0]
    return box[0] * across, box[1] * down, box[2] * across, box[3] * down


def _read(text: str) -> Any:
    """The JSON value or Python literal that a text is; None where it is neither."""
    for read in (json.loads, ast.literal_eval):
        try:
            return read(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
            continue
    return None


def _from_size(values: list[Any]) -> list[float] | None:
    """x, y, width, height -> corners."""
    numbers = [_number_of(value) for value in values]
    if not all(_is_number(number) for number in numbers):
        return None
    x, y, width, height = numbers
    return [x, y, x + width, y + height]


def _number_of(value: Any) -> Any:
    """The number that a string writes out; all else as it is."""
    return float(value) if isinstance(value, str) and _DECIMAL.fullmatch(value.strip()) else value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e9 and math.isfinite(value)
