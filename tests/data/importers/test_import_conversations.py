import json

import numpy as np
import pytest
from PIL import Image

from pixelis_jax.data.cota import Step
from pixelis_jax.data.dialogues import messages
from pixelis_jax.data.images import open_rgb
from pixelis_jax.tools.base import View

RELATIVE = "the area you want to zoom in. minimum value is 0 and maximum value is 1."
TOOL = {"type": "function", "function": {"name": "crop_image", "parameters": {"properties": {"bbox_2d": RELATIVE}}}}
SYSTEM = f"You are helpful.\n<tools>\n{json.dumps(TOOL)}\n</tools>\nFor each function call ..."
QUESTION = "What is in the box?\n(A) cat\n(B) dog"
GUIDELINES = "\n\nGuidelines: Think. We can look closer by `crop_image`. Put your answer within \\boxed{}."


def call(box, target=1, name="crop_image"):
    body = json.dumps({"name": name, "arguments": {"bbox_2d": box, "target_image": target}})
    return f"<tool_call>\n{body}\n</tool_call>"


def part(text=None, image=None):
    return {"text": text, "image": image, "video": None}


def pixel_reasoner(*turns, **more):
    """A record as its SFT data has them: every second turn is what the tool returned."""
    talk = [{"role": ("assistant", "user")[i % 2], "content": [part(t)]} for i, t in enumerate(turns)]
    for message in talk[1::2]:
        message["content"].append(part(image="crops/1.png"))
    asked = [part(QUESTION + GUIDELINES), part(image="a.png")]
    start = [{"role": "system", "content": [part(SYSTEM)]}, {"role": "user", "content": asked}]
    return {"qid": "q1", "message_list": [*start, *talk], **more}


FIRST = "Let me look. " + call([0.5, 0.1, 0.9, 0.6])
SHOWN = "Here is the cropped image (Image Size: 80x50):"
LAST = "A dog, so the answer is $\\boxed{B}$."


def test_a_pixel_reasoner_dialogue(bring):
    (sample,), _, job = bring(pixel_reasoner(FIRST, SHOWN, "Closer. " + call([0, 0, 0.5, 0.5], 2), SHOWN, LAST))
    assert sample.trajectory == (
        Step("THINK", thought="Let me look."),
        Step("ZOOM_IN", {"bbox_2d": [100, 10, 180, 60]}, result={"text": SHOWN}),
        Step("THINK", thought="Closer."),
        Step("ZOOM_IN", {"bbox_2d": [100, 10, 140, 35]}, result={"text": SHOWN}),
        Step("THINK", thought="A dog, so the answer is B."),
    )
    assert (sample.question, sample.answer, sample.choices) == (QUESTION, "B", ("cat", "dog"))
    assert (sample.answer_type, sample.ground_truth, sample.answer_loss) == ("choice", "B", True)
    assert sample.metadata["seen_size"] == [100, 200] and sample.provenance.original_sample_id == "q1"
    assert sample.provenance.synthesis_method == "import:conversations"
    assert job.counts.notes["boxes on a zoomed image, moved to the image it was cut from"] == 1


def test_its_dialogue_runs_with_the_real_tools(bring):
    """The crop is the part of the picture that the box names."""
    (sample,), _, job = bring(pixel_reasoner(FIRST, SHOWN, LAST))
    image = open_rgb(job.out / sample.image_paths[0])
    half = View(lambda height, width: (height // 2, width // 2), lambda height, width: (height, width))
    turns = messages(sample, [image], view=half)
    assert '"bbox_2d": [50, 5, 90, 30]' in turns[0].text and turns[0].observation.ok
    np.testing.assert_array_equal(turns[0].observation.image, image[10:60, 100:180])
    assert turns[1].text == "<think>A dog, so the answer is B.</think><answer>B</answer>"


def sharegpt(*values, **more):
    talk = [{"from": ("human", "gpt")[i % 2], "value": value} for i, value in enumerate(values)]
    crops = sum("tool_call" in value for value in values) and ["crop.png"]
    return {"id": 7, "images": ["a.png", *(crops or [])], "conversations": talk, **more}


NORMALISED = call([0.5, 0.1, 0.9, 0.6], name="crop_image_normalized")


def test_sharegpt_and_openai_forms_say_the_same(bring):
    thought = "<think>Let me look.</think>"
    one = sharegpt(f"<image>\n{QUESTION}", thought + NORMALISED, f"{SHOWN}<image>", LAST)
    function = {"name": "crop_image_normalized", "arguments": '{"bbox_2d": [0.5, 0.1, 0.9, 0.6]}'}
    other = {
        "id": 7,
        "messages": [
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "a.png"}}, QUESTION]},
            {"role": "assistant", "content": thought, "tool_calls": [{"type": "function", "function": function}]},
            {"role": "tool", "content": SHOWN},
            {"role": "assistant", "content": LAST},
        ],
    }
    listed = sharegpt(f"<image>\n{QUESTION}")
    listed["conversations"] += [
        {"from": "gpt", "value": "Let me look." + NORMALISED},
        {"from": "observation", "value": f"<tool_response>{SHOWN}</tool_response>"},
        {"from": "gpt", "value": "A dog, so the answer is B.<answer>B</answer>"},
    ]
    (first, *others), refused, _ = bring(one, other, listed)
    # Three spellings of one dialogue are one sample: the second and third are duplicates.
    assert others == [] and len(refused) == 2 and all("is there twice" in line for line in refused)
    assert [step.action for step in first.trajectory] == ["THINK", "ZOOM_IN", "THINK"]
    assert first.provenance.original_sample_id == "7"


def test_tools_of_the_record_and_function_call_turns(bring):
    talk = [
        {"from": "system", "value": "Help."},
        {"from": "human", "value": f"<image>{QUESTION}"},
        {"from": "function_call", "value": '{"name": "crop_image", "arguments": {"bbox_2d": [0, 0, 500, 1000]}}'},
        {"from": "observation", "value": "<image>"},
        {"from": "gpt", "value": "\\boxed{A}"},
    ]
    tool = {"name": "crop_image", "description": "bbox_2d in 0-1000"}
    (sample,), _, _ = bring({"conversations": talk, "images": ["a.png"], "tools": json.dumps([tool])})
    assert sample.trajectory[0] == Step("ZOOM_IN", {"bbox_2d": [0, 0, 100, 100]})
    assert sample.trajectory[1] == Step("THINK", thought="A")


def test_several_images_and_a_call_on_the_second(bring, data):
    Image.new("RGB", (50, 60)).save(data / "b.png")
    record = sharegpt("<image><image>What?", call([0, 0.5, 1, 1], 2, "crop_image_normalized"), "<image>", "\\boxed{x}")
    (sample,), _, _ = bring(record | {"images": ["a.png", "b.png"]})
    assert len(sample.image_paths) == 2 and not sample.is_video
    assert sample.trajectory[0].parameters == {"bbox_2d": [0, 30, 50, 60], "target_image": 2}
    assert sample.metadata["seen_sizes"] == [[100, 200], [60, 50]]


def test_frames_of_a_video(bring):
    talk = [
        {"role": "user", "content": [{"text": "What?", "image": None}, {"video": ["a.png", "a.png"]}]},
        {"role": "assistant", "content": "It is red. \\boxed{red}"},
    ]
    (sample,), _, _ = bring({"message_list": talk})
    assert sample.is_video and len(sample.image_paths) == 2 and sample.answer == "red"


def test_a_wrong_answer_is_marked_and_counted(bring):
    (sample,), _, job = bring(pixel_reasoner(FIRST, SHOWN, LAST, answer="A"))
    assert (sample.answer, sample.ground_truth, sample.sample_type) == ("B", "A", "outcome_negative")
    assert sample.answer_loss is False
    assert job.counts.notes["answers that differ from the ground truth: sample_type outcome_negative"] == 1
    (sample,), _, _ = bring(pixel_reasoner(FIRST, SHOWN, LAST, answer="dog"))
    assert (sample.sample_type, sample.ground_truth) == ("positive", "B")


@pytest.mark.parametrize(
    ("last", "more", "answer", "thoughts"),
    [
        ("<think>Red.</think>\n<answer>red</answer>", {}, "red", ["Red."]),
        ("red", {}, "red", []),
        ("Let me think. It is red.\nSo red.", {"answer": "red"}, "red", ["Let me think. It is red.\nSo red."]),
        ("\\boxed{3}", {}, "3", ["3"]),
    ],
)
def test_answers_of_direct_dialogues(bring, last, more, answer, thoughts):
    (sample,), _, _ = bring(sharegpt("<image>What?", last, **more))
    assert sample.answer == answer and [step.thought for step in sample.trajectory] == thoughts


LONG = [text for i in range(6) for text in (f"Step {i}. {NORMALISED}", "<image>")]


@pytest.mark.parametrize(
    ("record", "told"),
    [
        (sharegpt("<image>What?", NORMALISED), "messages: end with a tool call and without an answer"),
        (sharegpt("<image>What?", "red") | {"images": ["a.png", "b.png"]}, "(1 <image> marks and 2 images)"),
        (sharegpt("What?"), "answer: missing or empty; a question needs one"),
        (sharegpt("<image>What?", "A long\nstory"), "answer: the last message marks no answer"),
        (sharegpt("<image>What?", "x <answer></answer>"), "answer: missing or empty"),
        (sharegpt("<image>What?", "\\boxed{}"), "answer: missing or empty"),
        (sharegpt("<image>What?", "", answer=None), "answer: missing or empty"),
        (sharegpt("<image>What?", "red", answer=""), "answer: missing or empty"),
        (sharegpt("<image><image><image>What?", "red"), "(3 <image> marks and 1 images)"),
        (sharegpt("<image>", "red"), "question: missing or empty"),
        (sharegpt("<image>What?", f"{NORMALISED}<answer>red</answer>"), "messages: <answer> stands inside a thought"),
        (sharegpt("<image>What?", f"<answer>red</answer>{NORMALISED}", "<image>", "red"), "stands inside a thought"),
        (sharegpt("<image>What?", NORMALISED, "Error: no", "\\boxed{x}"), "a call failed there"),
        (sharegpt("<image>What?", NORMALISED, "<image><image>", "\\boxed{x}"), "2 images come back for 1 calls"),
        (
            sharegpt("<image>What?", *LONG, "\\boxed{x}") | {"images": ["a.png"]},
            "trajectory: 13 steps; at most 10 are read",
        ),
        (sharegpt("<image>What?", call([0, 0, 1, 1]), "<image>", "\\boxed{x}"), "declared nowhere"),
        ({"messages": [], "answer": "x"}, "messages: missing or empty"),
        ({"messages": [{"role": "assistant", "content": "x"}], "image": "a.png"}, "must begin with a user's message"),
        ({"messages": [3, {"role": "assistant"}]}, "messages 1: must be a JSON object"),
        ({"messages": [{"role": "gnome", "content": "x"}, {"role": "assistant"}]}, "messages 1: unknown role"),
        ({"messages": [{"role": "user", "content": 3}, {"role": "assistant"}]}, "content must be a text or a list"),
        ({"messages": [{"role": "user", "content": [3]}, {"role": "assistant"}]}, "a part must be a text or"),
        (
            {"messages": [{"role": "user", "content": "?"}, {"role": "gpt", "content": "x"}]},
            "image: missing: no image is named, and a sample has at least one",
        ),
        (
            {"messages": [{"role": "user", "content": [{"video": "v.mp4"}]}, {"role": "assistant"}]},
            "messages 1: a video file",
        ),
    ],
)
def test_dialogues_that_are_refused(refusal, record, told):
    assert told in refusal(record)


def test_the_frame_of_calls_is_the_users_to_declare(bring):
    record = sharegpt("<image>What?", call([50, 10, 100, 100]), "<image>", "\\boxed{x}")
    boxes = {}
    for frame in ("pixels", "norm1000"):
        (sample,), _, _ = bring(record, coordinates=frame)
        boxes[frame] = sample.trajectory[0].parameters["bbox_2d"]
    assert boxes == {"pixels": [50, 10, 100, 100], "norm1000": [10, 1, 20, 10]}
    (sample,), _, _ = bring(pixel_reasoner(FIRST, SHOWN, LAST), crop_padding=0.1)
    assert sample.trajectory[1].parameters["bbox_2d"] == [80, 0, 200, 70]


def test_without_checks_the_header_gives_the_size(bring):
    (sample,), _, _ = bring(pixel_reasoner(FIRST, SHOWN, LAST), check_images=False)
    assert sample.trajectory[1].parameters["bbox_2d"] == [100, 10, 180, 60]
