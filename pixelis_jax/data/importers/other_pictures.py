"""Pictures that a record names beside those that are used: none may be lost without a word."""

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from pixelis_jax.data.importers import picture_values
from pixelis_jax.data.importers.base import Context, Place, Refusal
from pixelis_jax.data.importers.pictures import Picture

_SAME = ("decoded_image", "image_bytes", "image_base64")  # the bytes of the picture that another field names
_NAMED = re.compile(r"(?:^|_)(?:images?|imgs?|pictures?|photos?|frames?)(?:_|\d|$)", re.IGNORECASE)
_ENDING = re.compile(r"\.(?:png|jpe?g|webp|gif|bmp|tiff?)$", re.IGNORECASE)
_ADDRESS = re.compile(r"https?://", re.IGNORECASE)


def refuse_unused(
    record: Mapping[str, Any],
    used: str,
    fields: Sequence[tuple[str, list[Any]]],
    pictures: Sequence[Picture],
    place: Place,
    context: Context,
) -> None:
    """Raises Refusal where a field names a picture that is not among those of the field in use.

    Fields before that one are not there, which is why it is in use.
    """
    names = [name for name, _ in fields]
    later = fields[names.index(used) :] if used in names else fields
    known = {picture.name for picture in pictures}
    given = {name for value in picture_values.listed(record.get(used)) if (name := _base(value))}
    for name, values in later:
        if name not in _SAME and any(_is_other(value, name, known, given, place, context) for value in values):
            _refuse(used, name, place)
    for name in record.keys() - {*names}:
        if _NAMED.search(name) and any(
            _is_there(value, name, known, place, context) for value in picture_values.listed(record[name])
        ):
            _refuse(used, name, place)


def _is_other(value: Any, name: str, known: set[str], given: set[str], place: Place, context: Context) -> bool:
    """Whether a value of a field of pictures names one that is not known; of a file that is not there by its name."""
    try:
        return context.look(value, place, name).name not in known
    except Refusal:
        base = _base(value)
        return bool(base and given and base not in given)


def _is_there(value: Any, name: str, known: set[str], place: Place, context: Context) -> bool:
    """Whether a value of a field that only sounds like one of pictures is one that is not known."""
    if not isinstance(value, Mapping) and not (isinstance(value, str) and _ENDING.search(value.strip())):
        return False
    try:
        return context.look(value, place, name).name not in known
    except Refusal:
        return False


def _base(value: Any) -> str:
    """The name of the file of a path to a picture; "" of all else."""
    text = value.strip().replace("\\", "/") if isinstance(value, str) else ""
    return PurePosixPath(text).name if _ENDING.search(text) and not _ADDRESS.match(text) else ""


def _refuse(used: str, name: str, place: Place) -> None:
    reason = "fields that name different pictures, and not all are used; put them into one list"
    raise Refusal(place.where, name, reason, f"{used}, {name}")
