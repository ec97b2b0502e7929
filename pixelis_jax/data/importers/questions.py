"""One question in our form, the same steps for every format: placeholders, marks, other tools, choices, type, frame."""

import dataclasses
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pixelis_jax.answers import boxes
from pixelis_jax.answers.choices import NEEDS_ALL
from pixelis_jax.data.importers import answers, box_frames, gold_values, marks, objects, other_tools
from pixelis_jax.data.importers.base import Context, Place, Record, Refusal
from pixelis_jax.data.importers.choices import Asked
from pixelis_jax.data.importers.pictures import Picture

_FRAMES = {
    "pixels": "in pixels of the picture at its full size",
    "relative": "in shares of the width and the height of the picture, from 0 to 1",
    "norm1000": "in thousandths of the width and the height of the picture",
}
WITHIN = "answers that are boxes of less than a pixel when read as pixels: say what they are with --coordinates"
TEMPLATE = "questions without the role names of a chat template around them"
_ROLES = re.compile(
    r"\s*(?:###\s*)?(?:USER|User|HUMAN|Human):\s*(.*?)\s*(?:###\s*)?(?:ASSISTANT|Assistant|GPT):\s*", re.DOTALL
)
OUTSIDE = "answers that are boxes beyond their picture when read as {}: say what they are with --coordinates"
THOUSANDTHS = "boxes between tokens, which Qwen2-VL and InternVL write in thousandths: --coordinates=norm1000 says so"


@dataclasses.dataclass(frozen=True)
class Seen:
    """What a question is about: its pictures, the number of the first of them among the record's, and their boxes.

    `frame` is that of boxes in question and answer unless the record's fields in `said` name one; `target` is the
    picture of an answer's box (0: not said).
    """

    pictures: Sequence[Picture]
    is_video: bool = False
    first: int = 1
    frame: str = "pixels"
    target: int = 0
    has_boxes: bool = False  # in the question, from placeholders
    said: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def frame_of(found: objects.Objects | None, context: Context) -> str:
    """The frame of boxes that stand in texts: that of the record's objects, else what the user says, else pixels."""
    if found is not None:
        return found.frame
    return context.options.coordinates.replace("auto", "pixels")


def typed(asked: Asked, seen: Seen, place: Place, context: Context, tools: Collection[str] = ()) -> Record:
    """The fields of a question with its answer, metadata included; none accepted stands for nobody knows.

    Marks are counted by the caller. Raises Refusal.
    """
    worded, has_boxes = _worded(asked, seen, place, context, tools)
    worded = _cornered(worded, seen, place, context, has_boxes=has_boxes or seen.has_boxes)
    made = answers.typed(worded, place, context) if worded.accepted else answers.untyped(worded, place)
    has_boxes = has_boxes or seen.has_boxes
    if has_boxes or made["answer_type"] == "iou":
        seen = _stated(seen, made["answer"], place)
    if has_boxes:
        made["question"] += f"\n(Boxes in this question are {_FRAMES[seen.frame]}{_size(seen)}.)"
    metadata: Record = {}
    metadata |= {name: made.pop(name) for name in ("answers", NEEDS_ALL) if name in made}
    if any(map(marks.has_boxes, asked.accepted)) and context.options.coordinates == "auto":
        context.notes[THOUSANDTHS] += 1
    if made["answer_type"] == "iou":
        metadata |= _framed(made["answer"], seen, place, context)
    return made | {"metadata": metadata}


def _cornered(asked: Asked, seen: Seen, place: Place, context: Context, *, has_boxes: bool) -> Asked:
    """The same with boxes as corners, where the record says that they are not. Raises Refusal."""
    accepted = [box_frames.corners(seen.said, answer, place) for answer in asked.accepted]
    if accepted == [*asked.accepted]:
        return asked
    if has_boxes:
        raise Refusal(place.where, "bbox_format", "boxes in the question that are no corners; make them xyxy")
    context.notes[box_frames.MOVED] += 1
    return dataclasses.replace(asked, accepted=accepted)


def _stated(seen: Seen, answer: str, place: Place) -> Seen:
    """The same with the frame that the record's own fields name. Raises Refusal where its objects name another."""
    frame = box_frames.frame(seen.said, answer, place)
    if frame and frame != seen.frame and (seen.has_boxes or seen.target):
        reason = f"its bbox_type is not what {next(iter(seen.said))} says"
        raise Refusal(place.where, objects.FIELD, reason, f"{seen.frame}, {frame}")
    return dataclasses.replace(seen, frame=frame or seen.frame)


def _worded(asked: Asked, seen: Seen, place: Place, context: Context, tools: Collection[str]) -> tuple[Asked, bool]:
    """(the question with its marks in words, whether it names boxes). Raises Refusal for marks that nothing fills."""
    question = other_tools.removed(asked.question, tools, place, context)
    if question.rstrip().endswith(":") and (inside := _ROLES.fullmatch(question)):
        question = inside[1]
        context.notes[TEMPLATE] += 1
    spelled = marks.spelled(question, place, "question")
    has_boxes = marks.has_boxes(question)
    options = [
        marks.spelled(gold_values.refuse_long(choice, place, "choices"), place, "choices")
        for choice in asked.choices.texts
    ]
    accepted = [gold_values.bare(marks.answer(answer, place)) for answer in asked.accepted]
    numbers, plain = marks.count(accepted)
    if plain or any(number > len(seen.pictures) for number in numbers):
        marks.refuse_left(accepted, place, "answer")
    bound = marks.bound([spelled, *options, *accepted], first=seen.first, pictures=len(seen.pictures))
    question, options, accepted = bound[0], bound[1 : len(options) + 1], bound[len(options) + 1 :]
    if not question.strip():
        raise Refusal(place.where, "question", "missing or empty")
    for field, told in (("question", [question]), ("choices", options), ("answer", accepted)):
        marks.refuse_left(told, place, field)
        if field != "question" and not all(text.strip() for text in told):
            raise Refusal(place.where, field, "missing or empty")
    choices = dataclasses.replace(asked.choices, texts=tuple(options))
    return dataclasses.replace(asked, question=question.strip(), choices=choices, accepted=accepted), has_boxes


def _framed(answer: str, seen: Seen, place: Place, context: Context) -> Record:
    """The frame of a box that is an answer, for metadata; boxes beyond their picture are counted."""
    target = seen.target or 1
    if target > len(seen.pictures):
        raise Refusal(
            place.where, objects.FIELD, "image_id of a picture that is not there", f"{target} of {len(seen.pictures)}"
        )
    context.notes[f"answers that are boxes: read as [x1, y1, x2, y2] {_FRAMES[seen.frame]}"] += 1
    box, size = boxes.parse(answer), seen.pictures[target - 1].size
    limits = {"pixels": size, "relative": (1, 1), "norm1000": (1000, 1000)}[seen.frame]
    if box and limits and (min(box) < 0 or box[2] > limits[1] or box[3] > limits[0]):
        context.notes[OUTSIDE.format(seen.frame)] += 1
    if box and seen.frame == "pixels" and max(box) <= 1:
        context.notes[WITHIN] += 1
    return {"answer_frame": seen.frame} | ({"target_image": target} if target > 1 else {})


def _size(seen: Seen) -> str:
    size = seen.pictures[0].size if seen.pictures else None
    return f", {size[1]} x {size[0]}" if size and seen.frame == "pixels" and len(seen.pictures) == 1 else ""
