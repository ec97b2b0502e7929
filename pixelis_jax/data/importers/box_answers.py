"""Answers that are boxes, as [x1, y1, x2, y2] in a frame that is known: what record, question, user and file say.

What comes first counts: fields of the record, words of its question, the options, the rest of the file, and else
corners in pixels of the first picture at its full size. Fields and words that contradict each other are refused.
"""

import dataclasses
import json
import re
from collections.abc import Sequence

from pixelis_jax.answers import boxes
from pixelis_jax.answers.boxes import Box, Size
from pixelis_jax.data.importers import answer_types, box_frames, box_habits, box_words
from pixelis_jax.data.importers.base import Context, Place, Record, Refusal, quoted
from pixelis_jax.data.importers.box_frames import Frame
from pixelis_jax.data.importers.box_words import CORNERS, Order
from pixelis_jax.data.importers.choices import Asked
from pixelis_jax.data.importers.pictures import Picture

MOVED = "answers that are boxes: {} made x1, y1, x2, y2"
READ = "answers that are boxes: read as [x1, y1, x2, y2] {}"
OUTSIDE = "answers that are boxes beyond their picture when read as {}: say what they are with --coordinates"
SHARES = "boxes of numbers from 0 to 1: read as shares of the picture, since none is of a pixel or less"
PLAIN = "boxes in questions: said to be {}"
PLAIN_OUTSIDE = "boxes in questions beyond their picture when read as {}: say what they are with --coordinates"
FIRST_PICTURE = (
    "answers that are boxes in one of several pictures, which is not named: taken for the first; say target_image"
)
_WORDS = {
    "pixels": "in pixels of the picture at its full size",
    "relative": "in shares of the width and the height of the picture, from 0 to 1",
    "norm1000": "in thousandths of the width and the height of the picture",
}
_NAMED_NUMBERS = re.compile(r"\b(?:x1|x_?min|left|width|w)\b")  # of {"x": .., "width": ..}, which is read as corners
_ASK = "\n(Give the box in the coordinates that the tools use for this picture.)"
_SAME_SHAPE = 0.05  # difference of width / height that rounding to a model's patches makes
_SEVERAL = re.compile(r"\s*\[\s*\[.*\]\s*\]\s*", re.DOTALL)
_POINT = re.compile(
    r"\s*[\[(]?\s*-?\d+(?:\.\d+)?\s*,\s*-?\d+(?:\.\d+)?\s*[\])]?\s*|[\s\[{(]*[\"']point_2d\b.*|\s*<points?\b.*",
    re.DOTALL,
)


@dataclasses.dataclass(frozen=True)
class Seen:
    """What a question is about: its pictures, the number of the first of them among the record's, and their boxes.

    `frame` is that of the boxes of placeholders; `target` the picture of an answer's box; "" and 0: not said.
    `fields` are the record's own that speak of boxes (box_frames.py).
    """

    pictures: Sequence[Picture]
    is_video: bool = False
    first: int = 1
    frame: Frame = ""
    target: int = 0
    has_boxes: bool = False  # in the question, from placeholders or between tokens
    fields: Record = dataclasses.field(default_factory=dict)


def is_box(asked: Asked, seen: Seen, context: Context) -> bool:
    """Whether each accepted answer is four numbers that stand for a place: not the years of a chart, not a choice."""
    kind = asked.answer_type if isinstance(asked.answer_type, str) else ""
    word = answer_types.TYPES.get(answer_types.word_of(kind), answer_types.word_of(kind))
    word = word or context.options.answer_type.replace("auto", "")
    if word not in ("", "iou") or asked.choices.texts or not asked.accepted:
        return False
    if word != "iou" and (box_words.asks_numbers(asked.question) or asked.needs_all):
        return False
    is_place = word == "iou" or box_words.asks_place(asked.question)
    bracketed = all(any(sign in answer for sign in "[({<=:") for answer in asked.accepted)
    if not (bracketed or is_place) or any(boxes.four(answer) is None for answer in asked.accepted):
        return False
    told = box_frames.names_order(seen.fields) or context.options.box_format != "auto"
    return is_place or told or all(map(boxes.parse, asked.accepted))


def refuse_others(asked: Asked, place: Place) -> None:
    """Raises Refusal for answers that are several boxes, a polygon or a point: nothing here compares these."""
    if asked.choices.texts or answer_types.word_of(asked.answer_type) in ("exact", "math", *answer_types.LISTS):
        return
    for answer in asked.accepted:
        if _SEVERAL.fullmatch(answer) and boxes.four(answer) is None and box_words.asks_place(asked.question):
            reason = "several boxes, or a polygon; one box is compared: ask for one, or say answer_type exact"
            raise Refusal(place.where, "answer", reason, quoted(answer))
        if _POINT.fullmatch(answer) and box_words.asks_point(asked.question):
            reason = "a point, which nothing here compares; give a box, or answer_type exact to compare it as text"
            raise Refusal(place.where, "answer", reason, quoted(answer))


def settled(asked: Asked, seen: Seen, place: Place, context: Context) -> tuple[Asked, Seen]:
    """(the question with its boxes as corners, what is seen with the frame and picture of its box). Raises Refusal."""
    order, asked = _ordered(asked, seen, place, context)
    found = [box_words.corners(boxes.four(answer) or (), order) for answer in asked.accepted]
    for answer, box in zip(asked.accepted, found, strict=True):
        if box is None:
            reason = f"four numbers that are no box as {', '.join(order)}; say bbox_format, or answer_type exact"
            raise Refusal(place.where, "answer", reason, quoted(answer))
    corners = [box for box in found if box is not None]
    if order != CORNERS:
        if seen.has_boxes:
            raise Refusal(place.where, "bbox_format", "boxes in the question that are no corners; make them xyxy")
        context.notes[MOVED.format(", ".join(order))] += 1
        asked = dataclasses.replace(asked, accepted=[written(box) for box in corners])
    seen = dataclasses.replace(seen, target=_target(asked.question, seen, place, context))
    frame = frame_of(asked.question, corners[0], seen, place, context)
    _note(corners[0], frame, seen, context)
    if seen.has_boxes or frame == "pixels" or not (box_words.frame(asked.question) or box_words.size(asked.question)):
        return asked, dataclasses.replace(seen, frame=frame)
    told = asked.question.rstrip() + _ASK
    return dataclasses.replace(asked, question=told), dataclasses.replace(seen, frame=frame)


def metadata(seen: Seen) -> Record:
    """What training has to know of the box that is the answer."""
    return {"answer_frame": seen.frame} | ({"target_image": seen.target} if seen.target > 1 else {})


def explained(question: str, seen: Seen, place: Place, context: Context) -> str:
    """A question with the frame of the boxes that stand in it as numbers, in words; as it is where there are none."""
    inside = box_words.boxes_in(question, anywhere=seen.has_boxes)
    if not seen.has_boxes and (not inside or box_words.frame(question) or box_words.size(question)):
        return question
    order = box_frames.order(seen.fields, place) or box_words.order_of(context.options.box_format) or CORNERS
    box = box_words.corners(inside[0], order) if inside else None
    if not seen.has_boxes and (box is None or box_words.order(question)[1]):
        return question
    frame = frame_of(question, box, seen, place, context)
    if not seen.has_boxes:
        context.notes[PLAIN.format(_words(frame))] += 1
        context.notes[PLAIN_OUTSIDE.format(frame)] += box is not None and _is_outside(box, frame, seen)
    told = "" if order == CORNERS or seen.has_boxes else f"{', '.join(order)} "
    return f"{question}\n(Boxes in this question are {told}{_words(frame)}{_size(frame, seen)}.)"


def frame_of(question: str, box: Box | None, seen: Seen, place: Place, context: Context) -> Frame:
    """The frame of a box. Raises Refusal for contradictions, and for a size that is not the picture's nor its shape."""
    fields = box_frames.frame(seen.fields, box, place)
    words = _of_words(box_words.frame(question), box, place)
    if fields and seen.frame and fields != seen.frame and (seen.has_boxes or seen.target):
        reason = f"its bbox_type is not what {next(iter(seen.fields))} says"
        raise Refusal(place.where, "objects", reason, f"{seen.frame}, {fields}")
    if fields and words and fields != words:
        raise Refusal(place.where, "question", "names another frame of boxes than the record", f"{words}, {fields}")
    frame = fields or seen.frame or words or context.options.coordinates.replace("auto", "")
    if frame in ("", "pixels"):
        frame = _of_size(question, seen, place) or frame
    if not frame and box and min(box) >= 0 and max(box) <= 1:
        context.notes[SHARES] += 1
        return "relative"
    return frame or "pixels"


def written(box: Box) -> str:
    """A box as an answer is written, whole numbers without a point."""
    return json.dumps([int(number) if number.is_integer() else number for number in box])


def _ordered(asked: Asked, seen: Seen, place: Place, context: Context) -> tuple[Order, Asked]:
    """(the order of the numbers, the question, asking for corners now). Raises Refusal."""
    fields = box_frames.order(seen.fields, place)
    words, spelled = box_words.order(asked.question)
    if spelled and words is None:
        raise Refusal(place.where, "question", "asks for numbers in an order that is none of a box", quoted(spelled))
    if fields and words and fields != words:
        told = f"{', '.join(words)}; {', '.join(fields)}"
        raise Refusal(place.where, "question", "asks for another order of numbers than the record's bbox_format", told)
    if words and words != CORNERS:
        asked = dataclasses.replace(asked, question=asked.question.replace(spelled, "[x1, y1, x2, y2]"))
    found = fields or words or box_words.order_of(context.options.box_format)
    if all(map(_NAMED_NUMBERS.search, asked.accepted)):
        return CORNERS, asked
    if found is None and any('"box_2d"' in answer for answer in asked.accepted):
        reason = "box_2d, which Gemini writes as y1, x1, y2, x2 in thousandths: say bbox_format and answer_frame"
        raise Refusal(place.where, "answer", reason, quoted(asked.accepted[0]))
    if found is None:
        if context.boxes(place) == box_habits.OPEN:
            reason = "four numbers, and those of the file are not all x1, y1, x2, y2: say --box_format, or bbox_format"
            raise Refusal(place.where, "answer", reason, quoted(asked.accepted[0]))
        found = CORNERS
    return found, asked


def _target(question: str, seen: Seen, place: Place, context: Context) -> int:
    """The picture that a box is about. Raises Refusal where the question names several, or one that is not there."""
    count = len(seen.pictures)
    found = box_frames.target(seen.fields, count, place) or seen.target
    if found > count:
        reason = "image_id of a picture that is not there"
        raise Refusal(place.where, "objects", reason, f"{found} of {count}")
    if found or count < 2:
        return found or 1
    named = box_words.pictures(question, count)
    if len(named) > 1:
        raise Refusal(place.where, "question", "names several pictures, and the answer is a box; say target_image")
    if not named:
        context.notes[FIRST_PICTURE] += 1
        return 1
    number = named.pop()
    if not 1 <= number <= count:
        raise Refusal(place.where, "question", "names a picture that is not there", f"{number} of {count}")
    return number


def _of_words(name: str, box: Box | None, place: Place) -> Frame:
    """The frame of what a question's words say. Raises Refusal for "normalized" without a range and large numbers."""
    if name == "percent":
        return [100.0, 100.0]
    if name == "normalized":
        if box and not all(0 <= number <= 1 for number in box):
            reason = "says normalized, and not all numbers are from 0 to 1: say answer_frame, or --coordinates"
            raise Refusal(place.where, "question", reason, quoted([*box]))
        return "relative"
    return name


def _of_size(question: str, seen: Seen, place: Place) -> Frame:
    """The size that record or question give the picture, where its file has another; "" where it has none."""
    size = seen.pictures[max(seen.target, 1) - 1].size if seen.pictures else None
    told, names = box_frames.size(seen.fields)
    field = names
    if told is None:
        told, field = box_words.size(question), "question"
    if told is None or size is None or told == size or (field == "question" and told == size[::-1]):
        return ""
    if abs(told[0] * size[1] / (told[1] * size[0]) - 1) > _SAME_SHAPE:
        reason = "the picture has another size and another shape, so that boxes can't be placed; say answer_frame"
        raise Refusal(place.where, field, reason, f"{_shown(told)}, the file {_shown(size)}")
    return [*told]


def _note(box: Box, frame: Frame, seen: Seen, context: Context) -> None:
    """Counts how boxes are read, and those that lie beyond their picture."""
    context.notes[READ.format(_words(frame))] += 1
    if _is_outside(box, frame, seen):
        context.notes[OUTSIDE.format(frame if isinstance(frame, str) else "pixels of the size that is told")] += 1


def _is_outside(box: Box, frame: Frame, seen: Seen) -> bool:
    if isinstance(frame, str):
        size = seen.pictures[max(seen.target, 1) - 1].size if seen.pictures else None
        limits: Size | None = {"pixels": size, "relative": (1, 1), "norm1000": (1000, 1000)}[frame]
    else:
        limits = (frame[0], frame[1])
    return limits is not None and (min(box) < 0 or box[2] > limits[1] or box[3] > limits[0])


def _words(frame: Frame) -> str:
    if isinstance(frame, str):
        return _WORDS[frame]
    if frame == [100.0, 100.0]:
        return "in percent of the width and the height of the picture"
    return "in pixels of the picture at another size, which record or question tell"


def _size(frame: Frame, seen: Seen) -> str:
    if not isinstance(frame, str):
        return f", {_shown((frame[0], frame[1]))}" if frame != [100.0, 100.0] else ""
    size = seen.pictures[0].size if seen.pictures else None
    return f", {_shown(size)}" if size and frame == "pixels" and len(seen.pictures) == 1 else ""


def _shown(size: Size) -> str:
    return f"{size[1]:g} x {size[0]:g}"
