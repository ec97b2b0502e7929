"""Records whose fields hold what they hold in another shape: messages as texts, one message, parts of other APIs."""

import base64
import json

import pytest

ASKED = {"image": "a.png", "question": "What is it?"}  # a.png is 200 x 100
USER = [{"role": "user", "content": "<image>What is it?"}]
BOTH = [*USER, {"role": "assistant", "content": "cup"}]


@pytest.mark.parametrize("name", ["prompt", "problem", "question", "messages", "conversations", "message"])
@pytest.mark.parametrize("written", [json.dumps, str, lambda talk: json.dumps(talk[0]), lambda talk: talk[0]])
def test_messages_without_an_assistant_as_a_text_or_alone(bring, name, written):
    (sample,), _, _ = bring({"image": "a.png", name: written(USER), "answer": "cup"})
    assert (sample.question, sample.answer, sample.trajectory) == ("What is it?", "cup", ())


@pytest.mark.parametrize("name", ["prompt", "messages", "conversations", "message"])
@pytest.mark.parametrize("written", [json.dumps, str])
def test_a_dialogue_as_a_text(bring, name, written):
    (sample,), _, _ = bring({"image": "a.png", name: written(BOTH)})
    assert (sample.question, sample.answer) == ("What is it?", "cup")


@pytest.mark.parametrize("written", [json.dumps, lambda talk: talk, lambda talk: talk[0]])
def test_a_response_that_is_a_message(bring, written):
    (sample,), _, _ = bring({"image": "a.png", "prompt": USER, "response": written(BOTH[1:])})
    assert (sample.question, sample.answer) == ("What is it?", "cup")


@pytest.mark.parametrize(
    "text", ["[{'role': 'user', 'content': 'x'}\n {'role': 'assistant'}]", 'array([{"from": "human"}], dtype=object)']
)
def test_messages_in_a_text_that_cant_be_read(refusal, text):
    assert "messages in a text that can't be read; write them as JSON" in refusal(
        ASKED | {"question": text} | {"answer": "y"}
    )


@pytest.mark.parametrize("text", ["[[1, 2], [3, 4]]", '["a", "b"]', '{"a": 1}', "{x} is what?", "[{x}]", "[1]"])
def test_questions_that_only_look_like_lists(bring, text):
    (sample,), _, _ = bring(ASKED | {"question": text, "answer": "cup"})
    assert sample.question == text


@pytest.mark.parametrize("field", ["contents", "messages"])
@pytest.mark.parametrize(("part", "mime"), [("inline_data", "mime_type"), ("inlineData", "mimeType")])
def test_parts_of_gemini(data, bring, field, part, mime):
    packed = base64.b64encode((data / "a.png").read_bytes()).decode()
    talk = [
        {"role": "user", "parts": [{part: {mime: "image/png", "data": packed}}, {"text": "What is it?"}]},
        {"role": "model", "parts": [{"text": "cup"}]},
    ]
    (sample,), _, _ = bring({field: talk})
    assert (sample.question, sample.answer, len(sample.image_paths)) == ("What is it?", "cup", 1)


@pytest.mark.parametrize(
    ("part", "told"),
    [
        ({"fileData": {"mimeType": "image/png", "fileUri": "gs://bucket/a.png"}}, "a web address"),
        ({"inline_data": {"mime_type": "audio/mp3", "data": "QUJD"}}, "a part of a kind that is not read (audio/mp3)"),
        (
            {"file_data": {"mime_type": "video/mp4", "file_uri": "a.mp4"}},
            "a part of a kind that is not read (video/mp4)",
        ),
        ({"functionCall": {"name": "f", "args": {}}}, "a part of a kind that is not read (functionCall)"),
    ],
)
def test_parts_of_gemini_that_are_not_read(refusal, part, told):
    talk = [{"role": "user", "parts": [part, {"text": "What?"}]}, {"role": "model", "parts": [{"text": "cup"}]}]
    assert told in refusal({"contents": talk})


def test_images_inside_messages_and_beside_them(data, bring, refusal):
    parts = [{"type": "image", "image": "a.png"}, {"type": "text", "text": "What is it?"}]
    talk = [{"role": "user", "content": parts}, *BOTH[1:]]
    (sample,), _, _ = bring({"image": "a.png", "messages": talk})
    assert len(sample.image_paths) == 1
    told = "messages: images inside messages, and others in a field; leave out one of the two"
    assert told in refusal({"image": "b.png", "messages": talk})


@pytest.mark.parametrize("key", ["text", "content", "value"])
def test_the_words_of_a_part(bring, key):
    talk = [{"role": "user", "content": [{"type": "image"}, {"type": "text", key: "What is it?"}]}, *BOTH[1:]]
    (sample,), _, _ = bring({"image": "a.png", "messages": talk})
    assert sample.question == "What is it?"


@pytest.mark.parametrize(
    "part", [{"type": "text", "words": "What?"}, {"thing": {"a": 1}}, {"type": "text", "text": ["What?"]}]
)
def test_a_part_that_holds_something_else(refusal, part):
    talk = [{"role": "user", "content": [{"type": "image"}, part, {"type": "text", "text": "And why?"}]}, *BOTH[1:]]
    assert "a part of a kind that is not read" in refusal({"image": "a.png", "messages": talk})


def test_empty_parts_do_no_harm(bring):
    parts = [
        {"type": "image", "text": None},
        {"type": "text", "text": "", "image": None},
        {"type": "text", "text": "What?"},
    ]
    (sample,), _, _ = bring({"image": "a.png", "messages": [{"role": "user", "content": parts}, *BOTH[1:]]})
    assert sample.question == "What?"


@pytest.mark.parametrize(
    "record",
    [
        {"Image": "a.png", "Question": "What is it?", "Answer": "cup"},
        {"IMAGE": "a.png", "QUESTION": "What is it?", "ANSWER": "cup"},
        {"imagePath": "a.png", "Problem": "What is it?", "Correct Answer": "cup"},
        {"Image URL": "a.png", "query": "What is it?", "ground-truth": "cup"},
        {"Images": ["a.png"], "Instruction": "What", "Input": "is it?", "correctAnswer": "cup"},
        {"Image": "a.png", "Conversations": BOTH},
    ],
)
def test_names_of_fields_in_another_spelling(bring, record):
    (sample,), _, _ = bring(record)
    assert (sample.question.split(), sample.answer) == (["What", "is", "it?"], "cup")


def test_columns_of_choices_keep_their_capitals(bring):
    more = {"Image": "a.png", "Question": "Which?", "A": "cat", "B": "dog", "Answer": "B", "Hint": "It barks."}
    (sample,), _, _ = bring(more)
    assert (sample.choices, sample.answer) == (("cat", "dog"), "B") and sample.question.startswith("It barks.")


def test_a_name_in_our_spelling_comes_first(bring):
    (sample,), _, _ = bring(ASKED | {"answer": "cup", "Answer": "mug", "Image": "b.png"})
    assert sample.answer == "cup" and sample.metadata["other_fields"] == {"Answer": "mug", "Image": "b.png"}


def test_numbers_of_choices_are_counted_in_any_spelling(bring):
    asked = {"Image": "a.png", "Options": ["cat", "dog"]}
    samples, _, _ = bring(*(asked | {"Question": f"Which {i}?", "Answer": i} for i in (0, 1)))
    assert [sample.answer for sample in samples] == ["A", "B"]


def test_lists_of_questions_and_of_answers(bring):
    texts, replies = ["Who wrote it?", "How many pages?", "Is it red?"], ["Ann Lee", 12, "No"]
    samples, _, _ = bring({"image": "a.png", "questions": texts, "answers": replies})
    assert [(sample.question.rpartition("Question: ")[2], sample.answer) for sample in samples] == [
        *zip(texts, map(str, replies), strict=True)
    ]
    assert all(sample.trajectory == () and sample.sample_type == "positive" for sample in samples)


@pytest.mark.parametrize(
    "more",
    [
        {"questions": ["Who?", "What?"], "answers": ["me"]},
        {"questions": ["Who?", "What?"], "answers": [["me"], ["you"]]},
        {"questions": ["Who?", 3], "answers": ["me", "you"]},
    ],
)
def test_lists_that_do_not_fit_each_other(refusal, more):
    assert "perhaps rename questions" in refusal({"image": "a.png"} | more)


def test_a_list_of_texts_as_question(bring, refusal):
    (sample,), _, _ = bring(ASKED | {"question": ["What is it?"], "answer": "cup"})
    assert sample.question == "What is it?"
    told = refusal(ASKED | {"question": ["What is it?", "Why?"], "answer": ["cup", "fun"]})
    assert "question: several texts in a list; write one record for each question" in told
