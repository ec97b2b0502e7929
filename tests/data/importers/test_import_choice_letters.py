"""Choices whose own letters, or whose question, say something else than their order."""

import pytest

ASKED = {"question": "What?", "image": "a.png", "answer": "red"}
MIXED = ["C. red", "A. blue", "B. green"]


@pytest.mark.parametrize("answer", ["red", "C", "C. red"])
def test_letters_give_the_order(bring, answer):
    (sample,), refused, _ = bring(ASKED | {"answer": answer, "choices": MIXED})
    assert refused == [] and sample.choices == ("blue", "green", "red") and sample.answer == "C"
    assert sample.question == "What?\nA. blue\nB. green\nC. red"


def test_a_number_of_choices_that_are_not_in_order_is_refused(refusal):
    assert "another order" in refusal(ASKED | {"answer": 0, "choices": MIXED})


@pytest.mark.parametrize(
    "fields",
    [
        {"choices": ["A. red", "A. blue"]},
        {"choices": ["B. red", "C. blue"]},
        {"choices": {"A": "B. red", "B": "A. blue"}},
        {"option_a": "B. red", "option_b": "A. blue"},
    ],
)
def test_letters_that_contradict_their_places_are_refused(refusal, fields):
    assert "letters of choices that are not A, B, ..." in refusal(ASKED | fields)


def test_initials_of_labelled_choices_are_no_letters(bring):
    (sample,), _, _ = bring(ASKED | {"answer": "A", "choices": {"A": "G. Washington", "B": "T. Jefferson"}})
    assert sample.choices == ("G. Washington", "T. Jefferson")
