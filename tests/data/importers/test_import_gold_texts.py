"""The one answer in a solution, a list, or what several people say."""

import pytest

from pixelis_jax.data.importers import annotators

ASKED = {"question": "What?", "image": "a.png"}


@pytest.mark.parametrize(
    ("given", "answer", "kind"),
    [
        ("She has 3+2=<<3+2=5>>5.\n#### 5", "5", "numeric"),
        ("#### 1,234", "1234", "numeric"),
        ("<SUMMARY>s</SUMMARY><CONCLUSION> red </CONCLUSION>", "red", "exact"),
        (r"So it is \boxed{3}.", "3", "numeric"),
        (r"\boxed{3} and again \boxed{ 3 }", "3", "numeric"),
        ("It is round.\n**Final Answer:** red", "red", "exact"),
        ("It is round.\n**Final Answer**: red.", "red", "exact"),
        ("Long reasoning here. Final answer: red", "red", "exact"),
        ("It is round, so the answer is red.", "It is round, so the answer is red", "exact"),
        ("It is round. So the answer is red.", "red", "exact"),
        ("The answer is **5** cm.", "**5** cm", "numeric"),
        ("<think>maybe <answer>blue</answer></think> It is <answer>red</answer>", "red", "exact"),
        ("<think>maybe <answer>blue</answer></think>\nred", "red", "exact"),
        ('{"answer": "red"}', "red", "exact"),
        ('{"answer": 3}', "3", "numeric"),
        ('{"answer": "red", "label": "blue"}', '{"answer": "red", "label": "blue"}', "exact"),
        ('["red"]', "red", "exact"),
        ("<b>red</b>", "red", "exact"),
        ("red<br>", "red", "exact"),
        ("Tom &amp; Jerry", "Tom & Jerry", "exact"),
        ("3只", "3", "numeric"),
        ("５", "5", "numeric"),
        ("www.a_b.com/x^2", "www.a_b.com/x^2", "exact"),
    ],
)
def test_the_answer_in_a_text(bring, given, answer, kind):
    (sample,), refused, _ = bring(ASKED | {"answer": given})
    assert refused == [] and (sample.answer, sample.answer_type) == (answer, kind)


def test_several_boxes_are_refused(refusal):
    assert "several" in refusal(ASKED | {"answer": r"First \boxed{3}, then \boxed{5}."})


PARTS = ["red", "blue"]


@pytest.mark.parametrize(
    ("record", "all_of"),
    [
        ({"question": "List all colors.", "answer": PARTS}, True),
        ({"answer": PARTS, "answer_type": "multi-span"}, True),
        ({"answer": "red <AND> blue"}, True),
        ({"question": "有哪些颜色？", "answer": PARTS}, True),
        ({"answer": PARTS}, False),
        ({"answers": PARTS}, False),
        ({"answer": "red<OR>blue"}, False),
    ],
)
def test_all_parts_or_one_of_several_answers(bring, score, record, all_of):
    (sample,), refused, job = bring(ASKED | record)
    assert refused == [] and sample.metadata.get("needs_all", False) is all_of
    said = ("red, blue", "Blue and red.", "- blue\n- red", "red", "red, blue, green")
    assert [score(sample, text) for text in said] == ([1, 1, 1, 0, 0] if all_of else [0, 0, 0, 1, 0])
    assert any("answers of several parts" in note for note in job.counts.notes) is all_of


def test_parts_that_can_not_be_told_apart_are_refused(refusal):
    assert "a comma or an and" in refusal(ASKED | {"question": "List all.", "answer": ["Paris, France", "Rome"]})


def people(**said):
    return [{"answer": text, "answer_confidence": "yes"} for text, count in said.items() for _ in range(count)]


@pytest.mark.parametrize(
    ("given", "accepted"),
    [
        (people(no=4, yes=6), ["yes"]),
        (people(red=5, crimson=3, pink=2), ["red", "crimson"]),
        (people(red=3, unanswerable=7), ["unanswerable"]),
        (people(red=4, unanswerable=3, blue=3), ["red", "blue"]),
        (["nokia"] * 8 + ["toshiba", "unanswerable"], ["nokia"]),
        (["Nokia", "nokia", "NOKIA", "toshiba", "toshiba"], ["Nokia"]),
        ([{"answer": "red", "count": 3}, {"answer": "blue", "count": 5}], ["blue", "red"]),
        ([{"answer": "red", "count": 0}, {"answer": "blue", "count": 5}], ["blue"]),
        ([{"answer": "race", "raw_answer": "racing"}] * 4 + [{"answer": "motocross"}] * 6, ["motocross", "race"]),
        ([{"answer": "red"}, {"answer": "crimson"}], ["red", "crimson"]),
    ],
)
def test_what_most_people_say(bring, given, accepted):
    (sample,), refused, job = bring(ASKED | {"answers": given})
    assert refused == [] and [sample.answer, *sample.metadata.get("answers", [sample.answer])[1:]] == accepted
    note = "answers of several people: what most say, and what three say, is accepted"
    assert job.counts.notes[note] == 1


def test_answers_that_nobody_gave_are_refused(refusal):
    assert "has the count 0" in refusal(
        ASKED | {"answers": [{"answer": "red", "count": 0}, {"answer": "a", "count": 0}]}
    )


def test_as_many_yes_as_no_is_refused(refusal):
    assert "as many people say yes as no" in refusal(ASKED | {"answers": people(yes=5, no=5)})


@pytest.mark.parametrize("given", [["5 May", "May 5"], ["red"], "red", [1, 1], [{"x": 1}, {"x": 1}], None])
def test_alternatives_are_no_votes(given):
    assert annotators.votes(given) is None


def test_a_long_answer_is_told(bring):
    _, _, job = bring(ASKED | {"answer": "The picture shows a dog that runs on the grass with a ball in its mouth"})
    assert job.counts.notes["exact answers of more than 12 words, which are hardly ever said word for word"] == 1
