import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixelis_jax.tools import TOOLS, grammar
from pixelis_jax.types import ToolCall, Turn

BOX = '{"name": "ZOOM_IN", "arguments": {"bbox_2d": [1, 2, 3, 4]}}'
FRAGMENTS = [
    *("<think>", "</think>", "<tool_call>", "</tool_call>", "<answer>", "</answer>", "<tool_response>"),
    *("{", "}", "[", "]", '"', ",", ":", "NaN", "1e999", "\\ud800", BOX, "7", " ", "\n", "ZOOM_IN", "null"),
]


def call_of(body: str) -> Turn:
    return grammar.parse(f"<think>a</think><tool_call>{body}</tool_call>", TOOLS)


def test_canonical_texts():
    call = ToolCall("ZOOM_IN", {"bbox_2d": [1, 2, 3, 4]})
    assert grammar.render("look", call) == f"<think>look</think><tool_call>{BOX}</tool_call>"
    assert grammar.render("see", answer="7") == "<think>see</think><answer>7</answer>"


def test_white_space_may_stand_between_blocks_and_is_kept_inside():
    text = "\n<think> a\nb </think>\n\n<answer> 7\n</answer> \n"
    assert grammar.parse(text, TOOLS) == Turn(text, thought=" a\nb ", answer=" 7\n")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "the turn is empty"),
        (" \n", "the turn is empty"),
        ("seven", "a turn begins with one <think>...</think> block"),
        ("<answer>7</answer>", "a turn begins with one <think>...</think> block"),
        ("<think>a</think>", "the turn has no tool call and no answer"),
        ("<think>a</think> so <answer>7</answer>", "text stands outside the blocks"),
        ("<think>a</think><answer>7</answer>.", "text stands outside the blocks"),
        ("ok<think>a</think><answer>7</answer>", "text stands outside the blocks"),
        ("<answer>7</answer><think>a</think>", "text stands outside the blocks"),
        ("<think>a</think><answer>7", "a tag is not closed"),
        (f"<think>a</think><tool_call>{BOX}", "a tag is not closed"),
        ("<think>a</think><answer> </answer>", "the answer is empty"),
        ("<think>a</think><answer>7</answer><answer>8</answer>", "only one answer a turn"),
        (f"<think>a</think><tool_call>{BOX}</tool_call><tool_call>{BOX}</tool_call>", "only one tool call a turn"),
        (
            f"<think>a</think><tool_call>{BOX}</tool_call><answer>7</answer>",
            "a turn has either a tool call or an answer, not both",
        ),
        ("<think>a</think><think>b</think><answer>7</answer>", "a turn begins with one <think>...</think> block"),
        ("<think>a<think>b</think><answer>7</answer>", "a turn begins with one <think>...</think> block"),
        ("<think>a</think><answer><tool_response>7</answer>", "text stands outside the blocks"),
    ],
)
def test_malformed_turns(text, complaint):
    turn = grammar.parse(text, TOOLS)
    assert (turn.error, turn.call, turn.answer) == (complaint, None, None)


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ("", "the tool call is not valid JSON"),
        ("{'name': 'ZOOM_IN'}", "the tool call is not valid JSON"),
        (BOX + BOX, "the tool call is not valid JSON"),
        (BOX + " and", "the tool call is not valid JSON"),
        ("[" * 100_000, "the tool call is not valid JSON"),
        (BOX.replace("4]", "NaN]"), "the tool call is not valid JSON"),
        (BOX.replace("4]", "-Infinity]"), "the tool call is not valid JSON"),
        (BOX.replace("4]", "1" * 5000 + "]"), "the tool call is not valid JSON"),
        (BOX.replace("4]", "1" * 400 + "]"), "bbox_2d must be 4 numbers"),
        (BOX.replace("4]", "1e999]"), "bbox_2d must be 4 numbers"),
        (BOX.replace(", 4]", "]"), "bbox_2d must be 4 numbers"),
        (BOX.replace("4]", '"4"]'), "bbox_2d must be 4 numbers"),
        (BOX.replace("4]", "true]"), "bbox_2d must be 4 numbers"),
        (BOX.replace("4]", "null]"), "bbox_2d must be 4 numbers"),
        (BOX.replace("[1, 2, 3, 4]", '"1, 2, 3, 4"'), "bbox_2d must be 4 numbers"),
        ("[]", "the tool call must be a JSON object"),
        ("null", "the tool call must be a JSON object"),
        ('{"name": "ZOOM_IN"}', "the tool call has no 'arguments'"),
        ('{"arguments": {}}', "the tool call has no 'name'"),
        ('{"name": "ZOOM_IN", "arguments": {}, "id": 1}', "the tool call has an unknown key 'id'"),
        ('{"name": "ZOOM_IN", "name": "ZOOM_IN", "arguments": {}}', "the tool call repeats a key"),
        ('{"name": "ZOOM", "arguments": {}}', "there is no tool 'ZOOM'; tools are ZOOM_IN"),
        ('{"name": "THINK", "arguments": {}}', "there is no tool 'THINK'; tools are ZOOM_IN"),
        ('{"name": ["ZOOM_IN"], "arguments": {}}', "the name of a tool must be a string"),
        ('{"name": 7, "arguments": {}}', "the name of a tool must be a string"),
        ('{"name": %s, "arguments": {}}' % ("[" * 300 + "]" * 300), "the name of a tool must be a string"),
        ('{"name": "%s", "arguments": {}}' % ("Z" * 4000), f"there is no tool '{'Z' * 40}'; tools are ZOOM_IN"),
        (BOX.replace("}}", '}, "%s": 1}' % ("k" * 4000)), f"the tool call has an unknown key '{'k' * 40}'"),
        (BOX.replace("4]", '4], "%s": 2' % ("z" * 4000)), f"ZOOM_IN has no argument '{'z' * 40}'"),
        (BOX.replace("4]", "٤]"), "the tool call is not valid JSON"),
        (BOX.replace("4]", "0x4]"), "the tool call is not valid JSON"),
        (BOX.replace("4]", "[4]]"), "bbox_2d must be 4 numbers"),
        (BOX.replace("4]", "4, 5]"), "bbox_2d must be 4 numbers"),
        (BOX.replace("4]", "1e9]"), "bbox_2d must be 4 numbers"),
        (BOX.replace("4]", '4], "target_image": [1]'), "target_image must be an integer of at least 1"),
        (BOX.replace("4]", '4], "target_image": 1e999'), "target_image must be an integer of at least 1"),
        ('{"name": "ZOOM_IN", "arguments": [1, 2, 3, 4]}', "arguments must be a JSON object"),
        ('{"name": "ZOOM_IN", "arguments": {}}', "ZOOM_IN needs the argument 'bbox_2d'"),
        (BOX.replace("4]", '4], "zoom": 2'), "ZOOM_IN has no argument 'zoom'"),
        (BOX.replace("4]", '4], "target_image": "1"'), "target_image must be an integer of at least 1"),
        (BOX.replace("4]", '4], "target_image": 1.0'), "target_image must be an integer of at least 1"),
        (BOX.replace("4]", '4], "target_image": true'), "target_image must be an integer of at least 1"),
        (BOX.replace("4]", '4], "target_image": 0'), "target_image must be an integer of at least 1"),
    ],
)
def test_malformed_calls(body, complaint):
    only = {"ZOOM_IN": TOOLS["ZOOM_IN"]}
    turn = grammar.parse(f"<think>a</think><tool_call>{body}</tool_call>", only)
    assert (turn.error, turn.call, turn.answer, turn.thought) == (complaint, None, None, "a")


def test_text_that_only_looks_like_a_call_is_none():
    turn = grammar.parse(f"<think>I could say {BOX} here</think><answer>ZOOM_IN</answer>", TOOLS)
    assert turn.call is None and turn.answer == "ZOOM_IN"


def test_integers_stay_integers_and_floats_floats():
    turn = call_of('{"name": "ZOOM_IN", "arguments": {"bbox_2d": [1, 2.5, 3, 4], "target_image": 2}}')
    assert turn.call == ToolCall("ZOOM_IN", {"bbox_2d": [1, 2.5, 3, 4], "target_image": 2})


def exactly_one(turn: Turn) -> bool:
    return [turn.call is None, turn.answer is None, turn.error is None].count(False) == 1


@given(st.text())
def test_never_raises_on_text(text):
    assert exactly_one(grammar.parse(text, TOOLS))


@given(st.binary())
def test_never_raises_on_decoded_bytes(data):
    for text in (data.decode("utf-8", "replace"), data.decode("utf-8", "surrogateescape"), data.decode("latin-1")):
        assert exactly_one(grammar.parse(text, TOOLS))


@given(st.lists(st.sampled_from(FRAGMENTS), max_size=14))
def test_never_raises_on_almost_right_text(parts):
    assert exactly_one(grammar.parse("".join(parts), TOOLS))
    assert exactly_one(call_of("".join(parts)))


WORDS = st.text(st.characters(exclude_characters="<"))
NUMBER = st.integers(-2000, 2000) | st.floats(-2000, 2000)


@given(WORDS, WORDS.filter(lambda text: text.strip()))
def test_answers_survive_render_and_parse(thought, answer):
    text = grammar.render(thought, answer=answer)
    assert grammar.parse(text, TOOLS) == Turn(text, thought=thought, answer=answer)


@given(WORDS, st.lists(NUMBER, min_size=4, max_size=4), st.none() | st.integers(1, 9))
def test_calls_survive_render_and_parse(thought, box, target):
    call = ToolCall("ZOOM_IN", {"bbox_2d": box, **({} if target is None else {"target_image": target})})
    text = grammar.render(thought, call)
    turn = grammar.parse(text, TOOLS)
    assert turn == Turn(text, thought=thought, call=call)
    assert grammar.render(turn.thought, turn.call) == text


def test_render_refuses_what_it_could_not_read_back():
    with pytest.raises(ValueError, match="tag"):
        grammar.render("a </think> b", answer="7")
    with pytest.raises(ValueError, match="either"):
        grammar.render("a")
    with pytest.raises(ValueError, match="either"):
        grammar.render("a", ToolCall("ZOOM_IN", {}), "7")
