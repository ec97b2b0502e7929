"""Where a record has its answer, by many names; and which field may hold one that nothing reads."""

import json
import re
from collections.abc import Mapping
from typing import Any

from pixelis_jax.data.importers.base import Place, Refusal

# Where an answer stands, the likeliest first; a name with a dot is one inside an object.
ANSWERS = (
    *(
        "answer",
        "ground_truth",
        "multiple_choice_answer",
        "answers",
        "solution",
        "final_answer",
        "gt",
        "label",
        "correct_answer",
        "correct",
    ),
    *("gold", "gold_answer", "gt_answer", "ground_truth_answer", "expected_answer", "reference_answer", "ref_answer"),
    *("correct_option", "correct_choice", "answerKey", "answer_key", "correct_choice_idx"),
    *("answer_index", "answer_idx", "correct_index", "correct_idx", "answer_text", "direct_answers", "target"),
    *("reward_model.ground_truth", "extra_info.answer", "extra_info.ground_truth", "reward_model.answer"),
)
_YES_OR_NO = re.compile(r"\W*(?:yes|no|true|false)\b", re.IGNORECASE)
NOTHING = ("", "nan", "NaN", "<NA>", "null", "NULL")  # texts that stand for nothing
# Words in the name of a field that may hold an answer.
_HOLDS = re.compile(
    r"answer|response|output|correct|gold|truth|target|label|solution|completion|reply|reference|expected|bbox|boxes"
    r"|bounding|(?:^|_)coords?(?:_|$)|caption|chosen|preferred|(?:^|_)(?:gt|ans|box|result|key)(?:_|$)",
    re.IGNORECASE,
)
_ABOUT = re.compile(r"(?:_|^)(?:type|format|weight|score|len|length|count|source|id|url|model|style)s?$", re.IGNORECASE)


def answer_of(record: Mapping[str, Any]) -> tuple[str, Any]:
    """(field, answer) of a record, a field that is not empty before one that is; ("", None) where there is none."""
    found = [(name, value) for name in ANSWERS if (value := _at(record, name)) is not None]
    return next((item for item in found if not is_empty(item[1])), found[0] if found else ("", None))


def is_empty(value: Any) -> bool:
    """Whether there is nothing in the place of an answer; tables have "nan" there."""
    return value is None or value in ([], {}) or value != value or (isinstance(value, str) and value.strip() in NOTHING)


def refuse_judged(name: str, given: Any, said: Any, place: Place) -> None:
    """Raises Refusal for true or false in the place of an answer that says how good another answer is (KTO)."""
    if isinstance(given, bool) and said and not (isinstance(said, str) and _YES_OR_NO.match(said)):
        reason = (
            "true or false beside what an assistant says: a judgement and no answer; rename what is right to answer"
        )
        raise Refusal(place.where, name, reason)


def may_hold(record: Mapping[str, Any], read: set[str]) -> str:
    """The first field, also one inside an object, that by its name may hold an answer and is not empty; else ""."""
    for name, value in record.items():
        if name in read or is_empty(value):
            continue
        if isinstance(value, Mapping) and not _HOLDS.search(name):
            inner = may_hold(value, set()) if name != "provenance" else ""
            if inner:
                return f"{name}.{inner}"
        elif _HOLDS.search(name) and not _ABOUT.search(name):
            return name
    return ""


def _at(record: Mapping[str, Any], name: str) -> Any:
    """The value of a field; one with a dot is inside an object, or inside its JSON."""
    outer, _, inner = name.partition(".")
    value = record.get(outer)
    if not inner:
        return value
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
    return value.get(inner) if isinstance(value, Mapping) else None
