"""Tool calls in other people's dialogues, and their boxes in pixels of our images.

The frame of a box is declared: by the option, by the definition of the tool in the record, or by a name that says it.
The values never decide: [0, 0, 1, 1] is a whole image in one frame and a single pixel in another.
"""

import dataclasses
import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from pixelis_jax.data.importers.base import FRAMES, Options, Place, Record, Refusal, cut_out, first_of, quoted
from pixelis_jax.tools.base import BBOX, check_value

# Names of tools that show a box of an image at higher resolution -> the frame that the name itself says ("": none).
ZOOMS = {
    "crop_image_normalized": "relative",
    "crop_image": "",
    "zoom_in": "",
    "image_zoom_in_tool": "",
    "image_zoom_in": "",
    "crop": "",
}
NO_EQUIVALENT = {"select_frames": "chooses frames of a video, and none of our operations does"}
_BOXES = ("bbox_2d", "bbox", "box", "region")
_FROM_ONE, _FROM_ZERO = ("target_image",), ("img_idx", "image_index")  # numbering of the images
_LABELS = ("label",)

_SAYS = {
    "relative": re.compile(
        r"maximum value is 1(?![\d.]*\d)|(?:between|from)? ?0(?:\.0)?(?:,| to| and|-) ?1(?:\.0)?(?!\.?\d)"
    ),
    "norm1000": re.compile(r"(?<!\d)(?:1000|999)(?!\d)"),
    "pixels": re.compile(r"pixel|absolute"),
}


@dataclasses.dataclass(frozen=True)
class Call:
    """A call that zooms: a box as it stands there and its frame, the number of its image from 1, a label if any."""

    box: tuple[float, float, float, float]
    frame: str
    target: int
    label: str


def split(text: str, place: Place) -> tuple[str, list[Record]]:
    """(the text around the calls, the calls' JSON objects). Raises Refusal for a call that is not closed or no JSON."""
    around, bodies = cut_out(text, "tool_call")
    if "<tool_call>" in around or "</tool_call>" in around:
        raise Refusal(place.where, "tool_call", "a <tool_call> tag is not closed, or closed twice")
    calls = []
    for body in bodies:
        try:
            call = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise Refusal(place.where, "tool_call", "is not valid JSON", str(error)[:100]) from None
        if not isinstance(call, dict):
            raise Refusal(place.where, "tool_call", "is no JSON object", quoted(body))
        calls.append(call)
    return around, calls


def declared(system: str, tools: Any) -> tuple[dict[str, str], set[str]]:
    """(tool names -> the frame that their definitions say, as far as they say exactly one; all defined names).

    Definitions stand in the system prompt between <tools> tags, one a line, or in the record's field `tools`.
    """
    _, texts = cut_out(system, "tools")
    if isinstance(tools, str):
        texts.append(tools)
    frames, names = {}, set()
    for value in [*(item for text in texts for item in _values(text)), *(tools if isinstance(tools, list) else [])]:
        function = value.get("function", value) if isinstance(value, dict) else {}
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            continue
        names.add(function["name"])
        text = json.dumps(function, ensure_ascii=False, default=str).lower()
        said = [frame for frame, pattern in _SAYS.items() if pattern.search(text)]
        if len(said) == 1:
            frames[function["name"]] = said[0]
    return frames, names


def read(call: Record, frames: Mapping[str, str], options: Options, place: Place) -> Call:
    """The call of a zoom. Raises Refusal for other tools and for arguments that are none of a zoom's."""
    name, arguments = call.get("name"), call.get("arguments", call.get("parameters"))
    if not isinstance(name, str):
        raise Refusal(place.where, "tool_call", "has no name")
    if name in NO_EQUIVALENT:
        raise Refusal(place.where, "tool_call", f"{name} {NO_EQUIVALENT[name]}")
    if name.lower() not in ZOOMS:
        raise Refusal(place.where, "tool_call", f"unknown tool; known are {', '.join(ZOOMS)}", quoted(name))
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            raise Refusal(place.where, "tool_call", "arguments are not valid JSON", quoted(arguments)) from None
    if not isinstance(arguments, dict):
        raise Refusal(place.where, "tool_call", "arguments must be a JSON object")
    for key in arguments:
        if arguments[key] is not None and key not in (*_BOXES, *_FROM_ONE, *_FROM_ZERO, *_LABELS):
            raise Refusal(place.where, "tool_call", "an argument that ZOOM_IN has not", quoted(key))
    _, box = first_of(arguments, _BOXES)
    if check_value(box, BBOX):
        raise Refusal(place.where, "tool_call", "bbox_2d must be 4 numbers", quoted(box))
    frame = _frame(name, frames, options, place)
    label = arguments.get("label")
    return Call(tuple(box), frame, _target(arguments, place), label if isinstance(label, str) else "")


def _frame(name: str, frames: Mapping[str, str], options: Options, place: Place) -> str:
    if options.coordinates != "auto":
        return options.coordinates
    found = frames.get(name) or ZOOMS[name.lower()]
    if not found:
        reason = f"the frame of its boxes is declared nowhere; say --coordinates={'|'.join(FRAMES)}"
        raise Refusal(place.where, "tool_call", reason, name)
    return found


def _target(arguments: Mapping[str, Any], place: Place) -> int:
    """Number of the image from 1; image 1 where none is named."""
    name, value = first_of(arguments, (*_FROM_ONE, *_FROM_ZERO))
    if not name:
        return 1
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 9:
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise Refusal(place.where, "tool_call", f"{name} must be an integer", quoted(value))
    return value + 1 if name in _FROM_ZERO else value


@dataclasses.dataclass(frozen=True)
class View:
    """An image of a dialogue as a part of one that was given: `root` numbers it from 1, `box` is in its pixels.

    `given` is False for what a zoom has shown.
    """

    root: int
    box: tuple[int, int, int, int]
    given: bool


def zoomed(call: Call, views: list[View], padding: float, place: Place) -> tuple[View, bool]:
    """(the part of a given image that a call shows, whether the box was cut to the image).

    A box on an earlier zoom's image becomes a box on the given image below it, so that it needs no other size to be
    read. `padding` is the share of the target image that its tool adds on each side.
    Raises Refusal for an image that is not there and for a box that is empty or wholly outside.
    """
    if not 1 <= call.target <= len(views):
        raise Refusal(place.where, "tool_call", "its image does not exist", f"image {call.target} of {len(views)}")
    view = views[call.target - 1]
    if call.frame == "pixels" and not view.given:
        raise Refusal(place.where, "tool_call", "pixels of a zoomed image, whose size is not in the data")
    left, top, right, bottom = view.box
    x1, x2, wide = _span(call.box[0], call.box[2], right - left, call.frame, padding)
    y1, y2, high = _span(call.box[1], call.box[3], bottom - top, call.frame, padding)
    shown = quoted(list(call.box))
    if not (x1 < x2 and y1 < y2):
        raise Refusal(place.where, "tool_call", "bbox_2d is empty", shown)
    if x2 <= 0 or y2 <= 0 or x1 >= wide or y1 >= high:
        raise Refusal(place.where, "tool_call", f"bbox_2d lies outside its image when read as {call.frame}", shown)
    cut = x1 < 0 or y1 < 0 or x2 > wide or y2 > high
    (x1, x2), (y1, y2) = _whole(x1, x2, wide), _whole(y1, y2, high)
    return View(view.root, (int(left + x1), int(top + y1), int(left + x2), int(top + y2)), given=False), cut


def _span(low: float, high: float, side: int, frame: str, padding: float) -> tuple[float, float, int]:
    """(low, high, side) of one axis in pixels."""
    scale = {"relative": side, "norm1000": side / 1000, "pixels": 1}[frame]
    return low * scale - padding * side, high * scale + padding * side, side


def _whole(low: float, high: float, side: int) -> tuple[int, int]:
    """The nearest whole pixels inside the image, at least one."""
    start = min(max(math.floor(low + 0.5), 0), side - 1)
    return start, max(start + 1, min(math.floor(high + 0.5), side))


def _values(text: str) -> Iterator[Any]:
    """JSON values that stand one behind the other; it ends where there is none."""
    decoder, at = json.JSONDecoder(), 0
    while True:
        while at < len(text) and text[at].isspace():
            at += 1
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            return
        yield from value if isinstance(value, list) else [value]
