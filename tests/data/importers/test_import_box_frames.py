"""What a record itself says its boxes are relative to is not overwritten."""

import pytest

from pixelis_jax.data.importers import box_answers

BOX = {"question": "Locate", "answer": [10, 20, 300, 400], "image": "a.png"}
SHARES = BOX | {"answer": [0.1, 0.2, 0.5, 1]}


@pytest.mark.parametrize("name", ["answer_frame", "coordinates", "bbox_type"])
def test_a_frame_that_a_record_names_is_kept(bring, name):
    inside = BOX | {"metadata": {name: "norm1000", "x": 1}}
    (one, other, third), _, _ = bring(BOX | {name: "norm1000"}, inside, SHARES | {name: "Norm1"})
    assert one.metadata == {"answer_frame": "norm1000"} and other.metadata == {"answer_frame": "norm1000", "x": 1}
    assert third.metadata == {"answer_frame": "relative"}


def test_dialogues_have_frames_too(bring):
    said = [{"from": "human", "value": "<image>Locate"}, {"from": "gpt", "value": "[10, 20, 300, 400]"}]
    (sample,), _, _ = bring({"conversations": said, "image": "a.png", "bbox_type": "norm1000"})
    assert sample.metadata == {"answer_frame": "norm1000"}


def test_normalized_boxes_are_shares(bring, refusal):
    (one, other), _, _ = bring(SHARES | {"normalized": True}, BOX | {"normalized": True, "coordinates": "norm1000"})
    assert one.metadata == {"answer_frame": "relative"} and other.metadata == {"answer_frame": "norm1000"}
    assert "normalized: true, and not all numbers are from 0 to 1" in refusal(BOX | {"normalized": True})
    assert "normalized: must be true or false" in refusal(BOX | {"normalized": "yes"})


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"coordinates": "feet"}, "coordinates: unknown; use one of"),
        ({"metadata": {"answer_frame": "feet"}}, "metadata.answer_frame: unknown; use one of"),
        ({"bbox_type": "real", "metadata": {"answer_frame": "norm1000"}}, "fields name several frames"),
        ({"bbox_type": "pixels", "normalized": True}, "true is not for pixels"),
        (
            {"answer": "<bbox>", "objects": {"bbox": [[1, 2, 3, 4]]}, "coordinates": "norm1000"},
            "objects: its bbox_type is not what coordinates says",
        ),
    ],
)
def test_frames_that_are_unknown_or_differ_are_refused(refusal, more, told):
    assert told in refusal(BOX | more)


def test_places_on_earth_are_no_frame_of_a_box(bring):
    (sample,), _, _ = bring(BOX | {"answer": "red", "coordinates": [52.5, 13.4]})
    assert sample.metadata == {"other_fields": {"coordinates": [52.5, 13.4]}}


@pytest.mark.parametrize("more", [{"bbox_format": "xywh"}, {"metadata": {"bbox_format": "XYWH"}}])
def test_width_and_height_become_a_corner(bring, more):
    (sample,), _, job = bring(BOX | {"answer": [100, 20, 30, 40]} | more)
    assert sample.answer == "[100, 20, 130, 60]" and sample.metadata == {"answer_frame": "pixels"}
    assert job.counts.notes[box_answers.MOVED.format("x1, y1, w, h")] == 1


@pytest.mark.parametrize("word", ["xyzw", "rle", 7])
def test_other_ways_to_write_a_box_are_refused(bring, refusal, word):
    assert "bbox_format: unknown; use" in refusal(BOX | {"bbox_format": word})
    (sample,), _, _ = bring(BOX | {"bbox_format": "xyxy"})
    assert sample.answer == "[10, 20, 300, 400]"


@pytest.mark.parametrize("more", [{"loss": False}, {"weight": 0}, {"loss": 0.0}])
def test_an_answer_that_is_not_to_be_learnt_is_refused(bring, refusal, more):
    said = [{"role": "user", "content": "What?"}, {"role": "assistant", "content": "red"}]
    assert "no loss or no weight" in refusal({"messages": [said[0], said[1] | more], "image": "a.png"})
    (sample,), _, _ = bring({"messages": [said[0], said[1] | {"loss": True, "weight": 1}], "image": "a.png"})
    assert sample.answer == "red"
