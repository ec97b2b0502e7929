"""The choices of a question in the shapes that other data give them: a list, a text, an object, columns, its lines."""

import ast
import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pixelis_jax.answers.choices import LETTERS
from pixelis_jax.data.importers import choices_in_text
from pixelis_jax.data.importers.base import Place, Refusal, first_of, is_number, quoted
from pixelis_jax.data.importers.gold import NOTHING

NAMES = ("choices", "options", "choice", "answer_choices", "option", "option_list", "choice_list", "candidates")
_COLUMN = re.compile(r"(?:choice|option|opt|op|candidate)[_ ]?([A-Za-z]|\d{1,2})", re.IGNORECASE)
_PREFIX = re.compile(r"\s*(?:[(（\[]([A-Za-z])[)）\]]|([A-Za-z])[.:)、．：）])\s*(\S.*)", re.DOTALL)
_NAME = re.compile(r"(?:[A-Z]\.\s*)+[A-Z][\w'’-]{2,}(?:\s[A-Z][\w'’-]+)*")  # G. Washington
_QUOTED = re.compile(r"'((?:[^'\\]|\\.)*)'|\"((?:[^\"\\]|\\.)*)\"")
_LABELS, _TEXTS = (
    ("label", "key", "id", "letter", "option_id"),
    ("text", "value", "content", "choice", "option", "answer"),
)


@dataclasses.dataclass(frozen=True)
class Choices:
    """Texts of choices in the order of their letters; `labels`: what a record calls them, where that is no letter.

    `moved` says that the record has them in another order, in which a number counts them.
    """

    texts: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    moved: bool = False


@dataclasses.dataclass(frozen=True)
class Asked:
    """A question with its accepted answers, the first one the answer, its choices, and the answer type it names.

    `needs_all`: the record says that they are the parts of one answer.
    """

    question: str
    accepted: Sequence[str]
    choices: Choices = Choices()
    answer_type: Any = None
    needs_all: bool = False


def of_record(record: Mapping[str, Any], place: Place) -> tuple[Choices, set[str]]:
    """(choices, fields that hold them) of a record; none where it has no field of choices. Raises Refusal."""
    name, value = first_of(record, NAMES)
    nothing = value.strip() in ("", "[]", "{}", "None", "null", "nan") if isinstance(value, str) else value in ([], {})
    if name and not nothing:
        return of_value(value, place, name), {name}
    return _columns(record, place)


def of_value(value: Any, place: Place, field: str, *, fixed: bool = False) -> Choices:
    """The choices of a list, a text that spells one, or an object. Raises Refusal.

    `fixed` says that they have letters or numbers already, so that their own may not say otherwise.
    """
    labels: tuple[str, ...] = ()
    if isinstance(value, str):
        value = _listed(value, place, field)
    if isinstance(value, Mapping):
        labels, value = _of_object(value, place, field)
    elif isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
        labels, value = _of_objects(value, place, field)
    if isinstance(value, list):
        value = [json.dumps(item) if is_number(item) else item for item in _filled(value)]
    if not isinstance(value, list) or not value or not all(isinstance(item, str) and item.strip() for item in value):
        raise Refusal(place.where, field, "must be a list of texts that are not empty", quoted(value))
    if len(value) > len(LETTERS):
        raise Refusal(place.where, field, f"more than {len(LETTERS)} choices")
    if len(value) < 2:
        raise Refusal(place.where, field, "must be at least two", quoted(value))
    value, moved = _by_letters(value, place, field, fixed=fixed or bool(labels))
    lettered = all(label.upper() == letter for label, letter in zip(labels, LETTERS, strict=False))
    return Choices(tuple(item.strip() for item in value), () if lettered else labels, moved)


def _by_letters(value: list[str], place: Place, field: str, *, fixed: bool) -> tuple[list[str], bool]:
    """(texts in the order of the letters in front of them, without these, whether that is another order).

    Raises Refusal where all have a letter and these are not A, B, ...; initials of names may stand behind others.
    """
    found = [match for item in value if (match := _PREFIX.fullmatch(item))]
    letters = [(match[1] or match[2]).upper() for match in found]
    if len(found) == len(value) and sorted(letters) != [*LETTERS[: len(value)]] and all(map(_NAME.fullmatch, value)):
        return value, False  # initials of people
    wanted = [*LETTERS[: len(value)]]
    if len(found) < len(value) or not {*letters} & {*wanted}:
        return value, False
    if sorted(letters) != wanted or (fixed and letters != wanted):
        reason = "letters of choices that are not A, B, ..., or not those of their places"
        raise Refusal(place.where, field, reason, quoted(", ".join(letters)))
    return [found[letters.index(letter)][3] for letter in wanted], letters != wanted


def _of_object(value: Mapping[str, Any], place: Place, field: str) -> tuple[tuple[str, ...], list[Any]]:
    """(labels, texts) of {"A": ..., "B": ...}, or of {"label": [...], "text": [...]}."""
    label, labels = first_of(value, _LABELS)
    text, texts = first_of(value, _TEXTS)
    if label and text and isinstance(labels, list) and isinstance(texts, list):
        if len(labels) != len(texts):
            raise Refusal(place.where, field, f"{label} and {text} differ in length", f"{len(labels)}, {len(texts)}")
        return _in_order([str(item) for item in labels], place, field), texts
    names, values = [str(name) for name in value], _filled([*value.values()])
    return _in_order(names[: len(values)], place, field), values


def _of_objects(value: Sequence[Mapping[str, Any]], place: Place, field: str) -> tuple[tuple[str, ...], list[Any]]:
    """(labels, texts) of [{"label": ..., "text": ...}, ...], of [{"A": ...}, ...], or without labels."""
    if all(len(item) == 1 for item in value) and len({next(iter(item)) for item in value}) == len(value):
        return _of_object({name: text for item in value for name, text in item.items()}, place, field)
    texts = [first_of(item, _TEXTS)[1] for item in value]
    labels = [first_of(item, _LABELS)[1] for item in value]
    if None in labels:
        return (), texts
    return _in_order([str(label) for label in labels], place, field), texts


def _in_order(labels: list[str], place: Place, field: str) -> tuple[str, ...]:
    """Labels that are A, B, ..., a, b, ..., or numbers in order. Raises Refusal for others."""
    bare = [match[1] if (match := _COLUMN.fullmatch(label)) else label.strip("(). ") for label in labels]
    count = len(bare)
    orders = [[*LETTERS[:count]], [*LETTERS[:count].lower()], *([str(i + n) for i in range(count)] for n in (0, 1))]
    if bare not in orders:
        reason = "an object of choices must have the keys A, B, C, ... or numbers in order"
        raise Refusal(place.where, field, reason, quoted(", ".join(labels)))
    return tuple(bare)


def _filled(values: Sequence[Any]) -> list[Any]:
    """Without the empty ones at the end, which tables have where a question has fewer choices than another."""
    count = len(values)
    while count and _is_empty(values[count - 1]):
        count -= 1
    return [*values[:count]]


def _is_empty(value: Any) -> bool:
    """Null, an empty text, or NaN, which stands for null in tables, also as a text."""
    return value is None or value != value or (isinstance(value, str) and value.strip() in NOTHING)


def _columns(record: Mapping[str, Any], place: Place) -> tuple[Choices, set[str]]:
    """Choices in columns A, B, ... or choice_a, option1, ...; the last ones may be empty."""
    found: dict[str, dict[str, str]] = {}
    for name in record:
        if match := _COLUMN.fullmatch(name):
            found.setdefault(name[: match.start(1)].lower(), {})[match[1].upper()] = name
        elif len(name) == 1 and name.upper() in LETTERS:
            found.setdefault("upper" if name.isupper() else "lower", {})[name.upper()] = name
    for columns in found.values():
        for order in ([*LETTERS], [str(i) for i in range(30)], [str(i) for i in range(1, 30)]):
            if order[0] not in columns or order[1] not in columns or not columns.keys() <= {*order}:
                continue
            names = [columns[key] for key in sorted(columns, key=order.index)]
            values = _filled([record[name] for name in names])
            if not values:
                continue
            if [*sorted(columns, key=order.index)] != order[: len(columns)] or any(map(_is_empty, values)):
                raise Refusal(place.where, names[0], "columns of choices have a gap", ", ".join(names))
            labels = () if order[0] == "A" else tuple(order[: len(values)])
            return dataclasses.replace(of_value(values, place, names[0], fixed=True), labels=labels), {*names}
    return Choices(), set()


def _listed(text: str, place: Place, field: str) -> Any:
    """The list or object that a text spells: JSON, Python, NumPy's, lines, or "(A) x (B) y". Raises Refusal."""
    bare = text.strip()
    if bare[:1] in ("[", "{", "("):
        for read in (json.loads, ast.literal_eval):
            try:
                value = read(bare)
            except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
                continue
            spaced = (
                isinstance(value, list) and len(value) == 1 and len(_QUOTED.findall(bare)) > 1
            )  # NumPy has no commas
            if isinstance(value, list | tuple | dict) and not spaced:
                return list(value) if isinstance(value, tuple) else value
        if bare[0] == "[" and bare[-1] == "]":
            items = [a or b for a, b in _QUOTED.findall(bare)]
            if len(items) > 1 and not _QUOTED.sub("", bare[1:-1]).strip(" ,\n"):
                return items
    if found := choices_in_text.listed(bare):
        return found
    for separator in ("\n", "|", ";"):
        parts = [part.strip() for part in bare.split(separator)]
        if len(parts) > 1 and all(parts):
            return parts
    raise Refusal(place.where, field, "a text that is no list of choices", quoted(text))


def label_of(answer: str) -> str:
    """What an answer calls a choice: 2 of "option_2"."""
    match = _COLUMN.fullmatch(answer.strip())
    return match[1] if match else answer.strip().strip("(). ")
