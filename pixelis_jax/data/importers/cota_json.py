"""CoTA records, ours and the dialects that `cota.from_record` reads: pictures, provenance, marks, untyped answers.

A record that names its answer type is taken at its word; of one that names none the answers are read as those of all
other formats.
"""

from pixelis_jax.data.importers import (
    answer_types,
    answers,
    box_frames,
    choices,
    gold_values,
    marks,
    other_pictures,
    questions,
    task_types,
)
from pixelis_jax.data.importers.base import Context, Place, Record, Refusal, first_of
from pixelis_jax.data.importers.box_answers import Seen
from pixelis_jax.data.importers.choices import Asked
from pixelis_jax.data.importers.fields import IDS, identity, images_of, pictures_of
from pixelis_jax.data.importers.pictures import Picture
from pixelis_jax.types import UserError

_PLACES = ("image_path", "image_paths", "frames", "image", "images")


def fits(record: Record) -> bool:
    """Whether there are steps."""
    return isinstance(record.get("trajectory"), list)


def convert(record: Record, place: Place, context: Context) -> list[Record | UserError]:
    """The record with its images under their new names. A missing task type is the user's default. Raises Refusal."""
    made = dict(record)
    name, values = first_of(record, _PLACES)
    if not name:
        raise Refusal(place.where, "image_path", "give one of image_path, image_paths and frames")
    pictures = pictures_of(values, name, place, context)
    fields = sorted(images_of(record, place), key=lambda field: field[0] != name)  # the one in use first
    other_pictures.refuse_unused(record, name, fields, pictures, place, context)
    names = [picture.name for picture in pictures]
    del made[name]
    made["frames" if name == "frames" else "image_paths" if isinstance(values, list) else "image_path"] = (
        names if isinstance(values, list) or name == "frames" else names[0]
    )
    if record.get("task_type") is None:
        made["task_type"] = task_types.task_type(record, context.options.task_type, place, context.notes)
    provenance, told = record.get("provenance"), False
    if provenance is None or isinstance(provenance, dict):
        _, named = first_of(record, ("sample_id", *IDS))
        own = dict(provenance or {})
        told = bool(own.get("synthesis_method"))
        if not own.get("original_sample_id") and not told:
            own["original_sample_id"] = identity(named, place)
        made["provenance"] = own
    metadata = record.get("metadata")
    if isinstance(metadata, dict | None):
        made["metadata"] = {**(metadata or {}), **({"split": place.split} if place.split and not told else {})}
        _settle(made, pictures, name == "frames", place, context)
    if record["trajectory"] and not (isinstance(metadata, dict) and metadata.get("seen_size")):
        context.notes["samples without metadata.seen_size: their boxes are taken as they are"] += 1
    return [made]


def _settle(made: Record, pictures: list[Picture], is_video: bool, place: Place, context: Context) -> None:
    """Reads question, choices and answers, unless the record has no mark and names its answer type. Raises Refusal."""
    question, name = made.get("question"), "answer" if made.get("answer") is not None else "final_answer"
    given = made.get(name)
    if not isinstance(question, str) or not question.strip() or given is None:
        return  # refused by its reader
    thoughts = [step for step in made["trajectory"] if isinstance(step, dict) and isinstance(step.get("thought"), str)]
    for step in thoughts:
        thought = marks.spelled(step["thought"], place, "thought")
        marks.refuse_left([thought], place, "thought")
        if thought != step["thought"]:
            made["trajectory"] = [{**s, "thought": thought} if s is step else s for s in made["trajectory"]]
    listed, columns = choices.of_record(made, place)
    said = [value for value in (given, made.get("ground_truth")) if value is not None]
    texts = [question, *listed.texts, *(value for value in said if isinstance(value, str))]
    plain = all(isinstance(value, str) for value in said) and not marks.of(texts) and not any(map(marks.left, texts))
    boxes = made.get("answer_type") == "iou" and any(answers.box_text(str(value)) != value for value in said)
    if made.get("answer_type") is not None and plain and not boxes:
        if columns and columns != {"choices"}:
            for column in columns:
                del made[column]
            made["choices"] = [*listed.texts]
        return
    marks.check_count([question, *listed.texts], len(pictures), place, "question", is_video=is_video)
    seen = Seen(pictures, is_video, fields=box_frames.said(made))
    truth = given if made.get("ground_truth") is None else made["ground_truth"]
    asked = Asked(question, gold_values.plain(truth, place, name), listed, answer_types.of_record(made))
    typed = questions.typed(asked, seen, place, context)
    right = answer = typed.pop("answer")
    if truth != given:
        other = Asked(question, gold_values.plain(given, place, name), listed, typed["answer_type"])
        answer = questions.typed(other, seen, place, context)["answer"]
    made["metadata"] |= typed.pop("metadata")
    for field in {name, "sample_id", *columns}:
        made.pop(field, None)
    made.update(typed, answer=answer, ground_truth=right)
