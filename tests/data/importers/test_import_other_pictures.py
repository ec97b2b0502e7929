"""No picture of a record is left out without a word."""

import base64

import numpy as np
import pytest
from PIL import Image

ASKED = {"question": "Which?", "answer": "red"}
UNUSED = "fields that name different pictures, and not all are used"


@pytest.fixture
def more(data):
    for number, name in enumerate(("b.png", "c.png")):
        Image.fromarray(np.full((10, 20, 3), number, np.uint8)).save(data / name)
    (data / "same.png").write_bytes((data / "a.png").read_bytes())
    return data


@pytest.mark.parametrize("names", [("image_2", "image_3"), ("image2", "image3"), ("image_1", "image_2")])
def test_numbered_columns_beside_an_image_come_after_it(bring, more, names):
    alone = ASKED | {"images": ["a.png", "b.png", "c.png"]}
    columns = ASKED | {"image": "a.png"} | dict(zip(names, ("b.png", "c.png"), strict=True))
    (one,), _, _ = bring(alone)
    (other,), refused, _ = bring(columns)
    assert refused == [] and one.image_paths == other.image_paths and "other_fields" not in other.metadata


def test_a_first_column_that_is_the_image_is_not_taken_twice(bring, more):
    (sample,), _, _ = bring(ASKED | {"image": "a.png", "image_1": "a.png", "image_2": "b.png"})
    assert len(sample.image_paths) == 2


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"image": "a.png", "images": ["a.png", "b.png"]}, "images: "),
        ({"image": "a.png", "images": ["gone.png"]}, "images: "),
        ({"images": ["a.png"], "frames": ["b.png", "c.png"]}, "frames: "),
        ({"query_image": "b.png", "image": "a.png"}, "query_image: "),
        ({"image_a": "b.png", "image_b": "c.png", "image": "a.png"}, "image_"),
        ({"images": ["a.png"], "image_1": "b.png"}, "image_1: "),
    ],
)
def test_different_pictures_in_several_fields_are_refused(bring, refusal, more, fields, told):
    found = refusal(ASKED | fields)
    assert found.startswith(told) and UNUSED in found
    said = [{"from": "human", "value": "Which?"}, {"from": "gpt", "value": "red"}]
    assert UNUSED in refusal({"conversations": said} | fields)


def test_two_columns_that_nothing_joins_are_refused(refusal, more):
    assert "no image is named" in refusal(ASKED | {"image_a": "a.png", "image_b": "b.png"})


@pytest.mark.parametrize(
    "fields",
    [
        {"image": "a.png", "images": ["a.png"]},
        {"image": "a.png", "image_path": "same.png"},
        {"image": "a.png", "image_name": "train/a.png", "image_url": "https://x.org/b.jpg", "image_id": "7"},
        {"image": "gone.png", "images": ["a.png"]},
        {"frames": ["a.png"], "video": "film.mp4"},
        {"image": "a.png", "image_size": [100, 200], "image_source": "coco/1.jpg"},
    ],
)
def test_the_same_picture_may_be_named_twice(bring, more, fields):
    (sample,), refused, _ = bring(ASKED | fields)
    assert refused == [] and (sample.image_paths or sample.frames)


def test_bytes_of_the_picture_may_be_packed_in_another_way(bring, more):
    packed = base64.b64encode((more / "b.png").read_bytes()).decode()
    (sample,), refused, _ = bring(ASKED | {"image": "a.png", "decoded_image": {"bytes": packed}})
    assert refused == [] and len(sample.image_paths) == 1


def test_records_with_steps_lose_no_picture_either(refusal, more):
    record = ASKED | {"task_type": "object_counting", "trajectory": [], "image_path": "a.png", "images": ["b.png"]}
    assert UNUSED in refusal(record)
