import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixelis_jax.tools import Session, execute, segment_object_at
from pixelis_jax.tools.base import ToolError
from pixelis_jax.tools.objects import recall
from pixelis_jax.types import ToolCall

pytest.importorskip("cv2", reason="the classical segmentation is OpenCV's, of the extra [tools]")

RED, GRAY = (200, 40, 40), (90, 95, 90)


def picture(height=300, width=400, box=(100, 60, 180, 120)):
    image = np.full((height, width, 3), GRAY, np.uint8)
    x1, y1, x2, y2 = box
    image[y1:y2, x1:x2] = RED
    return image


def session_of(image, seen=None, **options):
    return Session(
        [image], [seen or image.shape[:2]], fit_crop=lambda height, width: (height // 2, width // 2), **options
    )


def segment(session, point, **arguments):
    return execute(session, ToolCall("SEGMENT_OBJECT_AT", {"point": point, **arguments}))


def test_the_answer_is_in_the_frame_that_the_model_sees():
    """400 x 300 seen as 200 x 150: every length is half, an area of 80 x 60 px a quarter."""
    session = session_of(picture(), (150, 200))
    seen = segment(session, [70, 45])
    assert seen.ok and seen.text == '{"object_id":1,"bbox_2d":[50,30,90,60],"area_px":1200,"image":2}'
    assert seen.data == json.loads(seen.text)
    assert seen.region == (140.5 / 400, 90.5 / 300, 0, 0)
    assert (seen.target_image, seen.by_object, seen.out_of_image) == (1, False, False)
    assert len(session.frames) == 2 and recall(session, 1).box == (100, 60, 180, 120)


def test_norm1000_boxes_and_areas_in_pixels_as_seen():
    seen = segment(session_of(picture(), (150, 200), coordinates="norm1000"), [350, 300])
    assert seen.data["bbox_2d"] == [250, 200, 450, 400] and seen.data["area_px"] == 1200


def test_the_outline_runs_along_the_border_and_the_rest_stays():
    image = picture()
    session = session_of(image)
    drawn = segment(session, [140, 90]).image
    assert drawn.shape == image.shape and np.array_equal(image, picture())
    changed = (drawn != image).any(2)
    rows, columns = np.nonzero(changed)
    # An image is seen at half its size, so each line is 2 px wide: magenta inside, black outside.
    assert (columns.min(), rows.min(), columns.max(), rows.max()) == (98, 58, 181, 121)
    assert not changed[62:118, 102:178].any()
    assert tuple(drawn[90, 100]) == tuple(drawn[90, 101]) == (255, 0, 255)
    assert tuple(drawn[90, 98]) == tuple(drawn[90, 99]) == (0, 0, 0)


def test_an_object_at_the_border_of_the_picture_is_outlined_there_too():
    session = session_of(picture(box=(0, 60, 80, 120)))
    assert tuple(segment(session, [40, 90]).image[90, 0]) == (255, 0, 255)


def test_the_same_object_keeps_its_id_and_another_gets_the_next():
    image = picture()
    image[200:260, 250:330] = (40, 60, 210)
    session = session_of(image)
    ids = [segment(session, point).data["object_id"] for point in ([140, 90], [290, 230], [120, 70])]
    assert ids == [1, 2, 1] and len(session.frames) == 4


def test_an_outlined_picture_can_be_searched_too():
    image = picture()
    image[200:260, 250:330] = (40, 60, 210)
    session = session_of(image)
    segment(session, [140, 90])
    seen = segment(session, [145, 115], target_image=2)  # seen at half its size
    assert seen.data["bbox_2d"] == [125, 100, 165, 130] and seen.target_image == 2
    assert recall(session, seen.data["object_id"]).image == 2


@pytest.mark.parametrize(
    ("point", "more", "words"),
    [
        ([5, 5], {}, "no object at this point"),
        ([401, 5], {}, "point lies outside image 1 of 400x300"),
        ([-1, 5], {}, "point lies outside image 1 of 400x300"),
        ([5, float("nan")], {}, "point must be 2 numbers"),
        ([5], {}, "point must be 2 numbers"),
        ([5, 5], {"target_image": 2}, "there is no image 2; images are 1 to 1"),
    ],
)
def test_failed_calls_leave_the_session_as_it_was(point, more, words):
    session = session_of(picture())
    seen = segment(session, point, **more)
    assert (seen.ok, seen.text, seen.image) == (False, f"error: {words}", None)
    assert len(session.frames) == 1 and not session.memory
    assert seen.out_of_image == words.startswith("point lies")


def test_another_segmenter_has_results_of_its_own():
    calls = []

    def left_half(image, point):
        calls.append(point)
        if point[0] >= 200:
            raise ToolError("no object at this point")
        mask = np.zeros(image.shape[:2], bool)
        mask[:, :200] = True
        return mask

    tools = {"SEGMENT_OBJECT_AT": segment_object_at.make(left_half, name="test left half")}
    for _ in range(2):
        seen = execute(session_of(picture()), ToolCall("SEGMENT_OBJECT_AT", {"point": [141, 90]}), tools=tools)
        assert seen.data["bbox_2d"] == [0, 0, 200, 300] and seen.data["area_px"] == 60000
    assert calls == [(141, 90)]
    failed = execute(session_of(picture()), ToolCall("SEGMENT_OBJECT_AT", {"point": [300, 90]}), tools=tools)
    assert failed.text == "error: no object at this point"


SIDES = st.integers(1, 64)


@given(SIDES, SIDES, SIDES, SIDES, st.integers(0, 999), st.tuples(st.floats(0, 1), st.floats(0, 1)))
def test_boxes_lie_inside_the_image_and_areas_inside_their_boxes(height, width, high, wide, seed, place):
    image = np.random.default_rng(seed).choice(np.array([0, 90, 255], np.uint8), (-(-height // 5), -(-width // 5), 3))
    image = np.ascontiguousarray(image.repeat(5, 0).repeat(5, 1)[:height, :width])
    session = Session([image], [(high, wide)], fit_crop=lambda height, width: (height, width))
    seen = segment(session, [place[0] * wide, place[1] * high])
    if not seen.ok:
        assert seen.text == "error: no object at this point"
        return
    x1, y1, x2, y2 = seen.data["bbox_2d"]
    assert 0 <= x1 < x2 <= wide and 0 <= y1 < y2 <= high
    assert 1 <= seen.data["area_px"] <= (x2 - x1) * (y2 - y1)
    x, y = session.point([place[0] * wide, place[1] * high])
    assert recall(session, 1).mask[y, x]
