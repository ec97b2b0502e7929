"""Patterns that look into questions and answers take time that grows with the text alone, however it is made."""

import multiprocessing
from pathlib import Path

from pixelis_jax.data.importers import (
    answer_types,
    answers,
    box_words,
    choices_in_text,
    gold_texts,
    marks,
    numbered_choices,
    turns,
)

LENGTH = 8_000
UNITS = [
    *(" ", "\n", "[", "( ", "x, ", "[1, 2, 3, ", "1", "0 ", "10x", "image is ", "size ", "first ", "and ", "a, "),
    *("(i) ", "a) ", "A. ", "**A.** ", "①", "Picture 1: <img>", "the answer is ", "normalized ", "那", "#### ", "* "),
]
LOOKS = {
    "order": box_words.order,
    "frame": box_words.frame,
    "size": box_words.size,
    "pictures": lambda text: box_words.pictures(text, 3),
    "boxes": box_words.boxes_in,
    "place": box_words.asks_place,
    "point": box_words.asks_point,
    "choices": choices_in_text.listed,
    "numbers": numbered_choices.found,
    "all": choices_in_text.wants_all,
    "conclusion": gold_texts.concluded,
    "type": lambda text: answer_types.of_answers(text, ["7"]),
    "yes or no": lambda text: answers.with_yes_or_no(text, ["1"]),
    "back": turns._BACK.search,
    "marks": lambda text: marks.count([text]),
}


def look_all(told: str) -> None:
    """Looks into long texts of each unit with each pattern, whose name stands in the file `told` meanwhile."""
    for name, look in LOOKS.items():
        for unit in UNITS:
            Path(told).write_text(f"{name}: {unit}")
            long = unit * (LENGTH // len(unit))
            look(f"Where is it in the image? According to x, {long}y, [1, 2, 3, 4] is the answer")


def test_long_texts_are_looked_through(tmp_path):
    """A pattern that goes back over and over would take hours here; all of them together take seconds."""
    process = multiprocessing.get_context("spawn").Process(target=look_all, args=(str(tmp_path / "told"),))
    process.start()
    process.join(600)
    hangs = process.is_alive()
    process.kill()
    process.join()
    assert not hangs and process.exitcode == 0, (tmp_path / "told").read_text()
