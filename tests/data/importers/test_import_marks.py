"""Marks of pictures, objects and boxes: filled in, or the record refused and counted; never left in the text."""

import json
from pathlib import Path

import pytest
from PIL import Image

from pixelis_jax.data.importers import box_answers, marks
from pixelis_jax.data.importers.base import Place, Refusal

PLACE = Place("f:1", Path("f"))
TWO = {"images": ["a.png", "b.png"], "answer": "the second"}


@pytest.fixture(autouse=True)
def second(data):
    Image.new("RGB", (50, 60)).save(data / "b.png")


@pytest.mark.parametrize(
    ("question", "count", "words"),
    [
        ("<image>What?", 1, "What?"),
        ("<image>\n<image>\nCompare.", 2, "Compare."),
        ("Compare. <image><image>", 2, "Compare."),
        ("First.\n<image>\n<image>\nWhich?", 2, "First.\n\n\nWhich?"),
        ("<image 1><image 2>Compare.", 2, "Compare."),
        ("What is in <image>?", 1, "What is in image 1?"),
        ("Is <image> larger than <image>?", 2, "Is image 1 larger than image 2?"),
        ("<image> is larger than <image>, right?", 2, "image 1 is larger than image 2, right?"),
        ("Picture 1: <image>\nPicture 2: <image>\nWhat?", 2, "Picture 1: image 1\nPicture 2: image 2\nWhat?"),
        ("Compare <image 2> with <image 1>: which is red?", 2, "Compare image 2 with image 1: which is red?"),
        ("<image2><image1>Which?", 2, "image 2 image 1 Which?"),
        ("<image_1> or <image_2>, and in <image_1>?", 2, "image 1 or image 2, and in image 1?"),
        ("<image_0> or <image_1>?", 2, "image 1 or image 2?"),
        ("<|image_1|>\nWhat?", 1, "What?"),
        ("<|vision_start|><|image_pad|><|image_pad|><|vision_end|>What?", 1, "What?"),
        ("<img1> or <IMG_2>?", 2, "image 1 or image 2?"),
        ("<Image><ImageHere><image_placeholder>What?", 3, "What?"),
        ("a < b and c > d, [1, 2], x<y", 0, "a < b and c > d, [1, 2], x<y"),
        ("What does <b> or <div> do?", 0, "What does <b> or <div> do?"),
    ],
)
def test_marks_are_counted_and_put_into_words(question, count, words):
    assert marks.of([question]) == count
    assert marks.bound([question]) == [words] and marks.left(words) == ""


@pytest.mark.parametrize(
    "text",
    [
        *("<bbox>", "<ref-object>", "<|box_start|>", "<|object_ref_start|>x", "<|vision_start|>", "<box>", "</ref>"),
        *(
            "<region1>",
            "<SEG>",
            "[SEG]",
            "<loc_12>",
            "<loc0012>",
            "<point>",
            "<obj>",
            "<|fim_pad|>",
            "<|im_start|>user",
        ),
        *("<img src='a.png'>", "![](a.png)", "![a picture](img/a.png)", "{image}", "{{image_1}}"),
        *("<audio>", "<image_12345>", "<image1.png>", "<mask>", "<patch_index_0044>", "</s>", "[INST]", "<25>"),
        *("&lt;image&gt;", "<tool_response>", "<video 3>", "<frame 2>", "<placeholder>", "[image]"),
    ],
)
def test_marks_of_other_systems_are_seen(text, refusal):
    assert marks.left(f"Is {text} red?") != ""
    told = refusal({"question": "Is it red?", "image": "a.png", "answer": f"{text} it is"})
    assert told.startswith(("answer: has a mark that the record does not fill in", "answer: "))
    assert refusal({"question": f"Is {text} red?", "image": "a.png", "answer": "yes", "qid": text})


@pytest.mark.parametrize(
    "record",
    [
        {"question": "<image><image>What?", "image": "a.png"},
        {"question": "<image>What?", **TWO},
        {"question": "What is in <image 3> and <image 1>?", **TWO},
        {"question": "What is in <image 2>?", "image": "a.png"},
        {"question": "What is in <image 2>?", **TWO},
        {"question": "<image>What is in <image 2>?", **TWO},
        {"question": "Which?", "options": ["<image 1>", "<image 3>"], **TWO, "answer": "A"},
        {"prompt": [{"role": "user", "content": "<image>What?"}], **TWO},
        {
            "prompt": [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "<image><image>?"}]}],
            **TWO,
        },
        {"query": "<image>What?", "response": "red", "images": ["a.png", "b.png"]},
        {"conversations": [{"from": "human", "value": "<image>?"}, {"from": "gpt", "value": "red"}], **TWO},
        {
            "conversations": [{"from": "human", "value": "<image><image>?"}, {"from": "gpt", "value": "x"}],
            "image": "a.png",
        },
        {"trajectory": [], "question": "<image><image>What?", "image_path": "a.png", "task_type": "object_counting"},
    ],
)
def test_marks_and_pictures_that_differ_in_number_are_refused(refusal, record):
    told = refusal({"answer": "red", **record})
    assert any(word in told for word in ("as many <image> marks", "without a gap", "use one kind", "differ in number"))


@pytest.mark.parametrize(
    "question", ["Which is red?", "<image><image>Which is red?", "<image 1> <image 2> Which is red?"]
)
def test_no_marks_or_one_for_each_picture_are_fine(bring, question):
    (sample,), refused, _ = bring({"question": question, **TWO})
    assert refused == [] and sample.question == "Which is red?" and len(sample.image_paths) == 2


def test_one_mark_stands_for_a_video(bring):
    (sample,), _, _ = bring({"question": "<video>What moves?", "frames": ["a.png", "b.png"], "answer": "a cat"})
    assert sample.is_video and sample.question == "What moves?"


def test_numbered_marks_keep_the_words_right_and_the_pictures_in_order(bring, data):
    record = {"question": "Compare <image 2> with <image 1>: which is red?", "options": ["<image 1>", "<image 2>"]}
    (sample,), _, job = bring({**record, "images": ["a.png", "b.png"], "answer": "B"})
    assert sample.question == "Compare image 2 with image 1: which is red?\nA. image 1\nB. image 2"
    assert (sample.answer, sample.choices) == ("B", ("image 1", "image 2"))
    pictures = [(job.out / name).read_bytes() for name in sample.image_paths]
    assert pictures == [(data / "a.png").read_bytes(), (data / "b.png").read_bytes()]
    (spelled,), _, _ = bring(
        {**record, "images": ["a.png", "b.png"], "options": "['<image 1>', '<image 2>']", "answer": "A"}
    )
    assert spelled.choices == ("image 1", "image 2") and spelled.answer == "A"


GROUNDING = {"question": "<image>Where is <ref-object>?", "image": "a.png", "answer": "<bbox>"}
OBJECTS = {"ref": ["the red square"], "bbox": [[10.5, 20, 60, 70]]}


def test_objects_fill_their_placeholders(bring):
    (sample,), _, job = bring(GROUNDING | {"objects": OBJECTS})
    assert (sample.question, sample.answer) == ("Where is the red square?", "[10.5, 20, 60, 70]")
    assert sample.answer_type == "iou" and sample.metadata == {"answer_frame": "pixels"}
    assert any("in pixels of the picture at its full size" in note for note in job.counts.notes)
    talk = {
        "messages": [{"role": "user", "content": GROUNDING["question"]}, {"role": "assistant", "content": "<bbox>"}]
    }
    (other,), _, _ = bring({**talk, "images": ["a.png"], "objects": OBJECTS})
    assert (other.question, other.answer, other.answer_type) == (sample.question, sample.answer, "iou")
    older = [{"caption": "the red square", "bbox": [10.5, 20, 60, 70], "bbox_type": "real", "image": 0}]
    (third,), _, _ = bring(
        {
            "query": "<image>Where is <ref-object>?",
            "response": "<bbox>",
            "images": ["a.png"],
            "objects": json.dumps(older),
        }
    )
    assert (third.question, third.answer) == (sample.question, sample.answer)


def test_the_frame_and_the_picture_of_a_box_are_the_records(bring):
    norm = OBJECTS | {"bbox": [[0.1, 0.2, 0.6, 0.7]], "bbox_type": "norm1"}
    (sample,), _, _ = bring(GROUNDING | {"objects": norm})
    assert (sample.answer, sample.metadata) == ("[0.1, 0.2, 0.6, 0.7]", {"answer_frame": "relative"})
    two = GROUNDING | {"question": "<image><image>Where is <ref-object>?", "image": ["a.png", "b.png"]}
    (sample,), _, _ = bring(two | {"objects": OBJECTS | {"image_id": [1]}})
    assert sample.metadata == {"answer_frame": "pixels", "target_image": 2}


def test_a_box_in_the_question_says_its_frame(bring):
    record = {
        "question": "<image>What is in <bbox>?",
        "image": "a.png",
        "answer": "a cat",
        "objects": {"bbox": [[10, 20, 60, 70]]},
    }
    (sample,), _, _ = bring(record)
    words = "(Boxes in this question are in pixels of the picture at its full size, 200 x 100.)"
    assert sample.question == f"What is in [10, 20, 60, 70]?\n{words}"
    spelled = "<image>What is in <|box_start|>(10,20),(60,70)<|box_end|>?"
    (sample,), _, _ = bring({"question": spelled, "image": "a.png", "answer": "a cat"}, coordinates="norm1000")
    assert sample.question.endswith(
        "(Boxes in this question are in thousandths of the width and the height of the picture.)"
    )


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, "question: has a mark that the record does not fill in (<ref-object>)"),
        ({"objects": {"ref": ["x"]}}, "<bbox> is not as often in the texts as objects has it (1 for 0)"),
        ({"objects": OBJECTS | {"ref": ["x", "y"]}}, "<ref-object> is not as often in the texts"),
        ({"objects": OBJECTS | {"bbox": [[1, 2, 3]]}}, "objects: a bbox must be 4 numbers"),
        ({"objects": OBJECTS | {"bbox": ["x"]}}, "objects: a bbox must be 4 numbers"),
        ({"objects": OBJECTS | {"bbox_type": "feet"}}, "objects: bbox_type is unknown"),
        ({"objects": OBJECTS | {"image_id": [7]}}, "objects: image_id of a picture that is not there (8 of 1)"),
        ({"objects": OBJECTS | {"image_id": "x"}}, "objects: image_id must be a whole number"),
        ({"objects": "{"}, "objects: is not valid JSON"),
        ({"objects": 3}, "objects: must be an object with ref and bbox"),
        ({"objects": [3]}, "objects: must be an object with ref and bbox"),
    ],
)
def test_placeholders_that_can_not_be_filled_are_refused(refusal, changes, told):
    assert told in refusal(GROUNDING | changes)


@pytest.mark.parametrize(
    ("answer", "box"),
    [
        ("[31.25, 60.5, 250.75, 410.5]", "[31.25, 60.5, 250.75, 410.5]"),
        ("<|box_start|>(120,340),(410,655)<|box_end|>", "[120, 340, 410, 655]"),
        ("<box>[[120, 340, 410, 655]]</box>", "[120, 340, 410, 655]"),
        ("<|object_ref_start|>a dog<|object_ref_end|><|box_start|>(1,2),(30,40)<|box_end|>", "[1, 2, 30, 40]"),
        ("<ref>a dog</ref><box>(1,2),(30,40)</box>", "[1, 2, 30, 40]"),
        ('{"bbox_2d": [1, 2, 30, 40]}', "[1, 2, 30, 40]"),
        ([1, 2, 30, 40], "[1, 2, 30, 40]"),
        ([[1, 2, 30, 40]], "[1, 2, 30, 40]"),
    ],
)
@pytest.mark.parametrize("given", [None, "iou"])
def test_boxes_become_iou_in_every_importer(bring, answer, box, given):
    more = {"answer_type": given} if given else {}
    prompt = {"question": "Where is it?", "image": "a.png", "answer": answer, **more}
    said = answer if isinstance(answer, str) else json.dumps(answer)
    talk = {"conversations": [{"from": "human", "value": "<image>Where?"}, {"from": "gpt", "value": said}], **more}
    steps = {"trajectory": [], "question": "Where is it then?", "image_path": "a.png", "answer": answer, **more}
    samples, refused, job = bring(prompt, talk | {"image": "a.png"}, steps)
    assert refused == [] and [(sample.answer, sample.answer_type) for sample in samples] == [(box, "iou")] * 3
    if not given or steps["answer"] == prompt["answer"]:
        assert all(sample.metadata.get("answer_frame", "pixels") == "pixels" for sample in samples)
    beyond = sum(count for note, count in job.counts.notes.items() if "beyond their picture" in note)
    assert beyond == (0 if "40]" in box else len([s for s in samples if "answer_frame" in s.metadata]))


def test_boxes_of_a_declared_frame(bring):
    record = {"question": "Where is it?", "image": "a.png", "answer": "[120, 340, 410, 655]"}
    (sample,), _, job = bring(record, coordinates="norm1000")
    assert sample.metadata == {"answer_frame": "norm1000"} and sample.answer == "[120, 340, 410, 655]"
    assert not any("beyond" in note for note in job.counts.notes)


def test_texts_with_several_boxes_stay_texts(bring):
    (sample,), _, _ = bring(
        {"question": "Where?", "image": "a.png", "answer": "<box>[1, 2, 3, 4]</box><box>[5, 6, 7, 8]</box>"}
    )
    assert (sample.answer, sample.answer_type) == ("[1, 2, 3, 4][5, 6, 7, 8]", "exact")
    with pytest.raises(Refusal, match="a box that has no 4 numbers"):
        marks.spelled("<box>(1, 2), (3, ...)</box>".replace("...", "."), PLACE, "answer")


def test_thoughts_are_free_of_marks_too(bring, refusal):
    last = "<think>The <ref>cat</ref> is at <box>(1,2),(30,40)</box>.</think><answer>cat</answer>"
    talk = [{"from": "human", "value": "<image>What?"}, {"from": "gpt", "value": last}]
    (sample,), _, _ = bring({"conversations": talk, "image": "a.png"})
    assert sample.trajectory[0].thought == "The cat is at [1, 2, 30, 40]."
    talk[1]["value"] = "<think>I see <image>.</think><answer>cat</answer>"
    assert "thought: has a mark that the record does not fill in (<image>)" in refusal(
        {"conversations": talk, "image": "a.png"}
    )


def test_tokens_that_end_a_turn_are_taken_off(bring):
    talk = [{"from": "human", "value": "<image>What?<|im_end|>\n"}, {"from": "gpt", "value": "red</s>"}]
    (sample,), _, _ = bring({"conversations": talk, "image": "a.png"})
    assert (sample.question, sample.answer) == ("What?", "red")


def test_boxes_between_tokens_are_told_of(bring):
    """Some models write these in thousandths; nothing in the record says so."""
    record = {"question": "Where?", "image": "a.png", "answer": "<|box_start|>(10,20),(60,70)<|box_end|>"}
    note = "boxes between tokens, which Qwen2-VL and InternVL write in thousandths: --coordinates=norm1000 says so"
    assert bring(record)[2].counts.notes[note] == 1
    (sample,), _, job = bring(record, coordinates="norm1000")
    assert job.counts.notes[note] == 0 and sample.metadata == {"answer_frame": "norm1000"}


def test_boxes_of_a_pixel_or_less_are_shares(bring):
    record = {"question": "Where?", "image": "a.png", "answer": [0.1, 0.2, 0.5, 0.6]}
    (sample,), _, job = bring(record)
    assert sample.metadata == {"answer_frame": "relative"} and job.counts.notes[box_answers.SHARES] == 1
