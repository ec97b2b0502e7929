from collections import Counter
from pathlib import Path

import pytest

from pixelis_jax.cota import import_
from pixelis_jax.data.cota import TASK_TYPES
from pixelis_jax.data.importers import answers
from pixelis_jax.data.importers.base import Place, Refusal

PLACE = Place("f:1", Path("f"))


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        (r"so \boxed{B}.", "B"),
        (r"\boxed{1} then \boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\text{a cat}}", "a cat"),
        ("no box", "no box"),
        (r"\boxed{open", r"\boxed{open"),
    ],
)
def test_the_last_box_counts_and_braces_are_matched(text, inside):
    assert answers.unboxed(text) == inside


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("B", ["B"]),
        (3, ["3"]),
        (0.5, ["0.5"]),
        ([3], ["3"]),
        ([1, 2, 30, 40], ["[1, 2, 30, 40]"]),
        (["red", "crimson", "red"], ["red", "crimson"]),
        (r"\boxed{B}", ["B"]),
        ("<think>x</think><answer> B </answer>", ["B"]),
    ],
)
def test_answers_of_all_kinds_become_texts(given, wanted):
    assert answers.plain(given, PLACE, "answer") == wanted


@pytest.mark.parametrize("given", [None, "", "  ", [], [""], True, {"a": 1}, float("nan"), float("inf"), r"\boxed{}"])
def test_what_is_no_answer_is_refused(given):
    with pytest.raises(Refusal, match="f:1: answer: "):
        answers.plain(given, PLACE, "answer")


CHOICES = ["a cat", "a dog", "2"]


@pytest.mark.parametrize(
    ("answer", "letter"),
    [
        ("B", "B"),
        ("(b)", "B"),
        ("b.", "B"),
        ("B. a dog", "B"),
        ("A dog.", "B"),
        ("2", "C"),
        ("D", None),
        ("B. a cat", None),
    ],
)
def test_a_choice_is_named_by_letter_or_by_text(answer, letter):
    assert answers.letter_of(answer, CHOICES) == letter


def test_choices_are_found_in_the_lines_of_a_question():
    assert answers.choices_in("Which?\n(A) cat\n(B) dog\n") == ["cat", "dog"]
    assert answers.choices_in("Plan A. one\nA. x\nB: y\nC) z\nE. no") == ["x", "y", "z"]
    assert answers.choices_in("A. alone") == [] and answers.choices_in("Which?") == []


def test_types_follow_from_question_answer_and_choices():
    made = answers.typed("Which?", "b", ["cat", "dog"], PLACE)
    assert made == {
        **{"question": "Which?\nA. cat\nB. dog", "answer": "B", "answer_type": "choice", "choices": ["cat", "dog"]}
    }
    listed = answers.typed("Which?\n(A) cat\n(B) dog", "(A)", None, PLACE)
    assert (listed["question"], listed["answer"], listed["choices"]) == (
        "Which?\n(A) cat\n(B) dog",
        "A",
        ["cat", "dog"],
    )
    assert answers.typed("How many?", "1,234.5", None, PLACE)["answer_type"] == "numeric"
    assert answers.typed("Who?", "B", None, PLACE)["answer_type"] == "exact"
    assert answers.typed("Which?", "A", {"A": "x", "B": "y"}, PLACE)["choices"] == ["x", "y"]
    assert answers.typed("Which?", "A", ["A. x", "B. y"], PLACE)["choices"] == ["x", "y"]


@pytest.mark.parametrize("choices", ["ab", [1, None], {"A": "x", "C": "y"}, ["x"] * 27, ["x", ""]])
def test_bad_choices_are_refused(choices):
    with pytest.raises(Refusal, match="f:1: choices: "):
        answers.typed("Which?", "A", choices, PLACE)


def test_an_index_into_choices_is_not_guessed_at():
    with pytest.raises(Refusal, match="answer: names none of the choices"):
        answers.typed("Which?", "1", ["cat", "dog"], PLACE)


@pytest.mark.parametrize(
    ("one", "other", "choices", "same"),
    [
        ("B", "(b) dog", ["cat", "dog"], True),
        ("A", "dog", ["cat", "dog"], False),
        ("1,000", "1000.0", [], True),
        ("Red.", "red", [], True),
        ("red", "blue", [], False),
    ],
)
def test_agreement(one, other, choices, same):
    assert answers.agree(one, other, choices) is same


def test_task_types_come_from_the_data_or_from_the_default():
    notes = Counter()
    kinds = [{"task_type": "object_counting"}, {"category": "Relative Position"}, {"category": "zoo"}, {"type": 3}]
    found = [answers.task_type(record, "text_extraction", PLACE, notes) for record in kinds]
    assert found == ["object_counting", "spatial_reasoning", "text_extraction", "text_extraction"]
    assert notes == {"task_type from the data": 2, "task_type by --task_type=text_extraction": 2}
    with pytest.raises(Refusal, match="task_type: missing; give one of object_counting, "):
        answers.task_type({}, answers.REQUIRED, PLACE, notes)
    assert set(answers.TASKS.values()) == set(TASK_TYPES) == set(import_.TASK_TYPES)
