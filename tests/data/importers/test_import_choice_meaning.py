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
    assert job.counts.notes["questions that list (1), (2), ..., and whose answer is a number or another text"] == 1


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


@pytest.mark.parametrize(
    ("question", "answer", "letter"),
    [
        ("什么？①红 ②蓝", "②", "B"),
        ("什么？①红 ②蓝", "2", "B"),
        ("什么？①红 ②蓝 ③绿", "蓝", "B"),
        ("Which? (i) red (ii) blue", "ii", "B"),
        ("Which?\ni. red\nii. blue\niii. green", "(ii)", "B"),
        ("Which? (1) red (2) blue", "(2)", "B"),
        ("Which?\na) red\nb) blue", "b", "B"),
        ("Which? a) red b) blue", "b)", "B"),
        ("Which?\n**A.** red\n**B.** blue", "B", "B"),
        ("Which?\n**A. red**\n**B. blue**", "blue", "B"),
        ("Which?\n- A. red\n- B. blue", "B", "B"),
    ],
)
def test_more_ways_to_list_choices(bring, score, question, answer, letter):
    (sample,), _, _ = bring({"image": "a.png", "question": question, "answer": answer})
    assert (sample.answer_type, sample.answer) == ("choice", letter)
    assert [choice.strip("*") for choice in sample.choices][:2] in (["red", "blue"], ["红", "蓝"])
    assert score(sample, sample.choices[1]) == 1 and score(sample, "A") == 0


@pytest.mark.parametrize(
    ("question", "answer", "kind"),
    [
        ("(1) How many cats? (2) How many dogs?", "3", "numeric"),
        ("What is it? (1) red (2) blue", "2", "numeric"),
        ("What is it? (1) red (2) blue", "green", "exact"),
        ("Read (i) the title and (ii) the year.", "Cats, 1999", "exact"),
    ],
)
def test_numbers_that_are_no_choices(bring, question, answer, kind):
    (sample,), _, job = bring({"image": "a.png", "question": question, "answer": answer})
    assert (sample.answer_type, sample.question) == (kind, question)
    note = "questions that list (1), (2), ..., and whose answer is a number or another text"
    assert job.counts.notes[note] == 1


THREE = {"image": "a.png", "question": "What?", "choices": ["cat", "dog", "bird"]}


@pytest.mark.parametrize(
    ("first", "answers"),
    [(0, ([0, 2], "[0, 2]", ["0", "2"])), (1, ([1, 3], "[1, 3]", ["1", "3"]))],
)
def test_several_numbers_of_choices(bring, first, answers):
    records = [THREE | {"id": i, "answer": answer} for i, answer in enumerate(answers)]
    samples, refused, _ = bring(*records, THREE | {"id": 9, "answer": first + 1})
    assert refused == [] and [sample.answer for sample in samples] == ["A, C"] * 3 + ["B"]


def test_several_numbers_that_tell_no_start_are_refused(refusal):
    assert "say --answer_index=0|1" in refusal(THREE | {"answer": [1, 2]})


def test_several_letters_are_decided_by_the_file_too(bring):
    odd = {"image": "a.png", "question": "Which?", "choices": ["B", "A", "C"]}
    samples, refused, _ = bring(*(odd | {"id": i, "answer": answer} for i, answer in enumerate(("A, C", ["A", "C"]))))
    assert samples == [] and len(refused) == 2 and all("say --answer_letter" in line for line in refused)
    plain = {"image": "a.png", "question": "What?", "choices": ["D", "E", "F"], "answer": ["A", "C"]}
    samples, refused, _ = bring(plain, *(odd | {"id": i, "answer": a} for i, a in enumerate(("A, C", ["A", "C"]))))
    assert refused == [] and [sample.answer for sample in samples] == ["A, C"] * 3


@pytest.mark.parametrize(
    "more",
    [
        {"question_type": "multi-select"},
        {"type": "多选"},
        {"multi_answer": True},
        {"question_type": "Checkbox"},
        {"answer_type": "multi_select"},
    ],
)
def test_what_a_record_says_of_several_answers(bring, score, more):
    (sample,), _, _ = bring(THREE | {"answer": "AC"} | more)
    assert sample.metadata["needs_all"] and (score(sample, "A"), score(sample, "A, C")) == (0, 1)


@pytest.mark.parametrize("more", [{"question_type": "multiple choice"}, {"multi_answer": False}, {"type": 3}])
def test_other_words_ask_for_one(bring, score, more):
    (sample,), _, _ = bring(THREE | {"answer": "AC"} | more)
    assert "needs_all" not in sample.metadata and score(sample, "A") == 1


def test_all_choices_may_be_right_where_each_must_be_named(bring, refusal, score):
    all_of = THREE | {"question": "Select all that apply.", "answer": ["A", "B", "C"]}
    (sample,), _, _ = bring(all_of)
    assert (score(sample, "A, B, C"), score(sample, "A, B")) == (1, 0)
    assert "any answer would be right" in refusal(all_of | {"question": "What?"})


def test_a_type_of_numbers_beside_choices_is_that_of_their_texts(bring):
    numbers = THREE | {"choices": ["3", "4", "5"], "answer": "4"}
    (one, other), _, _ = bring(numbers | {"answer_type": "integer"}, numbers | {"answer_type": "numeric", "id": 2})
    assert (one.answer_type, one.answer, other.answer_type, other.answer) == ("choice", "B", "numeric", "4")


@pytest.mark.parametrize("nothing", ["nan", "NaN", "<NA>", None, float("nan"), " "])
def test_texts_that_stand_for_nothing_in_tables(bring, nothing):
    (one, other), _, _ = bring(
        {"image": "a.png", "question": "What?", "A": "cat", "B": "dog", "C": nothing, "answer": "A"},
        {"image": "a.png", "question": "Where?", "options": ["cat", "dog", nothing], "answer": "A"},
    )
    assert [*one.choices] == [*other.choices] == ["cat", "dog"]


def test_none_is_a_choice(bring):
    (sample,), _, _ = bring(THREE | {"choices": ["cat", "dog", "None"], "answer": "None"})
    assert [*sample.choices] == ["cat", "dog", "None"] and sample.answer == "C"


def test_initials_of_people_are_no_letters_of_choices(bring):
    (sample,), _, _ = bring(THREE | {"choices": ["G. Washington", "A. Lincoln"], "answer": "A. Lincoln"})
    assert ([*sample.choices], sample.answer) == (["G. Washington", "A. Lincoln"], "B")


FOUR = {"image": "a.png", "question": "What?", "option1": "x", "option2": "y", "option3": "z", "option4": "w"}


@pytest.mark.parametrize(
    ("answers", "letters"),
    [
        ((0, 1, 2, 3), "ABCD"),
        (("0", "1", "3"), "ABD"),
        ((1, 2, 3, 4), "ABCD"),
        ((1, 2, 1), "ABA"),
        (("option2", "option_4", "option 1"), "BDA"),
    ],
)
def test_columns_with_numbers_are_counted_as_the_file_shows(bring, answers, letters):
    samples, refused, _ = bring(*(FOUR | {"id": i, "answer": answer} for i, answer in enumerate(answers)))
    assert refused == [] and "".join(sample.answer for sample in samples) == letters


def test_a_number_that_can_only_be_a_text_tells_of_texts(bring):
    numbers = {"image": "a.png", "question": "How many?", "choices": ["2", "3", "4", "5"]}
    other = {"image": "a.png", "question": "What?", "choices": ["x", "y", "z"], "answer": 0}
    (one, two), (told,), _ = bring(numbers | {"answer": "5"}, numbers | {"id": 2, "answer": 3}, other)
    assert (one.answer, two.answer) == ("D", "B") and "say --answer_index" in told


@pytest.mark.parametrize(
    "question",
    [
        "哪个是蓝色的？（ ）A、圆形 B、方形 C、三角形",
        "哪个是蓝色的？（ ）A．圆形 B．方形 C．三角形",
        "哪个是蓝色的？（　）A.圆形 B.方形 C.三角形",
    ],
)
def test_choices_behind_an_empty_bracket(bring, question):
    (sample,), _, _ = bring({"image": "a.png", "question": question, "answer": "B"})
    assert [*sample.choices] == ["圆形", "方形", "三角形"] and sample.answer == "B"


def test_letters_with_wide_colons(bring):
    (sample,), _, _ = bring({"image": "a.png", "question": "什么？", "options": ["A：圆形", "B：方形"], "answer": "B"})
    assert [*sample.choices] == ["圆形", "方形"]
