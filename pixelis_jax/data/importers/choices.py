"""The choices of a question in the shapes that other data give them: a list, a text, an object, columns, its lines."""

import ast
import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pixelis_jax.answers import text as answer_text
from pixelis_jax.answers.choices import LETTERS
from pixelis_jax.data.importers.base import Place, Refusal, first_of, is_number, quoted

NAMES = ("choices", "options", "choice", "answer_choices", "option", "option_list", "choice_list", "candidates")
_COLUMN = re.compile(r"(?:choice|option|opt|op|candidate)[_ ]?([A-Za-z]|\d{1,2})", re.IGNORECASE)
_LINE = re.compile(r"^[ \t]*(?:[(（\[]([A-Za-z])[)）\]]|([A-Z])[.:)、．])[ \t]*(\S.*)$", re.MULTILINE)
_INLINE = re.compile(r"(?:(?<=\s)|^)(?:[(（\[]([A-Za-z])[)）\]]|([A-Z])[.:)、．](?=\s))")
_OPENS = re.compile(r"(?:^|[^\w\s])\s*$")  # what stands before a first "A." on one line
_PREFIX = re.compile(r"\s*(?:[(（\[]([A-Za-z])[)）\]]|([A-Za-z])[.:)、．])\s*(\S.*)", re.DOTALL)
_FIRST = ("A.", "A)", "A:", "A、", "A．", "A）", "(a", "（a", "A]", "[a")  # one of them stands in each list
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
        value = [json.dumps(item) if is_number(item) else item for item in value]
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
    wanted = [*LETTERS[: len(value)]]
    if len(found) < len(value) or (fixed and not {*letters} & {*wanted}):
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
    names = [str(name) for name in value]
    while names and value[names[-1]] in (None, ""):
        names.pop()
    return _in_order(names, place, field), [value[name] for name in names]


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
            values = [record[name] for name in names]
            while values and values[-1] in (None, ""):
                values.pop()
            if not values:
                continue
            if [*sorted(columns, key=order.index)] != order[: len(columns)] or any(v in (None, "") for v in values):
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
    if found := in_text(bare):
        return found
    for separator in ("\n", "|", ";"):
        parts = [part.strip() for part in bare.split(separator)]
        if len(parts) > 1 and all(parts):
            return parts
    raise Refusal(place.where, field, "a text that is no list of choices", quoted(text))


def in_text(question: str) -> list[str]:
    """The choices that a question lists as A, B, ..., on lines of their own or on one line, in one go from A.

    None where there are not two.
    """
    if not any(sign in question for sign in _FIRST):
        return []
    marks = [(match[1] or match[2], match[3]) for match in _LINE.finditer(question)]
    found = _run(marks)
    if len(found) >= 2:
        return found
    matches = list(_INLINE.finditer(question))
    if len(matches) < 2:
        return []
    ends = [match.start() for match in matches[1:]] + [len(question)]
    spans = [question[match.end() : end] for match, end in zip(matches, ends, strict=True)]
    parts = [
        (match[1] or match[2], span.partition("\n")[0].strip().rstrip(",;").strip())
        for match, span in zip(matches, spans, strict=True)
    ]
    found = _run(parts)
    first = next((match for match in reversed(matches) if (match[1] or match[2]) in "Aa"), None)
    if first is None or (first[2] and not _OPENS.search(question[max(first.start() - 20, 0) : first.start()])):
        return []
    words = [any(map(str.isalnum, text)) and text.lower() not in ("or", "and") for text in found]
    return found if len(found) >= 2 and all(words) else []


def _run(marks: Sequence[tuple[str, str]]) -> list[str]:
    """The texts of the last run of letters from A on; of lower-case letters too, but of one kind."""
    found: list[str] = []
    upper = True
    for letter, text in marks:
        if letter in "Aa":
            found, upper = [], letter == "A"
        if len(found) < len(LETTERS) and letter.isupper() == upper and letter.upper() == LETTERS[len(found)]:
            found.append(text.strip())
    return found


def shown(question: str, choices: Sequence[str]) -> str:
    """The question with its choices on lines of their own, unless it lists them already."""
    if not choices or in_text(question) == list(choices):
        return question
    return question + "".join(f"\n{letter}. {choice}" for letter, choice in zip(LETTERS, choices, strict=False))


def refuse_other(question: str, given: Sequence[str], place: Place) -> None:
    """Raises Refusal where a question lists choices that are not those that are given, in their order.

    Given ones may be the bare letters, and what stands behind the last one on its line may be more of the question.
    """
    inside = [_key(text) for text in in_text(question)]
    wanted = [_key(text) for text in given]
    if not inside or not wanted or wanted == [letter.lower() for letter in LETTERS[: len(wanted)]]:
        return
    same = inside[:-1] == wanted[:-1] and len(inside) == len(wanted) and inside[-1].startswith(wanted[-1])
    if not same:
        reason = "not those that the question lists, or in another order"
        raise Refusal(place.where, "choices", reason, quoted(", ".join(given)))


def _key(text: str) -> str:
    """The first line of a choice as it is compared: without what does not tell choices apart."""
    lines = text.strip().splitlines() or [""]
    return answer_text.key(lines[0].strip().rstrip(".,;").strip())


def label_of(answer: str) -> str:
    """What an answer calls a choice: 2 of "option_2"."""
    match = _COLUMN.fullmatch(answer.strip())
    return match[1] if match else answer.strip().strip("(). ")
