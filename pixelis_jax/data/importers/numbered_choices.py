"""Choices that a question numbers get letters: `(1) red (2) blue`, `① red ② blue`, `(i) red`, `1. red` on lines."""

import re
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

from pixelis_jax.answers.choices import LETTERS
from pixelis_jax.data.importers import choices_in_text

_ROMAN = ("i", "ii", "iii", "iv", "v", "vi", "vii", "viii", "ix", "x")
_LINE = re.compile(r"^([ \t]*)(\(\d{1,2}\)|\d{1,2}[.)、])(?=[ \t]*\S)", re.MULTILINE)
_INLINE = re.compile(r"(?<!\w)()(\(\d{1,2}\))")
_CIRCLED = re.compile(r"()([①-⑳])")
_ROMAN_LINE = re.compile(
    rf"^([ \t]*)((?:\((?:{'|'.join(_ROMAN)})\)|(?:{'|'.join(_ROMAN)})[.)]))(?=\s*\S)", re.MULTILINE
)
_ROMAN_INLINE = re.compile(rf"(?<!\w)()(\((?:{'|'.join(_ROMAN)})\))")
_KINDS = (_LINE, _INLINE, _CIRCLED, _ROMAN_LINE, _ROMAN_INLINE)
_CHOOSES = re.compile(
    r"\b(?:options?|choices?|choose|select|pick|which of the following)\b|选|哪个|哪一", re.IGNORECASE
)


class Lettered(NamedTuple):
    """A question with letters for the numbers of its choices, and its answers: texts of choices, or letters."""

    question: str
    answers: list[str]


def found(question: str) -> bool:
    """Whether a question lists two things or more by numbers, each with a text."""
    return _lettered(question) is not None


def lettered(question: str, answers: Sequence[str], *, chooses: bool) -> Lettered | None:
    """The question with letters; None where its numbers are not those of choices.

    They are where each answer is the text of one, or is written as the mark of one, "(2)", "②" or "ii"; a bare "2"
    where the marks are ①, or the question, or whoever asks (`chooses`), speaks of choosing.
    """
    made = _lettered(question)
    if made is None:
        return None
    asked, marks = made
    keys = [choices_in_text.key(text) for text in choices_in_text.listed(asked)]
    names: list[str] = []
    for answer in answers:
        if choices_in_text.key(answer) in keys:
            names.append(answer)
            continue
        number = _number(answer)
        is_mark = answer.strip() in marks or marks[0] == "①" or _bare(answer) in _ROMAN
        if number is None or number > len(marks) or not (is_mark or chooses or _CHOOSES.search(question)):
            return None
        names.append(LETTERS[number - 1])
    return Lettered(asked, names)


def _lettered(question: str) -> tuple[str, list[str]] | None:
    """(the question with letters, the marks that stood in their places)."""
    for kind in _KINDS:
        matches = [*kind.finditer(question)]
        numbers = [_number(match[2]) for match in matches]
        if not 2 <= len(matches) <= len(LETTERS) or numbers != [*range(1, len(matches) + 1)]:
            continue
        made = question
        for match, letter in reversed([*zip(matches, LETTERS, strict=False)]):
            mark = f"({letter}) " if kind is _CIRCLED else re.sub(r"\w+", letter, match[2])
            made = f"{made[: match.start(2)]}{mark}{made[match.end(2) :]}"
        if len(choices_in_text.listed(made)) == len(matches):
            return made, [match[2] for match in matches]
    return None


def _bare(mark: str) -> str:
    return unicodedata.normalize("NFKC", mark).strip().strip("().[]、").lower()


def _number(mark: str) -> int | None:
    """The number that a mark is, from 1: of (2), ②, 2., ii."""
    bare = _bare(mark)
    if bare in _ROMAN:
        return _ROMAN.index(bare) + 1
    return int(bare) if bare.isascii() and bare.isdecimal() and 0 < int(bare) < 100 else None
