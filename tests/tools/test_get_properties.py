import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixelis_jax.data.pixelsearch.draw import render
from pixelis_jax.data.pixelsearch.scene import make_scene
from pixelis_jax.tools import Session, execute
from pixelis_jax.tools.colors import NAMES
from pixelis_jax.tools.get_properties import size_class
from pixelis_jax.tools.shapes import SHAPES
from pixelis_jax.types import ToolCall

pytest.importorskip("cv2", reason="objects are measured with OpenCV, of the extra [tools]")


def session_of(image, seen=None, **options):
    return Session([image], [seen or image.shape[:2]], fit_crop=lambda height, width: (height, width), **options)


def picture():
    image = np.full((300, 400, 3), (90, 95, 90), np.uint8)
    image[60:120, 100:220] = (215, 35, 40)
    return image


def properties(session, **arguments):
    return execute(session, ToolCall("GET_PROPERTIES", arguments))


def test_a_rectangle_by_hand():
    """120 x 60 px of 400 x 300, seen at half the size: 7200 / 120000 = 0.06, 1800 px as seen."""
    session = session_of(picture(), (150, 200))
    assert execute(session, ToolCall("SEGMENT_OBJECT_AT", {"point": [80, 45]})).data["object_id"] == 1
    seen = properties(session, object_id=1)
    circularity = seen.data.pop("circularity")
    assert seen.data == {
        "color": "red",
        "rgb": [215, 35, 40],
        "area_px": 1800,
        "relative_area": 0.06,
        "size": "medium",
        "centroid": [80, 45],
        "orientation_deg": 0,
        "aspect": 2.0,
        "shape": "rectangle",
    }
    assert circularity == pytest.approx(4 * np.pi * 7200 / 360**2, abs=0.02)
    assert json.loads(seen.text)["circularity"] == circularity
    assert seen.region == (0.4, 0.3, 0.3, 0.2) and seen.by_object and seen.ok and seen.image is None


def test_a_box_gives_what_the_object_in_it_gives():
    session = session_of(picture())
    execute(session, ToolCall("SEGMENT_OBJECT_AT", {"point": [150, 90]}))
    seen = properties(session, bbox_2d=[90, 50, 230, 130])
    assert seen.data == properties(session, object_id=1).data
    assert seen.region == (0.4, 0.3, 0.35, 80 / 300) and not seen.by_object


def test_a_box_without_an_object_is_measured_itself():
    seen = properties(session_of(picture()), bbox_2d=[300, 200, 340, 240])
    assert (seen.data["color"], seen.data["area_px"], seen.data["shape"]) == ("gray", 1600, "square")


def test_shapes_of_scenes_by_their_boxes():
    """Boxes as the model would give them: rounded outward in an overview of a quarter of the size."""
    right, count = 0, 0
    for index in range(12):
        scene = make_scene(8, "train", index)
        session = session_of(render(scene), (scene.height // 4, scene.width // 4))
        for shape in scene.shapes:
            seen = properties(session, bbox_2d=session.shown_box(shape.box))
            right += (seen.data["color"], seen.data["shape"]) == (shape.color, shape.kind)
            count += 1
    assert count > 40 and right >= 0.95 * count


@pytest.mark.parametrize(
    ("share", "name"),
    [
        (0.0099, "tiny"), (0.01, "small"), (0.0499, "small"), (0.05, "medium"), (0.199, "medium"), (0.2, "large"),
        (0.499, "large"), (0.5, "very_large"), (1.0, "very_large"),
    ],
)  # fmt: skip
def test_size_classes(share, name):
    assert size_class(share) == name


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "give either object_id or bbox_2d"),
        ({"object_id": 1, "bbox_2d": [1, 2, 30, 40]}, "give either object_id or bbox_2d"),
        ({"target_image": 1}, "give either object_id or bbox_2d"),
        ({"object_id": 1}, "there are no objects yet; SEGMENT_OBJECT_AT finds one"),
        ({"object_id": True}, "object_id must be an integer of at least 1"),
        ({"object_id": 1.0}, "object_id must be an integer of at least 1"),
        ({"object_id": 10**400}, "there are no objects yet; SEGMENT_OBJECT_AT finds one"),
        ({"bbox_2d": [5, 5, 5, 9]}, "bbox_2d is empty; x2 must be above x1 and y2 above y1"),
        ({"bbox_2d": [1, 2, 30, 40], "target_image": 3}, "there is no image 3; images are 1 to 1"),
    ],
)
def test_failed_calls(arguments, words):
    seen = properties(session_of(picture()), **arguments)
    assert (seen.ok, seen.text) == (False, f"error: {words}")


def test_an_object_knows_its_image():
    session = session_of(picture())
    execute(session, ToolCall("SEGMENT_OBJECT_AT", {"point": [150, 90]}))
    assert properties(session, object_id=1, target_image=1).ok
    seen = properties(session, object_id=1, target_image=2)
    assert seen.text == "error: that object is in image 1; leave target_image out"
    assert properties(session, object_id=9).text == "error: there is no object '9'; objects are 1"


def test_a_clamped_box_counts_as_out_of_image():
    assert properties(session_of(picture()), bbox_2d=[-5, 50, 230, 130]).out_of_image


SIDES = st.integers(1, 64)


@given(SIDES, SIDES, st.integers(0, 999), st.lists(st.floats(0, 1), min_size=4, max_size=4))
def test_any_box_of_any_image_has_properties(height, width, seed, places):
    image = np.random.default_rng(seed).choice(np.array([0, 90, 255], np.uint8), (-(-height // 4), -(-width // 4), 3))
    image = np.ascontiguousarray(image.repeat(4, 0).repeat(4, 1)[:height, :width])
    (x1, x2), (y1, y2) = sorted(places[:2]), sorted(places[2:])
    box = [x1 * width, y1 * height, x2 * width, y2 * height]
    seen = properties(session_of(image), bbox_2d=box)
    if box[0] >= box[2] or box[1] >= box[3] or box[0] >= width or box[1] >= height:
        assert not seen.ok
        return
    data = seen.data
    x1, y1, x2, y2 = session_of(image).box(box).box
    assert data["color"] in NAMES and data["shape"] in SHAPES
    assert 1 <= data["area_px"] <= (x2 - x1) * (y2 - y1)
    assert x1 <= data["centroid"][0] < x2 and y1 <= data["centroid"][1] < y2
    assert 0 < data["circularity"] <= 1 and -90 <= data["orientation_deg"] <= 90 and data["aspect"] > 0
