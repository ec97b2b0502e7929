import dataclasses
import hashlib
import math

import numpy as np
import pytest

from pixelis_jax.data.pixelsearch import assets, draw
from pixelis_jax.data.pixelsearch.scene import BACKGROUNDS, COLORS, SHAPES, is_held_out, make_scene
from pixelis_jax.types import UserError

GOLDEN = {
    "plain": "6d867909e95ffff0",
    "gradient": "367e92ac28bea32a",
    "noise": "8643e2243377c14f",
    "photo": "501e61e3cad4ebf2",
}
SCENES = [make_scene(3, split, index) for split in ("train", "heldout") for index in range(150)]


def test_digit_images_of_the_splits_are_disjoint():
    train, heldout = set(assets.digit_pool("train").tolist()), set(assets.digit_pool("heldout").tolist())
    assert (len(train), len(heldout), len(train | heldout)) == (1400, 397, 1797)
    for scene in SCENES:
        pool = train if scene.split == "train" else heldout
        digits = [shape.content for shape in scene.shapes if shape.content.kind == "digit"]
        assert all(content.digit_image in pool for content in digits)
        assert all(content.value == str(assets.digits()[1][content.digit_image]) for content in digits)


def test_letter_pairs_of_the_splits_are_disjoint():
    for scene in SCENES:
        codes = [shape.content.value for shape in scene.shapes if shape.content.kind == "text"]
        assert all(is_held_out(code) == (scene.split == "heldout") for code in codes)


def test_canvas_sides_and_aspects():
    aspects = {scene.height * 12 // scene.width for scene in SCENES}
    assert aspects == {9, 12, 16}
    assert all(512 <= side <= 1024 for scene in SCENES for side in (scene.height, scene.width))


def test_an_overview_of_a_square_scene_is_never_rounded_down_a_step():
    """Qwen2-VL's resize takes floor(side / sqrt(area / budget) / 28): 4 for every square at 112 * 112 px."""
    squares = {scene.height for scene in SCENES if scene.height == scene.width}
    assert len(squares) > 10
    assert {math.floor(side / math.sqrt(side * side / 112**2) / 28) for side in squares} == {4}


def test_shapes_are_distinct_and_do_not_overlap():
    for scene in SCENES:
        assert 3 <= len(scene.shapes) <= 5
        assert len({(shape.color, shape.kind) for shape in scene.shapes}) == len(scene.shapes)
        taken = np.zeros((scene.height, scene.width), np.uint8)
        for shape in scene.shapes:
            x1, y1, x2, y2 = shape.box
            assert 0 <= x1 < x2 <= scene.width and 0 <= y1 < y2 <= scene.height
            taken[y1:y2, x1:x2] += 1
        assert taken.max() == 1


def test_every_scene_has_a_digit_and_a_text_and_about_60_percent_digits():
    kinds = [[shape.content.kind for shape in scene.shapes] for scene in SCENES]
    assert all({"digit", "text"} == set(of_scene) for of_scene in kinds)
    flat = [kind for of_scene in kinds for kind in of_scene]
    assert 0.55 < flat.count("digit") / len(flat) < 0.65


def test_all_colours_and_kinds_come_up():
    shapes = [shape for scene in SCENES for shape in scene.shapes]
    assert {shape.color for shape in shapes} == set(COLORS)
    assert {shape.kind for shape in shapes} == set(SHAPES)


def test_content_lies_inside_its_shape():
    """The box of the content's ink, without the affine map's margin, is covered by the shape's mask."""
    for scene in SCENES:
        for shape in scene.shapes:
            x1, y1, x2, _ = shape.box
            mask = draw.shape_mask(shape.kind, x2 - x1)
            content = shape.content
            half = content.height_px // 2, content.height_px * (8 if content.kind == "text" else 5) // 10
            row, column = content.center[1] - y1, content.center[0] - x1
            assert mask[row - half[0] : row + half[0], column - half[1] : column + half[1]].all(), shape


def test_same_address_same_pixels_and_other_address_other_pixels():
    scene = make_scene(1, "train", 5)
    assert scene == make_scene(1, "train", 5)
    assert np.array_equal(draw.render(scene), draw.render(make_scene(1, "train", 5)))
    assert make_scene(1, "train", 6).shapes != scene.shapes
    assert make_scene(2, "train", 5).shapes != scene.shapes


@pytest.mark.parametrize("background", BACKGROUNDS)
def test_pixels_are_these_on_any_machine(background):
    scene = dataclasses.replace(make_scene(0, "heldout", 11), background=background)
    pixels = draw.render(scene)
    assert pixels.shape == (scene.height, scene.width, 3) and pixels.dtype == np.uint8
    assert hashlib.sha256(pixels.tobytes()).hexdigest()[:16] == GOLDEN[background]


def test_shapes_stand_out_on_every_background():
    """Inside a shape, away from outline and content, its own colour stands."""
    for scene in SCENES[:12]:
        pixels = draw.render(scene)
        for shape in scene.shapes:
            x1, y1, x2, y2 = shape.box
            inside = pixels[y1:y2, x1:x2][draw.shape_mask(shape.kind, x2 - x1)]
            assert (inside == shape.rgb).all(1).mean() > 0.5


def test_masks_have_the_area_of_their_shape():
    side = 200
    area = {kind: draw.shape_mask(kind, side).mean() for kind in SHAPES}
    assert area["square"] == 1
    assert area["circle"] == pytest.approx(np.pi / 4, abs=0.01)
    assert area["triangle"] == pytest.approx(0.5, abs=0.01)
    assert area["diamond"] == pytest.approx(0.5, abs=0.01)
    assert area["cross"] == pytest.approx(0.46 * 2 - 0.46**2, abs=0.01)


def test_unknown_split_is_a_user_error():
    with pytest.raises(UserError, match="train, heldout"):
        make_scene(0, "test", 0)
