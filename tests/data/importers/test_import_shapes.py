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
