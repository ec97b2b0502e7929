import dataclasses
import logging

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixelis_jax import tools
from pixelis_jax.models.image_processor import PixelBudget, smart_resize
from pixelis_jax.tools import TOOLS, Session, ToolError, execute
from pixelis_jax.types import Observation, ToolCall

IMAGE = np.random.default_rng(0).integers(0, 256, (600, 800, 3), dtype=np.uint8)


def session_of(image=IMAGE, seen=(84, 112), fit_crop=lambda height, width: (56, 56)):
    return Session([image], [seen], fit_crop=fit_crop)


def zoom(session, box, **arguments):
    return execute(session, ToolCall("ZOOM_IN", {"bbox_2d": box, **arguments}))


def test_the_crop_has_the_original_pixels():
    session = session_of()
    seen = zoom(session, [28, 21, 56, 42])
    assert np.array_equal(seen.image, IMAGE[150:300, 200:400])
    assert seen.region == (0.375, 0.375, 0.25, 0.25)
    assert (seen.ok, seen.target_image, seen.out_of_image) == (True, 1, False)
    # 28 x 21 seen pixels are shown as 56 x 56: sqrt(2 * 8 / 3) = 2.31.
    assert seen.text == "Image 2, 56x56, 2.3x"
    assert len(session.frames) == 2 and session.frame(2).seen == (56, 56)


def test_a_zoom_into_a_crop_cuts_from_full_resolution():
    session = session_of()
    zoom(session, [28, 21, 56, 42])
    second = zoom(session, [14, 14, 28, 42], target_image=2)
    assert np.array_equal(second.image, IMAGE[150:300, 200:400][38:113, 50:100])
    assert second.text.startswith("Image 3, ") and second.target_image == 2


def test_one_pixel_can_be_shown():
    seen = zoom(session_of(seen=(6000, 8000)), [4, 4, 5, 5])
    assert seen.image.shape == (1, 1, 3)


def test_a_clamped_box_says_so_and_counts_as_out_of_image():
    seen = zoom(session_of(), [-28, -21, 28, 21])
    assert np.array_equal(seen.image, IMAGE[:150, :200])
    assert seen.ok and seen.out_of_image and seen.text == "Image 2, 56x56, 2.3x (box clamped to the image)"


@pytest.mark.parametrize(
    ("arguments", "text", "outside"),
    [
        ({"bbox_2d": [10, 10, 10, 10]}, "error: bbox_2d is empty; x2 must be above x1 and y2 above y1", False),
        ({"bbox_2d": [200, 10, 220, 20]}, "error: bbox_2d lies outside image 1 of 112x84", True),
        ({"bbox_2d": [1, 2, 3]}, "error: bbox_2d must be 4 numbers", False),
        ({"bbox_2d": [1, 2, 3, float("nan")]}, "error: bbox_2d must be 4 numbers", False),
        ({"bbox_2d": [1, 2, 3, 4], "target_image": 2}, "error: there is no image 2; images are 1 to 1", False),
        (
            {"bbox_2d": [1, 2, 3, 4], "target_image": int("9" * 4000)},
            "error: there is no image of that number; images are 1 to 1",
            False,
        ),
        ({}, "error: ZOOM_IN needs the argument 'bbox_2d'", False),
    ],
)
def test_failed_calls_are_error_observations(arguments, text, outside):
    session = session_of()
    seen = execute(session, ToolCall("ZOOM_IN", arguments))
    assert (seen.ok, seen.text, seen.image, seen.out_of_image) == (False, text, None, outside)
    assert len(session.frames) == 1


def fit(height, width):
    return smart_resize(height, width, factor=28, budget=PixelBudget(84 * 84, 112 * 112))


@pytest.mark.parametrize(
    ("box", "size"), [([0, 50, 112, 50.2], "1000x2"), ([50, 0, 50.01, 112], "1x1000"), ([0, 0, 112, 1e-300], "1000x1")]
)
def test_a_box_too_narrow_to_be_shown_is_an_error_the_model_can_read(box, size, caplog):
    session = session_of(np.zeros((1000, 1000, 3), np.uint8), (112, 112), fit)
    seen = zoom(session, box)
    words = f"error: a part of {size} px is too narrow to be shown; choose a box with more even sides"
    assert (seen.ok, seen.text, seen.image, len(session.frames)) == (False, words, None, 1)
    assert not caplog.records


def test_an_image_too_narrow_to_be_shown_is_an_error_of_any_tool(monkeypatch, caplog):
    broken = dataclasses.replace(
        TOOLS["ZOOM_IN"], run=lambda *_: Observation("x", image=np.zeros((1, 900, 3), np.uint8))
    )
    monkeypatch.setitem(tools.TOOLS, "ZOOM_IN", broken)
    session = session_of(fit_crop=fit)
    assert zoom(session, [1, 2, 30, 40]).text.startswith("error: a part of 900x1 px is too narrow")
    assert len(session.frames) == 1 and not caplog.records


NUMBERS = (
    st.integers() | st.floats() | st.sampled_from([True, None, "1", "٣", [1], 10**400, -(10**5000), 1e-300, 1e308])
)
VALUES = NUMBERS | st.lists(NUMBERS, max_size=5) | st.text(max_size=9) | st.lists(st.lists(NUMBERS), max_size=4)


@given(st.dictionaries(st.sampled_from(["bbox_2d", "target_image", "x" * 5000]), VALUES))
def test_any_arguments_give_a_short_observation_and_no_failure(arguments):
    session = session_of(fit_crop=fit)
    seen = execute(session, ToolCall("ZOOM_IN", arguments))
    assert len(seen.text) < 220 and "failed" not in seen.text
    assert seen.ok == (seen.image is not None) == (len(session.frames) == 2)
    assert type(seen.target_image) is int


def test_a_tool_that_quotes_its_arguments_is_cut(monkeypatch):
    def quoting(session, arguments):
        raise ToolError(f"what is {arguments}?" * 99)

    monkeypatch.setitem(tools.TOOLS, "ZOOM_IN", dataclasses.replace(TOOLS["ZOOM_IN"], run=quoting))
    seen = zoom(session_of(), [1, 2, 30, 40])
    assert len(seen.text) == len("error: ") + tools.LONGEST_ERROR and seen.text.endswith("...")


def test_tools_can_be_off():
    session = session_of()
    seen = execute(session, ToolCall("ZOOM_IN", {"bbox_2d": [1, 2, 30, 40]}), enabled=False)
    assert (seen.ok, seen.text, seen.image) == (False, "error: tools are off", None)
    assert len(session.frames) == 1


def test_an_unknown_tool_is_an_error():
    assert execute(session_of(), ToolCall("FLY", {})).text == "error: there is no tool 'FLY'"


def test_a_tool_that_raises_is_an_error_observation_and_a_log_line(monkeypatch, caplog):
    def broken(session, arguments):
        raise ZeroDivisionError("boom")

    monkeypatch.setitem(tools.TOOLS, "ZOOM_IN", dataclasses.replace(TOOLS["ZOOM_IN"], run=broken))
    with caplog.at_level(logging.ERROR):
        seen = zoom(session_of(), [1, 2, 30, 40])
    assert (seen.ok, seen.text) == (False, "error: ZOOM_IN failed")
    assert "boom" in caplog.text


def test_out_of_memory_is_no_fault_of_the_call(monkeypatch):
    def huge(session, arguments):
        raise MemoryError

    monkeypatch.setitem(tools.TOOLS, "ZOOM_IN", dataclasses.replace(TOOLS["ZOOM_IN"], run=huge))
    with pytest.raises(MemoryError):
        zoom(session_of(), [1, 2, 30, 40])
