"""Of what type an answer is: what a record says of it, what its question asks for, what it looks like."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pixelis_jax.answers import boxes, kinds, numbers
from pixelis_jax.data.importers import box_words, choices_in_text
from pixelis_jax.data.importers.base import Context, Place, Refusal, quoted

TEXT = "text"  # a record's word for: no number, no box, no expression, whatever it looks like; a choice is one
# What other data calls our answer types; "" says nothing that question and answer do not say.
TYPES = {
    **{name: "numeric" for name in ("integer", "int", "float", "number", "numerical", "numeric_value", "decimal")},
    **{name: "choice" for name in ("multiple_choice", "multi_choice", "mc", "mcq", "multichoice", "option", "letter")},
    **{name: "iou" for name in ("bbox", "box", "bbox_2d", "bounding_box", "grounding", "detection")},
    **{name: "math" for name in ("latex", "expression", "formula", "equation", "math_expression")},
    **{name: TEXT for name in ("text", "string", "str", "word", "phrase", "span", "single_span", "extractive", "name")},
    **{name: TEXT for name in ("code", "date", "time", "version", "id", "identifier", "url", "ocr")},
    **{name: "" for name in ("other", "open", "open_ended", "free_form", "freeform", "free_text", "none", "unknown")},
    **{name: "" for name in ("yes/no", "yes_no", "yesno", "bool", "boolean", "binary", "short", "short_answer")},
    **{name: "" for name in ("qa", "vqa", "question_answering", "single_choice", "arithmetic", "count", "counting")},
}
# Words for answers of which each part must be said: they are never one box or one number.
LISTS = frozenset(
    "list multi_span multispan spans set multi_select multiselect multiple_select multi_answer multiple_answer"
    " multiple_answers checkbox multiple_response multi_label multilabel".split()
)
_ASKS_SEVERAL = frozenset(
    "多选 多选题 不定项选择 不定项选择题 multiple_correct multiple_choice_multiple_answer".split()
)
_SEVERAL = ("multi_answer", "multiple_answers", "multi_select", "is_multiple", "is_multi", "multiple", "multi")
_LEADING_ZERO = re.compile(r"[+-]?0\d+", re.ASCII)
_COUNTS = re.compile(r"\bhow (?:many|much)\b|\b(?:count|total|sum)\b|多少|几", re.IGNORECASE)
# What has a name made of digits: 3.10 is another version than 3.1, and 12E5 no 1 200 000.
_NAMES = (
    r"versions?|releases?|codes?|serial|part number|ids?|identifiers?|plates?|registration|licen[cs]e|phone|telephone"
    r"|fax|zip|postal|postcode|isbn|sku"
)
# What has one too, where the question is for the thing itself, and not for its height, its price, ...
_PLACES = (
    r"gates?|seats?|rooms?|flights?|platforms?|tracks?|bus(?:es)?|routes?|models?|sections?|chapters?|aisles?|buildings?"
    r"|apartments?|suites?|floors?|channels?|jerseys?|highways?|exits?|lanes?|terminals?|lockers?|figures?|exercises?"
    r"|pages?|addresses|address|houses?|trains?|lines?|shelf|shelves|row"
)
_NAMED = re.compile(
    rf"\b(?:{_NAMES})\b|\b(?:which|what)\s+(?:\w+\s+)?(?:{_PLACES})\b|\b(?:{_PLACES})\s*(?:number|no\b|#|id\b|code)"
    rf"|\bwhat(?:'s| is| are)\s+(?:the|its|his|her|their)\s+(?:{_PLACES})(?=\s*\?|\s+(?:of|for|shown|written|on|in)\b)"
    r"|版本|编号|车牌|电话|号码|邮编|航班|登机口|房间号|座位|地址|章节|楼层",
    re.IGNORECASE,
)
_DECADE = re.compile(r"['’]?\d{2}s|\d{3}0s", re.ASCII)  # the 1990s, no seconds
_SLASHED = re.compile(r"\d{1,4}\s*/\s*\d{1,4}", re.ASCII)
_PARTED = re.compile(
    r"\b(?:dates?|days?|when|open|opens|hours?|scores?|ratings?|rated|pages?|time signature|meter|metre|blood pressure"
    r"|results?|birthday|expir\w+)\b|日期|比分|生日|几号",
    re.IGNORECASE,
)


def of_record(record: Mapping[str, Any]) -> Any:
    """What a record says of the type of its answer: `answer_type`, or another field that says that it is several."""
    named = record.get("answer_type")
    if named not in (None, ""):
        return named
    words = [word_of(record.get(name)) for name in ("question_type", "type", "category", "qtype", "choice_type")]
    flagged = any(record.get(name) is True for name in _SEVERAL)
    return "multi_select" if flagged or any(word in LISTS or word in _ASKS_SEVERAL for word in words) else None


def given(value: Any, place: Place, context: Context) -> str:
    """Our answer type of what a record says, or TEXT; "" where that says nothing.

    An unknown word is passed over where --answer_type says the type. Raises Refusal for one otherwise.
    """
    word = word_of(value)
    if not word and not isinstance(value, bool | int | float | list | dict):
        return ""
    if word in kinds.ANSWER_TYPES or word in TYPES:
        return TYPES.get(word, word)
    if word in LISTS:
        return TEXT
    if context.options.answer_type != "auto":
        context.notes[f"answer_type {word or 'of no known word'} passed over, since --answer_type is given"] += 1
        return ""
    reason = f"unknown; use one of {', '.join(kinds.ANSWER_TYPES)}, or say --answer_type for all such records"
    raise Refusal(place.where, "answer_type", reason, quoted(value))


def word_of(value: Any) -> str:
    """What a field says in one word: `multi_span` of "Multi-Span"."""
    return value.strip().lower().replace(" ", "_").replace("-", "_") if isinstance(value, str) else ""


def of_answers(question: str, accepted: Sequence[str]) -> str:
    """The type of accepted answers: that of all of them, else exact; exact too for numbers that are names."""
    found = {"exact" if _is_name(question, answer) else kinds.kind_of(answer) for answer in accepted}
    return found.pop() if len(found) == 1 else "exact"


def _is_name(question: str, answer: str) -> bool:
    """Whether an answer that may look like a number or a box is none: 007, version 3.10, the score 3/4, years."""
    if _LEADING_ZERO.fullmatch(answer) or _DECADE.fullmatch(answer.strip()):
        return True
    if boxes.parse(answer) is not None and box_words.asks_numbers(question):
        return True
    if _COUNTS.search(question) or numbers.parse(answer) is None:
        return False
    if _NAMED.search(question):
        return True
    return _SLASHED.fullmatch(answer.strip()) is not None and _PARTED.search(question) is not None


def wants_all(question: str, answer_type: Any) -> bool:
    """Whether a question, or the type that a record gives its answer, asks for all right choices, not for one."""
    return choices_in_text.wants_all(question) or word_of(answer_type) in LISTS
