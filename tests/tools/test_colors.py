import itertools

import numpy as np
import pytest

from pixelis_jax.data.pixelsearch.scene import COLORS
from pixelis_jax.tools.colors import NAMES, dominant, lab_of, name_of


def test_lab_of_known_colors():
    """Values of the CIE's formulas, as tables print them."""
    assert np.allclose(lab_of(np.array([255, 255, 255])), [100, 0, 0], atol=0.02)
    assert np.allclose(lab_of(np.array([255, 0, 0])), [53.24, 80.09, 67.20], atol=0.05)
    assert np.allclose(lab_of(np.array([0, 0, 255])), [32.30, 79.19, -107.86], atol=0.05)
    assert np.allclose(lab_of(np.array([0, 0, 0])), [0, 0, 0], atol=0.02)


@pytest.mark.parametrize("name", COLORS)
def test_every_variation_of_a_color_of_pixelsearch_has_its_name(name):
    steps = (-10, -5, 0, 5, 10)
    for change in itertools.product(steps, repeat=3):
        rgb = tuple(int(np.clip(value + by, 0, 255)) for value, by in zip(COLORS[name], change, strict=True))
        assert name_of(rgb) == name, rgb


@pytest.mark.parametrize(
    ("rgb", "name"),
    [
        ((255, 0, 0), "red"),
        ((255, 165, 0), "orange"),
        ((255, 255, 0), "yellow"),
        ((0, 128, 0), "green"),
        ((0, 255, 255), "cyan"),
        ((0, 0, 255), "blue"),
        ((135, 206, 235), "blue"),
        ((128, 0, 128), "purple"),
        ((255, 192, 203), "pink"),
        ((139, 69, 19), "brown"),
        ((0, 0, 0), "black"),
        ((20, 22, 18), "black"),
        ((255, 255, 255), "white"),
        ((240, 238, 236), "white"),
        ((128, 128, 128), "gray"),
        ((70, 72, 74), "gray"),
    ],
)
def test_common_colors(rgb, name):
    assert name_of(rgb) == name


def test_each_value_of_the_table_has_its_own_name():
    assert {"red", "orange", "yellow", "green", "cyan", "blue", "purple", "pink", "brown"} < set(NAMES)
    assert all(name_of(rgb) == name for name, values in NAMES.items() for rgb in values)


def test_the_commonest_color_is_that_of_the_fill_and_no_mean():
    """60 % red, 40 % white and black writing: the mean would be a pale red."""
    pixels = np.array([[215, 35, 40]] * 600 + [[245, 245, 245]] * 250 + [[15, 15, 15]] * 150, np.uint8)
    assert dominant(pixels) == (215, 35, 40)


def test_noise_and_the_borders_of_bins_do_not_split_a_color():
    """A value of 128 lies between two bins of 16; a blue that makes up 40 % must not win against gray around 128."""
    noise = np.random.default_rng(0).integers(-9, 10, (600, 3))
    pixels = np.concatenate([np.clip(128 + noise, 0, 255), np.full((400, 3), (20, 40, 216))]).astype(np.uint8)
    assert max(abs(value - 128) for value in dominant(pixels)) <= 2


def test_one_pixel_and_the_extremes():
    assert dominant(np.array([[7, 0, 255]], np.uint8)) == (7, 0, 255)
    assert dominant(np.array([[255, 255, 255]] * 3, np.uint8)) == (255, 255, 255)
