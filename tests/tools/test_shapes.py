import math

import numpy as np
import pytest

from pixelis_jax.data.pixelsearch.draw import shape_mask
from pixelis_jax.tools.shapes import SHAPES, form_of, perimeter

cv2 = pytest.importorskip("cv2", reason="the form of a mask is measured with OpenCV, of the extra [tools]")


def polygon(points, angle_deg=0.0, size=240):
    """bool[size, size]: a polygon with these corners around the middle, turned counter-clockwise as seen."""
    angle = math.radians(-angle_deg)
    turn = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    corners = np.asarray(points, float) @ turn.T + size / 2
    mask = np.zeros((size, size), np.uint8)
    cv2.fillPoly(mask, [np.round(corners * 256).astype(np.int32)], 1, shift=8)
    return mask > 0


def rectangle(width, height, angle_deg=0.0):
    w, h = width / 2, height / 2
    return polygon([(-w, -h), (w, -h), (w, h), (-w, h)], angle_deg)


def ellipse(width, height, angle_deg=0.0):
    around = np.linspace(0, 2 * math.pi, 200, endpoint=False)
    return polygon(np.stack([width / 2 * np.cos(around), height / 2 * np.sin(around)], 1), angle_deg)


def cross(size, arm, angle_deg=0.0):
    return polygon([(0, 0)]) | rectangle(size, arm, angle_deg) | rectangle(arm, size, angle_deg)


@pytest.mark.parametrize("kind", ["circle", "square", "triangle", "diamond", "cross"])
@pytest.mark.parametrize("side", [16, 27, 60, 151, 400])
def test_the_shapes_of_pixelsearch_at_any_size(kind, side):
    assert form_of(shape_mask(kind, side)).shape == kind


@pytest.mark.parametrize("angle", range(0, 180, 15))
def test_turning_changes_a_name_only_where_it_should(angle):
    assert form_of(rectangle(150, 60, angle)).shape == "rectangle"
    assert form_of(ellipse(150, 90, angle)).shape == "ellipse"
    assert form_of(cross(150, 50, angle)).shape == "cross"
    assert form_of(polygon([(-70, 50), (70, 50), (0, -70)], angle)).shape == "triangle"
    assert form_of(polygon([(-40, 0), (0, -80), (40, 0), (0, 80)], angle)).shape == "diamond"
    assert form_of(rectangle(100, 100, angle)).shape == ("diamond" if 22.5 < angle % 90 < 67.5 else "square")


def test_a_square_on_its_corner_is_a_diamond():
    assert form_of(rectangle(100, 100, 45)).shape == "diamond"
    assert form_of(rectangle(100, 100, 10)).shape == "square"


def test_what_is_none_of_them_is_irregular():
    crescent = ellipse(160, 160).astype(int) - np.roll(ellipse(160, 160), 60, axis=1) > 0
    radii = [(80 if i % 2 else 30, i * math.pi / 5) for i in range(10)]
    star = polygon([(r * math.cos(angle), r * math.sin(angle)) for r, angle in radii])
    for mask in (crescent, star, rectangle(180, 40) | polygon([(-90, -20), (-50, -20), (-50, 110), (-90, 110)])):
        assert form_of(mask).shape == "irregular"


@pytest.mark.parametrize("angle", [-75, -45, -10, 20, 45, 80, 90])
def test_orientation_is_counter_clockwise_from_the_x_axis(angle):
    assert form_of(rectangle(150, 40, angle)).orientation_deg == pytest.approx(angle, abs=1)


def test_orientation_is_zero_where_no_axis_is_longer():
    assert form_of(ellipse(100, 100)).orientation_deg == form_of(rectangle(80, 80, 30)).orientation_deg == 0


@pytest.mark.parametrize("side", [12, 27, 80, 200])
def test_circularity_of_a_disc_a_square_and_a_triangle(side):
    """4 pi A / P^2: 1 for a disc, pi / 4 for a square; for a triangle as high as wide 2 pi / (1 + sqrt 5)^2 = 0.60."""
    assert form_of(shape_mask("circle", side)).circularity == pytest.approx(1, abs=0.06 if side < 50 else 0.02)
    assert form_of(shape_mask("square", side)).circularity == pytest.approx(math.pi / 4, abs=0.03)
    assert form_of(shape_mask("triangle", 2 * side)).circularity == pytest.approx(0.6, abs=0.05)
    assert form_of(rectangle(200, 10)).circularity < 0.25


@pytest.mark.parametrize("radius", [5, 10, 33, 80])
def test_perimeter_of_a_disc_and_of_two_squares(radius):
    assert perimeter(shape_mask("circle", 2 * radius)) == pytest.approx(2 * math.pi * radius, rel=0.04)
    square = np.pad(np.ones((radius, radius), bool), 1)
    assert perimeter(np.hstack([square, square])) == pytest.approx(8 * radius, rel=0.05)


def test_measures_of_a_rectangle_by_hand():
    mask = np.zeros((50, 60), bool)
    mask[10:20, 30:50] = True
    form = form_of(mask)
    assert (form.area_px, form.centroid, form.aspect, form.orientation_deg) == (200, (40.0, 15.0), 2.0, 0.0)
    assert form_of(mask.T).orientation_deg == 90 and form_of(mask.T).aspect == 0.5


@pytest.mark.parametrize("shape", [(1, 1), (1, 50), (50, 1), (2, 2), (3, 2000)])
def test_masks_of_a_pixel_and_of_a_line(shape):
    form = form_of(np.ones(shape, bool))
    assert form.area_px == shape[0] * shape[1] and form.shape in SHAPES and 0 < form.circularity <= 1
