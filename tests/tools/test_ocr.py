"""What the real models read: the numbers are those of rapidocr 3.10 with margin, on texts that a person can read."""

import importlib
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

from pixelis_jax.data.pixelsearch.draw import render
from pixelis_jax.data.pixelsearch.scene import make_scene
from pixelis_jax.tools import ocr
from pixelis_jax.tools.base import ToolError

pytest.importorskip("rapidocr", reason="the real models: pip install -e .[tools]")

TEXT = ("The quick brown fox jumps", "over 13 lazy dogs, twice!")
PAINTS = {
    "black on white": ((0, 0, 0), (255, 255, 255)),
    "white on blue": ((255, 255, 255), (20, 40, 90)),
    "red on cream": ((200, 30, 30), (250, 240, 200)),
    "green on green": ((70, 90, 70), (170, 190, 170)),
}
# Read by eye from scikit-image's picture of a printed page: 384 x 191 px, letters of 8 to 12 px, warped and shaded.
PAGE = """\
Region-based segmentation
Let us first determine markers of the coins and the
background. These markers are pixels that we can label
unambiguously as either object or background. Here,
the markers are found at the two extreme parts of the
histogram of grey values:
>>> markers = np.zeros_like(coins)"""


def written(lines, size, paint="black on white"):
    """u8[height, width, 3]: lines of text of this size (px of the font) with a margin of one line."""
    font = ImageFont.load_default(size)
    ink, ground = PAINTS[paint]
    width = int(max(font.getlength(line) for line in lines)) + 2 * size
    image = Image.new("RGB", (width, int((1.6 * len(lines) + 1.4) * size)), ground)
    for row, line in enumerate(lines):
        ImageDraw.Draw(image).text((size, (1 + 1.6 * row) * size), line, font=font, fill=ink)
    return np.asarray(image)


def error_rate(read, truth):
    """Insertions, deletions and substitutions that make `truth` of `read`, a character of `truth`."""
    row = np.arange(len(truth) + 1)
    for i, letter in enumerate(read, 1):
        before, row = row, np.full_like(row, i)
        for j, other in enumerate(truth, 1):
            row[j] = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != other))
    return row[-1] / len(truth)


def text_of(lines):
    return "\n".join(line.text for line in lines)


def test_the_error_rate_counts_edits():
    assert error_rate("kitten", "sitting") == pytest.approx(3 / 7)
    assert error_rate("", "abc") == 1 and error_rate("abc", "abc") == 0


@pytest.mark.parametrize("paint", PAINTS)
@pytest.mark.parametrize(("size", "most"), [(12, 0.1), (16, 0.05), (24, 0.0), (48, 0.0)])
def test_drawn_text_is_read(size, paint, most):
    """Found: .02 at 12 px, .016 at 16 px and 0 from 20 px on."""
    assert error_rate(text_of(ocr.rapid(written(TEXT, size, paint))), "\n".join(TEXT)) <= most


def test_a_photographed_page_is_read():
    """Found: 0 wrong of 293 characters."""
    data = pytest.importorskip("skimage.data", reason="photographs of scikit-image: pip install -e .[test]")
    page = np.stack([data.page()] * 3, axis=-1)
    assert error_rate(text_of(ocr.rapid(page)), PAGE) <= 0.02


def test_codes_of_pixelsearch_are_read_in_a_box_around_their_shape():
    """Two letters of 15 to 34 px; found: 76 of 78 codes of other scenes. Errors are small letters for large ones."""
    right = []
    for index in range(12):
        scene = make_scene(0, "train", index)
        image = render(scene)
        for shape in scene.shapes:
            if shape.content.kind == "text":
                x1, y1, x2, y2 = shape.box
                right.append(text_of(ocr.rapid(image[y1:y2, x1:x2])) == shape.content.value)
    assert len(right) >= 15 and np.mean(right) >= 0.8


def test_boxes_are_those_of_the_lines_and_words():
    """At 24 px the lines stand at y 24 + 38 i; the words' places follow from the font."""
    image = written(TEXT, 24)
    lines = ocr.rapid(image)
    font = ImageFont.load_default(24)
    for row, (line, text) in enumerate(zip(lines, TEXT, strict=True)):
        left, top, right, bottom = font.getbbox(text)
        drawn = (24 + left, 24 + 38.4 * row + top, 24 + right, 24 + 38.4 * row + bottom)
        np.testing.assert_allclose(line.box, drawn, atol=8)
        assert [word.text for word in line.words] == text.split()
        for word in line.words:
            start = font.getlength(text[: text.index(word.text)])
            span = (24 + start, 24 + start + font.getlength(word.text))
            np.testing.assert_allclose((word.box[0], word.box[2]), span, atol=10)
            assert 0 <= word.confidence <= 1


@pytest.mark.parametrize("quarters", [1, 2, 3])
def test_turned_text_is_read_and_its_words_are_where_they_stand(quarters):
    upright = written(TEXT[:1], 28)
    image = np.ascontiguousarray(np.rot90(upright, quarters))
    (line,) = ocr.rapid(image)
    assert line.text == TEXT[0]
    first, last = line.words[0].box, line.words[-1].box
    x, y = last[0] - first[0], last[1] - first[1]
    # Counterclockwise: upwards, to the left, downwards.
    towards = {1: -y, 2: -x, 3: y}[quarters]
    assert towards > 0.7 * max(line.box[2] - line.box[0], line.box[3] - line.box[1]) and abs(x) + abs(y) - towards < 10


def test_a_page_larger_than_the_bounds_is_searched_within_them():
    """3000 x 2000 px is searched at 1402 x 935, where these letters are 15 px high; boxes are those of the page."""
    image = np.full((2000, 3000, 3), 255, np.uint8)
    text = written(TEXT, 32)
    image[900 : 900 + len(text), 2000 : 2000 + text.shape[1]] = text
    lines = ocr.rapid(image)
    assert error_rate(text_of(lines), "\n".join(TEXT)) <= 0.05
    assert all(2000 <= line.box[0] < line.box[2] <= 2000 + text.shape[1] for line in lines)


@pytest.mark.parametrize(("height", "width"), [(1, 1), (2000, 3000), (20000, 10), (1024, 768), (20, 30)])
def test_what_is_searched_is_bounded(height, width):
    scale = ocr._scale(height, width)
    assert max(height, width) * scale <= ocr.LONG_SIDE and height * width * scale**2 <= ocr.MAX_PIXELS * 1.001
    assert scale == (1 if max(height, width) == 1024 else scale) and scale <= ocr.ENLARGED


def test_a_line_of_a_large_page_is_cut_from_full_resolution():
    """In a page at a quarter a quad of 40 x 20 px has 10 x 5; one of 240 x 200 has 60 x 50, which is enough."""
    full = np.random.default_rng(0).integers(0, 256, (400, 400, 3), dtype=np.uint8)
    page = ocr._Page(full, full[::4, ::4])
    small, large = (
        np.array([(x1, y1), (x2, y1), (x2, y2), (x1, y2)], float)
        for x1, y1, x2, y2 in ((80, 60, 120, 80), (40, 40, 280, 240))
    )
    assert np.array_equal(ocr._cut(page, small), full[60:80, 80:120])
    assert np.array_equal(ocr._cut(page, large), full[40:240:4, 40:280:4])
    wide = np.array([(0, 0), (400, 0), (400, 4), (0, 4)], float)
    assert ocr._cut(page, wide).shape == (4, 4 * ocr.LONGEST_LINE, 3)


@pytest.mark.parametrize("shape", [(1, 1), (1, 20000), (40000, 3), (7, 5), (64, 64)])
def test_an_image_without_text_has_no_lines(shape):
    assert ocr.rapid(np.full((*shape, 3), 90, np.uint8)) == []


def test_lines_beyond_the_bound_are_found_and_not_read(monkeypatch):
    monkeypatch.setattr(ocr, "MAX_LINES", 2)
    lines = ocr.rapid(written(["first", "second", "third", "fourth"], 24))
    assert [line.text for line in lines] == ["first", "second", "", ""]
    assert lines[1].box[1] < lines[2].box[1] < lines[3].box[1]


def test_the_same_image_gives_the_same_lines_also_from_several_threads():
    images = [written(TEXT[:1], 20), written(TEXT[1:], 30), render(make_scene(0, "train", 0))[100:300, 450:]]
    alone = [ocr.rapid(image) for image in images]
    assert all(alone)
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(ocr.rapid, images * 3))
    assert together == alone * 3


def test_reading_order_is_row_by_row():
    """Two columns, whose rows don't quite stand at one height, and a heading over both."""
    boxes = [(60, 33, 90, 45), (0, 30, 50, 40), (5, 0, 90, 12), (0, 50, 40, 60), (60, 51, 80, 61)]
    assert ocr.reading_order(boxes) == [2, 1, 0, 3, 4]
    assert ocr.rows(boxes) == [[2], [1, 0], [3, 4]]
    assert ocr.reading_order([]) == []


PROGRAM = """
import json, sys
import numpy as np
done = []
def hook(event, arguments):
    written = event == "open" and isinstance(arguments[1], str) and set(arguments[1]) & set("wax+")
    if written or event in ("os.mkdir", "os.rename", "os.remove", "socket.connect", "socket.getaddrinfo"):
        done.append([event, repr(arguments)])
sys.addaudithook(hook)
from pixelis_jax.tools import ocr
image = np.load(sys.argv[1])
text = [line.text for line in ocr.rapid(image)]
print(json.dumps([text, done]))
"""


def test_nothing_is_fetched_or_written_or_said(tmp_path):
    """Of a process of its own: no file is opened for writing, no connection is tried, and nothing is printed."""
    np.save(tmp_path / "image.npy", written(TEXT, 24))
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1", "HOME": str(tmp_path)}
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "image.npy")]
    got = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert got.stderr == ""
    assert json.loads(got.stdout) == [list(TEXT), []]


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(ocr, "_readers", [])
    real = importlib.import_module

    def without(name, *rest):
        if name == "onnxruntime":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *rest)

    monkeypatch.setattr(importlib, "import_module", without)
    with pytest.raises(ToolError, match=r"without the package onnxruntime: pip install 'pixelis-jax\[tools\]'"):
        ocr.rapid(np.zeros((50, 50, 3), np.uint8))


def test_missing_models_are_named(monkeypatch, tmp_path):
    with pytest.raises(ToolError, match="rapidocr is without its det model"):
        ocr._model(tmp_path, "det")
