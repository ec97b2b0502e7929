from collections import Counter
from pathlib import Path

import pytest

from pixelis_jax.cota import import_
from pixelis_jax.data.cota import TASK_TYPES
from pixelis_jax.data.importers import answers, gold_values, numbering, task_types
from pixelis_jax.data.importers.base import Context, Options, Place, Refusal
from pixelis_jax.data.importers.choices import Asked, Choices

PLACE = Place("f:1", Path("f"))


def typed(question, *accepted, choices=(), labels=(), given=None, meaning=numbering.TEXTS, **options):
    """The fields of a question."""
    context = Context(Options(**options), lambda value, place, field: None, Counter(), *[lambda place: meaning] * 3)
    return answers.typed(Asked(question, accepted, Choices(tuple(choices), tuple(labels)), given), PLACE, context)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("B", ["B"]),
        (True, ["yes", "true"]),
        (False, ["no", "false"]),
        (3, ["3"]),
        (0.5, ["0.5"]),
        ([3], ["3"]),
        ([1, 2, 30, 40], ["[1, 2, 30, 40]"]),
        ([[1.5, 2, 30, 40]], ["[1.5, 2, 30, 40]"]),
        ({"bbox_2d": [1, 2, 30, 40], "label": "cat"}, ["[1, 2, 30, 40]"]),
        ([30, 40], ["[30, 40]"]),
        (["red", "crimson", "red"], ["red", "crimson"]),
        (r"\boxed{B}", ["B"]),
        (r"\fbox{5}", ["5"]),
        (r"so \boxed {7}.", ["7"]),
        (r"\boxed{\frac{1}{2}}", [r"\frac{1}{2}"]),
        (r"$\boxed{\text{a cat}}$", ["a cat"]),
        ("**red**", ["red"]),
        ("<think>x</think><answer> B </answer>", ["B"]),
    ],
)
def test_answers_of_all_kinds_become_texts(given, wanted):
    assert gold_values.plain(given, PLACE, "answer") == wanted


@pytest.mark.parametrize(
    "given",
    [None, "", "  ", [], [""], {"a": 1}, float("nan"), float("inf"), r"\boxed{}", [None, "x"], [[1], [2]]],
)
def test_what_is_no_answer_is_refused(given):
    with pytest.raises(Refusal, match="f:1: answer: "):
        gold_values.plain(given, PLACE, "answer")


@pytest.mark.parametrize(
    ("answer", "kind", "kept"),
    [
        ("red", "exact", "red"),
        ("1,234.5", "numeric", "1234.5"),
        (r"\$1,234.00", "numeric", "1234"),
        ("€ 5", "numeric", "5"),
        ("\u22125", "numeric", "-5"),
        ("12 cm", "numeric", "12 cm"),
        ("25 %", "numeric", "25 %"),
        ("1/2", "numeric", "1/2"),
        ("1e5", "numeric", "1e5"),
        ("007", "exact", "007"),
        ("three", "exact", "three"),
        ("2024-05-01", "exact", "2024-05-01"),
        (r"3 \sqrt{2}", "math", r"3 \sqrt{2}"),
        ("[31.25, 60.5, 250.75, 410.5]", "iou", "[31.25, 60.5, 250.75, 410.5]"),
        ("(10, 20), (60, 70)", "iou", "[10, 20, 60, 70]"),
        ('```json\n[{"bbox_2d": [10, 20, 60, 70], "label": "cat"}]\n```', "iou", "[10, 20, 60, 70]"),
        ("[60, 20, 10, 70]", "exact", "[60, 20, 10, 70]"),
        ("10, 20, 60, 70", "exact", "10, 20, 60, 70"),
    ],
)
def test_types_follow_from_the_answer(answer, kind, kept):
    assert typed("What?", answer) == {"question": "What?", "answer": kept, "answer_type": kind}


def test_a_type_that_is_given_comes_first():
    assert typed("What?", "7", given="exact")["answer_type"] == "exact"
    assert typed("What?", "$5.00", given="anls")["answer"] == "$5.00"
    assert typed("What?", "10, 20, 60, 70", given="bbox") == {
        **{"question": "What?", "answer": "[10, 20, 60, 70]", "answer_type": "iou"}
    }
    assert typed("What?", "5", given="integer")["answer_type"] == "numeric"
    assert typed("What?", "red", given="text")["answer_type"] == "exact"  # which says nothing
    assert typed("Which?", "dog", given="text", choices=["cat", "dog"])["answer_type"] == "choice"
    assert typed("What?", "5", answer_type="exact")["answer_type"] == "exact"
    assert typed("Which?", "B", answer_type="exact")["answer"] == "B"
    for wrong in ("guess", 3, ["exact"]):
        with pytest.raises(Refusal, match="f:1: answer_type: unknown; use one of"):
            typed("What?", "x", given=wrong)
    with pytest.raises(Refusal, match="choices: missing, and answer_type is choice"):
        typed("What?", "B", given="multiple_choice")


def test_accepted_answers_have_one_type():
    assert typed("What?", "5", "5.0") == {
        **{"question": "What?", "answer": "5", "answer_type": "numeric", "answers": ["5", "5.0"]}
    }
    assert typed("What?", "5", "five")["answer_type"] == "exact"
    boxes = typed("Where?", "[1, 2, 3, 4]", "(1, 2, 5, 6)")
    assert (boxes["answer_type"], boxes["answers"]) == ("iou", ["[1, 2, 3, 4]", "[1, 2, 5, 6]"])


CHOICES = ["a cat", "a dog", "2"]


@pytest.mark.parametrize(
    ("answer", "letter"),
    [
        *[("B", "B"), ("(b)", "B"), ("b.", "B"), ("B. a dog", "B"), ("A dog.", "B"), ("2", "C"), ("**B**", "B")],
        *[("B, C", "B, C"), ("BC", "B, C"), ("C and B", "B, C"), ("b/c", "B, C")],
    ],
)
def test_choices_are_named_by_letters_or_by_text(answer, letter):
    made = typed("Which?", answer, choices=CHOICES)
    assert made == {
        **{"question": "Which?\nA. a cat\nB. a dog\nC. 2", "answer": letter},
        **{"answer_type": "choice", "choices": CHOICES},
    }


@pytest.mark.parametrize("answer", ["D", "B. a cat", "a bird", "BAD", "B, D", "3"])
def test_answers_that_name_no_choice_are_refused(answer):
    with pytest.raises(Refusal, match="f:1: answer: names none of the choices"):
        typed("Which?", answer, choices=CHOICES)


def test_several_accepted_letters_and_equal_choices():
    assert typed("Which?", "B", "C", choices=CHOICES)["answer"] == "B, C"
    prices = ["8.75", "8.79", "8.75"]
    assert typed("How much?", "C", choices=prices)["answer"] == "C"
    assert typed("How much?", "8.75", choices=prices)["answer"] == "A"
    assert typed("How much?", "8.75", "8.79", choices=prices)["answer"] == "A, B"
    for everything in (["A", "B", "C"], ["ABC"], ["A, B, C"]):
        with pytest.raises(Refusal, match="every choice is accepted"):
            typed("Which?", *everything, choices=CHOICES)


@pytest.mark.parametrize("answer", ["B", "(b)", "b.", "B)", "A, C", "B and C", "option d"])
def test_a_letter_without_choices_is_refused_unless_the_question_asks_for_one(answer):
    with pytest.raises(Refusal, match="answer: a letter, and there are no choices"):
        typed("Which is right?", answer)
    with pytest.raises(Refusal, match="a letter"):
        typed("Which of the following letters?", answer)
    assert typed("Which letter is on the sign?", answer)["answer_type"] == "exact"
    assert typed("Which is right?", answer, given="exact")["answer"] == answer


def test_letters_that_are_no_choices():
    assert typed("Which point is the centre?", "B")["answer_type"] == "exact"
    assert typed("What is unknown?", "x")["answer_type"] == "exact"


def test_choices_in_the_words_of_a_question():
    made = typed("Which? (A) cat (B) dog", "dog")
    assert (made["question"], made["answer"], made["choices"]) == ("Which? (A) cat (B) dog", "B", ["cat", "dog"])
    for answer in ("C", "a bird"):
        with pytest.raises(Refusal, match="names none of the choices that the question lists"):
            typed("Which? (A) cat (B) dog", answer)
    assert typed("Which? (A) cat (B) dog", "a bird", given="exact")["answer"] == "a bird"


def test_numbers_of_choices():
    animals = ["cat", "dog", "bird"]
    assert typed("Which?", "1", choices=animals, meaning=numbering.FROM_0)["answer"] == "B"
    assert typed("Which?", "1", choices=animals, meaning=numbering.FROM_1)["answer"] == "A"
    assert typed("Which?", "2", choices=["1", "2", "3"], meaning=numbering.FROM_0)["answer"] == "C"
    assert typed("Which?", "2", choices=["1", "2", "3"], meaning=numbering.TEXTS)["answer"] == "B"
    assert typed("Which?", "2", choices=["1", "2", "3"], meaning=numbering.MIXED)["answer"] == "B"
    assert typed("Which?", "2", choices=animals, labels=["1", "2", "3"])["answer"] == "B"
    for meaning in (numbering.OPEN, numbering.MIXED):
        with pytest.raises(Refusal, match=r"say --answer_index=0\|1"):
            typed("Which?", "1", choices=animals, meaning=meaning)
    with pytest.raises(Refusal, match="is no number of a choice, counted from 1"):
        typed("Which?", "0", choices=animals, meaning=numbering.FROM_1)
    with pytest.raises(Refusal, match="names none of the choices"):
        typed("Which?", "1", choices=animals)


@pytest.mark.parametrize(
    ("given", "meaning"),
    [
        ([0, 1, 2], numbering.FROM_0),
        ([1, 2, 3], numbering.FROM_1),
        ([1, "2", 3.0], numbering.FROM_1),
        ([1, 2], numbering.OPEN),
        ([0, 3], numbering.OPEN),
        ([0, "B"], numbering.MIXED),
        ([0, "dog"], numbering.MIXED),
        (["A", "dog"], numbering.TEXTS),
        ([], numbering.TEXTS),
        ([7, 9], numbering.TEXTS),  # beyond the choices: these are no numbers of them
    ],
)
def test_numbers_are_decided_over_the_whole_file(given, meaning):
    records = [{"question": "?", "choices": ["cat", "dog", "bird"], "answer": answer} for answer in given]
    assert numbering.decided(iter([*records, {"answer": 5}, None, {"choices": 3, "answer": 0}])) == meaning


def test_numbers_that_are_texts_of_choices_are_no_evidence():
    texts = [{"choices": ["1", "2", "3"], "answer": answer} for answer in (1, "2")]
    assert numbering.decided(iter(texts)) == numbering.TEXTS
    assert numbering.decided(iter([*texts, {"choices": ["x", "y"], "answer": 0}])) == numbering.FROM_0


def test_task_types_come_from_the_data_or_from_the_default():
    notes = Counter()
    kinds = [{"task_type": "object_counting"}, {"category": "Relative Position"}, {"category": "zoo"}, {"type": 3}]
    found = [task_types.task_type(record, "text_extraction", PLACE, notes) for record in kinds]
    assert found == ["object_counting", "spatial_reasoning", "text_extraction", "text_extraction"]
    assert notes == {"task_type from the data": 2, "task_type by --task_type=text_extraction": 2}
    with pytest.raises(Refusal, match="task_type: missing; give one of object_counting, "):
        task_types.task_type({}, task_types.REQUIRED, PLACE, notes)
    assert set(task_types.TASKS.values()) == set(TASK_TYPES) == set(import_.TASK_TYPES)


def test_what_is_too_long_to_be_an_answer_is_refused_at_once(refusal):
    """Fences, boxes and the like are taken off again and again, which a text of megabytes must not cost."""
    long = "```" * 50_000
    question = {"question": "What?", "image": "a.png"}
    assert "answer: longer than 10000 characters (150000)" in refusal(question | {"answer": long})
    assert "choices: longer than 10000 characters" in refusal(question | {"choices": ["x", long], "answer": "x"})
    for said in (f"<answer>{long}</answer>", f"\\boxed{{{long}}}"):
        talk = [{"from": "human", "value": "<image>What?"}, {"from": "gpt", "value": said}]
        assert "answer: longer than" in refusal({"conversations": talk, "image": "a.png"})
