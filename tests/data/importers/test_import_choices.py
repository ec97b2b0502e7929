"""Choices in all shapes that other data give them: recognised, or the record refused; the question shows them."""

import json
from pathlib import Path

import pytest

from pixelis_jax.data.importers import choices, choices_in_text
from pixelis_jax.data.importers.base import Place, Refusal

PLACE = Place("f:1", Path("f"))
QUESTION = {"question": "What is it?", "image": "a.png"}
SHOWN = "What is it?\nA. red\nB. blue\nC. green"
COLOURS = ["red", "blue", "green"]


@pytest.mark.parametrize(
    "fields",
    [
        {"choices": COLOURS},
        {"options": COLOURS},
        {"candidates": tuple(COLOURS)},
        {"choices": json.dumps(COLOURS)},
        {"choices": str(COLOURS)},
        {"choices": "['red' 'blue' 'green']"},
        {"choices": "['red'\n 'blue'\n 'green']"},
        {"choices": "(A) red (B) blue (C) green"},
        {"choices": "A. red\nB. blue\nC. green"},
        {"choices": "red|blue|green"},
        {"choices": "red\nblue\ngreen"},
        {"choices": ["A. red", "B. blue", "C. green"]},
        {"choices": ["(a) red", "(b) blue", "(c) green"]},
        {"choices": {"A": "red", "B": "blue", "C": "green"}},
        {"choices": {"A": "red", "B": "blue", "C": "green", "D": None}},
        {"choices": {"a": "red", "b": "blue", "c": "green"}},
        {"choices": {"option_a": "red", "option_b": "blue", "option_c": "green"}},
        {"choices": {"label": ["A", "B", "C"], "text": COLOURS}},
        {"choices": [{"label": letter, "text": text} for letter, text in zip("ABC", COLOURS, strict=True)]},
        {"choices": [{"id": letter, "content": text} for letter, text in zip("abc", COLOURS, strict=True)]},
        {"choices": [{"A": "red"}, {"B": "blue"}, {"C": "green"}]},
        {"choices": [{"text": text} for text in COLOURS]},
        {"A": "red", "B": "blue", "C": "green"},
        {"A": "red", "B": "blue", "C": "green", "D": None},
        {"A": "red", "B": "blue", "C": "green", "D": ""},
        {"a": "red", "b": "blue", "c": "green"},
        {"choice_a": "red", "choice_b": "blue", "choice_c": "green"},
        {"option_A": "red", "option_B": "blue", "option_C": "green"},
        {"optionA": "red", "optionB": "blue", "optionC": "green"},
        {"opa": "red", "opb": "blue", "opc": "green"},
        {"option1": "red", "option2": "blue", "option3": "green"},
        {"choice_0": "red", "choice_1": "blue", "choice_2": "green"},
    ],
)
def test_choices_in_every_shape_are_the_same_question(bring, fields):
    samples, refused, _ = bring(QUESTION | fields | {"answer": "blue"}, QUESTION | fields | {"answer": "B", "qid": 2})
    assert refused == [] and len(samples) == 2
    for sample in samples:
        assert (sample.question, sample.choices) == (SHOWN, tuple(COLOURS))
        assert (sample.answer, sample.answer_type) == ("B", "choice")
        assert not sample.metadata.get("other_fields")


@pytest.mark.parametrize(
    ("question", "found"),
    [
        ("Which?\n(A) cat\n(B) dog\n", ["cat", "dog"]),
        ("Plan A. one\nA. x\nB: y\nC) z\nE. no", ["x", "y", "z"]),
        ("Which? (A) cat (B) a dog (C) 3.5", ["cat", "a dog", "3.5"]),
        ("Which? A. cat B. dog", ["cat", "dog"]),
        ("Which? [A] cat [B] dog", ["cat", "dog"]),
        ("Which? Options: A: cat; B: dog", ["cat", "dog"]),
        ("Which? A) cat, B) dog", ["cat", "dog"]),
        ("Which? (a) cat (b) dog", ["cat", "dog"]),
        ("Which? （A）cat （B）dog", ["cat", "dog"]),
        ("Which? (A) cat (B) dog\nAnswer with the letter.", ["cat", "dog"]),
        ("Which?\nA、cat\nB、dog", ["cat", "dog"]),
        *[("A. alone", []), ("Which?", []), ("(A) or (B)?", []), ("Vitamin A. Vitamin B. 12", []), ("(A) x (C) y", [])],
    ],
)
def test_choices_are_found_in_the_words_of_a_question(question, found):
    assert choices_in_text.listed(question) == found


def test_labels_of_their_own_are_what_answers_name(bring):
    arc = {"label": ["1", "2", "3"], "text": COLOURS}
    samples, _, _ = bring(
        QUESTION | {"choices": arc, "answerKey": "2", "qid": 1},
        QUESTION | {"option1": "red", "option2": "blue", "option3": "green", "answer": "2"},
        QUESTION | {"option1": "red", "option2": "blue", "option3": "green", "answer": "option2", "qid": 2},
        QUESTION | {"choices": {"0": "red", "1": "blue", "2": "green"}, "answer": 1, "qid": 3},
    )
    assert [sample.answer for sample in samples] == ["B"] * 4


@pytest.mark.parametrize(
    "value",
    [
        *("ab", "[1,", [1, None], {"A": "x", "C": "y"}, ["x"] * 27, ["x", ""], ["x"], [["x"], ["y"]], 3, True),
        *({"A": "x", "B": None, "C": "y"}, [{"text": "x"}, {"name": "y"}], {"label": ["A"], "text": ["x", "y"]}),
        *({"Z": "x", "Y": "y"}, "{'A': 'x', 'Q': 'y'}", [float("nan"), 2]),
    ],
)
def test_bad_choices_are_refused(value):
    with pytest.raises(Refusal, match="f:1: choices: "):
        choices.of_value(value, PLACE, "choices")


def test_columns_with_a_gap_are_refused(refusal):
    assert "A: columns of choices have a gap (A, B, C)" in refusal(
        QUESTION | {"A": "x", "B": None, "C": "y", "answer": "A"}
    )
    assert "choice_a: columns of choices have a gap" in refusal(
        QUESTION | {"choice_a": "x", "choice_b": "y", "choice_d": "z", "answer": "A"}
    )


@pytest.mark.parametrize(
    ("answer", "letters"), [(["B", "C"], "B, C"), ("B, C", "B, C"), ("BC", "B, C"), (["blue", "green"], "B, C")]
)
def test_no_accepted_letter_is_lost(bring, answer, letters):
    (sample,), _, job = bring(QUESTION | {"options": COLOURS, "answer": answer})
    assert sample.answer == sample.ground_truth == letters
    assert job.counts.notes["questions with several accepted choices: any of them is right"] == 1


@pytest.mark.parametrize(
    ("given", "letters", "refused"),
    [
        ([0, 1, 2], ["A", "B", "C"], 0),
        ([1, 2, 3], ["A", "B", "C"], 0),
        (["0", "1"], ["A", "B"], 0),
        ([1, 2], [], 2),
        ([0, 3], [], 2),
        ([0, "B"], ["B"], 1),
    ],
)
def test_numbers_of_choices_are_decided_by_the_whole_file(bring, given, letters, refused):
    records = [QUESTION | {"options": COLOURS, "answer": answer, "qid": i} for i, answer in enumerate(given)]
    samples, lines, _ = bring(*records)
    assert [sample.answer for sample in samples] == letters and len(lines) == refused
    assert all("say --answer_index=0|1" in line for line in lines)


def test_the_user_may_say_how_choices_are_counted(bring):
    records = [QUESTION | {"options": COLOURS, "answer": answer} for answer in (1, 2)]
    for base, letters in (("0", ["B", "C"]), ("1", ["A", "B"])):
        samples, refused, _ = bring(*records, answer_index=base)
        assert [sample.answer for sample in samples] == letters and refused == []


def test_a_letter_without_choices_is_refused_unless_it_is_the_answer(bring, refusal):
    assert "answer: a letter, and there are no choices" in refusal(QUESTION | {"answer": "B"})
    samples, _, _ = bring(
        QUESTION | {"answer": "B", "answer_type": "exact"},
        QUESTION | {"answer": "B", "question": "Which letter is on the sign?"},
    )
    assert [(sample.answer, sample.answer_type) for sample in samples] == [("B", "exact")] * 2
    (sample,), _, _ = bring(QUESTION | {"answer": "B"}, answer_type="exact")
    assert sample.answer_type == "exact"


def test_dialogues_have_choices_by_the_same_rules(bring):
    talk = [{"from": "human", "value": "<image>What is it?"}, {"from": "gpt", "value": "B"}]
    record = {"conversations": talk, "image": "a.png"}
    (one,), _, _ = bring(record | {"A": "red", "B": "blue", "C": "green"})
    (other,), _, _ = bring(record | {"options": str(COLOURS)})
    assert (one.question, one.answer, one.answer_type) == (other.question, other.answer, other.answer_type)
    assert (one.question, one.answer, one.answer_type) == (SHOWN, "B", "choice")
    steps = {"trajectory": [], "question": "What is it?", "image_path": "a.png", "options": COLOURS, "answer": "blue"}
    (cota,), _, _ = bring(steps)
    assert (cota.question, cota.answer, cota.answer_type) == (SHOWN, "B", "choice")
