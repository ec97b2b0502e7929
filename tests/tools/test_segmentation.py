import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixelis_jax.data.pixelsearch.address import generator
from pixelis_jax.data.pixelsearch.draw import render, shape_mask
from pixelis_jax.data.pixelsearch.scene import make_scene
from pixelis_jax.tools import colors, shapes
from pixelis_jax.tools.base import ToolError
from pixelis_jax.tools.pixels import bounds
from pixelis_jax.tools.segmentation import LARGEST_SHARE, segment, segment_box

cv2 = pytest.importorskip("cv2", reason="the classical segmentation is OpenCV's, of the extra [tools]")


def photo(name):
    data = pytest.importorskip("skimage.data", reason="photographs of scikit-image: pip install -e .[test]")
    image = getattr(data, name)()
    return np.repeat(image[..., None], 3, 2) if image.ndim == 2 else image


def iou(a, b):
    return np.count_nonzero(a & b) / np.count_nonzero(a | b)


def disc(height, width, x, y, radius):
    rows, columns = np.mgrid[:height, :width]
    return (columns - x) ** 2 + (rows - y) ** 2 <= radius**2


def test_shapes_of_200_scenes_are_found_and_measured():
    """Clicks on the content and beside it, against the masks that the scenes are drawn from."""
    overlaps, areas, middles, color_names, shape_names = [], [], [], [], []
    for index in range(200):
        scene = make_scene(7, "heldout", index)
        image, draw = render(scene), generator("clicks", index)
        for number, shape in enumerate(scene.shapes):
            x1, y1, x2, y2 = shape.box
            side = x2 - x1
            truth = np.zeros(image.shape[:2], bool)
            truth[y1:y2, x1:x2] = shape_mask(shape.kind, side)
            x, y = shape.content.center
            if (index + number) % 2:
                x, y = (value + int(draw.integers(-side // 10, side // 10 + 1)) for value in (x, y))
            try:
                mask = segment(image, (x, y))
            except ToolError:
                overlaps.append(0.0)
                continue
            assert mask[y, x]
            form, true = shapes.form_of(mask), shapes.form_of(truth)
            overlaps.append(iou(mask, truth))
            areas.append(abs(form.area_px / true.area_px - 1) < 0.05)
            middles.append(max(abs(a - b) for a, b in zip(form.centroid, true.centroid, strict=True)) < 0.01 * side)
            color_names.append(colors.name_of(colors.dominant(image[mask])) == shape.color)
            shape_names.append(form.shape == shape.kind)
    assert len(overlaps) > 700
    assert np.mean(np.array(overlaps) >= 0.9) >= 0.98 and np.mean(overlaps) >= 0.97
    assert np.mean(areas) >= 0.98 and np.mean(middles) >= 0.98
    assert np.mean(color_names) >= 0.99 and np.mean(shape_names) >= 0.97


def test_a_disc_without_an_outline_is_found_to_the_pixel_and_takes_no_background_with_it():
    image = np.full((200, 300, 3), (90, 120, 90), np.uint8)
    truth = disc(200, 300, 150, 90, 40)
    image[truth] = (220, 60, 60)
    assert iou(segment(image, (150, 90)), truth) > 0.98
    assert iou(segment(image, (180, 100)), truth) > 0.98


def test_a_hole_belongs_to_what_is_around_it():
    image = np.full((200, 200, 3), 80, np.uint8)
    whole = disc(200, 200, 100, 100, 60)
    image[whole] = (30, 200, 220)
    image[disc(200, 200, 100, 100, 25)] = 80
    assert iou(segment(image, (60, 100)), whole) > 0.98


def test_a_letter_gives_way_to_what_it_stands_on_and_a_lone_speck_does_not():
    image = np.full((400, 400, 3), 128, np.uint8)
    tile = np.zeros((400, 400), bool)
    tile[100:200, 100:200] = True
    image[tile] = (240, 220, 40)
    image[140:160, 146:154] = 0  # a stroke of 0.1 % of the image
    image[300:312, 300:312] = (200, 30, 30)
    assert iou(segment(image, (150, 150)), tile) > 0.97
    assert bounds(segment(image, (305, 305))) == (300, 300, 312, 312)


def test_small_objects_of_a_large_image_are_seen_at_full_resolution():
    image = np.full((1500, 2000, 3), 60, np.uint8)
    truth = disc(1500, 2000, 1801, 203, 14)
    image[truth] = (250, 240, 230)
    assert iou(segment(image, (1801, 203)), truth) > 0.9


@pytest.mark.parametrize("place", [(10, 10), (150, 10), (290, 190)])
def test_the_background_is_no_object(place):
    image = np.full((200, 300, 3), 100, np.uint8)
    image[60:140, 100:200] = (200, 40, 40)
    with pytest.raises(ToolError, match="no object at this point"):
        segment(image, place)


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (2, 3000), (3000, 2), (40, 40)])
def test_an_image_of_one_color_has_no_object(shape):
    with pytest.raises(ToolError, match="no object at this point"):
        segment(np.full((*shape, 3), 77, np.uint8), (shape[1] // 2, shape[0] // 2))


def test_an_object_cut_by_the_border_of_the_picture_is_one():
    image = np.full((200, 300, 3), 100, np.uint8)
    truth = disc(200, 300, 290, 100, 50)
    image[truth] = (40, 60, 220)
    assert iou(segment(image, (280, 100)), truth) > 0.97


def test_coins_of_a_photograph():
    """Reference: Otsu's threshold, opened, holes filled; the dark relief of some coins is outside it."""
    ndimage = pytest.importorskip("scipy.ndimage")
    filters = pytest.importorskip("skimage.filters", reason="Otsu's threshold: pip install -e .[test]")
    image = photo("coins")
    light = ndimage.binary_opening(image[..., 0] > filters.threshold_otsu(image[..., 0]))
    labels, count = ndimage.label(ndimage.binary_fill_holes(light))
    coins = [
        labels == k for k in range(1, count + 1) if np.count_nonzero(labels == k) > 500 and not (labels == k)[0].any()
    ]
    found = []
    for coin in coins:
        y, x = (round(value) for value in ndimage.center_of_mass(coin))
        found.append(iou(segment(image, (x, y)), coin))
    assert len(coins) == 24
    assert min(found) > 0.7 and np.mean(found) > 0.92


# (photograph, click, box marked by eye on the picture with a grid over it). The list is whole: what is not found stays.
MARKED = (
    ("coffee", (330, 110), (173, 18, 410, 208)),  # opening of the cup, from inside
    ("coffee", (300, 60), (173, 18, 410, 208)),
    ("coffee", (220, 60), (173, 18, 410, 208)),
    ("coffee", (280, 150), (205, 97, 370, 193)),  # coffee
    ("coffee", (365, 285), (327, 232, 407, 325)),  # spoon
    ("chelsea", (150, 115), (134, 84, 215, 150)),  # eye on the left
    ("chelsea", (190, 120), (134, 84, 215, 150)),
    ("chelsea", (173, 115), (134, 84, 215, 150)),
    ("chelsea", (320, 150), (295, 110, 342, 164)),  # eye on the right
    ("chelsea", (305, 140), (295, 110, 342, 164)),
    ("astronaut", (358, 440), (345, 423, 372, 460)),  # window that the helmet reflects
    ("astronaut", (300, 360), (278, 339, 329, 378)),  # name tag
    ("astronaut", (160, 380), (106, 347, 208, 424)),  # badge
    ("astronaut", (248, 450), (241, 444, 257, 476)),  # clasp
    ("astronaut", (385, 362), (363, 357, 401, 374)),  # second reflection
    ("rocket", (320, 200), (309, 138, 335, 380)),  # rocket
)


def test_objects_of_photographs_that_were_marked_by_hand():
    """Half of them, 8 of 16: things of one colour are found, those of several (spoon, badge, eye) are not whole."""
    found = []
    for name, point, marked in MARKED:
        try:
            x1, y1, x2, y2 = bounds(segment(photo(name), point))
        except ToolError:
            found.append(0.0)
            continue
        width, height = min(x2, marked[2]) - max(x1, marked[0]), min(y2, marked[3]) - max(y1, marked[1])
        common = max(0, width) * max(0, height)
        areas = (x2 - x1) * (y2 - y1) + (marked[2] - marked[0]) * (marked[3] - marked[1])
        found.append(common / (areas - common))
    assert np.mean(np.array(found) > 0.5) >= 0.4


def test_the_object_of_a_box_is_what_stands_in_it():
    image = np.full((200, 300, 3), 110, np.uint8)
    truth = disc(200, 300, 150, 100, 40)
    image[truth] = (220, 60, 200)
    for box in [(110, 60, 191, 141), (100, 50, 201, 151), (112, 62, 189, 139)]:
        mask = segment_box(image, box)
        assert iou(mask, truth) > 0.95
        assert mask.sum() == mask[box[1] : box[3], box[0] : box[2]].sum()


def test_a_box_without_an_object_is_taken_whole():
    image = np.full((200, 300, 3), 110, np.uint8)
    assert segment_box(image, (20, 30, 60, 90)).sum() == 40 * 60
    image[:, 100:] = (200, 40, 40)
    assert segment_box(image, (200, 50, 240, 90)).sum() == 40 * 40  # a part of something larger
    assert segment_box(image, (0, 0, 1, 1)).sum() == 1


IMAGES = st.integers(0, 2**32 - 1).flatmap(
    lambda seed: st.tuples(st.just(seed), st.integers(1, 64), st.integers(1, 64), st.sampled_from((2, 4, 256)))
)


@given(IMAGES, st.floats(0, 0.999), st.floats(0, 0.999))
def test_any_image_gives_a_mask_around_the_point_or_no_object(image, across, down):
    seed, height, width, levels = image
    draw = generator("noise", seed)
    grain = int(draw.integers(1, 17))
    cells = draw.integers(0, levels, (-(-height // grain), -(-width // grain), 3)) * 255 // (levels - 1)
    pixels = cells.repeat(grain, 0).repeat(grain, 1)[:height, :width].astype(np.uint8)
    x, y = int(across * width), int(down * height)
    try:
        mask = segment(pixels, (x, y))
    except ToolError as error:
        assert str(error) == "no object at this point"
    else:
        assert mask.shape == (height, width) and mask.dtype == bool and mask[y, x]
        assert mask.mean() <= LARGEST_SHARE
        assert np.array_equal(mask, segment(pixels, (x, y)))
    box = (x, y, int(draw.integers(x + 1, width + 1)), int(draw.integers(y + 1, height + 1)))
    inside = segment_box(pixels, box)
    assert inside.any() and inside.sum() == inside[box[1] : box[3], box[0] : box[2]].sum()
