"""In which frame the numbers of a box stand, and how they come from one into another.

A frame is the (height, width) that x and y are relative to: (1000, 1000) for thousandths, (1, 1) for shares, else that
of a picture in pixels. The gold box of a sample stands, in this order:
1. in what `metadata["answer_frame"]` says: "pixels" of the original picture, "norm1000", "relative", or [height, width]
   of the picture as somebody else saw it;
2. where the sample's other coordinates stand: `coordinates` "norm1000", `seen_sizes`, `seen_size`;
3. in pixels of the original picture.
It is about the picture with the number `metadata["target_image"]`, else the first. What a policy says stands in the
frame of its calls. Intersection over union is the same in every frame, once both boxes are in one.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pixelis_jax.answers import boxes
from pixelis_jax.answers.boxes import Size
from pixelis_jax.types import UserError

FRAMES: dict[str, Size | None] = {"pixels": None, "norm1000": (1000, 1000), "relative": (1, 1)}  # None: the picture's
NAMES = ("answer_frame", "target_image", "coordinates", "seen_size", "seen_sizes")  # in metadata


def gold_frame(metadata: Mapping[str, Any], sizes: Sequence[Size]) -> tuple[int, Size]:
    """(index of the picture that a gold box is about, the frame of the box), of pictures of these (height, width).

    Raises UserError, without naming the sample, for a frame that is not known and for a picture that is not there.
    """
    target = metadata.get("target_image", 1)
    if not isinstance(target, int) or isinstance(target, bool) or not 1 <= target <= len(sizes):
        raise UserError(f"metadata: target_image {target!r:.40} is none of 1 to {len(sizes)}")
    frame = metadata.get("answer_frame")
    if frame is None:
        return target - 1, _frame_of_calls(metadata, sizes, target - 1)
    if isinstance(frame, str) and frame in FRAMES:
        return target - 1, FRAMES[frame] or sizes[target - 1]
    if (size := _size(frame)) is not None:
        return target - 1, size
    names = ", ".join(FRAMES)
    raise UserError(f"metadata: answer_frame {frame!r:.40} is no known frame; use {names} or [height, width] in pixels")


def to_frame(text: str, source: Size, target: Size, *, whole: bool = False) -> str:
    """The box that a text is, moved into another frame, as `[x1, y1, x2, y2]`; a text that is no box as it is.

    With `whole` in whole numbers, as models write boxes; one that held something still does.
    """
    box = boxes.parse(text)
    if box is None or source == target:
        return text
    moved = boxes.rescaled(box, source, target)
    if not whole:
        return str(list(moved))
    x1, y1, x2, y2 = (int(value + 0.5) for value in moved)
    return str([x1, y1, max(x2, x1 + 1), max(y2, y1 + 1)])


def _frame_of_calls(metadata: Mapping[str, Any], sizes: Sequence[Size], index: int) -> Size:
    """The frame of a sample's coordinates of a picture, checked by data/cota.py."""
    if metadata.get("coordinates") == "norm1000":
        return (1000, 1000)
    seen = metadata.get("seen_sizes")
    found = seen[index] if isinstance(seen, list | tuple) and len(seen) == len(sizes) else metadata.get("seen_size")
    return _size(found) or sizes[index]


def _size(value: Any) -> Size | None:
    """A (height, width) of at least a pixel each; None for all else."""
    if not isinstance(value, list | tuple) or len(value) != 2:
        return None
    good = all(isinstance(item, int | float) and not isinstance(item, bool) and 1 <= item < 1e9 for item in value)
    return (float(value[0]), float(value[1])) if good else None
