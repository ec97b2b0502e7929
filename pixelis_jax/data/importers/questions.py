"""One question in our form, the same steps for every format: placeholders, marks, other tools, choices, type, frame."""

import dataclasses
import re
from collections.abc import Collection

from pixelis_jax.answers.choices import NEEDS_ALL
from pixelis_jax.data.importers import answers, box_answers, gold_values, marks, other_tools
from pixelis_jax.data.importers.base import Context, Place, Record, Refusal
from pixelis_jax.data.importers.box_answers import Seen
from pixelis_jax.data.importers.choices import Asked

TEMPLATE = "questions without the role names of a chat template around them"
_ROLES = re.compile(
    r"\s*(?:###\s*)?(?:USER|User|HUMAN|Human):\s*(.*?)\s*(?:###\s*)?(?:ASSISTANT|Assistant|GPT):\s*", re.DOTALL
)
THOUSANDTHS = "boxes between tokens, which Qwen2-VL and InternVL write in thousandths: --coordinates=norm1000 says so"


def typed(asked: Asked, seen: Seen, place: Place, context: Context, tools: Collection[str] = ()) -> Record:
    """The fields of a question with its answer, metadata included; none accepted stands for nobody knows.

    Marks are counted by the caller. Raises Refusal.
    """
    worded, has_boxes = _worded(asked, seen, place, context, tools)
    seen = dataclasses.replace(seen, has_boxes=has_boxes or seen.has_boxes)
    box_answers.refuse_others(worded, place)
    is_box = box_answers.is_box(worded, seen, context)
    if is_box:
        worded, seen = box_answers.settled(worded, seen, place, context)
        worded = dataclasses.replace(worded, answer_type="iou")
    made = answers.typed(worded, place, context) if worded.accepted else answers.untyped(worded, place)
    made["question"] = box_answers.explained(made["question"], seen, place, context)
    metadata: Record = {name: made.pop(name) for name in ("answers", NEEDS_ALL) if name in made}
    if any(map(marks.has_boxes, asked.accepted)) and context.options.coordinates == "auto":
        context.notes[THOUSANDTHS] += 1
    return made | {"metadata": metadata | (box_answers.metadata(seen) if is_box else {})}


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
