"""Boxes in the forms in which models and data write them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pixelis_jax.answers import boxes

BOX = (10, 20, 60, 70)


@pytest.mark.parametrize(
    "said",
    [
        "[10, 20, 60, 70]", "(10, 20, 60, 70)", "[[10, 20, 60, 70]]", "10, 20, 60, 70", "10 20 60 70", "[10 20 60 70]",
        "[10;20;60;70]",
        "[(10, 20), (60, 70)]", "(10,20),(60,70)", "[10, 20], [60, 70]", "{10, 20, 60, 70}", "（10，20，60，70）",
        "[10., 2e1, 60, 70.0]",
        '{"bbox_2d": [10, 20, 60, 70]}', "{'bbox_2d': [10, 20, 60, 70]}",
        '[{"bbox_2d": [10, 20, 60, 70], "label": "a"}]',
        '{"bbox": [10, 20, 60, 70]}', '{"box": [[10, 20], [60, 70]]}', '{"bbox_2d": [[10, 20, 60, 70]]}',
        '{"x1": 10, "y1": 20, "x2": 60, "y2": 70}', '{"xmin": 10, "ymin": 20, "xmax": 60, "ymax": 70}',
        '```json\n[\n  {"bbox_2d": [10, 20, 60, 70], "label": "x"}\n]\n```', "```\n[10, 20, 60, 70]\n```",
        "`[10, 20, 60, 70]`",
        "<|box_start|>(10,20),(60,70)<|box_end|>",
        "<|object_ref_start|>a cat<|object_ref_end|><|box_start|>(10,20),(60,70)<|box_end|>",
        "<bbox>[10, 20, 60, 70]</bbox>", "<box>10 20 60 70</box>", "bbox_2d: [10, 20, 60, 70]",
        "Answer: (10, 20, 60, 70)",
        r"\boxed{[10, 20, 60, 70]}", "**[10, 20, 60, 70]**", '"bbox_2d": [10, 20, 60, 70]', "(10,20)-(60,70)",
        "(10, 20) to (60, 70)", "$[10, 20, 60, 70]$", "[10, 20, 60, 70].",
        '"[10, 20, 60, 70]"',
        '{"x":10,"y":20,"width":50,"height":50}', '{"x": 10, "y": 20, "w": 50, "h": 50}', "['10','20','60','70']",
        '{"left": 10, "top": 20, "right": 60, "bottom": 70}', '{"left": 10, "top": 20, "width": 50, "height": 50}',
        '[["10", "20"], ["60", "70"]]', '{"x": "10", "y": "20", "width": "50", "height": "50"}',
        "x1=10, y1=20, x2=60, y2=70", "(x1: 10, y1: 20, x2: 60, y2: 70)", "X1 = 10 Y1 = 20 X2 = 60 Y2 = 70.",
        "x=10, y=20, width=50, height=50",
        '{"left": 10, "top": 20, "right": 60, "bottom": 70, "width": 50, "height": 50}',
    ],
)  # fmt: skip
def test_one_box_in_many_forms(said):
    assert boxes.parse(said) == BOX


@pytest.mark.parametrize(
    "said",
    [
        "", "the box", "[10, 20, 60]", "[10, 20, 60, 70, 5]", "[60, 70, 10, 20]", "[10, 20, 10, 70]",
        "[10, 20, 60, x]", "[10, 20, 60, nan]",
        "[10, 20, 60, 1e999]", "[[1, 2, 3, 4], [5, 6, 7, 8]]", "[10%, 20%, 60%, 70%]", "The box is [10, 20, 60, 70]",
        "1,234, 20, 2,000, 70",
        '{"bbox_2d": [10, 20, 60, 70], "bbox": [1, 2, 3, 4]}', '{"label": "cat"}', '{"bbox_2d": true}',
        '[{"bbox_2d": [1,2,3,4]}, {"bbox_2d": [1,2,3,5]}]',
        "[" * 300 + "1", "(" * 300 + ")" * 300 + "1", "[10, 20, 60, 70", "__import__('os')1", "9" * 5000,
        "[True, 2, 3, 4]",
        '{"x": 10, "y": 20, "width": 0, "height": 50}', '{"x": 10, "y": 20, "width": "wide", "height": 50}',
        "['10','20','60','x']", "['10','20','60','nan']", "x1=10, y1=20, x2=60", "x1=10, x1=20, x2=60, y2=70",
        "a=10, b=20, c=60, d=70", '{"x": 1, "y": 2, "w": 3, "h": 4, "width": 5, "height": 5}',
        "x1=1e, y1=20, x2=60, y2=70", '{"left": 60, "top": 20, "right": 10, "bottom": 70}',
    ],
)  # fmt: skip
def test_what_is_not_one_box(said):
    assert boxes.parse(said) is None


def test_iou_by_hand():
    assert boxes.iou((0, 0, 10, 10), (5, 0, 15, 10)) == pytest.approx(1 / 3)
    assert boxes.iou((0, 0, 1, 1), (1, 0, 2, 1)) == 0 and boxes.iou(BOX, BOX) == 1


def test_a_box_keeps_its_place_in_another_size():
    """The example of the specification: 2000x1500 seen as 1148x840."""
    assert boxes.rescaled((574, 420, 861, 630), (840, 1148), (1500, 2000)) == pytest.approx((1000, 750, 1500, 1125))
    assert boxes.rescaled((500, 500, 750, 750), (1000, 1000), (1500, 2000)) == (1000, 750, 1500, 1125)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(-999, 999), min_size=4, max_size=4))
def test_any_four_numbers(values):
    x1, y1, x2, y2 = values
    assert boxes.parse(str(values)) == ((x1, y1, x2, y2) if x1 < x2 and y1 < y2 else None)


@settings(max_examples=60, deadline=None)
@given(st.text(st.sampled_from("0123456789.,()[]{}\"' :bo<>|/"), max_size=20))
def test_any_text_is_a_box_or_none(said):
    found = boxes.parse(said)
    assert found is None or (found[0] < found[2] and found[1] < found[3])
