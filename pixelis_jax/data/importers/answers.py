"""Questions and answers of other data in our form: task types, accepted answers, and of what type an answer is."""

import ast
import dataclasses
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

from pixelis_jax.answers import boxes, numbers
from pixelis_jax.answers import text as texts
from pixelis_jax.answers.choices import LETTERS, NEEDS_ALL, index_of, indices_of
from pixelis_jax.data.cota import TASK_TYPES
from pixelis_jax.data.importers import (
    annotators,
    answer_types,
    choices,
    choices_in_text,
    gold_texts,
    numbering,
)
from pixelis_jax.data.importers.base import Context, Place, Record, Refusal, cut_out, is_number, quoted
from pixelis_jax.data.importers.choices import Choices

# What a boolean in the place of an answer accepts.
SAME_AS_BOOLEAN = {True: ("yes", "true"), False: ("no", "false")}
UNKNOWN = "(unknown)"  # stands for the answer that a question lacks
MANY_WORDS = 12
LONGEST = 10_000  # characters of an answer or a choice; comparing them takes time that grows with the square
REQUIRED = "required"  # the task type that stands for: refuse a record without one
# What other data calls our task types.
TASKS = {
    "counting": "object_counting",
    "count": "object_counting",
    "comparison": "geometric_comparison",
    "geometry": "geometric_comparison",
    "ocr": "text_extraction",
    "text": "text_extraction",
    "document": "text_extraction",
    "spatial": "spatial_reasoning",
    "relative_position": "spatial_reasoning",
    "position": "spatial_reasoning",
    "tracking": "temporal_tracking",
    "temporal": "temporal_tracking",
    "video": "temporal_tracking",
    "attribute": "attribute_recognition",
    "direct_attributes": "attribute_recognition",
    "color": "attribute_recognition",
    "relation": "relationship_detection",
    "relationship": "relationship_detection",
}
LONGEST_TYPE = 60  # characters of what the data calls a kind of question
_TASK_NAMES = ("task_type", "category", "question_type", "type")
_LETTERS = re.compile(
    r"[A-Z](?:\s*(?:,|;|&|\band\b|\bor\b)\s*[A-Z])*[.:)]?|[(\[（][A-Za-z][)\]）][.:]?|[A-Za-z][.:)）]"
    r"|option [A-Za-z]",
    re.ASCII,
)
_ASKS_LETTER = re.compile(
    r"\b(?:letters?|characters?|alphabet|initials?|symbols?|vowels?|consonants?|labell?(?:ed)?|labels?|variables?|note|"
    r"grade|point|vertex|corner|node|axis|panel|row|column|seat|gate|platform|size|key|word|text|written|read)\b",
    re.IGNORECASE,
)
_WHETHER = re.compile(r"\s*(?:is|are|was|were|do|does|did|can|could|has|have|had|will|would|should)\b", re.IGNORECASE)
_OR = re.compile(r"\bor\b|\bhow\b", re.IGNORECASE)
_CHOOSES = re.compile(r"\b(?:options?|choices?|choose|select|following)\b", re.IGNORECASE)
_PLAIN = re.compile(r"[+-]?\d+(?:\.\d+)?", re.ASCII)


@dataclasses.dataclass(frozen=True)
class Asked:
    """A question with its accepted answers, the first one the answer, its choices, and the answer type it names.

    `needs_all`: the record says that they are the parts of one answer.
    """

    question: str
    accepted: Sequence[str]
    choices: Choices = dataclasses.field(default_factory=Choices)
    answer_type: Any = None
    needs_all: bool = False


def task_type(record: Mapping[str, Any], default: str, place: Place, notes: Counter[str]) -> str:
    """Our task type of a record: a field that names one, else `default`. Raises Refusal where `default` is REQUIRED."""
    for name in _TASK_NAMES:
        value = record.get(name)
        word = value.strip().lower().replace(" ", "_") if isinstance(value, str) else ""
        if word in TASK_TYPES or word in TASKS:
            notes["task_type from the data"] += 1
            return TASKS.get(word, word)
    if default == REQUIRED:
        raise Refusal(place.where, "task_type", f"missing; give one of {', '.join(TASK_TYPES)}, or --task_type")
    notes[f"task_type by --task_type={default}"] += 1
    return default


def own_type(record: Mapping[str, Any]) -> str:
    """What the data itself calls this kind of question, by which results are told apart; "" where it does not."""
    values = (record.get(name) for name in _TASK_NAMES)
    words = (" ".join(value.split())[:LONGEST_TYPE] for value in values if isinstance(value, str))
    return next((word for word in words if word), "")


def tagged(text: str) -> str | None:
    """What the last <answer>...</answer> holds; None without one."""
    _, found = cut_out(text, "answer")
    return found[-1].strip() if found else None


def plain(value: Any, place: Place, field: str) -> list[str]:
    """Accepted answers as strings, the first one the answer: of a string, a number, a box, or a list. Raises Refusal.

    A list of numbers of more than one is one answer (a box, a point); of several people's answers what most say is the
    first (see annotators.py); of a solution its result (see gold_texts.py).
    """
    if isinstance(value, bool):
        return [*SAME_AS_BOOLEAN[value]]
    if people := annotators.votes(value):
        value = annotators.accepted(people, place, field)
    value = _unpacked(value) if not isinstance(value, str) or len(value) <= LONGEST else value
    box = None if isinstance(value, str) else boxes.of(value)
    if box is not None:
        value = [int(number) if number.is_integer() else number for number in box]
    if isinstance(value, list) and len(value) > 1 and all(is_number(item) for item in value):
        return [json.dumps(value)]
    answers = []
    for item in value if isinstance(value, list) else [value]:
        if is_number(item):
            answers.append(json.dumps(item))
        elif isinstance(item, str) and item.strip():
            parts, _ = gold_texts.parts(gold_texts.inside(item, place, field))
            answers += [bare(refuse_long(part, place, field)) for part in parts]
        else:
            empty = item is None or (isinstance(item, str) and not item.strip())
            reason = "missing or empty" if empty else "must be a text, a finite number or a list of them"
            raise Refusal(place.where, field, reason, "" if empty else quoted(item))
    if not answers or not all(answers):
        raise Refusal(place.where, field, "missing or empty")
    return list(dict.fromkeys(answers))


def refuse_long(text: str, place: Place, field: str) -> str:
    """An answer or a choice, if it is not too long to be one. Raises Refusal."""
    if len(text) > LONGEST:
        raise Refusal(place.where, field, f"longer than {LONGEST} characters", f"{len(text)}")
    return text


def _unpacked(value: Any) -> Any:
    """The answers of a text that spells a list of texts, of {"text": [...]}, and of [{"answer": ...}, ...]."""
    if isinstance(value, str) and value.strip().startswith("[") and value.strip().endswith("]"):
        try:
            found = ast.literal_eval(value.strip())
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            return value
        return found if isinstance(found, list) and found and all(isinstance(item, str) for item in found) else value
    if isinstance(value, Mapping) and isinstance(value.get("text"), list):
        return value["text"]
    if isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
        named = [item.get("answer", item.get("text")) for item in value]
        return value if None in named else named
    return value


def bare(answer: str) -> str:
    r"""An answer without what wraps it: `\boxed{}`, quotes, `$..$`, `**`, a full stop; "" for an empty box."""
    found = texts.unwrap(answer)
    return "" if re.fullmatch(r"\\(?:boxed|fbox)\s*\{\s*\}", found) else found


def typed(asked: Asked, place: Place, context: Context) -> Record:
    """The fields question, answer, answer_type, choices and accepted answers of a question.

    An answer that names one of the choices, or several, is of type choice, and becomes its letter; four rising numbers
    in brackets are a box; a number is numeric; an expression is math; all else is exact. What the record or the user
    says of the type comes before. Raises Refusal where choices are given and an answer names none, and for a letter
    without choices.
    """
    said = answer_types.given(asked.answer_type, place, context)
    kind = said or context.options.answer_type.replace("auto", "")
    may_choose = kind in ("", "choice", answer_types.TEXT)
    question, listed = asked.question, asked.choices
    choices_in_text.refuse_other(question, listed.texts, place)
    if not listed.texts and may_choose:
        made = choices_in_text.lettered(question, asked.accepted, chooses=kind == "choice")
        if made is not None:
            context.notes["questions whose choices have numbers: they have letters now"] += 1
            listed = Choices(tuple(choices_in_text.listed(made)), tuple(map(str, range(1, len(LETTERS)))))
            question = made
        else:
            listed = Choices(tuple(choices_in_text.listed(question)))
            if choices_in_text.lettered(question, asked.accepted, chooses=True):
                context.notes["answers like 2 to a question that lists (1), (2), ...: numbers, not choices"] += 1
    question = choices_in_text.shown(question, listed.texts)
    if listed.texts and may_choose:
        return {"question": question} | _chosen(asked, listed, place, context)
    if kind == "choice":
        raise Refusal(place.where, "choices", "missing, and answer_type is choice", quoted(asked.accepted[0]))
    if asked.needs_all and kind in ("", "exact", answer_types.TEXT):
        return {"question": question} | _all_of(asked.accepted, place, context)
    accepted = (
        with_yes_or_no(question, asked.accepted) if kind in ("", "exact", answer_types.TEXT) else [*asked.accepted]
    )
    if not kind:
        kind = answer_types.of_answers(question, accepted)
        if kind == "exact" and is_letter(accepted[0]) and not asks_for_letter(question):
            reason = "a letter, and there are no choices; give them, or answer_type exact if the letter is the answer"
            raise Refusal(place.where, "answer", reason, quoted(accepted[0]))
    if kind == "numeric":
        accepted = [number_text(answer) for answer in accepted]
    if kind == "iou":
        accepted = [box_text(answer) for answer in accepted]
    made_of: Record = {"question": question, "answer": accepted[0]}
    made_of["answer_type"] = "exact" if kind == answer_types.TEXT else kind
    if made_of["answer_type"] == "exact" and len(accepted[0].split()) > MANY_WORDS:
        context.notes[f"exact answers of more than {MANY_WORDS} words, which are hardly ever said word for word"] += 1
    if asked.choices.texts:
        made_of["choices"] = [*asked.choices.texts]
    return made_of | ({"answers": accepted} if len(accepted) > 1 else {})


def _chosen(asked: Asked, listed: Choices, place: Place, context: Context) -> Record:
    """The fields answer, answer_type and choices of a question with choices. Raises Refusal where one names none."""
    letters = letters_of(asked.accepted, listed, place, context)
    if not letters:
        where = "the choices" if asked.choices.texts else "the choices that the question lists"
        reason = f"names none of {where}; give a letter or the text of one, or answer_type exact if it is none"
        raise Refusal(place.where, "answer", reason, quoted(asked.accepted[0]))
    made: Record = {"answer": letters, "answer_type": "choice", "choices": [*listed.texts]}
    if "," not in letters:
        return made
    if asked.needs_all or wants_all(asked.question, asked.answer_type):
        context.notes["questions for all right choices: each must be named, and no other"] += 1
        return made | {NEEDS_ALL: True}
    context.notes["questions with several accepted choices: any of them is right"] += 1
    return made


def _all_of(accepted: Sequence[str], place: Place, context: Context) -> Record:
    """The fields of an answer of several parts, in any order. Raises Refusal where they can't be told apart again."""
    joined = ", ".join(accepted)
    if texts.items(joined) != {texts.key(part) for part in accepted}:
        raise Refusal(place.where, "answer", "parts of an answer with a comma or an and in them", quoted(joined))
    context.notes["answers of several parts: each must be named, and no other"] += 1
    return {"answer": joined, "answer_type": "exact", NEEDS_ALL: True}


def needs_all(value: Any, question: str, answer_type: Any) -> bool:
    """Whether the answers in a field are the parts of one: joined by <AND>, or a list where all are asked for."""
    if isinstance(value, str):
        return gold_texts.parts(value)[1]
    several = isinstance(value, list) and len(value) > 1 and all(isinstance(item, str) for item in value)
    return several and annotators.votes(value) is None and wants_all(question, answer_type)


def note_lists(value: Any, context: Context) -> None:
    """Counts answers that are lists, with how they were read."""
    if annotators.votes(value):
        context.notes["answers of several people: what most say, and what three say, is accepted"] += 1
    elif isinstance(value, list) and len(value) > 1 and all(isinstance(item, str) for item in value):
        context.notes["answers that are lists: any of their items is right"] += 1


def wants_all(question: str, answer_type: Any) -> bool:
    """Whether a question, or the type that a record gives its answer, asks for all right choices, not for one."""
    return choices_in_text.wants_all(question) or answer_types.word_of(answer_type) in answer_types.LISTS


def untyped(asked: Asked, place: Place) -> Record:
    """The fields of a question that has no answer, which is UNKNOWN then; votes are compared by its choices.

    Raises Refusal where the question lists other choices than the record.
    """
    choices_in_text.refuse_other(asked.question, asked.choices.texts, place)
    found = asked.choices.texts or choices_in_text.listed(asked.question)
    return {
        "question": choices_in_text.shown(asked.question, asked.choices.texts),
        "choices": [*found],
        "answer": UNKNOWN,
        "ground_truth": UNKNOWN,
        "answer_type": "exact",
    }


def letters_of(accepted: Sequence[str], listed: Choices, place: Place, context: Context) -> str:
    """The letters of the choices that answers name, as "B" or "B, C"; "" where one of them names none. Raises Refusal.

    Of equal choices that a text names the first one counts; comparing takes them for the same.
    """
    found: set[int] = set()
    if tuple(accepted) in SAME_AS_BOOLEAN.values():  # of yes and true the choices have one
        accepted = [answer for answer in accepted if index_of(answer, listed.texts) is not None]
    for answer in accepted:
        named = _named(answer, listed, place, context)
        if not named:
            return ""
        found |= named
    if len(found) == len(listed.texts):
        reason = "every choice is accepted, so that any answer would be right"
        raise Refusal(place.where, "answer", reason, quoted(", ".join(accepted)))
    return ", ".join(LETTERS[index] for index in sorted(found))


def _named(answer: str, listed: Choices, place: Place, context: Context) -> set[int]:
    label = choices.label_of(answer)
    if listed.labels:
        if label in listed.labels:
            return {listed.labels.index(label)}
    elif (number := numbering.number_of(answer)) is not None:
        if listed.moved and not indices_of(answer, listed.texts):
            reason = "a number of a choice, and the letters of the choices are in another order"
            raise Refusal(place.where, "answer", reason, quoted(answer))
        meaning = numbering.MIXED if listed.moved else context.numbering(place)
        if meaning in (numbering.FROM_0, numbering.FROM_1):
            index = number - (meaning == numbering.FROM_1)
            if not 0 <= index < len(listed.texts):
                reason = f"is no number of a choice, counted {meaning} as in the rest of the file"
                raise Refusal(place.where, "answer", reason, quoted(answer))
            context.notes[f"answers that are numbers of choices, counted {meaning}"] += 1
            return {index}
        if meaning == numbering.OPEN or (meaning == numbering.MIXED and not indices_of(answer, listed.texts)):
            reason = "a number of a choice, and the file does not tell whether from 0 or from 1; say --answer_index=0|1"
            raise Refusal(place.where, "answer", reason, quoted(answer))
    letter, text = numbering.readings(answer, listed.texts)
    if letter is not None and text is not None and letter != text and listed.texts[letter] != listed.texts[text]:
        meaning = context.lettering(place)
        if meaning == numbering.OPEN:
            reason = "the letter of one choice and the text of another, and the file does not tell; say --answer_letter"
            raise Refusal(place.where, "answer", reason, quoted(answer))
        context.notes[f"answers that are both a letter and a text of choices, read as {meaning}"] += 1
        return {letter if meaning == numbering.PLACES else text}
    one = index_of(answer, listed.texts)
    if one is not None:
        return {one}
    several = sorted(indices_of(answer, listed.texts))
    keys = [texts.key(listed.texts[index]) for index in several]
    return {index for index, key in zip(several, keys, strict=True) if keys.index(key) == several.index(index)}


def with_yes_or_no(question: str, accepted: Sequence[str]) -> list[str]:
    """Accepted answers; 1 and 0 for a question that asks whether something is so are yes and no too."""
    bit = {"1": True, "0": False}.get(accepted[0]) if len(accepted) == 1 else None
    if bit is None or not _WHETHER.match(question) or _OR.search(question):
        return [*accepted]
    return [*SAME_AS_BOOLEAN[bit], *accepted]


def is_letter(answer: str) -> bool:
    """Whether an answer is a capital letter, several, or one with marks, as choices have; a bare "x" is none."""
    return _LETTERS.fullmatch(answer.strip()) is not None


def asks_for_letter(question: str) -> bool:
    """Whether the answer of a question without choices may be a letter: it asks for letters, points, labels, ..."""
    return _ASKS_LETTER.search(question) is not None and not _CHOOSES.search(question)


def number_text(answer: str) -> str:
    r"""A number without currency, separators and LaTeX: 1234 of `\$1,234.00`; one with a unit as it stands."""
    number = numbers.parse(answer)
    written = texts.normalise(texts.normalise_marks(answer))
    if number is None or number.percent or any(sign in written for sign in "/e^\\"):
        return answer
    if _PLAIN.fullmatch(written):
        return written
    if number.unit not in ("", *numbers.CURRENCIES.values()):
        return answer
    value = Decimal(number.value.numerator) / Decimal(number.value.denominator)
    exact = Fraction(value) == number.value and abs(value) < 10**15
    return f"{value.normalize():f}" if exact else answer


def box_text(answer: str) -> str:
    """A box as [x1, y1, x2, y2], with its own digits where it is written so."""
    box = boxes.parse(answer)
    if box is None or re.fullmatch(r"\[[\d., -]+\]", answer):
        return answer
    return json.dumps([int(number) if number.is_integer() else number for number in box])
