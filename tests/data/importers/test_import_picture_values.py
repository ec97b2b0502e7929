"""The ways in which other data write a picture: each gives the same bytes, or one line that says why not."""

import base64
import io
from pathlib import Path

import pytest
from PIL import Image

from pixelis_jax.data.importers import picture_values
from pixelis_jax.data.importers.base import Place, Refusal

PLACE = Place("f:1", Path("f"))
QUESTION = {"question": "What is it?", "answer": "red"}


def encoded(form, size=(24, 16)):
    """A small picture as the bytes of a format."""
    buffer = io.BytesIO()
    Image.new("RGB", size, (200, 30, 30)).save(buffer, form)
    return buffer.getvalue()


FORMS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")


@pytest.mark.parametrize("form", FORMS)
def test_base64_of_every_format_is_decoded(bring, form):
    """Bare, in lines, without padding, in the alphabet of addresses, as a data URI: one picture."""
    data = encoded(form)
    text = base64.b64encode(data).decode()
    lines = "\n".join(text[i : i + 76] for i in range(0, len(text), 76))
    values = [text, lines, text.rstrip("="), base64.urlsafe_b64encode(data).decode(), f"base64,{text}"]
    values += [f"data:image/{form.lower()};base64,{text}", f"data:image/png,{text}", {"bytes": text}, {"data": text}]
    values += [{"bytes": list(data)}, list(data), {"type": "base64", "media_type": "image/png", "data": text}]
    samples, refused, job = bring(*(QUESTION | {"image": value, "qid": i} for i, value in enumerate(values)))
    assert refused == [] and len({sample.image_paths for sample in samples}) == 1
    assert (job.out / samples[0].image_paths[0]).read_bytes() == data


def test_paths_in_every_usual_shape(bring, data):
    (data / "img").mkdir()
    (data / "img" / "my scene.png").write_bytes(encoded("PNG"))
    spelled = "img/my%20scene.png"
    values = [
        *("img/my scene.png", "img\\my scene.png", "./img/my scene.png", f"file://{spelled}", f"FILE:{spelled}"),
        *(f"file://{data}/{spelled}", f"file://localhost{data}/{spelled}", f"file:{data}/img/my scene.png"),
        *(
            {"image": "img/my scene.png"},
            {"path": "img/my scene.png", "bytes": None},
            {"file_name": "img/my scene.png"},
        ),
        *({"image_url": {"url": "img/my scene.png"}}, {"type": "image", "image": f"file://{spelled}"}),
        *(["img/my scene.png"], [["img/my scene.png"]], "['img/my scene.png']", '["img/my scene.png"]'),
    ]
    samples, refused, _ = bring(*(QUESTION | {"image": value, "qid": i} for i, value in enumerate(values)))
    assert refused == [] and len({sample.image_paths for sample in samples}) == 1


def test_a_record_of_verl(bring, data):
    (data / "img").mkdir()
    (data / "img" / "p0.png").write_bytes(encoded("PNG"))
    record = {
        "prompt": [{"role": "user", "content": "<image>What color is the shape?"}],
        "images": [{"image": "img/p0.png"}],
        "reward_model": {"ground_truth": "red"},
    }
    (one, other), refused, _ = bring(record | {"id": 1}, record | {"images": [{"image": "file://img/p0.png"}], "id": 2})
    assert refused == [] and one.image_paths == other.image_paths
    assert (one.question, one.answer) == ("What color is the shape?", "red")


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("http://host/a.png", "is a web address, which is not fetched"),
        ({"image_url": {"url": "https://host/a.png"}}, "is a web address, which is not fetched"),
        ("s3://bucket/a.png", "is a web address, which is not fetched"),
        ({"bytes": "@@@"}, "bytes of an image that are not base64"),
        ("data:image/png;base64,@@", "data URI that is not base64"),
        ("data:image/png", "data URI that is not base64"),
        ({"bytes": None, "path": None}, "names no image"),
        ({"a": {"b": 1}}, "names no image"),
        ({}, "names no image"),
        ("", "names no image"),
        (3.5, "names no image"),
        ([[1, 2], [3, 4]], "names no image"),
    ],
)
def test_values_that_name_no_picture(value, told):
    with pytest.raises(Refusal, match=f"f:1: image: {told}"):
        picture_values.source(value, PLACE, "image")


def test_what_is_no_picture_is_refused_with_its_reason(refusal):
    text = base64.b64encode(b"no picture at all " * 90).decode()
    assert "image is not an image that can be read (its bytes)" in refusal(QUESTION | {"image": text})
    assert "no such image" in refusal(QUESTION | {"image": "abcd" * 20})
    assert "names no image" in refusal(QUESTION | {"images": ["a.png", None]})


def test_columns_of_pictures_are_one_list(bring, data):
    (data / "b.png").write_bytes(encoded("PNG"))
    question = {"question": "<image 1> and <image 2>: which is red?", "answer": "the second"}
    (sample,), _, _ = bring(question | {"image_1": "a.png", "image_2": {"path": "b.png"}, "image_3": None})
    assert len(sample.image_paths) == 2 and sample.question == "image 1 and image 2: which is red?"
    _, refused, _ = bring(question | {"image_1": "a.png", "image_2": None, "image_3": "b.png"})
    assert "image_1: columns of images have a gap (image_1, image_3)" in refused[0]


def test_another_field_is_used_where_the_files_of_the_first_are_not_there(bring, data):
    """As in data whose paths name files that were not sent along."""
    held = {"decoded_image": {"bytes": base64.b64encode(encoded("PNG")).decode()}}
    (sample,), refused, job = bring(QUESTION | {"image": "images/1.png"} | held)
    assert refused == [] and sample.image_paths[0].endswith(".png")
    assert job.counts.notes["pictures taken from decoded_image, since those of image are not there"] == 1
