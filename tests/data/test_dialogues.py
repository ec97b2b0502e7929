"""Demonstrations as token rows: the same ids as one render, and only what the assistant should say is trained."""

import dataclasses

import numpy as np
import pytest
from one_tool import ZOOM

from pixelis_jax.data import dialogues
from pixelis_jax.data.cota import Sample, Step
from pixelis_jax.models.processor import SYSTEM_PROMPT, Placed
from pixelis_jax.tools import TOOLS, grammar
from pixelis_jax.tools.base import View, schemas
from pixelis_jax.types import ToolCall

QUESTION = "Which digit is inside the red circle?"
BOX = {"bbox_2d": [4, 8, 40, 50]}


def sample_of(*steps, **fields):
    return Sample("text_extraction", QUESTION, ("x.png",), steps, "7", "7", **fields)


@pytest.fixture(scope="module")
def image():
    return np.random.default_rng(0).integers(0, 256, (140, 190, 3), dtype=np.uint8)


@pytest.fixture
def build(small_policy, image):
    processor = small_policy.processor

    def make(sample, **options):
        turns = dialogues.messages(sample, [image], view=dialogues.view_of(processor))
        crops = processor.place(dialogues.crops_of(turns, processor), crop=True, first_row=100)
        overview = Placed(processor.fit_overview(*image.shape[:2]), 0)
        row = dialogues.encode(
            turns, QUESTION, processor=processor, schemas=schemas(ZOOM), images=[overview], crops=crops, **options
        )
        return turns, row

    return make


LOOK = (
    Step("THINK", thought="I need a closer look."),
    Step("ZOOM_IN", BOX),
    Step("THINK", thought="Now I can read it."),
)


def test_ids_are_those_of_one_render_and_the_trained_text_is_the_assistants(build, small_policy, image):
    processor = small_policy.processor
    turns, row = build(sample_of(*LOOK))
    shown = [processor.fit_overview(*image.shape[:2]), processor.fit_crop(*turns[0].observation.image.shape[:2])]
    overview, crop = (
        "<|vision_start|>" + "<|image_pad|>" * processor.image_tokens(size) + "<|vision_end|>" for size in shown
    )
    look = grammar.render("I need a closer look.", call=ToolCall("ZOOM_IN", BOX))
    read = grammar.render("Now I can read it.", answer="7")
    text = (
        f"<|im_start|>system\n{SYSTEM_PROMPT.format(schemas=schemas(ZOOM))}<|im_end|>\n"
        f"<|im_start|>user\n{overview}{QUESTION}<|im_end|>\n"
        f"<|im_start|>assistant\n{look}<|im_end|>\n"
        f"<|im_start|>user\n<tool_response>{turns[0].observation.text}{crop}</tool_response><|im_end|>\n"
        f"<|im_start|>assistant\n{read}<|im_end|>"
    )
    assert row.tokens == processor.encode(text)
    trained = [t for t, policy in zip(row.tokens, row.policy, strict=True) if policy]
    assert processor.decode(trained) == f"{look}<|im_end|>{read}<|im_end|>"


def test_a_call_without_a_stored_result_is_replayed_by_the_tool(build):
    """Overview 56x84 px: 6 tokens. The box is 105x81 px of the original, seen at 56x28: 2 tokens, from row 100 on."""
    turns, row = build(sample_of(*LOOK))
    index = np.array(row.image_index)
    assert ((index >= 100).sum(), (index >= 0).sum()) == (2, 8)
    assert turns[0].observation.ok and turns[0].observation.image.shape == (105, 81, 3)
    assert turns[-1].observation is None


def test_a_wrong_step_is_seen_and_not_trained(build, small_policy):
    wrong = (Step("THINK", thought="Look there."), Step("ZOOM_IN", BOX, loss=False), *LOOK)
    turns, row = build(sample_of(*wrong))
    assert [turn.loss for turn in turns] == [False, True, True]
    assert {t for t, p in zip(row.turn_of, row.policy, strict=True) if p} == {1, 2}
    assert "Look there." in small_policy.processor.decode(row.tokens)
    turns, _ = build(sample_of(*LOOK, answer_loss=False))
    assert [turn.loss for turn in turns] == [True, False]


def test_thoughts_join_the_action_that_follows_them(build):
    steps = (Step("THINK", thought="One."), Step("THINK", thought="Two."))
    turns, _ = build(sample_of(*steps, Step("ZOOM_IN", BOX, thought="Three.")))
    assert grammar.parse(turns[0].text, TOOLS).thought == "One. Two. Three."
    assert grammar.parse(turns[1].text, TOOLS).thought == ""


def test_the_answer_is_marked(build, small_policy):
    _, row = build(sample_of(*LOOK))
    assert small_policy.processor.decode([t for t, a in zip(row.tokens, row.answer, strict=True) if a]) == "7"
    assert all(p for p, a in zip(row.policy, row.answer, strict=True) if a)


@pytest.mark.parametrize("text", ["<answer>open", "no tags", "</answer>x<answer>", "<answer></answer>"])
def test_without_a_whole_answer_nothing_is_marked(text, small_policy):
    ids, answer = dialogues.encode_message(text, small_policy.processor)
    assert len(ids) == len(answer) > 0
    assert not any(answer)


LOOKING = Step("ZOOM_IN", {"bbox_2d": [100, 50, 300, 150]})
VIEW = View(lambda h, w: (56, 112), lambda h, w: (56, 56))


def moved(step, *, images=1, **metadata):
    """The parameters of a step whose sample has such metadata, on images seen as 112x56."""
    sample = sample_of(step, metadata=metadata)
    sample = dataclasses.replace(sample, image_paths=("x.png",) * images)
    session = VIEW.session([np.zeros((200, 400, 3), np.uint8)] * images)
    return dialogues.converted(step, sample, session)


def test_coordinates_come_to_the_size_at_which_the_image_is_seen():
    """Seen as 400x200 by the writer and as 112x56 here: a factor of .28."""
    assert moved(LOOKING, seen_size=[200, 400])["bbox_2d"] == [28, 14, 84, 42]
    assert moved(LOOKING, seen_size=[56, 112])["bbox_2d"] == [100, 50, 300, 150]  # as it is here
    assert moved(LOOKING)["bbox_2d"] == [100, 50, 300, 150]  # no size is given: taken as it stands
    assert moved(LOOKING, coordinates="norm1000")["bbox_2d"] == [11, 3, 34, 8]
    point = Step("SEGMENT_OBJECT_AT", {"point": [200, 100]})
    assert moved(point, seen_size=[200, 400])["point"] == [56, 28]


def test_each_image_has_its_own_size():
    second = Step("ZOOM_IN", {"bbox_2d": [100, 50, 300, 150], "target_image": 2})
    sizes = {"seen_sizes": [[200, 400], [400, 800]], "images": 2}
    assert moved(LOOKING, **sizes)["bbox_2d"] == [28, 14, 84, 42]
    assert moved(second, **sizes)["bbox_2d"] == [14, 7, 42, 21]


def test_a_small_box_stays_a_box_and_a_wrong_one_stays_wrong():
    tiny = Step("ZOOM_IN", {"bbox_2d": [10, 10, 11, 11]})
    assert moved(tiny, seen_size=[200, 400])["bbox_2d"] == [3, 3, 4, 4]
    turned = Step("ZOOM_IN", {"bbox_2d": [300, 150, 100, 50]}, loss=False)
    assert moved(turned, seen_size=[200, 400])["bbox_2d"] == [84, 42, 28, 14]


def test_a_place_on_a_tools_image_of_another_size_is_not_guessed():
    on_crop = Step("ZOOM_IN", {"bbox_2d": [1, 1, 9, 9], "target_image": 2})
    with pytest.raises(dialogues.UnusableError, match="tool's image"):
        moved(on_crop, seen_size=[200, 400])
    assert moved(on_crop, seen_size=[56, 112])["bbox_2d"] == [1, 1, 9, 9]


def test_a_call_that_fails_is_learnt_only_where_it_is_meant_to():
    image = np.zeros((200, 400, 3), np.uint8)
    outside = Step("ZOOM_IN", {"bbox_2d": [500, 0, 600, 50]})
    with pytest.raises(dialogues.UnusableError, match="ZOOM_IN fails where it should not"):
        dialogues.messages(sample_of(outside), [image], view=VIEW)
    wrong = dataclasses.replace(outside, loss=False)
    turns = dialogues.messages(sample_of(wrong), [image], view=VIEW)
    assert not turns[0].loss and not turns[0].observation.ok
    with pytest.raises(dialogues.UnusableError, match=r"calls ZOOM_IN, which tools\.names lacks"):
        dialogues.messages(sample_of(LOOKING), [image], view=VIEW, tools={})


@pytest.mark.parametrize(
    ("metadata", "coordinates", "answer"),
    [
        ({}, "pixels", "[574, 420, 861, 630]"),
        ({}, "norm1000", "[500, 500, 750, 750]"),
        ({"answer_frame": "pixels", "seen_size": [750, 1000]}, "pixels", "[574, 420, 861, 630]"),
        ({"seen_size": [1500, 2000]}, "norm1000", "[500, 500, 750, 750]"),
    ],
)
def test_a_box_is_taught_in_the_frame_that_the_policy_speaks(metadata, coordinates, answer):
    """The example of the specification: 2000x1500 seen as 1148x840."""
    picture = np.broadcast_to(np.uint8(0), (1500, 2000, 3))
    view = View(lambda height, width: (840, 1148), lambda height, width: (56, 56), coordinates)
    gold = "[1000, 750, 1500, 1125]"
    sample = Sample("text_extraction", QUESTION, ("x.png",), (), gold, gold, answer_type="iou", metadata=metadata)
    (turn,) = dialogues.messages(sample, [picture], view=view)
    assert turn.text == grammar.render("", answer=answer)
    same = View(lambda height, width: (1500, 2000), lambda height, width: (56, 56))
    assert dialogues.messages(sample, [picture], view=same)[0].text == grammar.render("", answer=gold)
