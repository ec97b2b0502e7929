"""Of what type an answer is: what other records call it, numbers that are names, yes or no, tolerances."""

import pytest

ASKED = {"question": "What?", "image": "a.png", "answer": "3.10"}


@pytest.mark.parametrize("word", ["string", "text", "Multi-Span", "list", "span", "date", "code", "version", "STR"])
def test_a_text_stays_one_whatever_it_looks_like(bring, word):
    (sample,), refused, _ = bring(ASKED | {"answer_type": word})
    assert refused == [] and (sample.answer, sample.answer_type) == ("3.10", "exact")


@pytest.mark.parametrize("word", ["float", "integer", "free_form", "boolean", "counting", "other", "", None])
def test_a_number_is_one_by_name_or_by_look(bring, word):
    (sample,), refused, _ = bring(ASKED | {"answer_type": word})
    assert refused == [] and sample.answer_type == "numeric"


def test_an_unknown_word_is_refused_and_the_remedy_works(bring, refusal):
    record = ASKED | {"answer_type": "blorp"}
    assert "or say --answer_type" in refusal(record)
    (sample,), refused, job = bring(record, answer_type="exact")
    assert refused == [] and sample.answer_type == "exact"
    assert job.counts.notes["answer_type blorp passed over, since --answer_type is given"] == 1


def test_four_numbers_of_a_list_are_no_box(bring, score):
    record = ASKED | {"answer": [1990, 1995, 2000, 2010], "answer_type": "list"}
    (sample,), refused, _ = bring(record)
    assert refused == [] and sample.answer_type == "exact"
    assert score(sample, "[1990,1995,2000,2010]") == 1


@pytest.mark.parametrize(
    ("question", "answer", "wrong"),
    [
        ("Which version is shown?", "3.10", "3.1"),
        ("What code is on the label?", "12E5", "1200000"),
        ("Which gate?", "5 C", "5 celsius"),
        ("What is the score?", "3/4", "0.75"),
        ("On which date?", "5/12", "10/24"),
        ("When is it open?", "24/7", "3.43"),
        ("What is the licence plate?", "7E2", "700"),
        ("车牌是什么？", "1E3", "1000"),
        ("What is written?", "007", "7"),
    ],
)
def test_numbers_that_are_names(bring, score, question, answer, wrong):
    (sample,), refused, _ = bring(ASKED | {"question": question, "answer": answer})
    assert refused == [] and sample.answer_type == "exact"
    assert [score(sample, said) for said in (answer, f"**{answer}**.", wrong)] == [1, 1, 0]


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("How many codes are there?", "3"),
        ("What is the total score?", "3/4"),
        ("What share is red?", "3/4"),
        ("What is the width?", "3.10"),
        ("How much is the room?", "3.10"),
    ],
)
def test_numbers_that_are_numbers(bring, question, answer):
    (sample,), _, _ = bring(ASKED | {"question": question, "answer": answer})
    assert sample.answer_type == "numeric"


@pytest.mark.parametrize(
    ("question", "answer", "right", "wrong"),
    [
        ("Is it red?", "1", ("yes", "Yes.", "true", "1"), ("no", "0")),
        ("Does it rain?", 0, ("no", "false", "0"), ("yes", "1")),
        ("What?", True, ("yes", "True"), ("no",)),
        ("Is it 1 or 0?", "1", ("1",), ("yes", "0")),
        ("How many are there?", "1", ("1", "1.0"), ("yes",)),
    ],
)
def test_yes_and_no(bring, score, question, answer, right, wrong):
    (sample,), refused, _ = bring(ASKED | {"question": question, "answer": answer})
    assert refused == [] and [score(sample, said) for said in right + wrong] == [1] * len(right) + [0] * len(wrong)


def test_decimals_that_are_compared_are_a_tolerance(bring, score):
    record = ASKED | {"answer": "1.2", "answer_type": "float", "precision": 1.0}
    (sample,), refused, _ = bring(record)
    assert refused == [] and [score(sample, said) for said in ("1.2", "1.24", "1.16", "1.3")] == [1, 1, 1, 0]


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("Which section?", "2.10"),
        ("What chapter is it?", "3.10"),
        ("Which aisle?", "7 K"),
        ("What is the address?", "12"),
        ("What is the gate?", "5 C"),
        ("What is the seat number of the lady?", "12"),
        ("Which building number?", "7"),
    ],
)
def test_numbers_of_things_are_names(bring, question, answer):
    (sample,), _, _ = bring({"image": "a.png", "question": question, "answer": answer})
    assert (sample.answer_type, sample.answer) == ("exact", answer)


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("What is the height of the building?", "25.5"),
        ("What is the area of section A?", "12 cm"),
        ("What is the width of the room?", "3.20 m"),
        ("How many rooms are there?", "3"),
        ("What is the price of the seat?", "12"),
        ("What is the room temperature?", "21"),
    ],
)
def test_measures_of_things_are_numbers(bring, question, answer):
    (sample,), _, _ = bring({"image": "a.png", "question": question, "answer": answer})
    assert sample.answer_type == "numeric"


@pytest.mark.parametrize(
    "question",
    [
        "According to the picture, is it red?",
        "In this image, are there cats?",
        "Based on the chart, does it rise?",
        "图中是红色吗？",
        "图中是否有猫？",
    ],
)
@pytest.mark.parametrize(("bit", "word"), [("0", "no"), ("1", "yes"), (1, "yes")])
def test_bits_of_questions_whether(bring, score, question, bit, word):
    (sample,), _, _ = bring({"image": "a.png", "question": question, "answer": bit})
    assert (sample.answer_type, score(sample, word), score(sample, str(bit))) == ("exact", 1, 1)


@pytest.mark.parametrize(
    "question", ["In 2010, how many are there?", "According to the chart, what is it?", "Is it 1 or 0?"]
)
def test_bits_of_other_questions_are_numbers(bring, question):
    (sample,), _, _ = bring({"image": "a.png", "question": question, "answer": "1"})
    assert sample.answer_type == "numeric"


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (["It is a cat.", "It is red."], "It is a cat.\nIt is red."),
        ({"title": "Cats", "text": "It is a cat."}, "It is a cat."),
        ({"contexts": ["It is", "a cat."], "labels": ["x"]}, "It is\na cat."),
        (" It is. ", "It is."),
    ],
)
def test_a_context_in_any_shape_stands_in_front(bring, given, shown):
    (sample,), _, job = bring({"image": "a.png", "question": "What?", "answer": "red", "context": given})
    assert sample.question == f"{shown}\nWhat?"
    assert job.counts.notes["context put in front of the question"] == 1


@pytest.mark.parametrize("given", [[{"x": 1}], {"x": "It is."}, 5])
def test_a_context_of_no_known_shape_is_counted(bring, given):
    (sample,), _, job = bring({"image": "a.png", "question": "What?", "answer": "red", "context": given})
    assert sample.question == "What?"
    assert job.counts.notes["context is not part of the question; put it there if it is needed"] == 1


@pytest.mark.parametrize("answer", ["1990s", "'90s", "2000s"])
def test_decades_are_no_seconds(bring, answer):
    (sample,), _, _ = bring({"image": "a.png", "question": "Which decade is it?", "answer": answer})
    assert sample.answer_type == "exact"


@pytest.mark.parametrize(("given", "said"), [("True", "yes"), ("false", "no"), (True, "yes"), ("1", "true")])
def test_true_as_a_text_accepts_yes(bring, score, given, said):
    (sample,), _, _ = bring({"image": "a.png", "question": "Is it red?", "answer": given})
    assert score(sample, said) == 1
    (sample,), _, _ = bring({"image": "a.png", "question": "Which word is written?", "answer": "True"})
    assert score(sample, "yes") == 0
