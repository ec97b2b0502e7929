"""Content must need the look: a reader that is told the exact place reads crops, and far less of overviews."""

import numpy as np
import pytest
from PIL import Image

from pixelis_jax.data import pixelsearch

svm = pytest.importorskip("sklearn.svm")

OVERVIEW_PX, CROP_PX, SHARE = 112, 56, 1.35


def window(image, center, half):
    """Grey values around a point, standardised and with the ink bright."""
    x, y = center
    grey = np.asarray(image.crop((x - half, y - half, x + half, y + half)), np.float64)
    grey = (grey - grey.mean()) / (grey.std() + 1)
    return (grey if grey[half - 2 : half + 2, half - 2 : half + 2].mean() > 0 else -grey).ravel()


def views(split, count):
    overviews, crops, labels = [], [], []
    for index in range(count):
        scene = pixelsearch.make_scene(7, split, index)
        full = Image.fromarray(pixelsearch.render(scene)).convert("L")
        scale = OVERVIEW_PX / (scene.height * scene.width) ** 0.5
        small = full.resize((round(full.width * scale), round(full.height * scale)), Image.Resampling.BICUBIC)
        for shape in (shape for shape in scene.shapes if shape.content.kind == "digit"):
            x1, y1, x2, y2 = shape.box
            half = round((x2 - x1) * SHARE / 2)
            corner = ((x1 + x2) // 2 - half, (y1 + y2) // 2 - half)
            crop = full.crop((*corner, corner[0] + 2 * half, corner[1] + 2 * half))
            near = crop.resize((CROP_PX, CROP_PX), Image.Resampling.BICUBIC)
            center = shape.content.center
            overviews.append(window(small, [round(value * scale) for value in center], 5))
            place = [round((value - start) * CROP_PX / (2 * half)) for value, start in zip(center, corner, strict=True)]
            crops.append(window(near, place, 9))
            labels.append(shape.content.value)
    return np.array(overviews), np.array(crops), np.array(labels)


def test_digits_are_read_from_crops_and_far_less_from_overviews():
    train, held_out = views("train", 700), views("heldout", 150)
    overview, crop = (np.mean(svm.SVC(C=5).fit(train[i], train[2]).predict(held_out[i]) == held_out[2]) for i in (0, 1))
    assert crop > 0.85
    assert overview < 0.55  # chance is 0.1; this reader is told where to look, the policy is not
