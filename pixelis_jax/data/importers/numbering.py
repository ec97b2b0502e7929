"""What numbers and letters in the place of answers mean, decided once for a whole file.

**Numbers** are texts of choices, or their numbers.

With the choices (2, 3, 4), the answer 3 is a text; with (cat, dog, bird) it can only be the number of one, from 0 or
from 1. Which it is no record alone can say, so all of a file are looked at:

- where each number names a choice by its text, numbers are texts;
- else they are numbers of choices, all of them: from 0 where a 0 occurs, from 1 where the count of choices occurs;
- where neither occurs, or both, or other answers are letters or texts, those that name no text are refused.

`--answer_index` decides without looking.

**Letters.** With the choices (B, A, C), the answer A is the text of the second or the letter of the first. Where other
answers of the file are letters and no text, it is the letter; where they are texts, it is the text; where there are
none, or both, it is refused until `--answer_letter` decides.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pixelis_jax.answers import text as texts
from pixelis_jax.answers.choices import LETTERS, indices_of
from pixelis_jax.data.importers import choices, gold
from pixelis_jax.data.importers.base import Found, Place
from pixelis_jax.types import UserError

TEXTS, PLACES, FROM_0, FROM_1, OPEN, MIXED = "texts", "places", "from 0", "from 1", "open", "mixed"
_WHOLE = re.compile(r"(\d{1,8})(?:\.0+)?", re.ASCII)  # tables with nulls write 1.0
_NUMBERS = re.compile(r"[\[(]\s*\d{1,8}(?:\s*,\s*\d{1,8})+\s*[\])]", re.ASCII)
_LETTERS = re.compile(r"[A-Z](?:\s*(?:,|;|/|&|\band\b)\s*[A-Z])+", re.ASCII)
_GIVEN = {"0": FROM_0, "1": FROM_1}


def number_of(answer: Any) -> int | None:
    """The whole number from 0 that an answer is; None for anything else."""
    if isinstance(answer, list) and len(answer) == 1:
        answer = answer[0]
    if isinstance(answer, str) and (match := _WHOLE.fullmatch(answer.strip())):
        return int(match[1])
    if isinstance(answer, float) and answer.is_integer():
        answer = int(answer) if abs(answer) < 1e6 else None
    return answer if isinstance(answer, int) and not isinstance(answer, bool) and answer >= 0 else None


def several(answer: Any) -> list[Any]:
    """The items of an answer that is a list of whole numbers, or the text of one: 0 and 2 of "[0, 2]"; else itself."""
    found = answer
    if isinstance(answer, str) and _NUMBERS.fullmatch(answer.strip()):
        found = [part.strip() for part in answer.strip(" []()").split(",")]
    return found if isinstance(found, list) and found and None not in map(number_of, found) else [answer]


def letters(answer: str, listed: Sequence[str]) -> list[str]:
    """The letters of an answer such as "A, C", where choices have letters as texts; else the answer itself."""
    if not _LETTERS.fullmatch(answer.strip()) or not any(text.strip().upper() in LETTERS for text in listed):
        return [answer]
    return re.findall(r"\b[A-Z]\b", answer)


class ByFile:
    """Decides a file when it is first asked about, by reading it once more, and remembers; `given` is the user's."""

    def __init__(
        self, given: str, decide: Callable[[Iterator[Any]], str], read: Callable[[Path], Iterator[Found]]
    ) -> None:
        self._given, self._decide, self._read = given, decide, read
        self._decided: dict[Path, str] = {}

    def __call__(self, place: Place) -> str:
        if self._given:
            return self._given
        if place.file not in self._decided:
            self._decided[place.file] = self._decide(value for _, value in self._read(place.file))
        return self._decided[place.file]


def numbering(given: str, read: Callable[[Path], Iterator[Found]]) -> ByFile:
    """What numbers mean; `given` is --answer_index."""
    return ByFile(_GIVEN.get(given, ""), decided, read)


def lettering(given: str, read: Callable[[Path], Iterator[Found]]) -> ByFile:
    """What letters mean; `given` is --answer_letter."""
    return ByFile({"text": TEXTS, "place": PLACES}.get(given, ""), decided_letters, read)


def readings(answer: str, listed: Sequence[str]) -> tuple[int | None, int | None]:
    """(the choice whose letter an answer is, the choice whose text it is), None where it is none."""
    letter = answer.strip().strip("(). ").upper()
    place = LETTERS.index(letter) if len(letter) == 1 and letter in LETTERS[: len(listed)] else None
    wanted = texts.key(answer)
    return place, next((i for i, text in enumerate(listed) if texts.key(text) == wanted), None)


def decided_letters(records: Iterator[Any]) -> str:
    """What letters in the place of answers mean in these records: PLACES, TEXTS or OPEN."""
    seen: set[str] = set()
    for record in records:
        listed, answer = _asked(record)
        if listed is None:
            continue
        for item in answer if isinstance(answer, list) else [answer]:
            for letter in letters(item, listed.texts) if isinstance(item, str) else []:
                place, text = readings(letter, listed.texts)
                if (place is None) != (text is None):
                    seen.add(TEXTS if place is None else PLACES)
    return seen.pop() if len(seen) == 1 else OPEN


def decided(records: Iterator[Any]) -> str:
    """What numbers in the place of answers mean in these records."""
    numbers = others = 0
    ends: set[str] = set()
    for record in records:
        for number, count, named in _evidence(record):
            if number is None:
                others += 1
            elif named and number > count:
                others += 1  # a text for sure
            elif not named and number <= count:
                numbers += 1
                ends |= {FROM_0} if number == 0 else {FROM_1} if number == count else set()
    if not numbers:
        return TEXTS
    if others:
        return MIXED
    return ends.pop() if len(ends) == 1 else OPEN


def _evidence(record: Any) -> list[tuple[int | None, int, bool]]:
    """(the answer if it is a number, how many choices there are, whether one has that text), of each of the answers."""
    found, answer = _asked(record)
    if found is None or (found.labels and found.labels[0] not in ("0", "1")):
        return []
    numbers = [number_of(item) for item in several(answer)]
    return [(n, len(found.texts), n is not None and bool(indices_of(str(n), found.texts))) for n in numbers]


def _asked(record: Any) -> tuple[choices.Choices | None, Any]:
    """(choices, answer) of a record; (None, None) where it lacks either."""
    if not isinstance(record, dict):
        return None, None
    try:
        found, _ = choices.of_record(record, Place("", Path()))
    except UserError:
        return None, None
    _, answer = gold.answer_of(record)
    return (found, answer) if found.texts and not gold.is_empty(answer) else (None, None)
