"""Questions and answers of other data: boxed answers, letters, lists of options, numbers, task types."""

import json
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from pixelis_jax.data.cota import TASK_TYPES
from pixelis_jax.data.importers.base import Place, Record, Refusal, cut_out, quoted

UNKNOWN = "(unknown)"  # stands for the answer that a question lacks
REQUIRED = "required"  # the task type that stands for: refuse a record without one
ANSWER_NAMES = ("answer", "ground_truth", "answers", "solution", "final_answer", "gt", "label")
CHOICE_NAMES = ("choices", "options")
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
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
_TASK_NAMES = ("task_type", "category", "question_type", "type")
_LETTER = re.compile(r"(?:option\s+)?\(?([A-Za-z])\)?\s*(?:[.:)]\s*(.*))?", re.DOTALL)
_NUMBER = re.compile(r"[+-]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?", re.ASCII)
_OPTION = re.compile(r"^[ \t]*(?:\(([A-Z])\)|([A-Z])[.:)])[ \t]*(\S.*)$", re.MULTILINE)
_TEXT = re.compile(r"\\(?:text|mathrm|textbf|mathbf)\{([^{}]*)\}")
_MARKS = re.compile(r"<image>|<video>|<\|vision_start\|>(?:<\|(?:image|video)_pad\|>)*<\|vision_end\|>")


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


def without_marks(text: str) -> str:
    """A question without the marks that stand for its images."""
    return _MARKS.sub(" ", text).strip()


def around_box(text: str) -> tuple[str, str, str] | None:
    r"""(text before, inside and behind the last \boxed{...}), braces inside counted; None without one."""
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    depth = 0
    for at in range(start + 6, len(text)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if depth == 0:
            return text[:start], _TEXT.sub(r"\1", text[start + 7 : at]).strip(), text[at + 1 :]
    return None


def unboxed(text: str) -> str:
    r"""What the last \boxed{...} holds; the text itself without one."""
    found = around_box(text)
    return text.strip() if found is None else found[1]


def tagged(text: str) -> str | None:
    """What the last <answer>...</answer> holds; None without one."""
    _, found = cut_out(text, "answer")
    return found[-1].strip() if found else None


def plain(value: Any, place: Place, field: str) -> list[str]:
    """Accepted answers as strings, the first one the answer: of a string, a number, or a list of them. Raises Refusal.

    A list of numbers of more than one is one answer (a box, a point).
    """
    if isinstance(value, list) and len(value) > 1 and all(_is_number(item) for item in value):
        return [json.dumps(value)]
    answers = []
    for item in value if isinstance(value, list) else [value]:
        if _is_number(item):
            answers.append(json.dumps(item))
        elif isinstance(item, str) and item.strip():
            inner = tagged(item)
            answers.append(unboxed(item if inner is None else inner))
        else:
            empty = item is None or (isinstance(item, str) and not item.strip())
            reason = "missing or empty" if empty else "must be a text, a finite number or a list of them"
            raise Refusal(place.where, field, reason, "" if empty else quoted(item))
    if not answers or not all(answers):
        raise Refusal(place.where, field, "missing or empty")
    return list(dict.fromkeys(answers))


def choices_of(value: Any, place: Place, field: str) -> list[str]:
    """Choices in the order of their letters, without letters in front: of a list, or of {"A": ..., "B": ...}."""
    if isinstance(value, dict):
        if list(value) != list(LETTERS[: len(value)]):
            raise Refusal(place.where, field, "an object of choices must have the keys A, B, C, ...", quoted(value))
        value = list(value.values())
    if isinstance(value, list):
        value = [json.dumps(item) if _is_number(item) else item for item in value]
    if not isinstance(value, list) or not all(isinstance(item, str) and item.strip() for item in value):
        raise Refusal(place.where, field, "must be a list of texts that are not empty", quoted(value))
    if len(value) > len(LETTERS):
        raise Refusal(place.where, field, f"more than {len(LETTERS)} choices")
    stripped = [_OPTION.fullmatch(item) for item in value]
    if all(m and (m[1] or m[2]) == letter for m, letter in zip(stripped, LETTERS, strict=False)):
        return [m[3].strip() for m in stripped if m]
    return [item.strip() for item in value]


def choices_in(question: str) -> list[str]:
    """The choices that lines of a question list as A, B, ..., in one go from A; none where there are not two."""
    found: list[str] = []
    for match in _OPTION.finditer(question):
        letter = match[1] or match[2]
        if letter == "A":
            found = []
        if len(found) < len(LETTERS) and letter == LETTERS[len(found)]:
            found.append(match[3].strip())
    return found if len(found) >= 2 else []


def with_choices(question: str, choices: Sequence[str]) -> str:
    """The question with its choices on lines of their own, unless it lists them already."""
    if not choices or choices_in(question) == list(choices):
        return question
    return question + "".join(f"\n{letter}. {choice}" for letter, choice in zip(LETTERS, choices, strict=False))


def letter_of(answer: str, choices: Sequence[str]) -> str | None:
    """The letter of the choice that an answer names, by letter or by text; None where it names none."""
    match = _LETTER.fullmatch(answer.strip())
    if match:
        letter, text = match[1].upper(), (match[2] or "").strip()
        at = LETTERS.index(letter)
        if at < len(choices) and (not text or _same(text, choices[at])):
            return letter
    texts = [i for i, choice in enumerate(choices) if _same(choice, answer)]
    return LETTERS[texts[0]] if len(texts) == 1 else None


def typed(question: str, answer: str, given: Any, place: Place) -> Record:
    """The fields question, answer, answer_type and choices of a question whose choices field is `given` (or None).

    An answer that names one of the choices is of type choice, and becomes its letter; a number is numeric; all else is
    exact. Raises Refusal where choices are given and the answer names none.
    """
    choices = [] if given is None or given in ([], {}) else choices_of(given, place, "choices")
    if choices:
        question = with_choices(question, choices)
    else:
        choices = choices_in(question)
        if letter_of(answer, choices) is None:
            choices = []
    letter = letter_of(answer, choices)
    if choices and letter is None:
        reason = "names none of the choices; give a letter or the text of one"
        raise Refusal(place.where, "answer", reason, quoted(answer))
    if letter is not None:
        return {"question": question, "answer": letter, "answer_type": "choice", "choices": choices}
    return {"question": question, "answer": answer, "answer_type": "numeric" if is_numeric(answer) else "exact"}


def untyped(question: str, given: Any, place: Place) -> Record:
    """The fields of a question that has no answer, which is UNKNOWN then; votes are compared by its choices."""
    choices = [] if given is None or given in ([], {}) else choices_of(given, place, "choices")
    return {
        "question": with_choices(question, choices),
        "choices": choices or choices_in(question),
        "answer": UNKNOWN,
        "ground_truth": UNKNOWN,
        "answer_type": "exact",
    }


def agree(answer: str, truth: str, choices: Sequence[str]) -> bool:
    """Whether two answers say the same: the same choice, the same number, or the same words."""
    if choices:
        return letter_of(answer, choices) == letter_of(truth, choices)
    if is_numeric(answer) and is_numeric(truth):
        return float(answer.replace(",", "")) == float(truth.replace(",", ""))
    return _same(answer, truth)


def is_numeric(text: str) -> bool:
    """Whether a text is one plain number, thousands commas allowed."""
    return any(c.isdigit() for c in text) and len(text) < 300 and _NUMBER.fullmatch(text.strip()) is not None


def _same(a: str, b: str) -> bool:
    one, other = (" ".join(text.casefold().split()).removesuffix(".") for text in (a, b))
    return one == other


def _is_number(value: Any) -> bool:
    """A finite number; comparing keeps huge integers out of floats."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
