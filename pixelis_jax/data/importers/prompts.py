"""Questions with their answers and without a dialogue, as RL data has them -> samples without steps."""

import dataclasses
import re
from typing import Any

from pixelis_jax.data.cota import UNANSWERED
from pixelis_jax.data.importers import (
    answer_types,
    box_frames,
    calls,
    choices,
    gold,
    gold_values,
    marks,
    messages,
    objects,
    other_pictures,
    questions,
    turns,
)
from pixelis_jax.data.importers.base import Context, Place, Record, Refusal, first_of, leftovers, quoted
from pixelis_jax.data.importers.box_answers import Seen
from pixelis_jax.data.importers.choices import Asked
from pixelis_jax.data.importers.fields import (
    FILMS,
    base_record,
    first_pictures,
    image_columns,
    images_of,
    placed,
    refuse_without,
    with_context,
)
from pixelis_jax.types import UserError

_BOX = re.compile(r"bbox|bounding|(?:^|_)(?:box|boxes|coords?)(?:_|$)", re.IGNORECASE)
_ASKS = re.compile(
    r"quest|query|prompt|instruct|problem|expression|sentence|phrase|caption|(?:^|_)q\d*(?:_|$)", re.IGNORECASE
)
QUESTIONS = (*messages.ASKED, *messages.MESSAGES)


def fits(record: Record) -> bool:
    """Whether there is a question and something that may be its answer."""
    return bool(first_of(record, QUESTIONS)[0]) and gold.answer_of(record)[0] != ""


def is_unanswered(record: Record) -> bool:
    """Whether there is a question, and nothing, or an empty text or list, in the place of its answer."""
    return bool(first_of(record, QUESTIONS)[0]) and gold.is_empty(gold.answer_of(record)[1])


def lacking(record: Record) -> tuple[str, str]:
    """(why a record without question, messages and steps can't be read and what to do, what it has)."""
    shown = quoted(", ".join(record))
    if isinstance(record.get("images"), list) and isinstance(record.get("annotations"), list):
        return (
            "a COCO file of pictures and annotations; write one record for each question, with image and answer",
            shown,
        )
    if isinstance(record.get("data"), dict) and isinstance(record.get("annotations"), list):
        return "a task of Label Studio; write one record for each question, with image and answer", shown
    name = next((name for name, value in record.items() if _ASKS.search(name) and value), "")
    reason = "has the fields of no format that is known; its question must be in question, its answer in answer"
    return reason, f"{shown}; perhaps rename {quoted(name)}" if name else shown


def convert(record: Record, place: Place, context: Context) -> list[Record | UserError]:
    """The one record in our form, with an empty trajectory. Raises Refusal."""
    name, _ = first_of(record, QUESTIONS)
    question, parts, tools = _question(record, name or "question", place, context)
    answer_name, given = gold.answer_of(record)
    gold.refuse_judged(answer_name, given, first_of(record, messages.SAID)[1], place)
    unanswered = gold.is_empty(given)
    listed, columns = choices.of_record(record, place)
    used = {name, messages.MORE if name == "instruction" else name, answer_name.partition(".")[0], *columns}
    used |= {"is_video", "answer_type", "tools"}
    question = with_context(question, record, used, context)
    if unanswered:
        refuse_unanswered(record, used, place, allowed=context.options.unanswered)
    accepted = [] if unanswered else gold_values.plain(given, place, answer_name)
    (question, *rest), found, images = _filled([question, *listed.texts, *accepted], record, place, used)
    count = len(listed.texts)
    listed, accepted = dataclasses.replace(listed, texts=tuple(rest[:count])), rest[count:]

    is_video = record.get("is_video", False)
    if not isinstance(is_video, bool | None):
        raise Refusal(place.where, "is_video", "must be true or false", quoted(is_video))
    fields = images_of(record, place)
    given_images = _given(parts, fields, name, place)
    if not given_images:
        refuse_without(record, place)
    image_name, pictures = first_pictures(given_images, place, context)
    other_pictures.refuse_unused(record, image_name, fields, pictures, place, context)
    film = is_video is True or image_name in FILMS
    marks.check_count([question, *listed.texts], len(pictures), place, name, is_video=film)
    used |= {image_name} if len(fields) > 1 else image_columns(record)

    made = base_record(record, place, context, used)
    frame = found.frame if found else ""
    seen = Seen(pictures, film, 1, frame, images[-1] if accepted else 0, bool(images[0]), box_frames.said(record))
    answer_type = answer_types.of_record(record)
    all_of = gold_values.needs_all(given, question, answer_type)
    if not all_of and not listed.texts:
        gold_values.note_lists(given, context)
    typed = questions.typed(Asked(question, accepted, listed, answer_type, all_of), seen, place, context, tools)
    if "answer_frame" in typed["metadata"]:
        made["metadata"] = box_frames.without(made["metadata"])
        used |= {*box_frames.FIELDS}
    made["metadata"] |= typed.pop("metadata")
    made.update(typed, trajectory=[])
    made.update(placed(pictures, is_video=film))
    if unanswered:  # as a wrong answer, which nothing is trained to give
        made.update(sample_type="outcome_negative", answer_loss=False)
        made["metadata"][UNANSWERED] = True
        context.notes["without an answer"] += 1
    if more := leftovers(record, used):
        made["metadata"]["other_fields"] = more
    return [made]


def refuse_unanswered(record: Record, used: set[str], place: Place, *, allowed: bool) -> None:
    """Raises Refusal for a question without an answer, unless that is allowed and no other field may hold one."""
    if holder := gold.may_hold(record, used):
        reason = "missing or empty, and another field may hold it: rename that to answer, or leave it out"
        if _BOX.search(holder.rpartition(".")[2]):
            reason = f"{reason}; if it is x, y, width, height, add bbox_format xywh"
        raise Refusal(place.where, "answer", reason, quoted(holder))
    if not allowed:
        raise Refusal(place.where, "answer", "missing or empty; a question needs one, or --unanswered")


def _given(
    parts: list[Any], fields: list[tuple[str, list[Any]]], name: str, place: Place
) -> list[tuple[str, list[Any]]]:
    """The fields of pictures to try: the parts of messages, filled from the record's own where they are empty."""
    if all(part is None for part in parts):
        return fields
    own = fields[0][1] if fields else []
    needed = parts.count(None)
    spare = [value for value in own[needed:] if value not in parts]
    if needed > len(own) or spare:
        raise Refusal(place.where, name, turns.MISMATCH, f"{len(parts)} marks and {len(own)} images")
    waiting = iter(own)
    return [(name, [next(waiting) if part is None else part for part in parts])]


def _question(record: Record, field: str, place: Place, context: Context) -> tuple[str, list[Any], set[str]]:
    """(the words, the values of their marks, defined tools) of a text or a list of messages. Raises Refusal."""
    value = messages.instruction(record, field)
    if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
        if len(value) > 1:
            raise Refusal(
                place.where, field, "several texts in a list; write one record for each question", quoted(value)
            )
        value = value[0]
    if not isinstance(value, list):
        if not isinstance(value, str) or not marks.without(value).strip():
            raise Refusal(place.where, field, "missing or empty")
        messages.refuse_spoilt(value, field, place)
        return value, marks.paths(value), calls.declared("", record.get("tools"))[1]
    asked = [messages.message(item, f"{field} {number}", place) for number, item in enumerate(value, 1)]
    if any(message.role not in ("user", "system") for message in asked):
        raise Refusal(
            place.where, field, "end with a question; an assistant's turn in front of it is not read as a prompt"
        )
    system = "\n".join(message.text for message in asked if message.role == "system" and message.text.strip())
    context.notes["system prompts left out, since the dialogue has its own"] += bool(system)
    text = "\n".join(message.text for message in asked if message.role == "user")
    if not marks.without(text).strip():
        raise Refusal(place.where, field, "missing or empty")
    held = [value for message in asked if message.role == "user" for value in message.held]
    return text, held, calls.declared(system, record.get("tools"))[1]


def _filled(
    texts: list[str], record: Record, place: Place, used: set[str]
) -> tuple[list[str], objects.Objects | None, list[int]]:
    """(texts with what their placeholders of objects stand for, the objects if there are any, pictures of boxes)."""
    if not objects.are_in(texts) or record.get(objects.FIELD) is None:
        return texts, None, [0] * len(texts)
    used.add(objects.FIELD)
    found = objects.of_record(record[objects.FIELD], place)
    filled, images = objects.filled(texts, found, place, "question")
    return filled, found, images
