import importlib
import json

import numpy as np
import pytest
from test_ocr import TEXT, written

from pixelis_jax.tools import TOOLS, cache, execute, ocr, read_text, select
from pixelis_jax.tools.base import Session
from pixelis_jax.tools.ocr import Line, Word
from pixelis_jax.types import ToolCall, UserError

IMAGE = np.random.default_rng(0).integers(0, 256, (200, 400, 3), dtype=np.uint8)


@pytest.fixture(autouse=True)
def empty_cache():
    cache.RESULTS.clear()


def session_of(image=IMAGE, seen=(100, 200), **options):
    return Session([image], [seen], fit_crop=lambda height, width: (56, 56), **options)


def read(session, tool=None, **arguments):
    return execute(session, ToolCall("READ_TEXT", arguments), tools={"READ_TEXT": tool or TOOLS["READ_TEXT"]})


def told(lines, name="fake"):
    """A tool whose backend finds these lines in whatever it is shown, and the shapes of what it was shown."""
    shown = []
    return read_text.make(lambda image: shown.append(image.shape) or list(lines), name=name, packages=()), shown


HELLO = Line(
    "Hello you", 0.987, (10, 20, 50, 30), (Word("Hello", 0.99, (10, 20, 30, 30)), Word("you", 0.9, (34, 20, 50, 30)))
)


def test_the_text_of_an_image_is_compact_json_with_boxes_as_seen():
    """The image of 400 x 200 is seen at half of that, so boxes are halved."""
    tool, _ = told([HELLO])
    seen = read(session_of(), tool)
    line = '{"text":"Hello you","confidence":0.99,"bbox_2d":[5,10,25,15]}'
    assert seen.text == f'{{"text":"Hello you","lines":[{line}]}}'
    assert (seen.ok, seen.image, seen.region, seen.target_image, seen.out_of_image) == (True, None, None, 1, False)
    assert seen.data["text"] == "Hello you" and seen.data["lines_not_read"] == 0
    (record,) = seen.data["lines"]
    assert record["words"] == [
        {"text": "Hello", "confidence": 0.99, "bbox_2d": [5, 10, 15, 15]},
        {"text": "you", "confidence": 0.9, "bbox_2d": [17, 10, 25, 15]},
    ]
    assert json.loads(json.dumps(seen.data)) == seen.data


def test_a_box_is_read_at_full_resolution_and_its_lines_stand_where_they_do_in_the_image():
    """Seen [20, 10, 120, 60] is [40, 20, 240, 120] of the original: 200 x 100 px, from (40, 20) on."""
    tool, shown = told([HELLO])
    seen = read(session_of(), tool, bbox_2d=[20, 10, 120, 60])
    assert shown == [(100, 200, 3)]
    assert json.loads(seen.text)["lines"][0]["bbox_2d"] == [25, 20, 45, 25]
    assert seen.region == (0.35, 0.35, 0.5, 0.5)
    norm = read(session_of(coordinates="norm1000"), tool, bbox_2d=[100, 100, 600, 600])
    assert json.loads(norm.text)["lines"][0]["bbox_2d"] == [125, 200, 225, 250]


def test_a_box_partly_outside_is_clamped_and_says_so():
    tool, _ = told([HELLO])
    seen = read(session_of(), tool, bbox_2d=[-20, 10, 120, 60])
    assert seen.ok and seen.out_of_image and json.loads(seen.text)["note"] == "box clamped to the image"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"bbox_2d": [10, 10, 10, 10]}, "error: bbox_2d is empty; x2 must be above x1 and y2 above y1"),
        ({"bbox_2d": [300, 10, 310, 20]}, "error: bbox_2d lies outside image 1 of 200x100"),
        ({"bbox_2d": None}, "error: bbox_2d must be 4 numbers"),
        ({"target_image": 3}, "error: there is no image 3; images are 1 to 1"),
        ({"language": "en"}, "error: READ_TEXT has no argument 'language'"),
    ],
)
def test_failed_calls_are_error_observations(arguments, text):
    tool, shown = told([HELLO])
    seen = read(session_of(), tool, **arguments)
    assert (seen.ok, seen.text, shown) == (False, text, [])


def test_no_text_is_no_error():
    tool, _ = told([])
    seen = read(session_of(), tool)
    assert seen.ok and seen.text == '{"text":"","lines":[]}'
    assert seen.data == {"text": "", "lines": [], "lines_not_read": 0}


def column(texts):
    return [Line(text, 0.9, (0, 10 * i, 100, 10 * i + 8)) for i, text in enumerate(texts)]


def test_lines_side_by_side_are_one_line_of_the_text():
    lines = [Line("a", 0.9, (0, 0, 9, 9)), Line("b", 0.9, (20, 1, 29, 10)), Line("c", 0.9, (0, 20, 9, 29))]
    tool, _ = told(lines)
    assert read(session_of(), tool).data["text"] == "a b\nc"


def test_what_is_told_of_a_long_text_is_bounded_and_says_what_is_missing():
    """18 lines of which 2 were not read: 16 are told at most, and 800 characters."""
    tool, _ = told(column(["x" * 10] * 18 + ["", ""]))
    seen = read(session_of(), tool)
    answer = json.loads(seen.text)
    assert len(answer["lines"]) == 16 and answer["lines_left_out"] == 4
    assert len(seen.data["lines"]) == 18 and seen.data["lines_not_read"] == 2
    tool, _ = told(column(["x" * 300] * 3), "longer")
    answer = json.loads(read(session_of(), tool).text)
    assert len(answer["lines"]) == 2 and answer["lines_left_out"] == 1
    tool, _ = told(column(["x" * 900, "y"]), "longest")
    answer = json.loads(read(session_of(), tool).text)
    assert answer["text"] == "x" * 797 + "..." and answer["lines_left_out"] == 1


def test_an_equal_call_on_an_equal_image_is_read_once():
    tool, shown = told([HELLO])
    first, second = read(session_of(), tool), read(session_of(IMAGE.copy(), (50, 100)), tool)
    assert len(shown) == 1
    assert json.loads(first.text)["lines"][0]["bbox_2d"] == [5, 10, 25, 15]
    assert json.loads(second.text)["lines"][0]["bbox_2d"] == [2, 5, 13, 8]  # as this session sees it
    read(session_of(), tool, bbox_2d=[0, 0, 100, 100])
    read(session_of(IMAGE[::-1]), tool)
    assert len(shown) == 3
    other, seen_by_other = told([], "other")
    assert read(session_of(), other).data["text"] == "" and len(seen_by_other) == 1


def test_real_text_is_read_from_a_shrunk_picture_and_from_a_crop_of_it():
    image = written(TEXT, 24)
    high, wide = image.shape[0] // 4, image.shape[1] // 4
    session = Session([image], [(high, wide)], fit_crop=lambda height, width: (56, 56))
    assert read(session).data["text"] == "\n".join(TEXT)
    execute(session, ToolCall("ZOOM_IN", {"bbox_2d": [0, 0, wide, high // 2]}))
    seen = read(session, target_image=2)
    assert seen.data["text"] == TEXT[0] and seen.target_image == 2
    (line,) = json.loads(seen.text)["lines"]
    assert 0 <= line["bbox_2d"][0] < line["bbox_2d"][2] <= 56  # as the crop is seen


def test_without_its_packages_the_tool_is_refused_at_the_start_and_a_call_says_why(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None)
    with pytest.raises(UserError, match=r"tool READ_TEXT needs the package rapidocr, .*pixelis-jax\[tools\]"):
        select(["READ_TEXT"])
    assert list(select(["ZOOM_IN"])) == ["ZOOM_IN"]

    def missing(name, *rest):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(ocr, "_readers", [])
    monkeypatch.setattr(importlib, "import_module", missing)
    seen = read(session_of())
    words = "error: text can't be read here without the package rapidocr: pip install 'pixelis-jax[tools]'"
    assert (seen.ok, seen.text) == (False, words)
