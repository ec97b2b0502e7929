"""Whether four numbers in the answers of a file are corners, decided once for the whole file.

x1, y1, x2, y2 always rise: x1 < x2 and y1 < y2. Where more than one in twenty of the boxes of a file do not, they are
something else (x, y, width, height; cx, cy, width, height; ...), those that happen to rise too. Which, no number tells:
all of them are refused until `--box_format`, or `bbox_format` of the records, says it. Boxes whose record or question
says what they are do not count.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pixelis_jax.answers import boxes
from pixelis_jax.answers.boxes import Box
from pixelis_jax.data.importers import box_frames, box_words, gold, messages
from pixelis_jax.data.importers.base import Found, first_of
from pixelis_jax.data.importers.numbering import ByFile

OPEN, CORNERS = "open", "corners"
FEW = 0.05  # share of boxes that do not rise: mistakes in a file of corners


def boxing(given: str, read: Callable[[Path], Iterator[Found]]) -> ByFile:
    """What the boxes of a file are, OPEN or CORNERS; `given` is --box_format."""
    return ByFile("" if given == "auto" else CORNERS, decided, read)


def decided(records: Iterator[Any]) -> str:
    """What the boxes of these records are."""
    rising = falling = 0
    for record in records:
        for x1, y1, x2, y2 in _boxes_of(record):
            falls = x2 < x1 or y2 < y1
            rising, falling = rising + (not falls), falling + falls
    return OPEN if falling > FEW * (rising + falling) else CORNERS


def _boxes_of(record: Any) -> Iterator[Box]:
    """Four numbers in the place of an answer to a question for a place, where nothing says what they are."""
    if not isinstance(record, Mapping) or box_frames.names_order(box_frames.said(record)):
        return
    for question, answer in _answers_of(record):
        found = boxes.four(answer) if isinstance(answer, str | list | dict) else None
        named = isinstance(answer, str) and not any(sign in answer for sign in "[({<")
        if found and not named and box_words.asks_place(question) and not box_words.order(question)[1]:
            yield found


def _answers_of(record: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """(question, answer) pairs of a record: its fields, or neighbours among its messages."""
    field, answer = gold.answer_of(record)
    asked = first_of(record, messages.ASKED)[1]
    if field and isinstance(asked, str):
        yield asked, answer
        return
    _, items, _ = messages.find(record)
    texts = [first_of(item, ("value", "content", "text"))[1] if isinstance(item, Mapping) else None for item in items]
    for before, said in itertools.pairwise(texts):
        if isinstance(before, str) and isinstance(said, str):
            yield before, said
