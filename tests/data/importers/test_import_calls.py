import json
from pathlib import Path

import pytest

from pixelis_jax.data.importers import calls
from pixelis_jax.data.importers.base import Options, Place, Refusal

PLACE = Place("f:1", Path("f"))


def definition(words, name="crop_image"):
    box = {"bbox_2d": {"type": "array", "description": words}}
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": box}}}


@pytest.mark.parametrize(
    ("words", "frame"),
    [
        ("minimum value is 0 and maximum value is 1.", "relative"),
        ("values between 0 and 1", "relative"),
        ("in [0, 1]", "relative"),
        ("from 0.0 to 1.0", "relative"),
        ("minimum value is 0 and maximum value is 1000", "norm1000"),
        ("in 1000x1000 normalized format", "norm1000"),
        ("relative, 0-1000", "norm1000"),
        ("absolute pixel coordinates", "pixels"),
        ("absolute values, from 0 to 1000", None),  # two frames are said
        ("normalized coordinates", None),  # to what?
        ("[x1, y1, x2, y2]", None),
    ],
)
def test_the_frame_is_what_the_definition_says(words, frame):
    system = "Help.\n<tools>\n" + json.dumps(definition(words)) + "\n" + json.dumps(definition("?", "b")) + "\n</tools>"
    frames, names = calls.declared(system, None)
    assert frames == ({} if frame is None else {"crop_image": frame}) and names == {"crop_image", "b"}
    assert calls.declared("", [definition(words)]) == calls.declared("", json.dumps([definition(words)]))
    assert calls.declared("", [definition(words)])[0] == frames


def test_the_option_is_above_the_definition_and_the_definition_above_the_name():
    def frame(name, declared, option="auto"):
        call = {"name": name, "arguments": {"bbox_2d": [0, 0, 1, 1]}}
        return calls.read(call, declared, Options(coordinates=option), PLACE).frame

    assert frame("crop_image_normalized", {}) == "relative"
    assert frame("crop_image_normalized", {"crop_image_normalized": "norm1000"}) == "norm1000"
    assert frame("crop_image", {"crop_image": "relative"}, "pixels") == "pixels"
    with pytest.raises(Refusal, match="declared nowhere; say --coordinates="):
        frame("crop_image", {})


GIVEN = [calls.View(1, (0, 0, 200, 100), given=True), calls.View(2, (0, 0, 50, 60), given=True)]


def zoom(box, frame="relative", target=1, views=GIVEN, padding=0.0):
    return calls.zoomed(calls.Call(tuple(box), frame, target, ""), list(views), padding, PLACE)


def test_boxes_become_pixels_of_the_image():
    assert zoom([0.25, 0.1, 0.5, 1])[0].box == (50, 10, 100, 100)
    assert zoom([250, 100, 500, 1000], "norm1000")[0].box == (50, 10, 100, 100)
    assert zoom([50, 10, 100, 100], "pixels")[0].box == (50, 10, 100, 100)
    assert zoom([0, 0, 1, 1], "pixels")[0].box == (0, 0, 1, 1)
    assert zoom([0, 0, 1, 1], target=2)[0] == calls.View(2, (0, 0, 50, 60), given=False)
    assert zoom([0.5, 0.5, 0.5001, 0.5001])[0].box == (100, 50, 101, 51)  # at least one pixel


def test_a_box_on_a_zoom_is_one_on_the_image_below():
    """Half of a half: [100, 50, 200, 100] and of that the right lower half."""
    first, _ = zoom([0.5, 0.5, 1, 1])
    second, _ = zoom([0.5, 0.5, 1, 1], target=3, views=[*GIVEN, first])
    assert second == calls.View(1, (150, 75, 200, 100), given=False)
    third, _ = zoom([0, 0, 500, 1000], "norm1000", 4, [*GIVEN, first, second])
    assert third.box == (150, 75, 175, 100)
    with pytest.raises(Refusal, match="pixels of a zoomed image"):
        zoom([0, 0, 5, 5], "pixels", 3, [*GIVEN, first])


def test_padding_is_a_share_of_the_target_image_and_is_cut_to_it():
    assert zoom([0.4, 0.4, 0.6, 0.6], padding=0.1) == (calls.View(1, (60, 30, 140, 70), given=False), False)
    assert zoom([0.4, 0.05, 0.6, 0.6], padding=0.1) == (calls.View(1, (60, 0, 140, 70), given=False), True)


def test_a_box_partly_outside_is_cut_and_counted():
    assert zoom([-0.5, 0, 0.5, 1.25]) == (calls.View(1, (0, 0, 100, 100), given=False), True)


@pytest.mark.parametrize(
    ("box", "target", "told"),
    [
        ([344, 20, 500, 90], 1, r"lies outside its image when read as relative \(\[344, 20, 500, 90\]\)"),
        ([0.5, 0.5, 0.5, 0.9], 1, "bbox_2d is empty"),
        ([0.9, 0.5, 0.1, 0.9], 1, "bbox_2d is empty"),
        ([0, 0, 1, 1], 3, r"its image does not exist \(image 3 of 2\)"),
        ([0, 0, 1, 1], 0, r"its image does not exist \(image 0 of 2\)"),
        ([0, 0, 1, 1], -1, "its image does not exist"),
    ],
)
def test_boxes_and_images_that_are_not_there_are_refused(box, target, told):
    with pytest.raises(Refusal, match="f:1: tool_call: .*" + told):
        zoom(box, target=target)


BOX = [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("call", "told"),
    [
        ({"name": "select_frames", "arguments": {"target_frames": [1, 2]}}, "select_frames chooses frames"),
        ({"name": "python", "arguments": {}}, r"unknown tool; .* \(python\)"),
        ({"arguments": {}}, "has no name"),
        ({"name": "crop_image_normalized"}, "arguments must be a JSON object"),
        ({"name": "crop_image_normalized", "arguments": "{"}, "arguments are not valid JSON"),
        ({"name": "crop_image_normalized", "arguments": {}}, "bbox_2d must be 4 numbers"),
        ({"name": "crop_image_normalized", "arguments": {"bbox_2d": [BOX]}}, "bbox_2d must be 4 numbers"),
        ({"name": "crop_image_normalized", "arguments": {"bbox_2d": ["0", 0, 1, 1]}}, "bbox_2d must be 4 numbers"),
        ({"name": "crop_image_normalized", "arguments": {"bbox_2d": [float("nan"), 0, 1, 1]}}, "must be 4 numbers"),
        ({"name": "crop_image_normalized", "arguments": {"bbox_2d": BOX, "angle": 3}}, r"ZOOM_IN has not \(angle\)"),
        ({"name": "crop_image_normalized", "arguments": {"bbox_2d": BOX, "target_image": "b"}}, "must be an integer"),
        ({"name": "crop_image_normalized", "arguments": {"bbox_2d": BOX, "target_image": True}}, "must be an integer"),
    ],
)
def test_calls_without_an_equivalent_are_refused(call, told):
    with pytest.raises(Refusal, match="f:1: tool_call: .*" + told):
        calls.read(call, {}, Options(), PLACE)


def test_numbering_from_one_and_from_zero():
    def target(**arguments):
        call = {"name": "crop_image_normalized", "arguments": {"bbox_2d": BOX, **arguments}}
        return calls.read(call, {}, Options(), PLACE).target

    assert [target(), target(target_image=2), target(target_image="2"), target(target_image=2.0)] == [1, 2, 2, 2]
    assert [target(img_idx=0), target(img_idx=1)] == [1, 2]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("<tool_call>{", "not closed"),
        ("<tool_call>{}</tool_call></tool_call>", "closed twice"),
        ('<tool_call>{"name": </tool_call>', "is not valid JSON"),
        ("<tool_call>[1]</tool_call>", "is no JSON object"),
    ],
)
def test_malformed_calls_are_refused(text, told):
    with pytest.raises(Refusal, match=f"f:1: tool_call: .*{told}"):
        calls.split(text, PLACE)
