import dataclasses
import logging

import numpy as np
import pytest

from pixelis_jax import tools
from pixelis_jax.tools import TOOLS, Session, execute
from pixelis_jax.types import ToolCall

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
        ({}, "error: ZOOM_IN needs the argument 'bbox_2d'", False),
    ],
)
def test_failed_calls_are_error_observations(arguments, text, outside):
    session = session_of()
    seen = execute(session, ToolCall("ZOOM_IN", arguments))
    assert (seen.ok, seen.text, seen.image, seen.out_of_image) == (False, text, None, outside)
    assert len(session.frames) == 1


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
