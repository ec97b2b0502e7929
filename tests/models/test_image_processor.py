"""Resize and patches equal the reference's image processor (of files: test_image_files); packing loses nothing."""

import numpy as np
import pytest
import reference
from PIL import Image

from pixelis_jax.models import image_processor
from pixelis_jax.models.image_processor import PixelBudget, smart_resize
from pixelis_jax.models.vision import normalise
from pixelis_jax.types import UserError

VISION = reference.small_config().vision
BUDGET = PixelBudget(56 * 56, 224 * 224)
# (height, width): one pixel, one line of each direction at the aspect limit, odd, below, in and above the budget, huge.
SIZES = ((1, 1), (1, 200), (200, 1), (13, 17), (57, 141), (27, 29), (331, 219), (224, 224), (1023, 769), (4000, 3001))


@pytest.fixture(scope="module")
def theirs():
    module = pytest.importorskip("transformers.models.qwen2_vl.image_processing_pil_qwen2_vl")
    size = {"shortest_edge": BUDGET.min_pixels, "longest_edge": BUDGET.max_pixels}
    return module.Qwen2VLImageProcessorPil(size=size)


@pytest.mark.parametrize("size", SIZES)
def test_random_images(theirs, size):
    """Byte-equal patches before normalisation; what the tower reads differs in the last bits of fp32 only."""
    image = np.random.default_rng(1).integers(0, 256, (*size, 3), dtype=np.uint8)
    picture = [Image.fromarray(image)]  # of an array one pixel high they would take the first axis for channels
    patches = theirs(images=picture, do_rescale=False, do_normalize=False, return_tensors="np")["pixel_values"]
    out = theirs(images=picture, return_tensors="np")
    size = smart_resize(*size, factor=28, budget=BUDGET)
    ours = image_processor.patchify(image_processor.resize(image, size), VISION)
    assert out["image_grid_thw"].tolist() == [[1, size[0] // 14, size[1] // 14]]
    np.testing.assert_array_equal(patches, ours)
    np.testing.assert_allclose(
        normalise(ours, VISION), out["pixel_values"], rtol=0, atol=2**-21
    )  # two units in the last place at 2


def test_smart_resize_equals_the_reference():
    module = pytest.importorskip("transformers.models.qwen2_vl.image_processing_pil_qwen2_vl")
    generator = np.random.default_rng(0)
    for height, width in [*SIZES, *generator.integers(30, 3000, (500, 2)).tolist()]:
        expected = module.smart_resize(height, width, 28, BUDGET.min_pixels, BUDGET.max_pixels)
        assert smart_resize(height, width, factor=28, budget=BUDGET) == expected


def test_smart_resize_by_hand():
    """100x60 at 28: 4x2 blocks; beyond 56x56 px of budget it shrinks to 2x1, below 200x200 it grows."""
    assert smart_resize(100, 60, factor=28, budget=PixelBudget(1, 10**6)) == (112, 56)
    assert smart_resize(100, 60, factor=28, budget=PixelBudget(1, 56 * 56)) == (56, 28)
    assert smart_resize(100, 60, factor=28, budget=PixelBudget(200 * 200, 10**6)) == (280, 168)


def test_what_is_no_image():
    with pytest.raises(UserError, match="201x1 px: aspect ratio above 200"):
        smart_resize(1, 201, factor=28, budget=BUDGET)
    with pytest.raises(UserError, match="is empty"):
        smart_resize(0, 5, factor=28, budget=BUDGET)


@pytest.mark.parametrize("rows, columns", [(1, 1), (2, 2), (3, 5), (1, 7), (4, 4), (5, 2)])
def test_window_layout_and_its_inverse(rows, columns):
    order, token_rows = image_processor.window_layout(rows, columns, VISION)
    flat = order.ravel()
    np.testing.assert_array_equal(flat[token_rows], np.arange(rows * columns))
    assert (flat >= 0).sum() == rows * columns
    side = VISION.window_units
    across = -(-columns // side)
    for window, places in enumerate(order):
        for token in places[places >= 0]:
            assert window == token // columns // side * across + token % columns // side


def test_pack_holds_every_patch_of_ragged_images_once():
    images = reference.images()
    packed = image_processor.pack(images, VISION, windows=8, count=4)
    assert packed.patches.dtype == np.uint8
    assert not packed.valid[3].any() and not packed.patches[3].any()
    for i, image in enumerate(images):
        height, width = image.shape[:2]
        valid = packed.valid[i]
        assert valid.sum() == height * width // 14**2
        for patch, (row, column) in zip(packed.patches[i][valid], packed.coords[i][valid], strict=True):
            block = image[14 * row : 14 * row + 14, 14 * column : 14 * column + 14]
            # channel, frame, y, x; a still image fills both frames
            np.testing.assert_array_equal(patch.reshape(3, 2, 14, 14), np.stack([block.transpose(2, 0, 1)] * 2, axis=1))
        assert len({tuple(c) for c in packed.coords[i][valid].tolist()}) == valid.sum()


def test_merged_tokens_stand_where_token_rows_says():
    """The four patches of merged token (r, c) lie together at `token_rows`, rows 2r and 2r + 1, columns likewise."""
    for image in reference.images():
        size = image.shape[:2]
        packed = image_processor.pack([image], VISION, windows=6)
        coords = packed.coords.reshape(-1, 4, 2)
        for token, place in enumerate(image_processor.token_rows(size, VISION)):
            r, c = divmod(token, size[1] // 28)
            assert coords[place].tolist() == [[2 * r + y, 2 * c + x] for y in (0, 1) for x in (0, 1)]


def test_an_image_of_too_many_windows_is_refused():
    with pytest.raises(ValueError, match="140x84 px has 6 windows, the bucket 4"):
        image_processor.pack([reference.images()[1]], VISION, windows=4)
