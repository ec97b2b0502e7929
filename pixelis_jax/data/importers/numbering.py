"""What whole numbers in the place of answers mean, decided once for a whole file: texts of choices, or their numbers.

With the choices (2, 3, 4), the answer 3 is a text; with (cat, dog, bird) it can only be the number of one, from 0 or
from 1. Which it is no record alone can say, so all of a file are looked at:

- where each number names a choice by its text, numbers are texts;
- else they are numbers of choices, all of them: from 0 where a 0 occurs, from 1 where the count of choices occurs;
- where neither occurs, or both, or other answers are letters or texts, those that name no text are refused.

`--answer_index` decides without looking.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pixelis_jax.answers.choices import indices_of
from pixelis_jax.data.importers import choices, gold
from pixelis_jax.data.importers.base import Found, Place
from pixelis_jax.types import UserError

TEXTS, FROM_0, FROM_1, OPEN, MIXED = "texts", "from 0", "from 1", "open", "mixed"
_GIVEN = {"0": FROM_0, "1": FROM_1}


def number_of(answer: Any) -> int | None:
    """The whole number from 0 that an answer is; None for anything else."""
    if isinstance(answer, list) and len(answer) == 1:
        answer = answer[0]
    if isinstance(answer, str) and answer.strip().isascii() and answer.strip().isdecimal() and len(answer) < 9:
        return int(answer)
    if isinstance(answer, float) and answer.is_integer():
        answer = int(answer) if abs(answer) < 1e6 else None
    return answer if isinstance(answer, int) and not isinstance(answer, bool) and answer >= 0 else None


class Numbering:
    """Decides a file when it is first asked about, by reading it once more, and remembers."""

    def __init__(self, given: str, read: Callable[[Path], Iterator[Found]]) -> None:
        self._given, self._read = _GIVEN.get(given, ""), read
        self._decided: dict[Path, str] = {}

    def __call__(self, place: Place) -> str:
        if self._given:
            return self._given
        if place.file not in self._decided:
            self._decided[place.file] = decided(value for _, value in self._read(place.file))
        return self._decided[place.file]


def decided(records: Iterator[Any]) -> str:
    """What numbers in the place of answers mean in these records."""
    numbers = others = 0
    ends: set[str] = set()
    for record in records:
        if not isinstance(record, dict):
            continue
        number, count, named = _evidence(record)
        if not count:
            continue
        if number is None:
            others += 1
        elif not named and number <= count:
            numbers += 1
            ends |= {FROM_0} if number == 0 else {FROM_1} if number == count else set()
    if not numbers:
        return TEXTS
    if others:
        return MIXED
    return ends.pop() if len(ends) == 1 else OPEN


def _evidence(record: dict[str, Any]) -> tuple[int | None, int, bool]:
    """(the answer if it is a number, how many choices there are, whether one has that text); (None, 0, _) without."""
    nowhere = Place("", Path())
    try:
        found, _ = choices.of_record(record, nowhere)
    except UserError:
        return None, 0, False
    _, answer = gold.answer_of(record)
    if not found.texts or found.labels or gold.is_empty(answer):
        return None, 0, False
    number = number_of(answer)
    if number is None:
        return None, len(found.texts), False
    return number, len(found.texts), bool(indices_of(str(number), found.texts))
