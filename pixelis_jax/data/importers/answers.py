"""Of what type the answer of a question is, and the fields that say it in our form."""

import json
import re
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction

from pixelis_jax.answers import boxes, numbers
from pixelis_jax.answers import text as texts
from pixelis_jax.answers.choices import NEEDS_ALL
from pixelis_jax.data.importers import answer_types, choices_in_text, chosen
from pixelis_jax.data.importers.base import Context, Place, Record, Refusal, quoted
from pixelis_jax.data.importers.choices import Asked
from pixelis_jax.data.importers.gold_values import SAME_AS_BOOLEAN

UNKNOWN = "(unknown)"  # stands for the answer that a question lacks
MANY_WORDS = 12
_BITS = {"1": True, "0": False, "true": True, "false": False}
_WORDS = ("", "exact", answer_types.TEXT)  # what may be a list, or yes for 1
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
_WHETHER = re.compile(
    r"\s*(?:(?:according to|based on|judging by|looking at|given|considering|in|on|from|for|with)\b[^,?]{1,80},\s*)?"
    r"(?:is|are|was|were|do|does|did|can|could|has|have|had|will|would|should)\b|.*(?:吗|是否|有没有|是不是)",
    re.IGNORECASE | re.DOTALL,
)
_OR = re.compile(r"\bor\b|\bhow\b", re.IGNORECASE)
_CHOOSES = re.compile(r"\b(?:options?|choices?|choose|select|following)\b", re.IGNORECASE)
_PLAIN = re.compile(r"[+-]?\d+(?:\.\d+)?", re.ASCII)


def typed(asked: Asked, place: Place, context: Context) -> Record:
    """The fields question, answer, answer_type, choices and accepted answers of a question.

    An answer that names one of the choices, or several, is of type choice, and becomes its letter; four rising numbers
    in brackets are a box; a number is numeric; an expression is math; all else is exact. What the record or the user
    says of the type comes before. Raises Refusal where choices are given and an answer names none, and for a letter
    without choices.
    """
    kind = answer_types.given(asked.answer_type, place, context) or context.options.answer_type.replace("auto", "")
    if asked.choices.texts and kind == "numeric" and answer_types.word_of(asked.answer_type) != "numeric":
        kind = ""  # "integer" beside choices is what MathVista says of their texts
    choices_in_text.refuse_other(asked.question, asked.choices.texts, place)
    if kind in ("", "choice", answer_types.TEXT):
        listed, named = chosen.listed(asked, context, chooses=kind == "choice")
        if listed.texts:
            return {"question": named.question} | chosen.fields(named, listed, place, context)
    if kind == "choice":
        raise Refusal(place.where, "choices", "missing, and answer_type is choice", quoted(asked.accepted[0]))
    fields: Record = {"question": choices_in_text.shown(asked.question, asked.choices.texts)}
    if asked.choices.texts:
        fields["choices"] = [*asked.choices.texts]
    if asked.needs_all and kind in _WORDS:
        return fields | _all_of(asked.accepted, place, context)
    return fields | _compared(asked, kind, place, context)


def _compared(asked: Asked, kind: str, place: Place, context: Context) -> Record:
    """The fields answer, answer_type and accepted answers of one that is no choice. Raises Refusal for a letter."""
    accepted = with_yes_or_no(asked.question, asked.accepted) if kind in _WORDS else [*asked.accepted]
    if not kind:
        kind = answer_types.of_answers(asked.question, accepted)
        if kind == "exact" and is_letter(accepted[0]) and not asks_for_letter(asked.question):
            reason = "a letter, and there are no choices; give them, or answer_type exact if the letter is the answer"
            raise Refusal(place.where, "answer", reason, quoted(accepted[0]))
    if kind in _WRITTEN:
        accepted = [_WRITTEN[kind](answer) for answer in accepted]
    if kind in _WORDS:
        kind = "exact"
        if len(accepted[0].split()) > MANY_WORDS:
            told = f"exact answers of more than {MANY_WORDS} words, which are hardly ever said word for word"
            context.notes[told] += 1
    several = {"answers": accepted} if len(accepted) > 1 else {}
    return {"answer": accepted[0], "answer_type": kind} | several


def _all_of(accepted: Sequence[str], place: Place, context: Context) -> Record:
    """The fields of an answer of several parts, in any order. Raises Refusal where they can't be told apart again."""
    joined = ", ".join(accepted)
    if texts.items(joined) != {texts.key(part) for part in accepted}:
        raise Refusal(place.where, "answer", "parts of an answer with a comma or an and in them", quoted(joined))
    context.notes["answers of several parts: each must be named, and no other"] += 1
    return {"answer": joined, "answer_type": "exact", NEEDS_ALL: True}


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


def with_yes_or_no(question: str, accepted: Sequence[str]) -> list[str]:
    """Accepted answers; 1 and 0 for a question that asks whether something is so are yes and no too."""
    bit = _BITS.get(accepted[0].lower()) if len(accepted) == 1 else None
    if bit is None or not _WHETHER.match(question) or _OR.search(question):
        return [*accepted]
    return list(dict.fromkeys([*SAME_AS_BOOLEAN[bit], *(answer.lower() for answer in accepted)]))


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


_WRITTEN = {"numeric": number_text, "iou": box_text}  # how answers of a type are written
