"""What an answer means beside choices: a letter or a text, all of several, none of them, and lists in the question."""

import pytest

from pixelis_jax.data.corpus import Selection, open_corpus
from pixelis_jax.data.cota import SAMPLE_TYPES
from pixelis_jax.data.importers import choices_in_text
from pixelis_jax.rewards.verifiers import verify

ASKED = {"question": "What?", "image": "a.png"}
SWAPPED = ASKED | {"choices": ["B", "A", "C"], "answer": "A"}
ARTICLES = ASKED | {"choices": ["an", "a", "the"], "answer": "a"}
COLOURS = ASKED | {"choices": ["red", "blue"]}


@pytest.mark.parametrize(
    ("record", "proof", "letter"),
    [
        (SWAPPED, {"answer": "red"}, "B"),
        (SWAPPED, {"answer": "B"}, "A"),
        (SWAPPED, {"answer": "(b)"}, "A"),
        (ARTICLES, {"answer": "blue"}, "B"),
        (ARTICLES, {"answer": "A"}, "A"),
        (ASKED | {"choices": ["C", "D", "A", "B"], "answer": "D"}, {"answer": "blue"}, "B"),
    ],
)
def test_a_file_says_whether_letters_are_texts(bring, record, proof, letter):
    (sample, _), refused, job = bring(record, COLOURS | proof)
    assert refused == [] and sample.answer == letter
    assert sum(count for note, count in job.counts.notes.items() if "both a letter and a text" in note) == 1


@pytest.mark.parametrize("others", [[], [{"answer": "red"}, {"answer": "B"}]])
def test_a_letter_and_a_text_that_nothing_decides_is_refused(bring, others):
    samples, refused, _ = bring(SWAPPED, *(COLOURS | other for other in others))
    assert len(samples) == len(others) and "the letter of one choice and the text of another" in refused[0]
    for given, letter in (("place", "A"), ("text", "B")):
        samples, refused, _ = bring(SWAPPED, *(COLOURS | other for other in others), answer_letter=given)
        assert refused == [] and samples[0].answer == letter


def test_letters_at_their_places_are_no_question(bring):
    (sample,), refused, _ = bring(ASKED | {"choices": ["A", "B", "C"], "answer": "B"})
    assert refused == [] and sample.answer == "B"


@pytest.mark.parametrize(
    ("question", "found"),
    [
        ("颜色？Ａ．红 Ｂ．蓝", ["红", "蓝"]),
        ("颜色？A、红 B、蓝", ["红", "蓝"]),
        ("颜色？（Ａ）红（Ｂ）蓝", ["红", "蓝"]),
        ("颜色？A.红 B.蓝 C.绿", ["红", "蓝", "绿"]),
        ("Is it (A) red or (B) blue?", ["red", "blue"]),
        ("Is it (a) red, (b) blue, or (c) green?", ["red", "blue", "green"]),
        ("他是（A）红还是（B）蓝？", ["红", "蓝"]),
        ("What?\nA. red\n  like a rose\nB. blue\n  like the sea", ["red like a rose", "blue like the sea"]),
        ("What?\nA. red\nB. blue\nAnswer with the letter.", ["red", "blue"]),
        ("What?\nA. one\ntwo\nB. three\nfour\nAnswer.", ["one two", "three four"]),
        ("What?\nA. one\ntwo\nB. three\n\nC. five", ["one two", "three", "five"]),
        ("Point A. is left of B. Is it?", []),
        ("Is vitamin (A) in it?", []),
    ],
)
def test_choices_in_a_question(question, found):
    assert choices_in_text.listed(question) == found


@pytest.mark.parametrize(
    ("question", "answer", "shown", "letter"),
    [
        ("What is it? (1) red (2) blue", "blue", "What is it? (A) red (B) blue", "B"),
        ("Choose: (1) red (2) blue", "(2)", "Choose: (A) red (B) blue", "B"),
        ("Choose one.\n1. red\n2. blue", 2, "Choose one.\nA. red\nB. blue", "B"),
        ("哪个？\n1、红\n2、蓝", "2", "哪个？\nA、红\nB、蓝", "B"),
    ],
)
def test_choices_with_numbers_get_letters(bring, question, answer, shown, letter):
    (sample,), refused, job = bring(ASKED | {"question": question, "answer": answer})
    assert refused == [] and (sample.question, sample.answer, sample.answer_type) == (shown, letter, "choice")
    assert job.counts.notes["questions whose choices have numbers: they have letters now"] == 1


def test_a_count_is_no_choice(bring):
    question = "1. Count the dogs.\n2. Count the cats. How many are there?"
    (sample,), _, job = bring(ASKED | {"question": question, "answer": "2"})
    assert (sample.question, sample.answer_type) == (question, "numeric")
    (sample,), _, job = bring(ASKED | {"question": "Is it (1) red (2) blue?", "answer": "2"})
    assert sample.answer_type == "numeric"
    assert job.counts.notes["answers like 2 to a question that lists (1), (2), ...: numbers, not choices"] == 1


def test_an_answer_that_is_no_listed_choice_is_refused(bring, refusal):
    record = ASKED | {"question": "What?\nA. red\nB. blue", "answer": "green"}
    assert "names none of the choices that the question lists" in refusal(record)
    (sample,), _, _ = bring(record | {"answer_type": "exact"})
    assert (sample.answer, sample.answer_type) == ("green", "exact")


LISTED = "\nA. red\nB. blue\nC. green"


@pytest.mark.parametrize(
    ("question", "more", "needs_all"),
    [
        ("Select all that apply.", {}, True),
        ("Which are right? (可多选)", {}, True),
        ("下列哪些正确？", {}, True),
        ("Choose two answers.", {}, True),
        ("Which?", {"answer_type": "multi-select"}, True),
        ("Which?", {}, False),
        ("Which of the two is it?", {}, False),
    ],
)
def test_all_right_choices_or_one(bring, score, question, more, needs_all):
    (sample,), refused, job = bring(ASKED | more | {"question": question + LISTED, "answer": "A, C"})
    assert refused == [] and sample.metadata.get("needs_all", False) is needs_all
    asked = open_corpus(job.out, Selection(SAMPLE_TYPES)).task(1)
    assert verify(asked, "A") == score(sample, "A")
    scores = [score(sample, said) for said in ("A, C", "C and A", "green, red", "A", "A, B, C", "B")]
    assert scores == [1, 1, 1, 0 if needs_all else 1, 0, 0]


@pytest.mark.parametrize(
    ("fields", "letter"),
    [
        ({"A": "red", "B": "blue", "C": None, "D": None}, "B"),
        ({"A": "red", "B": "blue", "C": float("nan"), "D": float("nan")}, "B"),
        ({"choices": ["red", "blue", None]}, "B"),
        ({"choices": ["G. Washington", "T. Jefferson"], "answer": "T. Jefferson"}, "B"),
        ({"choices": ["yes", "no"], "answer": False}, "B"),
        ({"choices": ["True", "False"], "answer": False}, "B"),
    ],
)
def test_other_forms_of_choices(bring, fields, letter):
    (sample,), refused, _ = bring(ASKED | {"answer": "blue"} | fields)
    assert refused == [] and sample.answer == letter and len(sample.choices) == 2


@pytest.mark.parametrize("write", [float, lambda number: f"{number}.0"])
def test_numbers_of_choices_from_tables(bring, write):
    samples, refused, _ = bring(COLOURS | {"answer": write(1)}, COLOURS | {"answer": write(0)})
    assert refused == [] and [sample.answer for sample in samples] == ["B", "A"]


@pytest.mark.parametrize(("said", "kind"), [("A", "outcome_negative"), ("A, C", "positive")])
def test_a_dialogue_that_names_one_of_all_right_choices_is_wrong(bring, said, kind):
    messages = [
        {"role": "user", "content": "<image>Select all that apply." + LISTED},
        {"role": "assistant", "content": said},
    ]
    (sample,), refused, _ = bring({"image": "a.png", "messages": messages, "answer": "A, C"})
    assert refused == [] and sample.sample_type == kind and sample.metadata["needs_all"]
