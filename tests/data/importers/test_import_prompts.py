import base64

import pytest

from pixelis_jax.types import UserError

QUESTION = {"question": "<image>What is it?", "image": "a.png", "answer": "red"}


def test_a_prompt_becomes_a_sample_without_steps(bring):
    (sample,), _, _ = bring({"qid": "q", **QUESTION, "source": "web", "tolerance": 0.5, "nothing": None})
    assert (sample.question, sample.answer, sample.trajectory) == ("What is it?", "red", ())
    assert (sample.task_type, sample.answer_type, sample.sample_type) == ("attribute_recognition", "exact", "positive")
    assert (sample.tolerance, sample.metadata) == (0.5, {"other_fields": {"source": "web"}})
    assert (sample.provenance.original_sample_id, sample.provenance.synthesis_method) == ("q", "import:prompts")


@pytest.mark.parametrize(
    ("record", "wanted"),
    [
        ({"problem": "What?", "images": ["a.png"], "solution": "<answer>7</answer>"}, ("What?", "7", "numeric")),
        ({"query": "What?", "image_path": "a.png", "answers": ["red", "blue"]}, ("What?", "red", "exact")),
        ({"text": "What?\n(A) x\n(B) y", "image": "a.png", "label": "B"}, ("What?\n(A) x\n(B) y", "B", "choice")),
        ({"question": "What?", "image": ["a.png"], "answer": 3}, ("What?", "3", "numeric")),
        ({"question": "What?", "image": "a.png", "answer": ["\\boxed{5}"]}, ("What?", "5", "numeric")),
        (
            {
                **{"prompt": [{"role": "system", "content": "Help."}, {"role": "user", "content": "<image>What?"}]},
                **{"images": [{"path": "a.png", "bytes": None}], "reward_model": {"ground_truth": "red"}},
            },
            ("What?", "red", "exact"),
        ),
        (
            {"question": "What?", "image": "a.png", "answer": "box", "answer_type": "anls"},
            ("What?", "box", "anls"),
        ),
    ],
)
def test_names_of_other_data_sets(bring, record, wanted):
    (sample,), _, _ = bring(record)
    assert (sample.question, sample.answer, sample.answer_type) == wanted


def test_more_accepted_answers_are_kept_for_the_verifier(bring):
    (sample,), _, _ = bring(QUESTION | {"answer": ["red", "crimson"]})
    assert sample.answer == "red" and sample.metadata["answers"] == ["red", "crimson"]


@pytest.mark.parametrize("nothing", [{"answer": None}, {"answer": ""}, {}])
def test_a_question_without_an_answer_is_taken_where_so_asked(bring, nothing):
    """As a wrong one, which nothing is trained to give; its choices stand in its words."""
    bare = {name: value for name, value in QUESTION.items() if name != "answer"} | nothing
    (one, other), _, job = bring(bare, QUESTION | {"options": ["blue", "red"]}, unanswered=True)
    assert (one.question, one.answer, one.ground_truth, one.answer_type) == ("What is it?", *["(unknown)"] * 2, "exact")
    assert one.sample_type == "outcome_negative" and not one.answer_loss and one.metadata == {"unanswered": True}
    assert other.answer == "B" and "unanswered" not in other.metadata
    assert job.counts.notes["without an answer"] == 1
    (listed,), _, _ = bring(bare | {"options": ["blue", "red"], "answer_type": "numeric"}, unanswered=True)
    assert listed.question == "What is it?\nA. blue\nB. red"
    assert listed.answer_type == "exact" and listed.choices == ("blue", "red")


def test_choices_are_shown_in_the_question(bring):
    (sample,), _, _ = bring(QUESTION | {"options": ["blue", "red"]})
    assert sample.question == "What is it?\nA. blue\nB. red"
    assert (sample.answer, sample.answer_type, sample.choices) == ("B", "choice", ("blue", "red"))


def test_frames_and_bytes(bring, data):
    uri = "data:image/png;base64," + base64.b64encode((data / "a.png").read_bytes()).decode()
    videos = [QUESTION | {"is_video": True, "image": ["a.png", uri]}, QUESTION | {"image": None, "frames": ["a.png"]}]
    (first, second), _, job = bring(*videos)
    assert first.is_video and second.is_video
    assert first.image_paths == (second.image_paths[0],) * 2  # the same bytes are one file
    assert [p.name for p in (job.out / "images").iterdir()] == [first.image_paths[0].removeprefix("images/")]
    assert (job.out / first.image_paths[0]).read_bytes() == (data / "a.png").read_bytes()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"answer": ""}, "answer: missing or empty"),
        ({"answer": []}, "answer: missing or empty"),
        ({"answer": {"a": 1}}, "answer: must be a text, a finite number"),
        ({"answer": {"a": 1}}, "answer: must be a text"),
        ({"answer": 1e999}, "answer: must be a text"),
        ({"answer": None}, "answer: missing or empty; a question needs one"),
        ({"question": "<image>"}, "question: missing or empty"),
        ({"question": 3}, "question: missing or empty"),
        ({"question": "\ud800?"}, "question: has half of a surrogate pair"),
        ({"image": None}, "image: missing"),
        ({"image": []}, "image: missing"),
        ({"image": 3}, "image: names no image"),
        ({"image": {"bytes": None, "path": None}}, "image: names no image"),
        ({"image": "v.mp4"}, "image: a video file"),
        ({"image": "data:image/png;base64,@@"}, "image: data URI that is not base64"),
        ({"image": "data:image/png;base64,"}, "image: image bytes: empty"),
        ({"image": "data:image/png;base64,YWJj"}, "image: image is not an image that can be read (its bytes)"),
        ({"is_video": "yes"}, "is_video: must be true or false"),
        ({"choices": ["x", "y"]}, "answer: names none of the choices"),
        ({"choices": ["x", None, 3]}, "choices: must be a list of texts"),
        ({"answer_type": "guess"}, "answer_type: unknown; use one of choice, exact"),
        ({"tolerance": -1}, "tolerance: must be a number of at least 0"),
        ({"extra": 1e999}, "metadata: has a number that is not finite"),
        ({"extra": [[[[1]]]] * 3, "metadata": "\udfff"}, "metadata: has half of a surrogate pair"),
    ],
)
def test_prompts_that_are_refused(refusal, changes, told):
    assert told in refusal(QUESTION | changes)


def test_a_task_type_can_be_required(bring):
    with pytest.raises(UserError, match=r"no sample could be imported; all 2 records .*:1: task_type: missing"):
        bring(QUESTION, task_type="required")
