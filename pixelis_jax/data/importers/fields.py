"""Fields that several formats read the same way: images, ids, provenance."""

from collections.abc import Sequence
from typing import Any

from pixelis_jax.data.importers import answers
from pixelis_jax.data.importers.base import Context, Place, Record, Refusal, first_of, quoted
from pixelis_jax.data.importers.pictures import Picture

IMAGES = ("image", "images", "image_path", "image_paths", "frames", "decoded_image", "image_file", "img", "video")
IDS = ("qid", "id", "question_id", "sample_id", "uid", "index", "idx")
_KEPT = ("tolerance",)  # optional fields of a sample that are ours by name
_FILMS = (".mp4", ".avi", ".mov", ".mkv", ".webm")


def pictures_of(values: Any, field: str, place: Place, context: Context) -> list[Picture]:
    """The pictures of a field that holds one or a list. Raises Refusal."""
    values = values if isinstance(values, list) else [values]
    values = [value for value in values if value is not None]
    if not values:
        raise Refusal(place.where, field or "image", "missing: no image is named, and a sample has at least one")
    found: list[Picture] = []
    for value in values:
        if isinstance(value, str) and value.lower().endswith(_FILMS):
            raise Refusal(place.where, field, "a video file; give its frames as images", quoted(value))
        found.append(context.look(value, place, field))
    return found


def identity(value: Any, place: Place) -> str:
    """A record's own id as text, or the name of its file where it has none."""
    named = isinstance(value, str | int) and not isinstance(value, bool) and value != ""
    return str(value) if named else place.file.name


def placed(pictures: Sequence[Picture], *, is_video: bool) -> Record:
    """The field that names the images of a sample."""
    names = [picture.name for picture in pictures]
    if is_video:
        return {"frames": names}
    return {"image_path": names[0]} if len(names) == 1 else {"image_paths": names}


def base_record(record: Record, place: Place, context: Context, used: set[str]) -> Record:
    """Task type, provenance, metadata and tolerance; adds the fields it reads to `used`."""
    made: Record = {"task_type": answers.task_type(record, context.options.task_type, place, context.notes)}
    name, value = first_of(record, IDS)
    used.update((name, "task_type", "metadata", *_KEPT))
    made["provenance"] = {"original_sample_id": identity(value, place)}
    metadata = record.get("metadata")
    made["metadata"] = dict(metadata) if isinstance(metadata, dict) else {}
    if metadata is not None and not isinstance(metadata, dict):
        made["metadata"]["metadata"] = metadata
    if place.split:
        made["metadata"]["split"] = place.split
    made.update({name: record[name] for name in _KEPT if record.get(name) is not None})
    return made
