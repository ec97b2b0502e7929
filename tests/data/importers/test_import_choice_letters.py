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


LISTED = ASKED | {"question": "What?\nA. blue\nB. red"}


@pytest.mark.parametrize("given", [["red", "blue"], ["blue", "green", "red"], {"A": "red", "B": "green"}])
@pytest.mark.parametrize("more", [{}, {"answer": None}])
def test_choices_that_the_question_lists_otherwise_are_refused(refusal, given, more):
    told = refusal(LISTED | more | {"choices": given}, unanswered=bool(more))
    assert told.startswith("choices: not those that the question lists")


@pytest.mark.parametrize(
    ("question", "given"),
    [
        ("What?\nA. blue\nB. red", ["Blue", "red."]),
        ("What? (A) blue (B) red Answer with the letter.", ["blue", "red"]),
        ("What?\nA. blue\nB. red", ["A. blue", "B. red"]),
    ],
)
def test_choices_that_the_question_lists_too_are_read(bring, question, given):
    (sample,), refused, _ = bring(ASKED | {"question": question, "choices": given})
    assert refused == [] and sample.answer == "B"


def test_a_dialogue_that_lists_other_choices_is_refused(refusal):
    said = [{"from": "human", "value": "What?\nA. blue\nB. red"}, {"from": "gpt", "value": "B"}]
    assert "not those that the question lists" in refusal(
        {"conversations": said, "image": "a.png", "choices": ["red", "blue"]}
    )
