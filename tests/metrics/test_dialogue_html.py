"""A dialogue as HTML: well formed, escaped, without anything from outside, with its boxes where they belong."""

import base64
import io
import re
from html.parser import HTMLParser

import numpy as np
from PIL import Image

from pixelis_jax.metrics import dialogue_html

NASTY = '<script>alert("1")</script> & <image> "quoted" \ud800'
VOID = {"meta", "img"}


class Checked(HTMLParser):
    """Counts tags, and fails where one is not closed in turn."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.sources, self.words = [], [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.sources += [value for name, value in attributes if name in ("src", "href")]
        self.open += [] if tag in VOID else [tag]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def turn(text, call=None, observation=None, error=None):
    return {"text": text, "call": call, "observation": observation, "error": error}


def record():
    """Two turns: a zoom that returns a picture, an answer."""
    call = {"name": "ZOOM_IN", "arguments": {"bbox_2d": [50, 25, 100, 75]}}
    seen = {"text": "Image 2", "ok": True, "region": [0.375, 0.5, 0.25, 0.5], "image": 1}
    return {
        **{"task_id": "t", "task_type": "counting", "question": NASTY, "gold": "<b>7</b>", "numbers": {"reward": 1.0}},
        "turns": [turn("look", call, seen), turn("<answer>7</answer>", error=NASTY)],
    }


def test_a_dialogue_is_escaped_and_whole():
    pictures = [dialogue_html.inline(np.zeros((100, 200, 3), np.uint8)), "data:image/png;base64,AA"]
    section = dialogue_html.dialogue(record(), pictures, captions=[NASTY], notes=[NASTY])
    page = Checked(dialogue_html.page(NASTY, NASTY, [section], folded={NASTY: NASTY}))
    tags = [tag for tag, _ in page.tags]
    assert "script" not in tags and "image" not in tags and tags.count("img") == 2 and tags.count("section") == 1
    assert all(source.startswith("data:image/") for source in page.sources)
    assert sum('<script>alert("1")</script>' in words for words in page.words) == 9  # each as text, where it is said
    assert "reward 1" in "".join(page.words) and "<answer>7</answer>" in page.words


def test_boxes_are_numbered_and_lie_where_they_should():
    """Region (0.375, 0.5, 0.25, 0.5) is from 25 % to 50 % across and from 25 % to 75 % down."""
    section = dialogue_html.dialogue(record(), ["a", "b"], gold_box=(1, (0.9, 0.5, 0.4, 1.0)))
    boxes = re.findall(r'<span class="(box[^"]*)" style="([^"]*)"><b>([^<]*)</b>', section)
    assert boxes == [
        ("box", "left:25.00%;top:25.00%;width:25.00%;height:50.00%", "1"),
        ("box right", "left:70.00%;top:0.00%;width:30.00%;height:100.00%", "right"),  # cut to the picture
    ]
    first, second = section.index('src="a"'), section.index('src="b"')
    assert first < section.index('class="box"') < second  # drawn on the picture that the call is about
    assert section.index("turn 1") < second < section.index("turn 2")  # and its result where it was returned


def test_pictures_are_small_and_of_the_right_shape():
    for size, shown in (((1000, 2000), (320, 160)), ((40, 60), (60, 40)), ((3000, 30), (3, 320))):
        uri = dialogue_html.inline(np.full((*size, 3), 200, np.uint8))
        data = base64.b64decode(uri.partition(",")[2])
        assert Image.open(io.BytesIO(data)).size == shown and len(data) < 10_000
