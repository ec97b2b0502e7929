"""What the importers share: options, a record's way to our form, and refusals that are counted by reason."""

import dataclasses
import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pixelis_jax.types import UserError

if TYPE_CHECKING:
    from pixelis_jax.data.importers.pictures import Picture

FRAMES = ("relative", "norm1000", "pixels")  # 0..1, 0..1000, pixels of the image file

_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"|\[[^\]]*\]|\(.*\)|(?<![\w-])-?\d[\d.]*(?:e[+-]?\d+)?")


class Refusal(UserError):
    """A record that can't be read: `where` (file and line), field, reason. `kind` is what it is counted under."""

    def __init__(self, where: str, field: str, reason: str, detail: str = ""):
        super().__init__(f"{where}: {field}: {reason}" + (f" ({detail})" if detail else ""))
        self.kind = f"{field.rstrip('0123456789').rstrip()}: {reason}"  # messages 1, messages 2, ... are one kind


@dataclasses.dataclass(frozen=True)
class Options:
    """What the user asked for. `task_type` "required" refuses a record without one; `split` "" takes all.

    With `unanswered` a question without an answer is taken too. `answer_type` is that of records that name none, "auto"
    reads it off; `answer_index` is the number of the first choice, "auto" looks at the whole file (numbering.py).
    """

    format: str = "auto"
    task_type: str = "attribute_recognition"
    coordinates: str = "auto"
    answer_type: str = "auto"
    answer_index: str = "auto"
    answer_letter: str = "auto"
    box_format: str = "auto"
    crop_padding: float = 0.0
    split: str = ""
    image_root: Path | None = None
    check_images: bool = True
    keep_paths: bool = False
    strict: bool = False
    unanswered: bool = False


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a record stands: the words that begin its errors, and its file, from whose folder its images are named."""

    where: str
    file: Path
    split: str = ""

    def part(self, number: int) -> "Place":
        """The place of a question of the record."""
        return dataclasses.replace(self, where=f"{self.where}: question {number}")


@dataclasses.dataclass(frozen=True)
class Context:
    """What a conversion works with. `notes` counts what was changed or left out of records that were read.

    `numbering`, `lettering` and `boxes` say what whole numbers, letters and four numbers in the place of answers mean
    in the file of a place (see numbering.py and box_habits.py).
    """

    options: Options
    look: "Callable[[Any, Place, str], Picture]"  # value, place, field -> the picture, checked
    notes: Counter[str]
    numbering: Callable[[Place], str]
    lettering: Callable[[Place], str]
    boxes: Callable[[Place], str]


Record = dict[str, Any]
Found = tuple[str, Any]  # (where it stands, record or the UserError in its place)
Convert = Callable[[Record, Place, Context], list[Record | UserError]]


@dataclasses.dataclass(frozen=True)
class Format:
    """One way to write a record. `fits` looks at the field names only; `convert` gives records in our form.

    They are as many as there are questions in the record, with the refusal of one in its place; it raises Refusal where
    it can't be read at all. Each has the id it came with, if any, in `provenance["original_sample_id"]`.
    """

    fits: Callable[[Record], bool]
    convert: Convert
    about: str


def kind_of(error: UserError, where: str) -> str:
    """What an error is counted under: its words without the place and without what it quotes."""
    if isinstance(error, Refusal):
        return error.kind
    text = str(error).removeprefix(f"{where}: ").partition(";")[0]
    return " ".join(_QUOTED.sub("..", text).split())[:120]


def quoted(value: Any) -> str:
    """A value of somebody else's file in an error: one line, 60 characters at most."""
    return printable((value if isinstance(value, str) else repr(value)[:200])[:60])


def printable(text: str) -> str:
    """A text in one line, with escapes for what can't be printed: line ends, control characters, half surrogates."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def cut_out(text: str, tag: str) -> tuple[str, list[str]]:
    """(the text without its <tag>...</tag> blocks, what they hold), in time linear in the text."""
    around, inside, at = [], [], 0
    opened, closed = f"<{tag}>", f"</{tag}>"
    while (start := text.find(opened, at)) >= 0 and (end := text.find(closed, start)) >= 0:
        around.append(text[at:start])
        inside.append(text[start + len(opened) : end])
        at = end + len(closed)
    return " ".join([*around, text[at:]]), inside


def first_of(record: Mapping[str, Any], names: tuple[str, ...]) -> tuple[str, Any]:
    """(name, value) of the first field that is there and not null; ("", None) where there is none."""
    for name in names:
        if record.get(name) is not None:
            return name, record[name]
    return "", None


def is_number(value: Any) -> bool:
    """A finite number; comparing keeps huge integers out of floats."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def without_nan(value: Any) -> Any:
    """A record with null for NaN, which tables have where there is nothing."""
    if isinstance(value, dict):
        return {name: without_nan(item) for name, item in value.items()}
    if isinstance(value, list):
        return [without_nan(item) for item in value]
    return None if value != value else value


def leftovers(record: Mapping[str, Any], used: set[str]) -> Record:
    """The fields that no importer reads, as JSON values; nulls and raw bytes are left out."""
    kept = {name: _without_bytes(value) for name, value in record.items() if name not in used and value is not None}
    return {name: value for name, value in kept.items() if value is not None}


def _without_bytes(value: Any) -> Any:
    if isinstance(value, bytes):
        return None
    if isinstance(value, dict):
        return {name: _without_bytes(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_without_bytes(item) for item in value]
    return value
