"""One record each as well-known data sets write it, and what it becomes: question, answer, type, choices."""

import base64

import pytest

PICTURE = {"bytes": None, "path": "a.png"}
LINES = "\nA. left\nB. right"


def talk(*values):
    return [{"from": ("human", "gpt")[i % 2], "value": value} for i, value in enumerate(values)]


SETS = {
    "The Cauldron": (
        {"images": [PICTURE], "texts": [{"user": f"Question: Which?{LINES}", "assistant": "Answer: B", "source": "x"}]},
        (f"Question: Which?{LINES}", "B", "choice"),
    ),
    "MMMU": (
        {
            **{"id": "v_1", "question": "<image 1> Which side?", "options": "['left', 'right']", "answer": "B"},
            **{"image_1": PICTURE, "image_2": None, "question_type": "multiple-choice", "explanation": ""},
        },
        (f"Which side?{LINES}", "B", "choice"),
    ),
    "MMMU, open": (
        {"question": "How many in <image 1>?", "options": "[]", "answer": "['3', '3.0']", "image_1": PICTURE},
        ("How many in image 1?", "3", "numeric"),
    ),
    "MathVista": (
        {
            **{"question": "How long?", "choices": None, "answer": "12", "answer_type": "integer", "precision": None},
            **{"image": "images/1.jpg", "decoded_image": PICTURE, "unit": None, "query": "Hint: think.\nHow long?"},
        },
        ("How long?", "12", "numeric"),
    ),
    "MMBench": (
        {"index": 3, "question": "Which side?", "hint": None, "A": "left", "B": "right", "C": None, "D": None}
        | {"answer": "A", "image": "a.png", "category": "position"},
        (f"Which side?{LINES}", "A", "choice"),
    ),
    "A-OKVQA": (
        {"question": "Which side?", "choices": ["left", "right"], "correct_choice_idx": 0, "direct_answers": ["l"]}
        | {"image": PICTURE},
        (f"Which side?{LINES}", "A", "choice"),
    ),
    "VQAv2": (
        {"question": "What is it?", "multiple_choice_answer": "net", "image": PICTURE}
        | {"answers": [{"answer": "net", "answer_id": 1}, {"answer": "fence", "answer_id": 2}]},
        ("What is it?", "net", "exact"),
    ),
    "TextVQA": (
        {"question": "What is it?", "answers": ["nokia", "nokia", "phone"], "image": PICTURE},
        ("What is it?", "nokia", "exact"),
    ),
    "OK-VQA": (
        {"question": "What is it?", "answers": [{"answer": "pony"}, {"answer": "horse"}], "image": PICTURE},
        ("What is it?", "pony", "exact"),
    ),
    "SQuAD": (
        {"question": "What?", "answers": {"text": ["a cup"], "answer_start": [3]}, "image": PICTURE},
        ("What?", "a cup", "exact"),
    ),
    "ChartQA": (
        {"query": "How many?", "label": ["14"], "human_or_machine": 0, "image": PICTURE},
        ("How many?", "14", "numeric"),
    ),
    "ScienceQA": (
        {"question": "Which side?", "choices": ["left", "right"], "answer": 0, "hint": "", "image": PICTURE},
        (f"Which side?{LINES}", "A", "choice"),
    ),
    "ARC": (
        {"question": "Which side?", "choices": {"label": ["A", "B"], "text": ["left", "right"]}, "answerKey": "B"}
        | {"image": PICTURE},
        (f"Which side?{LINES}", "B", "choice"),
    ),
    "LLaVA": (
        {"id": "1", "image": "a.png", "conversations": talk("What color?\n<image>", "Red.")},
        ("What color?", "Red", "exact"),
    ),
    "Geometry3K of EasyR1": (
        {"images": [PICTURE], "problem": "<image>Find $x$.", "answer": "\\frac{3}{4}"},
        ("Find $x$.", "\\frac{3}{4}", "numeric"),
    ),
    "ViRL39K": (
        {"question": f"<image>Which side?{LINES}", "answer": "\\boxed{B}", "image": ["a.png"], "qid": "x"},
        (f"Which side?{LINES}", "B", "choice"),
    ),
    "DeepEyes": (
        {
            "prompt": [
                {"role": "system", "content": "Help.\n<tools>\n{}\n</tools>"},
                {
                    "role": "user",
                    "content": "<image>\nWhat color?\nThink first, call **image_zoom_in_tool** if needed.",
                },
            ],
            **{"images": [PICTURE], "reward_model": {"ground_truth": "red", "style": "model"}, "data_source": "vstar"},
            **{"extra_info": {"answer": "red", "index": "1", "question": "What color?", "split": "train"}},
        },
        ("What color?", "red", "exact"),
    ),
    "TRL": (
        {"prompt": [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "How many?"}]}]}
        | {"image": PICTURE, "solution": "<answer> 3 </answer>"},
        ("How many?", "3", "numeric"),
    ),
    "OpenAI": (
        {
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "What color?"},
                        {"type": "image_url", "image_url": {"url": "a.png"}},
                    ],
                },
                {"role": "assistant", "content": "red"},
            ]
        },
        ("What color?", "red", "exact"),
    ),
    "Qwen-VL": (
        {
            "id": "1",
            "conversations": talk(
                "Picture 1: <img>a.png</img>\nWhere is the cat?", "<ref>the cat</ref><box>(10,20),(60,70)</box>"
            ),
        },
        ("Where is the cat?", "[10, 20, 60, 70]", "iou"),
    ),
    "VLM-R1": (
        {"image": "a.png", "problem": "Where is the cat?", "solution": "<answer>[10, 20, 60, 70]</answer>"},
        ("Where is the cat?", "[10, 20, 60, 70]", "iou"),
    ),
    "InternVL": (
        {
            "id": 1,
            "image": "a.png",
            "width": 200,
            "height": 100,
            "conversations": talk(
                "<image>\nWhere is <ref>the cat</ref>?", "<ref>the cat</ref><box>[[10, 20, 60, 70]]</box>"
            ),
        },
        ("Where is the cat?", "[10, 20, 60, 70]", "iou"),
    ),
    "Qwen2.5-VL": (
        {
            "messages": [
                {"role": "user", "content": "<image>Locate the cat."},
                {"role": "assistant", "content": '```json\n[\n\t{"bbox_2d": [10, 20, 60, 70], "label": "cat"}\n]\n```'},
            ],
            "images": ["a.png"],
        },
        ("Locate the cat.", "[10, 20, 60, 70]", "iou"),
    ),
}


@pytest.mark.parametrize("name", SETS)
def test_well_known_records(bring, name):
    record, wanted = SETS[name]
    (sample,), refused, _ = bring(record)
    assert refused == [] and (sample.question, sample.answer, sample.answer_type) == wanted
    assert len(sample.image_paths) == 1


def test_what_may_belong_to_a_question_is_told(bring):
    (sample,), _, job = bring(
        {"question": "Which?", "hint": "Look left.", "caption": "A red cup.", "answer": "red", "image": "a.png"}
    )
    assert sample.question == "Look left.\nWhich?"
    assert job.counts.notes["hint put in front of the question"] == 1
    assert job.counts.notes["caption is not part of the question; put it there if it is needed"] == 1


def test_a_context_that_the_question_has_is_not_repeated(bring):
    (sample,), _, _ = bring(
        {"question": "Bob has 3.\nHow many?", "context": "Bob has 3.", "answer": "3", "image": "a.png"}
    )
    assert sample.question == "Bob has 3.\nHow many?"


def test_a_call_may_be_an_object(bring):
    call = {"name": "crop_image_normalized", "arguments": {"bbox_2d": [0, 0, 0.5, 1]}}
    messages = [
        *({"role": "user", "content": "<image>What?"}, {"role": "tool_call", "content": call}),
        *({"role": "tool_response", "content": "done"}, {"role": "assistant", "content": "<answer>red</answer>"}),
    ]
    (sample,), refused, _ = bring({"messages": messages, "images": ["a.png"]})
    assert refused == [] and sample.trajectory[0].parameters == {"bbox_2d": [0, 0, 100, 100]}


def test_pictures_in_base64_beside_columns(bring, data):
    text = base64.b64encode((data / "a.png").read_bytes()).decode()
    (sample,), _, _ = bring({"question": "Which?", "A": "x", "B": "y", "answer": "B", "image": text})
    assert sample.choices == ("x", "y")
