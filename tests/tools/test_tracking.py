import math

import numpy as np
import pytest

from pixelis_jax.data.pixelsearch.draw import shape_mask
from pixelis_jax.data.pixelsearch.film import make_film, render_film
from pixelis_jax.tools.pixels import bounds
from pixelis_jax.tools.tracking import track

cv2 = pytest.importorskip("cv2", reason="the classical tracker is made of OpenCV's parts, of the extra [tools]")
HEIGHT, WIDTH = 288, 384


def photo(name):
    data = pytest.importorskip("skimage.data", reason="photographs of scikit-image: pip install -e .[test]")
    return cv2.resize(getattr(data, name)(), (WIDTH, HEIGHT), interpolation=cv2.INTER_AREA)


def polygon(image, center, radius, corners, *, turn=0.0, color):
    """Draws a regular polygon in place and returns its mask; 40 corners are a disc."""
    angles = np.arange(corners) * 2 * math.pi / corners + turn
    points = np.stack([center[0] + radius * np.cos(angles), center[1] + radius * np.sin(angles)], 1)
    mask = np.zeros(image.shape[:2], np.uint8)
    cv2.fillPoly(mask, [np.round(points * 16).astype(np.int32)], 1, shift=4)
    image[mask > 0] = color
    return mask > 0


def iou(a, b):
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    common = max(0, width) * max(0, height)
    return common / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - common)


def followed(frames, masks):
    """IoU of each box with that of the true mask; None where the object is lost."""
    found = track(frames, masks[0])
    assert len(found) == len(frames) and found[0].box == bounds(masks[0]) and found[0].confidence == 1
    assert all((f.box is None) == (f.confidence < 0.5) and 0 <= f.confidence <= 1 for f in found)
    return [
        None if f.box is None else iou(f.box, bounds(m)) if m.any() else 0.0 for f, m in zip(found, masks, strict=True)
    ]


def test_shapes_of_films_that_move_and_that_stand_still():
    for index in range(6):
        film = make_film(2, "train", index)
        frames = render_film(film)
        for shape in film.scene.shapes:
            x1, y1, x2, y2 = shape.box
            mask = np.zeros(frames[0].shape[:2], bool)
            mask[y1:y2, x1:x2] = shape_mask(shape.kind, x2 - x1)
            for number, found in enumerate(track(frames, mask)):
                true = [s.box for s in film.shapes_at(number) if (s.kind, s.color) == (shape.kind, shape.color)]
                assert found.box is not None and iou(found.box, true[0]) > 0.9


@pytest.mark.parametrize("background", ["coffee", "chelsea"])
def test_a_square_that_turns_and_grows_beside_one_of_another_color(background):
    frames, masks = [], []
    for i in range(6):
        frame = photo(background).copy()
        polygon(frame, (290, 60), 30, 4, turn=0.3, color=(30, 60, 220))
        masks.append(polygon(frame, (70 + 38 * i, 170 + 6 * i), 30 * 1.04**i, 4, turn=0.1 * i, color=(230, 210, 30)))
        frames.append(frame)
    assert min(followed(frames, masks)) > 0.85


def test_an_object_that_leaves_is_lost_and_no_other_is_taken_for_it():
    frames, masks = [], []
    for i in range(8):
        frame = photo("coffee").copy()
        polygon(frame, (90, 60), 25, 40, color=(30, 60, 220))
        masks.append(polygon(frame, (220 + 40 * i, 110), 25, 40, color=(40, 180, 60)))
        frames.append(frame)
    seen = followed(frames, masks)
    assert min(seen[:4]) > 0.9 and seen[5:] == [None] * 3  # in frame 4 its middle is just inside


def test_an_object_that_comes_back_is_found_again():
    frames, masks = [], []
    for x in (50, 130, 500, 500, 230, 150):
        frame = photo("coffee").copy()
        masks.append(polygon(frame, (x, 170), 26, 4, color=(60, 200, 230)))
        frames.append(frame)
    seen = followed(frames, masks)
    assert seen[2:4] == [None, None] and min(seen[:2] + seen[4:]) > 0.9


def test_of_two_equal_objects_the_one_that_is_near_is_followed():
    frames, masks = [], []
    for i in range(6):
        frame = photo("coffee").copy()
        polygon(frame, (190, 110), 20, 40, color=(30, 60, 220))
        masks.append(polygon(frame, (45 + 22 * i, 200), 20, 40, color=(30, 60, 220)))
        frames.append(frame)
    assert min(followed(frames, masks)) > 0.9


def test_a_part_of_a_photograph_under_a_moving_camera():
    data = pytest.importorskip("skimage.data", reason="photographs of scikit-image: pip install -e .[test]")
    cat = cv2.resize(data.chelsea(), (768, 576))
    frames, masks = [], []
    for i in range(6):
        dx, dy = 45 + 19 * i, 30 + 9 * i
        frames.append(np.ascontiguousarray(cat[dy : dy + HEIGHT, dx : dx + WIDTH]))
        masks.append(np.zeros((HEIGHT, WIDTH), bool))
        masks[-1][158 - dy : 262 - dy, 232 - dx : 360 - dx] = True
    assert min(followed(frames, masks)) > 0.9


def test_a_part_of_one_photograph_that_turns_before_another():
    data = pytest.importorskip("skimage.data", reason="photographs of scikit-image: pip install -e .[test]")
    face = data.astronaut()[60:190, 165:275]
    frames, masks = [], []
    for i in range(5):
        matrix = cv2.getRotationMatrix2D((55, 65), 6 * i, 0.6 * 1.03**i)
        matrix[:, 2] += 20 + 42 * i, 110 - 8 * i
        frame = photo("coffee").copy()
        mask = cv2.warpAffine(np.ones(face.shape[:2], np.uint8), matrix, (WIDTH, HEIGHT)) > 0
        frame[mask] = cv2.warpAffine(face, matrix, (WIDTH, HEIGHT))[mask]
        frames.append(frame)
        masks.append(mask)
    assert min(followed(frames, masks)) > 0.75


@pytest.mark.parametrize("shape", [(1, 1), (1, 40), (40, 1), (2, 900), (7, 5)])
def test_small_and_narrow_frames(shape):
    frames = [np.full((*shape, 3), value, np.uint8) for value in (10, 10, 200)]
    mask = np.zeros(shape, bool)
    mask[0, 0] = True
    found = track(frames, mask)
    assert found[1].box is not None and found[2].box is None
    assert iou(track(frames[:2], np.ones(shape, bool))[1].box, (0, 0, shape[1], shape[0])) > 0.98
