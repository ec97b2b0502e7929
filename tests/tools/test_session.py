import dataclasses
import json
import math

import numpy as np
import pytest

from pixelis_jax.tools import TOOLS, schemas, select
from pixelis_jax.tools.base import Session, ToolError, check_arguments
from pixelis_jax.types import UserError


def session_of(height, width, seen, *, coordinates="pixels", fit_crop=lambda height, width: (56, 56)):
    image = np.zeros((height, width, 3), np.uint8)
    return Session([image], [seen], fit_crop=fit_crop, coordinates=coordinates)


def test_box_of_a_shrunk_image_is_cut_from_full_resolution():
    """2000x1500 seen as 1148x840: 574 * 2000 / 1148 = 1000 and so on."""
    place = session_of(1500, 2000, (840, 1148)).box([574, 420, 861, 630])
    assert place.box == (1000, 750, 1500, 1125) and not place.clamped


def test_norm1000_is_declared_and_not_guessed():
    session = session_of(1500, 2000, (840, 1148), coordinates="norm1000")
    assert session.box([500, 500, 750, 750]).box == (1000, 750, 1500, 1125)
    assert session.point([500, 500]) == (1000, 750)
    with pytest.raises(UserError, match="pixels, norm1000"):
        session_of(10, 10, (10, 10), coordinates="relative")


def test_whole_image_and_single_pixel():
    session = session_of(1500, 2000, (840, 1148))
    assert session.box([0, 0, 1148, 840]).box == (0, 0, 2000, 1500)
    small = session_of(100, 100, (1000, 1000))
    assert small.box([501, 501, 502, 502]).box == (50, 50, 51, 51)
    assert small.box([999, 999, 1000, 1000]).box == (99, 99, 100, 100)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([10, 10, 10, 10], "empty"),
        ([50, 50, 20, 20], "empty"),
        ([10, 50, 20, 20], "empty"),
        ([math.nan, 0, 10, 10], "4 finite numbers"),
        ([0, 0, math.inf, 10], "4 finite numbers"),
        (["0", "0", "10", "10"], "4 finite numbers"),
        ([True, 0, 10, 10], "4 finite numbers"),
        ([0, 0, 10**400, 10], "4 finite numbers"),
        ([0, 0, 10], "4 finite numbers"),
        ("0,0,10,10", "4 finite numbers"),
        (None, "4 finite numbers"),
        ([[0, 0], [10, 10]], "4 finite numbers"),
    ],
)
def test_boxes_that_are_none(value, message):
    with pytest.raises(ToolError, match=message) as raised:
        session_of(100, 100, (100, 100)).box(value)
    assert not raised.value.out_of_image


@pytest.mark.parametrize("value", [[100, 0, 120, 10], [-20, 0, 0, 10], [0, 100, 10, 130], [0, -9, 10, -1]])
def test_boxes_wholly_outside(value):
    with pytest.raises(ToolError, match="outside image 1 of 100x100") as raised:
        session_of(200, 200, (100, 100)).box(value)
    assert raised.value.out_of_image


def test_a_box_partly_outside_is_clamped_and_says_so():
    place = session_of(200, 200, (100, 100)).box([-10, 50, 30, 140])
    assert place.box == (0, 100, 60, 200) and place.clamped
    assert place.seen == (0, 50, 30, 100)


def test_points():
    session = session_of(200, 400, (100, 100))
    assert session.point([0, 0]) == (0, 0)
    assert session.point([50, 50]) == (200, 100)
    assert session.point([100, 100]) == (399, 199)
    with pytest.raises(ToolError, match="2 finite numbers"):
        session.point([1, 2, 3])
    with pytest.raises(ToolError, match="outside") as raised:
        session.point([101, 50])
    assert raised.value.out_of_image


def test_region_is_relative_to_the_original():
    assert session_of(100, 200, (50, 50)).region((50, 20, 150, 60)) == (0.5, 0.4, 0.5, 0.4)


def test_images_are_numbered_from_1():
    session = session_of(100, 100, (50, 50), fit_crop=lambda height, width: (height * 2, width * 2))
    assert session.append(np.zeros((10, 20, 3), np.uint8)) == 2
    assert session.frame(2).seen == (20, 40)
    for number in (0, 3, -1):
        with pytest.raises(ToolError, match=f"no image {number}; images are 1 to 2"):
            session.frame(number)


@pytest.mark.parametrize("number", [10**9, 10**4000, -(10**5000)], ids=["10", "4001", "5001"])
def test_a_huge_number_of_an_image_is_not_repeated(number):
    with pytest.raises(ToolError, match=r"^there is no image of that number; images are 1 to 1$"):
        session_of(100, 100, (50, 50)).frame(number)


def test_an_image_that_can_not_be_shown_is_the_models_error():
    def fit(height, width):
        raise UserError("aspect ratio")

    session = session_of(100, 100, (50, 50), fit_crop=fit)
    with pytest.raises(ToolError, match="a part of 90x1 px is too narrow to be shown"):
        session.append(np.zeros((1, 90, 3), np.uint8))
    assert len(session.frames) == 1


def test_schemas_are_one_json_line_a_tool():
    lines = schemas(TOOLS).split("\n")
    assert [json.loads(line)["name"] for line in lines] == list(TOOLS)
    zoom = json.loads(lines[0])
    assert zoom["parameters"]["required"] == ["bbox_2d"]
    assert set(zoom["parameters"]["properties"]) == {"bbox_2d", "target_image"}


def test_arguments_are_checked_by_the_schema():
    zoom = TOOLS["ZOOM_IN"]
    assert check_arguments(zoom, {"bbox_2d": [1, 2, 3, 4.5], "target_image": 3}) is None
    assert check_arguments(zoom, {"bbox_2d": (1, 2, 3, 4)}) is None
    assert check_arguments(zoom, {"target_image": 1}) == "ZOOM_IN needs the argument 'bbox_2d'"
    assert check_arguments(zoom, [1]) == "arguments must be a JSON object"


def test_boxes_and_points_go_back_to_what_is_seen():
    """2000x1500 seen as 1148x840, the example of the spec backwards; outward, so that the object stays inside."""
    session = session_of(1500, 2000, (840, 1148))
    assert session.shown_box((1000, 750, 1500, 1125)) == [574, 420, 861, 630]
    assert session.shown_box((1001, 751, 1499, 1124)) == [574, 420, 861, 630]
    assert session.shown_box((1999, 1499, 2000, 1500)) == [1147, 839, 1148, 840]
    assert session.shown_point((1000, 750)) == [574, 420] and session.shown_point((1999, 1499)) == [1147, 839]
    thousand = session_of(1500, 2000, (840, 1148), coordinates="norm1000")
    assert thousand.shown_box((1000, 750, 1500, 1125)) == [500, 500, 750, 750]


@pytest.mark.parametrize("size", [(1, 1), (7, 3000), (1500, 2000)])
def test_a_shown_box_is_a_box_that_tools_take(size):
    height, width = size
    session = session_of(height, width, (56, 84))
    for box in ((0, 0, width, height), (width - 1, height - 1, width, height), (0, 0, 1, 1)):
        again = session.box(session.shown_box(box)).box
        assert not session.box(session.shown_box(box)).clamped
        assert again[0] <= box[0] and again[1] <= box[1] and again[2] >= box[2] and again[3] >= box[3]
        assert session.point(session.shown_point(box[:2])) is not None


def test_a_fork_changes_nothing_until_it_is_adopted():
    session = session_of(100, 100, (56, 56))
    session.memory["objects"] = {1: "a"}
    fork = session.fork()
    fork.append(np.zeros((20, 20, 3), np.uint8))
    fork.memory["objects"] = {**fork.memory["objects"], 2: "b"}
    assert len(session.frames) == 1 and session.memory == {"objects": {1: "a"}}
    session.adopt(fork)
    assert len(session.frames) == 2 and session.memory == {"objects": {1: "a", 2: "b"}}


def test_a_frame_is_known_by_its_pixels_and_its_shape():
    flat, tall = (session_of(h, w, (56, 56)).frames[0].digest for h, w in ((10, 20), (20, 10)))
    assert flat == session_of(10, 20, (28, 28)).frames[0].digest != tall


def test_tools_are_selected_by_name_in_their_own_order(monkeypatch):
    assert list(select(("ZOOM_IN",))) == ["ZOOM_IN"] and select(()) == {}
    with pytest.raises(UserError, match=r"no tool 'ZOOM'; tools are ZOOM_IN"):
        select(("ZOOM",))
    monkeypatch.setitem(TOOLS, "ZOOM_IN", dataclasses.replace(TOOLS["ZOOM_IN"], packages=("json", "no_such_package")))
    with pytest.raises(
        UserError, match=r"ZOOM_IN needs the package no_such_package.*pip install 'pixelis-jax\[tools\]'"
    ):
        select(("ZOOM_IN",))
