"""Dialogues of several questions as one sample each, other shapes of dialogues, and words for other systems' tools."""

import json

import pytest
from PIL import Image

from pixelis_jax.data.importers import other_tools

CALL = '<tool_call>{"name": "crop_image_normalized", "arguments": {"bbox_2d": [%s], "target_image": %d}}</tool_call>'


@pytest.fixture(autouse=True)
def second(data):
    Image.new("RGB", (50, 60)).save(data / "b.png")


def talk(*values, **more):
    turns = [{"from": ("human", "gpt")[i % 2], "value": value} for i, value in enumerate(values)]
    return {"image": "a.png", "conversations": turns, **more}


def test_three_questions_about_one_picture_are_three_samples(bring):
    record = talk(
        "<image>\nWhat color is the shape?", "red", "How many shapes are there?", "3", "What is left?", "a dog", id="k"
    )
    samples, refused, job = bring(record)
    assert refused == [] and (job.counts.records, job.counts.read, job.counts.samples) == (2, 2, 4)
    asked = [(s.question, s.answer, s.answer_type) for s in samples]
    assert asked == [
        ("What color is the shape?", "red", "exact"),
        ("How many shapes are there?", "3", "numeric"),
        ("What is left?", "a dog", "exact"),
    ]
    assert [s.metadata["turn"] for s in samples] == [1, 2, 3]
    assert len({s.image_paths for s in samples}) == 1
    assert {s.provenance.original_sample_id for s in samples} == {"k"}
    assert job.counts.notes["dialogues of several questions, each a sample"] == 1


def test_a_question_that_refers_back_keeps_the_earlier_ones(bring):
    samples, _, _ = bring(
        talk("<image>What is on the table?", "a cup", "What color is it?", "red", "And the table?", "blue")
    )
    earlier = "Earlier in this dialogue:\nQuestion: What is on the table?\nAnswer: a cup\n"
    assert samples[1].question == f"{earlier}\nQuestion: What color is it?"
    assert samples[2].question == f"{earlier}Question: What color is it?\nAnswer: red\n\nQuestion: And the table?"


def test_a_question_with_pictures_of_its_own_is_about_these(bring):
    record = talk(
        "<image>What is this?", "a cat", "<image>\nWhat is in the picture?", "a dog", "Is <image 1> red?", "no"
    )
    record = {**record, "image": ["a.png", "b.png"], "conversations": record["conversations"][:4]}
    one, other = bring(record)[0]
    assert len(one.image_paths) == len(other.image_paths) == 1 and one.image_paths != other.image_paths
    back = talk("<image>What is this?", "a cat", "<image>Is it the same as before?", "no") | {
        "image": ["a.png", "b.png"]
    }
    _, second = bring(back)[0]
    assert second.image_paths == (*one.image_paths, *other.image_paths)
    asked = "(image 1) What is this?\nAnswer: a cat\n\nQuestion: (image 2) Is it the same as before?"
    assert second.question == f"Earlier in this dialogue:\nQuestion: {asked}"


def test_a_question_that_names_one_of_several_pictures_keeps_its_number(bring):
    record = talk("<image 1>What is this?", "a cat", "<image 2>What is here?", "a dog") | {"image": ["a.png", "b.png"]}
    one, other = bring(record)[0]
    assert (one.question, other.question) == ("image 1 What is this?", "image 2 What is here?")
    assert len(one.image_paths) == len(other.image_paths) == 2


def test_questions_that_can_not_be_read_cost_themselves(bring):
    record = talk("<image>What is it?", "red", "Tell a story.", "A long\nstory", "How many?", "3")
    samples, lines, job = bring(record)
    assert [s.answer for s in samples] == ["red", "3"]
    assert len(lines) == 1 and ":2: question 2: answer: the last message marks no answer" in lines[0]
    assert job.counts.read == job.counts.records == 2 and job.counts.refused.total() == 0
    assert job.counts.questions.total() == 1
    told = json.loads((job.out / "import.json").read_text())
    assert (told["records"], told["read"], told["samples"], told["refused"]["total"]) == (2, 2, 3, 0)
    assert sum(told["refused_questions"].values()) == 1
    assert (job.out / "refused.txt").read_text().splitlines() == lines


def test_a_record_all_of_whose_questions_are_refused_is_one_refusal(refusal):
    assert "question 1: answer: the last message" in refusal(talk("<image>Why?", "x\ny", "Who?", "y\nz"))


def test_a_question_that_refers_to_a_refused_one_has_its_words(bring):
    samples, _, _ = bring(talk("<image>Tell a story.", "A long\nstory", "What color is it?", "red"))
    assert len(samples) == 1 and "Answer: A long\nstory" in samples[0].question


def test_a_dialogue_that_ends_with_a_question(bring):
    samples, lines, _ = bring(talk("<image>What is it?", "red", "How many?"))
    assert len(samples) == 1 and "question 2: messages: end with a question" in lines[0]


def test_answers_of_the_record_are_one_for_each_question(bring, refusal):
    record = talk("<image>What is it?", "red", "How many?", "4")
    samples, _, _ = bring(record | {"answers": ["red", "3"]})
    assert [(s.sample_type, s.ground_truth) for s in samples] == [("positive", "red"), ("outcome_negative", "3")]
    assert "one answer field for several questions" in refusal(record | {"answer": "red"})
    assert "choices: one list of choices for 2 questions" in refusal(record | {"options": ["red", "blue"]})


def test_calls_of_later_questions_see_earlier_zooms(bring):
    values = ("<image>What is it?", CALL % ("0, 0, 0.5, 0.5", 1), "<image>", "\\boxed{red}")
    later = ("What else?", CALL % ("0, 0, 0.5, 0.5", 2), "<image>", "\\boxed{blue}")
    samples, refused, _ = bring(talk(*values, *later))
    assert refused == [] and len(samples) == 2
    assert [s.trajectory[0].parameters["bbox_2d"] for s in samples] == [[0, 0, 100, 50], [0, 0, 50, 25]]
    _, refused, _ = bring(talk(*values[:1], CALL % ("0, 0, 1, 1", 9), "<image>", "\\boxed{x}", *later))
    assert "question 1: tool_call: its image does not exist" in refused[0]


@pytest.mark.parametrize(
    "record",
    [
        {"query": "<image>What color?", "response": "red", "history": []},
        {"query": "<image>What color?", "response": "red", "history": None},
        {"instruction": "What color?", "input": "", "output": "red"},
        {"instruction": "What color?", "output": "red"},
        {"question": "What color?", "correct": "red"},
        {"question": "What color?", "correct_answer": "red"},
        {"prompt": "What color?", "completion": "red"},
        {
            "prompt": [{"role": "user", "content": "What color?"}],
            "completion": [{"role": "assistant", "content": "red"}],
        },
        {"prompt": [{"role": "user", "content": "What color?"}], "extra_info": {"answer": "red", "index": 3}},
        {
            "prompt": [{"role": "user", "content": "What color?"}],
            "reward_model": {"ground_truth": "red", "style": "rule"},
        },
        {"texts": [{"user": "What color?", "assistant": "red", "source": "x"}]},
        {"conversation": [{"input": "What color?", "output": "red", "system": ""}]},
        {"qa_pairs": [{"question": "What color?", "answer": "red"}]},
        {"messages": json.dumps([{"role": "user", "content": "What color?"}, {"role": "assistant", "content": "red"}])},
        {
            "messages": [
                {"role": "user", "content": "What color?", "images": ["a.png"]},
                {"role": "assistant", "content": "red"},
            ]
        },
        {"prompt": "USER: <image>\nWhat color?\nASSISTANT:", "answer": "red"},
        {"question": "### Human: <image> What color? ### Assistant:", "answer": "red"},
        {"messages": [{"role": "Human", "text": "What color?"}, {"role": "bot", "text": "red"}]},
        {
            "messages": [
                {"role": "user", "content": {"type": "text", "text": "What color?"}},
                {"role": "model", "content": "red"},
            ]
        },
    ],
)
def test_questions_of_other_systems_are_read(bring, record):
    (sample,), refused, _ = bring(record | {"images": ["a.png"]})
    assert refused == [] and (sample.question, sample.answer) == ("What color?", "red")


def test_an_instruction_has_its_input_behind(bring):
    (sample,), _, _ = bring({"instruction": "Answer.", "input": "What color?", "output": "red", "image": "a.png"})
    assert sample.question == "Answer.\nWhat color?" and "other_fields" not in sample.metadata


def test_a_history_is_part_of_the_dialogue(bring):
    record = {"query": "How many?", "response": "3", "history": [["<image>What is it?", "a cup"]], "images": ["a.png"]}
    samples, _, _ = bring(record)
    assert [(s.question, s.answer) for s in samples] == [("What is it?", "a cup"), ("How many?", "3")]


def test_tool_calls_in_roles_of_their_own(bring):
    for call, result in (
        ("tool_call", "tool_response"),
        ("function_call", "observation"),
        ("tool_calls", "tool_result"),
    ):
        body = '{"name": "crop_image_normalized", "arguments": {"bbox_2d": [0, 0, 0.5, 1]}}'
        messages = [
            *({"role": "user", "content": "<image>What?"}, {"role": call, "content": body}),
            *({"role": result, "content": "<image>"}, {"role": "assistant", "content": "<answer>red</answer>"}),
        ]
        (sample,), refused, _ = bring({"messages": messages, "images": ["a.png", "a.png"]})
        assert refused == [] and sample.trajectory[0].parameters == {"bbox_2d": [0, 0, 100, 100]}


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"model_answer": "red"}, "model_answer"),
        ({"chosen_response": "red"}, "chosen_response"),
        ({"gt_text": "red"}, "gt_text"),
        ({"annotation": {"label_text": "red"}}, "annotation.label_text"),
        ({"metadata": {"answer": "red"}}, "metadata.answer"),
        ({"bbox": [1, 2, 30, 40]}, "bbox"),
        ({"caption": "a red cup"}, "caption"),
    ],
)
@pytest.mark.parametrize("unanswered", [False, True])
def test_no_answer_names_the_field_that_may_hold_it(bring, fields, named, unanswered):
    """Also where questions without an answer are taken: it is never "(unknown)" while a field holds one."""
    samples, lines, _ = bring({"question": "What?", "image": "a.png", **fields}, unanswered=unanswered)
    assert samples == [] and "another field may hold it: rename that to answer, or leave it out" in lines[0]
    assert lines[0].endswith(f"({named})") and ("bbox_format xywh" in lines[0]) == (named == "bbox")


TOOLS = '<tools>\n{"name": "image_zoom_in_tool", "parameters": {}}\n</tools>'


@pytest.mark.parametrize(
    "question",
    [
        "What color?\nThink first, call **image_zoom_in_tool** if needed, then answer.",
        "What color? Think first, call image_zoom_in_tool if needed, then answer.",
        "What color? Format strictly as: <think>...</think> <tool_call>...</tool_call> <answer>...</answer>",
        "Output the thinking in <think> </think> and the answer in <answer> </answer> tags. What color?",
        f"What color?\n\nYou may call tools.\n{TOOLS}\nUse crop_image to look.".replace("You may call tools.\n", ""),
        "What color? Put your final answer in \\boxed{}.",
        "What color?\n\nGuidelines: Look closer by `crop_image`. Put your answer within \\boxed{}.",
        "You may use `select_frames` to look at frames. What color?",
    ],
)
def test_instructions_for_other_tools_are_removed_and_counted(bring, question):
    (sample,), refused, job = bring({"question": question, "image": "a.png", "answer": "red"})
    assert refused == [] and sample.question == "What color?" and job.counts.notes[other_tools.NOTE] == 1


def test_questions_that_are_such_instructions_are_refused(refusal):
    record = {"image": "a.png", "answer": "red"}
    assert "the question itself names another system's tool" in refusal(
        record | {"question": "Which color does image_zoom_in_tool show?"}
    )
    assert "says nothing but how to use other tools" in refusal(record | {"question": "Call image_zoom_in_tool."})


def test_tools_that_the_record_defines_are_other_tools_too(bring):
    tools = [{"type": "function", "function": {"name": "look_closely", "parameters": {}}}]
    record = {"prompt": "What color? Call look_closely first.", "tools": tools, "images": ["a.png"], "answer": "red"}
    (sample,), _, _ = bring(record)
    assert sample.question == "What color?"
    plain = {"question": "What is a look_closely sign?", "image": "a.png", "answer": "red"}
    assert bring(plain)[0][0].question == "What is a look_closely sign?"


def test_system_prompts_are_left_out_and_counted(bring):
    prompt = [{"role": "system", "content": f"Help. {TOOLS}"}, {"role": "user", "content": "<image>What color?"}]
    (sample,), _, job = bring({"prompt": prompt, "images": ["a.png"], "reward_model": {"ground_truth": "red"}})
    assert sample.question == "What color?"
    assert job.counts.notes["system prompts left out, since the dialogue has its own"] == 1
