"""CoTA records, ours and the dialects that `cota.from_record` reads: only images and provenance change."""

from pixelis_jax.data.importers import answers
from pixelis_jax.data.importers.base import Context, Place, Record, Refusal, first_of
from pixelis_jax.data.importers.fields import IDS, identity, pictures_of

_PLACES = ("image_path", "image_paths", "frames")


def fits(record: Record) -> bool:
    """Whether there are steps."""
    return isinstance(record.get("trajectory"), list)


def convert(record: Record, place: Place, context: Context) -> Record:
    """The record with its images under their new names. A missing task type is the user's default. Raises Refusal."""
    made = dict(record)
    name, values = first_of(record, _PLACES)
    if not name:
        raise Refusal(place.where, "image_path", "give one of image_path, image_paths and frames")
    pictures = pictures_of(values, name, place, context)
    names = [picture.name for picture in pictures]
    made[name] = names if isinstance(values, list) else names[0]
    if record.get("task_type") is None:
        made["task_type"] = answers.task_type(record, context.options.task_type, place, context.notes)
    provenance, told = record.get("provenance"), False
    if provenance is None or isinstance(provenance, dict):
        _, named = first_of(record, ("sample_id", *IDS))
        own = dict(provenance or {})
        told = bool(own.get("synthesis_method"))
        if not own.get("original_sample_id") and not told:
            own["original_sample_id"] = identity(named, place)
        made["provenance"] = own
    if place.split and not told and isinstance(made.get("metadata", {}), dict):
        made["metadata"] = {**(made.get("metadata") or {}), "split": place.split}
    metadata = record.get("metadata")
    if record["trajectory"] and not (isinstance(metadata, dict) and metadata.get("seen_size")):
        context.notes["samples without metadata.seen_size: their boxes are taken as they are"] += 1
    return made
