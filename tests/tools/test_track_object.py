import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixelis_jax.tools import Session, execute, track_object
from pixelis_jax.tools.tracking import Found
from pixelis_jax.types import ToolCall

cv2 = pytest.importorskip("cv2", reason="the classical tracker is made of OpenCV's parts, of the extra [tools]")


def frame_with(x, y, *, height=200, width=300, radius=15):
    """A blue disc and a still red one on gray."""
    image = np.full((height, width, 3), (100, 105, 100), np.uint8)
    cv2.circle(image, (40, 160), 15, (210, 40, 40), -1)
    cv2.circle(image, (x, y), radius, (40, 70, 215), -1)
    return image


def session_of(frames, scale=1, **options):
    seen = [(image.shape[0] // scale, image.shape[1] // scale) for image in frames]
    options = {"is_video": True, **options}
    return Session(frames, seen, fit_crop=lambda height, width: (height, width), **options)


def track(session, **arguments):
    return execute(session, ToolCall("TRACK_OBJECT", arguments))


PATH = [(60, 40), (90, 70), (120, 100), (150, 70)]


def test_a_path_by_hand():
    """Three steps of 30 sqrt 2 px; down-right twice and up-right once end 90 to the right and 30 below the start."""
    seen = track(session_of([frame_with(*place) for place in PATH]), bbox_2d=[44, 24, 77, 57])
    assert seen.ok and seen.image is None and seen.data == json.loads(seen.text)
    assert seen.data["frames"] == [1, 2, 3, 4] and seen.data["lost"] == []
    for (x, y), box in zip(PATH, seen.data["boxes"], strict=True):
        assert np.abs(np.array(box) - (x - 15, y - 15, x + 16, y + 16)).max() <= 2
    assert seen.data["path_px"] == pytest.approx(3 * 30 * math.sqrt(2), rel=0.05)
    assert seen.data["displacement_px"] == pytest.approx(math.hypot(90, 30), rel=0.05)
    assert (seen.data["direction"], seen.data["is_stationary"]) == ("right", False)
    assert seen.data["confidence"][0] == 1 and min(seen.data["confidence"]) > 0.7
    assert seen.region == (60.5 / 300, 40.5 / 200, 33 / 300, 33 / 200)


def test_lengths_and_boxes_are_as_seen():
    session = session_of([frame_with(*place) for place in PATH], scale=2)
    seen = track(session, bbox_2d=[22, 12, 39, 29])
    assert seen.data["path_px"] == pytest.approx(1.5 * 30 * math.sqrt(2), rel=0.05)
    assert np.abs(np.array(seen.data["boxes"][3]) - (67, 27, 83, 43)).max() <= 2


@pytest.mark.parametrize(
    ("step", "name"),
    [
        ((20, 0), "right"), ((20, 20), "down-right"), ((0, 20), "down"), ((-20, 20), "down-left"), ((-20, 0), "left"),
        ((-20, -20), "up-left"), ((0, -20), "up"), ((20, -20), "up-right"), ((0, 0), "none"),
    ],
)  # fmt: skip
def test_directions(step, name):
    places = [(150 + i * step[0], 100 + i * step[1]) for i in range(3)]
    seen = track(session_of([frame_with(*place) for place in places]), bbox_2d=[134, 84, 167, 117])
    assert seen.data["direction"] == name and seen.data["is_stationary"] == (name == "none")


def test_an_object_is_followed_from_its_frame_and_also_back():
    session = session_of([frame_with(*place) for place in PATH])
    assert execute(session, ToolCall("SEGMENT_OBJECT_AT", {"point": [120, 100], "target_image": 3})).ok
    seen = track(session, object_id=1)
    assert seen.data["frames"] == [3, 4] and seen.by_object and seen.target_image == 3
    assert seen.data["direction"] == "up-right"
    back = track(session, object_id=1, frames=[1, 2, 4])
    assert back.data["frames"] == [1, 2, 4] and back.data["lost"] == []
    assert np.abs(np.array(back.data["boxes"][0]) - (45, 25, 76, 56)).max() <= 2


def test_a_box_is_in_the_first_of_the_frames():
    session = session_of([frame_with(*place) for place in PATH])
    seen = track(session, bbox_2d=[74, 54, 107, 87], frames=[2, 4])
    assert seen.data["frames"] == [2, 4] and seen.target_image == 2
    assert seen.data["displacement_px"] == pytest.approx(60, abs=2)


def test_a_frame_without_the_object_is_lost_and_has_no_box():
    frames = [frame_with(60, 40), frame_with(90, 40), frame_with(900, 40), frame_with(150, 40)]
    seen = track(session_of(frames), bbox_2d=[44, 24, 77, 57])
    assert seen.data["lost"] == [3] and seen.data["boxes"][2] is None and seen.data["confidence"][2] < 0.5
    assert seen.data["path_px"] == pytest.approx(90, abs=3)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "give either object_id or bbox_2d"),
        ({"object_id": 1, "bbox_2d": [1, 2, 30, 40]}, "give either object_id or bbox_2d"),
        ({"object_id": 7}, "there are no objects yet; SEGMENT_OBJECT_AT finds one"),
        ({"bbox_2d": [1, 1, 1, 1]}, "bbox_2d is empty; x2 must be above x1 and y2 above y1"),
        ({"bbox_2d": [1, 2, 30, 40], "frames": [1]}, "frames must be a list of numbers"),
        ({"bbox_2d": [1, 2, 30, 40], "frames": list(range(1, 99))}, "frames must be 2 to 64 numbers"),
        ({"bbox_2d": [1, 2, 30, 40], "frames": [1, 2.5]}, "frames must be whole numbers"),
        ({"bbox_2d": [1, 2, 30, 40], "frames": [1, 5]}, "there is no frame 5; frames are 1 to 4"),
        ({"bbox_2d": [1, 2, 30, 40], "frames": [0, 2]}, "there is no frame 0; frames are 1 to 4"),
        ({"bbox_2d": [1, 2, 30, 40], "frames": [2, 2]}, "frames must be in ascending order, each once"),
        ({"bbox_2d": [1, 2, 30, 40], "frames": [3, 1]}, "frames must be in ascending order, each once"),
        ({"bbox_2d": [1, 2, 30, 40], "frames": [True, 2]}, "frames must be a list of numbers"),
        ({"bbox_2d": [1, 2, 30, 40], "target_image": 1}, "TRACK_OBJECT has no argument 'target_image'"),
    ],
)
def test_failed_calls(arguments, words):
    seen = track(session_of([frame_with(*place) for place in PATH]), **arguments)
    assert (seen.ok, seen.text) == (False, f"error: {words}")


def test_a_still_image_is_no_video():
    seen = track(session_of([frame_with(60, 40)], is_video=False), bbox_2d=[44, 24, 77, 57])
    assert seen.text == "error: TRACK_OBJECT needs a video; this is a still image"


def test_objects_that_can_not_be_followed():
    session = session_of([frame_with(*place) for place in PATH])
    execute(session, ToolCall("SEGMENT_OBJECT_AT", {"point": [150, 70], "target_image": 4}))
    assert track(session, object_id=1).text.startswith("error: there is no frame after that object's")
    execute(session, ToolCall("ZOOM_IN", {"bbox_2d": [20, 10, 120, 110]}))
    execute(session, ToolCall("SEGMENT_OBJECT_AT", {"point": [40, 30], "target_image": 6}))
    assert track(session, object_id=2).text == "error: that object is in image 6; frames of the video are 1 to 4"
    mixed = session_of([frame_with(60, 40), frame_with(60, 40, width=280)])
    assert "not of one size" in track(mixed, bbox_2d=[44, 24, 77, 57]).text


def test_another_tracker_is_asked_once_for_the_same_frames():
    calls = []

    def still(frames, mask):
        calls.append(len(frames))
        return [Found((1, 2, 11, 12), 0.8)] * len(frames)

    tools = {"TRACK_OBJECT": track_object.make(still, name="test still")}
    for _ in range(2):
        session = session_of([frame_with(*place) for place in PATH])
        seen = execute(session, ToolCall("TRACK_OBJECT", {"bbox_2d": [44, 24, 77, 57]}), tools=tools)
        assert seen.data["boxes"] == [[1, 2, 11, 12]] * 4 and seen.data["is_stationary"]
    assert calls == [4]


@given(
    st.integers(1, 40),
    st.integers(1, 40),
    st.integers(2, 4),
    st.integers(0, 999),
    st.lists(st.floats(0, 1), min_size=4, max_size=4),
)
def test_any_video_and_box(height, width, count, seed, places):
    draw = np.random.default_rng(seed)
    frames = [draw.choice(np.array([0, 90, 255], np.uint8), (height, width, 3)) for _ in range(count)]
    (x1, x2), (y1, y2) = sorted(places[:2]), sorted(places[2:])
    seen = track(session_of(frames), bbox_2d=[x1 * width, y1 * height, x2 * width, y2 * height])
    if not seen.ok:
        assert seen.text.startswith("error: bbox_2d ")
        return
    assert seen.data["frames"] == list(range(1, count + 1))
    for number, box in zip(seen.data["frames"], seen.data["boxes"], strict=True):
        assert (box is None) == (number in seen.data["lost"])
        assert box is None or (0 <= box[0] < box[2] <= width and 0 <= box[1] < box[3] <= height)
    assert seen.data["displacement_px"] <= seen.data["path_px"] + 0.1
