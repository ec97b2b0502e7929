"""What a visual operation is, and the state it works on: images at full resolution with their sizes as seen.

Coordinates in a call are those of the image *as seen* (after the processor's resize). The session converts them, so
that a crop is cut from full resolution: x_original = x_seen * width / seen_width. The frame is declared, never guessed.
"""

import copy
import dataclasses
import functools
import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from pixelis_jax.types import Observation, UserError

COORDINATES: tuple[str, ...] = ("pixels", "norm1000")
Box = tuple[int, int, int, int]  # x1, y1, x2, y2 in px, lower borders included, upper borders excluded
FitSize = Callable[[int, int], tuple[int, int]]  # (height, width) of an image -> (height, width) as the model sees it

Schema = Mapping[str, Any]
LARGEST = 10**9  # that a coordinate, a count or a number of an image may be

BBOX: Schema = {"type": "array", "items": {"type": "number"}, "minItems": 4, "maxItems": 4}
POINT: Schema = {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2}
TARGET_IMAGE: Schema = {"type": "integer", "minimum": 1}


class ToolError(Exception):
    """A call that can't be carried out; the message is what the model reads. `out_of_image` marks a place outside."""

    def __init__(self, message: str, *, out_of_image: bool = False):
        super().__init__(message)
        self.out_of_image = out_of_image


@dataclasses.dataclass(frozen=True)
class Frame:
    """One image of a dialogue, u8[height, width, 3] at full resolution, and its (height, width) as seen."""

    image: np.ndarray
    seen: tuple[int, int]

    @functools.cached_property
    def digest(self) -> bytes:
        """Hash of the pixels and their shape: what results of tools are cached by."""
        digest = hashlib.blake2b(repr(self.image.shape).encode(), digest_size=16)
        digest.update(np.ascontiguousarray(self.image).data)
        return digest.digest()


@dataclasses.dataclass(frozen=True)
class Place:
    """A box of a call on its target image: `box` at full resolution, `seen` as shown, `clamped` if partly outside."""

    box: Box
    seen: tuple[float, float, float, float]
    clamped: bool


def _locked(image: np.ndarray) -> np.ndarray:
    """The same pixels, which nobody can write to: other samples of the group see them too."""
    view = image.view()
    view.flags.writeable = False
    return view


class Session:
    """State of one trajectory: its images, numbered from 1, and what tools remember between calls.

    `seen_sizes` are the (height, width) at which the model saw the first images; `fit_crop` says at which size the
    processor will show a new one. With `is_video` the first images are the frames of a video, in order. `memory` holds
    what tools keep under their own names (object ids, tracks): values are replaced and never changed in place, so that
    a `fork` can be dropped.
    """

    def __init__(
        self,
        images: Sequence[np.ndarray],
        seen_sizes: Sequence[tuple[int, int]],
        *,
        fit_crop: FitSize,
        coordinates: str = "pixels",
        is_video: bool = False,
    ):
        if coordinates not in COORDINATES:
            raise UserError(f"coordinate frame {coordinates!r} is not known; use one of {', '.join(COORDINATES)}")
        self.frames = [Frame(_locked(image), seen) for image, seen in zip(images, seen_sizes, strict=True)]
        self.fit_crop = fit_crop
        self.coordinates = coordinates
        self.video_frames = len(self.frames) if is_video else 0
        self.memory: dict[str, Any] = {}

    def fork(self) -> "Session":
        """A session in the same state, whose changes leave this one as it is."""
        fork = copy.copy(self)
        fork.frames, fork.memory = list(self.frames), dict(self.memory)
        return fork

    def adopt(self, fork: "Session") -> None:
        """Takes the state of a fork of this session."""
        self.frames, self.memory = fork.frames, fork.memory

    def append(self, image: np.ndarray) -> int:
        """Adds an image and returns its number. Raises ToolError for one that can't be shown."""
        self.frames.append(Frame(_locked(image), self.fit(image.shape[0], image.shape[1])))
        return len(self.frames)

    def fit(self, height: int, width: int) -> tuple[int, int]:
        """(height, width) at which a new image will be seen. Raises ToolError for one too narrow to be shown."""
        try:
            return self.fit_crop(height, width)
        except UserError:
            raise ToolError(
                f"a part of {width}x{height} px is too narrow to be shown; choose a box with more even sides"
            ) from None

    def frame(self, number: int) -> Frame:
        """The image with this number. Raises ToolError where there is none."""
        if not 1 <= number <= len(self.frames):
            raise ToolError(f"there is no image {shown(number)}; images are 1 to {len(self.frames)}")
        return self.frames[number - 1]

    def shown_size(self, frame: Frame) -> tuple[int, int]:
        """(height, width) that coordinates of this image are relative to."""
        return (1000, 1000) if self.coordinates == "norm1000" else frame.seen

    def box(self, value: Any, target: int = 1) -> Place:
        """A box given by the model -> pixels of the original image, at least 1 x 1. A box partly outside is clamped.

        Raises ToolError for anything that is no box inside the image.
        """
        frame = self.frame(target)
        x1, y1, x2, y2 = _numbers(value, "bbox_2d", "x1, y1, x2, y2")
        if x2 <= x1 or y2 <= y1:
            raise ToolError("bbox_2d is empty; x2 must be above x1 and y2 above y1")
        high, wide = self.shown_size(frame)
        if x2 <= 0 or y2 <= 0 or x1 >= wide or y1 >= high:
            raise ToolError(f"bbox_2d lies outside image {target} of {wide}x{high}", out_of_image=True)
        seen = (max(x1, 0), max(y1, 0), min(x2, wide), min(y2, high))
        height, width = frame.image.shape[:2]
        left, right = _span(seen[0], seen[2], width, wide)
        top, bottom = _span(seen[1], seen[3], height, high)
        return Place((left, top, right, bottom), seen, clamped=seen != (x1, y1, x2, y2))

    def point(self, value: Any, target: int = 1) -> tuple[int, int]:
        """A point given by the model -> the (x, y) pixel of the original image it lies in. Raises ToolError."""
        frame = self.frame(target)
        x, y = _numbers(value, "point", "x, y")
        high, wide = self.shown_size(frame)
        if not (0 <= x <= wide and 0 <= y <= high):
            raise ToolError(f"point lies outside image {target} of {wide}x{high}", out_of_image=True)
        height, width = frame.image.shape[:2]
        return min(math.floor(x * width / wide), width - 1), min(math.floor(y * height / high), height - 1)

    def shown_box(self, box: Box, target: int = 1) -> list[int]:
        """A box of the original image in the coordinates that the model sees, rounded outward; at least 1 x 1."""
        frame = self.frame(target)
        high, wide = self.shown_size(frame)
        height, width = frame.image.shape[:2]
        x1, y1, x2, y2 = box
        left, top = min(x1 * wide // width, wide - 1), min(y1 * high // height, high - 1)
        return [left, top, max(left + 1, -(-x2 * wide // width)), max(top + 1, -(-y2 * high // height))]

    def shown_point(self, point: tuple[float, float], target: int = 1) -> list[int]:
        """A point of the original image in the coordinates that the model sees, the nearest whole ones inside."""
        frame = self.frame(target)
        high, wide = self.shown_size(frame)
        height, width = frame.image.shape[:2]
        x, y = point
        return [min(math.floor(x * wide / width), wide - 1), min(math.floor(y * high / height), high - 1)]

    def region(self, box: Box, target: int = 1) -> tuple[float, float, float, float]:
        """(centre x, centre y, width, height) of an original box relative to its image, 0..1."""
        height, width = self.frame(target).image.shape[:2]
        x1, y1, x2, y2 = box
        return (x1 + x2) / 2 / width, (y1 + y2) / 2 / height, (x2 - x1) / width, (y2 - y1) / height


@dataclasses.dataclass(frozen=True)
class View:
    """How a model sees: (height, width) of a task's image and of a tool's after resize; the frame of coordinates."""

    fit_overview: FitSize
    fit_crop: FitSize
    coordinates: str = "pixels"

    def session(self, images: Sequence[np.ndarray], *, is_video: bool = False) -> Session:
        """A dialogue's beginning on these images."""
        seen = [self.fit_overview(*image.shape[:2]) for image in images]
        return Session(images, seen, fit_crop=self.fit_crop, coordinates=self.coordinates, is_video=is_video)


@dataclasses.dataclass(frozen=True)
class Tool:
    """One visual operation. `parameters` are JSON-schema properties; `run(session, arguments)` raises ToolError.

    `run` gets arguments that `check_arguments` has passed. An image it returns is added to the session by `execute`.
    `packages` are the modules it imports that come with the extra `[tools]` only.
    """

    name: str
    description: str
    parameters: Mapping[str, Schema]
    required: tuple[str, ...]
    run: Callable[[Session, Mapping[str, Any]], Observation]
    packages: tuple[str, ...] = ()


def schemas(tools: Mapping[str, Tool]) -> str:
    """One compact JSON line a tool, in the order of `tools`: what the system prompt shows."""
    return "\n".join(
        json.dumps(
            {
                "name": tool.name,
                "description": tool.description,
                "parameters": {"type": "object", "properties": tool.parameters, "required": tool.required},
            },
            separators=(",", ":"),
        )
        for tool in tools.values()
    )


def check_arguments(tool: Tool, arguments: Any) -> str | None:
    """What is wrong with the arguments of a call by the tool's schema, in one short sentence; None where nothing is."""
    if not isinstance(arguments, Mapping):
        return "arguments must be a JSON object"
    for name in arguments:
        if name not in tool.parameters:
            return f"{tool.name} has no argument {shown(name)!r}"
    for name in tool.required:
        if name not in arguments:
            return f"{tool.name} needs the argument {name!r}"
    for name, value in arguments.items():
        wanted = check_value(value, tool.parameters[name])
        if wanted:
            return f"{name} must be {wanted}"
    return None


def shown(value: Any) -> str:
    """What an error quotes of a value that the model has written: 40 characters at most."""
    if isinstance(value, int) and abs(value) >= LARGEST:  # Python refuses to print the largest
        return "of that number"
    return str(value)[:40]


def check_value(value: Any, schema: Schema) -> str | None:
    """The kind that `schema` wants, in words, where `value` is of another; None where it fits."""
    kind = schema["type"]
    if kind == "array":
        low, high = schema.get("minItems", 0), schema.get("maxItems")
        count = f"{low} numbers" if low == high else "a list of numbers"
        whole = isinstance(value, list | tuple) and low <= len(value) <= (len(value) if high is None else high)
        return None if whole and all(_is_number(item) for item in value) else count
    if kind == "number":
        return None if _is_number(value) else "a number"
    if kind == "integer":
        low = schema.get("minimum")
        good = isinstance(value, int) and not isinstance(value, bool) and (low is None or value >= low)
        return None if good else "an integer" + (f" of at least {low}" if low is not None else "")
    if kind == "string":
        return None if isinstance(value, str) else "a string"
    raise ValueError(f"schema type {kind!r} is not supported")


def _is_number(value: Any) -> bool:
    """A finite JSON number of a size that can be a coordinate; comparing first keeps huge integers out of floats."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -LARGEST < value < LARGEST


def _numbers(value: Any, name: str, form: str) -> list[Any]:
    count = form.count(",") + 1
    good = isinstance(value, list | tuple) and len(value) == count and all(_is_number(item) for item in value)
    if not good:
        raise ToolError(f"{name} must be {count} finite numbers [{form}]")
    return list(value)


def _span(low: float, high: float, size: int, seen: int) -> tuple[int, int]:
    """[low, high) as seen -> the nearest whole pixels of the original, at least one."""
    start = min(math.floor(low * size / seen + 0.5), size - 1)
    return start, max(start + 1, min(math.floor(high * size / seen + 0.5), size))
