"""Fields that several formats read the same way: images, ids, provenance."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pixelis_jax.data.cota import OWN_TYPE
from pixelis_jax.data.importers import answer_types, gold, picture_values, task_types
from pixelis_jax.data.importers.base import Context, Place, Record, Refusal, first_of, is_number, printable, quoted
from pixelis_jax.data.importers.pictures import MISSING, Picture

IMAGES = (
    *("image", "images", "image_path", "image_paths", "frames", "decoded_image", "image_file", "img", "video"),
    *("image_url", "image_urls", "img_path", "imgs", "image_list", "image_bytes", "image_base64", "picture"),
    *("pictures", "image_name", "videos"),
)
_ALONE = ("imgname", "img_name", "image_filename", "image_file_name")  # where no other field names a picture
_ONE = ("image", "img", "picture")  # fields that numbered columns may stand beside
FILMS = ("frames", "video", "videos")
IDS = ("qid", "id", "question_id", "sample_id", "uid", "index", "idx")
CONTEXT = ("context", "passage", "paragraph", "hint")  # what a question needs to be understood
_BESIDE = ("background", "lecture", "caption")  # what may belong to it, or give its answer away
_KEPT = ("tolerance",)  # optional fields of a sample that are ours by name
_MOVIES = (".mp4", ".avi", ".mov", ".mkv", ".webm", ".m4v", ".mpg", ".mpeg")
_ABOUT = re.compile(
    r"image|img|picture|photo|file_?name|file_?path|video|(?:^|_)(?:url|path|file)(?:_|$)", re.IGNORECASE
)
_SIZE = re.compile(r"width|height|size|type|format|count|(?:^|_)[wh](?:_|$)", re.IGNORECASE)
NO_IMAGE = "missing: no image is named, and a sample has at least one"
_NUMBERED = re.compile(r"(?:image|img|picture|frame)_?(\d{1,3})")


def images_of(record: Mapping[str, Any], place: Place) -> list[tuple[str, list[Any]]]:
    """The fields of a record that name its pictures, the likeliest first, with their values; columns are one field.

    Raises Refusal where a numbered column is empty before one that is not.
    """
    columns = {int(match[1]): name for name in record if (match := _NUMBERED.fullmatch(name))}
    numbers = [number for number in sorted(columns) if record[columns[number]] not in (None, "")]
    filled = [name for name in (*IMAGES, *_ALONE) if record.get(name) not in (None, [], "")]
    named = [name for name in filled if name in IMAGES] or ([] if numbers else filled[:1])
    found = [(name, picture_values.listed(record[name])) for name in named]
    if not numbers or (found and found[0][0] not in _ONE):
        return found
    first, latest = columns[numbers[0]], 2 if found else 1
    if numbers != [*range(numbers[0], numbers[0] + len(numbers))] or numbers[0] > latest:
        raise Refusal(place.where, first, "columns of images have a gap", ", ".join(columns[n] for n in numbers))
    values = [record[columns[number]] for number in numbers]
    if not found:
        return [(first, values)]
    name, own = found[0]
    return [(name, [*own, *(value for value in values if value not in own)]), *found[1:]]


def image_columns(record: Mapping[str, Any]) -> set[str]:
    """The names of the fields of pictures."""
    return {name for name in record if name in (*IMAGES, *_ALONE) or _NUMBERED.fullmatch(name)}


def pictures_of(values: Any, field: str, place: Place, context: Context) -> list[Picture]:
    """The pictures of a field that holds one or a list. Raises Refusal."""
    values = picture_values.listed(values)
    if not values or values == [None]:
        raise Refusal(place.where, field or "image", NO_IMAGE)
    found: list[Picture] = []
    for value in values:
        if isinstance(value, str) and value.lower().endswith(_MOVIES):
            raise Refusal(place.where, field, "a video file; give its frames as images", quoted(value))
        found.append(context.look(value, place, field))
    return found


def refuse_without(record: Mapping[str, Any], place: Place) -> None:
    """Raises Refusal for a record that names no picture, with the field that may tell which one it is about."""
    reason, near = (
        NO_IMAGE,
        next((name for name, value in record.items() if _ABOUT.search(name) and not _SIZE.search(name) and value), ""),
    )
    reason += "; write the file's name into image" if near else ""
    raise Refusal(
        place.where, "image", reason, f"perhaps that of {quoted(near)}, {quoted(record[near])}" if near else ""
    )


def first_pictures(
    fields: Sequence[tuple[str, list[Any]]], place: Place, context: Context
) -> tuple[str, list[Picture]]:
    """(field, pictures) of the first field whose files are there. Raises the Refusal of the first one."""
    first: Refusal | None = None
    for name, values in fields or [("", [])]:
        try:
            found = pictures_of(values, name, place, context)
        except Refusal as refusal:
            first = first or refusal
            if MISSING not in str(refusal):
                raise first from None
            continue
        if first:
            context.notes[f"pictures taken from {name}, since those of {fields[0][0]} are not there"] += 1
        return name, found
    assert first is not None
    raise first


def identity(value: Any, place: Place) -> str:
    """A record's own id as text, or the name of its file where it has none."""
    named = isinstance(value, str | int) and not isinstance(value, bool) and value != ""
    return str(value) if named else printable(place.file.name)


def placed(pictures: Sequence[Picture], *, is_video: bool) -> Record:
    """The field that names the images of a sample."""
    names = [picture.name for picture in pictures]
    if is_video:
        return {"frames": names}
    return {"image_path": names[0]} if len(names) == 1 else {"image_paths": names}


def with_context(question: str, record: Mapping[str, Any], used: set[str], context: Context) -> str:
    """The question with the record's context, passage or hint in front of it, unless it has these words already."""
    for name in reversed(CONTEXT):
        text = _context_text(record.get(name))
        if name not in used and text and text not in question:
            question = f"{text}\n{question}"
            used.add(name)
            context.notes[f"{name} put in front of the question"] += 1
    return question


def _context_text(value: Any) -> str | None:
    """The words of a context that is a text, a list of texts, or an object with one of them; None for all else."""
    if isinstance(value, Mapping):
        _, value = first_of(value, ("text", "contexts", "context", "passage", "content"))
    if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
        return "\n".join(item.strip() for item in value if item.strip())
    return ("" if value.strip() in gold.NOTHING else value.strip()) if isinstance(value, str) else None


def note_context(record: Mapping[str, Any], used: set[str], context: Context) -> None:
    """Counts fields that may belong to the question and are not part of it."""
    for name in (*CONTEXT, *_BESIDE):
        if name not in used and record.get(name) not in (None, "", [], {}) and _context_text(record[name]) != "":
            context.notes[f"{name} is not part of the question; put it there if it is needed"] += 1


def base_record(record: Record, place: Place, context: Context, used: set[str]) -> Record:
    """Task type, provenance, metadata and tolerance; adds the fields it reads to `used`."""
    note_context(record, used, context)
    made: Record = {"task_type": task_types.task_type(record, context.options.task_type, place, context.notes)}
    name, value = first_of(record, IDS)
    used.update((name, "task_type", "metadata", *_KEPT))
    made["provenance"] = {"original_sample_id": identity(value, place)}
    metadata = record.get("metadata")
    made["metadata"] = dict(metadata) if isinstance(metadata, dict) else {}
    if metadata is not None and not isinstance(metadata, dict):
        made["metadata"]["metadata"] = metadata
    if own := task_types.own_type(record):
        made["metadata"].setdefault(OWN_TYPE, own)
    if place.split:
        made["metadata"]["split"] = place.split
    made.update({name: record[name] for name in _KEPT if record.get(name) is not None})
    decimals = record.get("precision")  # of MathVista: what is said is rounded to as many before it is compared
    is_decimal = answer_types.word_of(record.get("answer_type")) == "float"
    if "tolerance" not in made and is_decimal and decimals is not None and is_number(decimals):
        made["tolerance"] = round(0.5 * 10.0**-decimals, 12)
        used.add("precision")
        context.notes["precision read as a tolerance of half a unit of the last decimal"] += 1
    return made
