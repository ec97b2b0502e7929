"""From a picture's file to patches: byte for byte those of the reference, for photographs and every kind of file."""

import itertools
import json
import logging
from pathlib import Path

import numpy as np
import pytest
import reference
import small_families
from PIL import Image, ImageOps
from transformers.image_utils import load_image
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from pixelis_jax.data.images import open_rgb
from pixelis_jax.models import image_processor, preprocessor
from pixelis_jax.models.image_processor import PixelBudget, smart_resize
from pixelis_jax.types import UserError

SHIPPED = Path(image_processor.__file__).parent.parent / "assets" / "pixelsearch"
BUDGETS = (PixelBudget(3136, 12544), PixelBudget(56 * 56, 1280 * 28 * 28), PixelBudget(65536, 300_000))
VISION = {
    "Qwen2.5-VL": reference.small_config().need_vision(),
    "Qwen3-VL": small_families.VISION_LANGUAGE["qwen3_vl"].need_vision(),
}


def photographs():
    """Those in the package, and where they are installed those of scikit-image and scikit-learn."""
    found = [*SHIPPED.glob("*.png")]
    for name, folder in (("skimage", "data"), ("sklearn", "datasets/images")):
        module = pytest.importorskip(name, reason=f"photographs of {name}: pip install -e .[test]")
        found += (Path(module.__file__).parent / folder).glob("*.*g")
    return sorted(found)


def same(file, *, budget=BUDGETS[0], vision=VISION["Qwen2.5-VL"], shown=None):
    """Our patches of a file are those of the reference, whose own reader opens it; `shown`: this image instead."""
    processor = Qwen2VLImageProcessorPil(
        patch_size=vision.patch_size, size={"shortest_edge": budget.min_pixels, "longest_edge": budget.max_pixels}
    )
    shown = load_image(str(file)) if shown is None else shown
    expected = processor(images=[shown], do_rescale=False, do_normalize=False, return_tensors="np")["pixel_values"]
    image = open_rgb(file)
    size = smart_resize(*image.shape[:2], factor=vision.factor, budget=budget)
    ours = image_processor.patchify(image_processor.resize(image, size), vision)
    assert ours.dtype == np.uint8
    np.testing.assert_array_equal(ours, expected)


@pytest.mark.parametrize("family", VISION)
def test_photographs(family):
    files = photographs()
    assert len(files) > 25
    for file, budget in zip(files, itertools.cycle(BUDGETS), strict=False):
        with Image.open(file) as opened:
            same(file, budget=budget, vision=VISION[family], shown=opened)


def test_the_torchvision_backend_is_at_most_two_levels_away():
    """`transformers` prefers it where torchvision is installed; its resize rounds otherwise than Pillow's."""
    pytest.importorskip("torchvision", reason="the other backend: pip install torchvision of the version of torch")
    from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor

    size = {"shortest_edge": BUDGETS[0].min_pixels, "longest_edge": BUDGETS[0].max_pixels}
    for file in sorted(SHIPPED.glob("*.png")):
        picture = [Image.open(file)]
        raw = {"do_rescale": False, "do_normalize": False, "return_tensors": "np"}
        expected = Qwen2VLImageProcessor(size=size)(images=picture, **raw)["pixel_values"]
        image = open_rgb(file)
        fitted = smart_resize(*image.shape[:2], factor=28, budget=BUDGETS[0])
        ours = image_processor.patchify(image_processor.resize(image, fitted), VISION["Qwen2.5-VL"])
        off = np.abs(ours.astype(np.float32) - expected)
        assert off.max() <= 2 and (off > 0).mean() < 0.02  # 1 % was seen


@pytest.fixture(scope="module")
def photograph():
    """A part of odd sides."""
    return Image.open(SHIPPED / "chelsea.png").convert("RGB").crop((7, 3, 110, 156))


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("family", VISION)
@pytest.mark.parametrize("size", [(1, 1), (1, 200), (200, 1), (28, 28), (32, 64), (112, 56), (97, 251), (1999, 10)])
def test_sizes(tmp_path, photograph, size, family, budget):
    photograph.resize(size).save(tmp_path / "a.png")
    same(tmp_path / "a.png", budget=budget, vision=VISION[family])


@pytest.mark.parametrize(
    ("mode", "name"),
    [
        ("1", "a.png"), ("L", "a.png"), ("L", "a.jpg"), ("P", "a.png"), ("P", "a.gif"), ("CMYK", "a.jpg"),
        ("CMYK", "a.tif"), ("YCbCr", "a.tif"), ("YCbCr", "a.jpg"), ("LAB", "a.tif"), ("RGB", "a.jpg"),
        ("RGB", "a.webp"), ("RGB", "a.bmp"), ("RGB", "a.ppm"), ("RGB", "a.jp2"), ("RGB", "a.tga"),
    ],
)  # fmt: skip
def test_modes_and_formats(tmp_path, photograph, mode, name):
    # Pillow 12.3 can't read an uncompressed YCbCr TIFF that it wrote itself; those of cameras are JPEGs inside.
    options = {"compression": "jpeg"} if (mode, name) == ("YCbCr", "a.tif") else {}
    photograph.convert(mode).save(tmp_path / name, **options)
    same(tmp_path / name)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.webp", "a.tif"])
def test_exif_orientation(tmp_path, photograph, name, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    photograph.save(tmp_path / name, exif=exif)
    same(tmp_path / name)


@pytest.mark.parametrize("name", ["rgba.png", "rgba.webp", "rgba.tif", "la.png", "palette.png", "colour.png"])
def test_transparent_parts_lie_over_white(tmp_path, photograph, name):
    """As in the reference's processor. Its reader of files alone drops the alpha channel: hidden colours would show."""
    options = {}
    if name == "palette.png":
        image, options = photograph.quantize(16), {"transparency": 3}
    elif name == "colour.png":
        image, options = photograph, {"transparency": photograph.getpixel((0, 0))}
    else:
        image = photograph.convert("LA" if name == "la.png" else "RGBA")
        alpha = np.random.default_rng(0).integers(0, 256, image.size[::-1], dtype=np.uint8)
        image.putalpha(Image.fromarray(alpha))
    image.save(tmp_path / name, **options)
    with Image.open(tmp_path / name) as opened:
        same(tmp_path / name, shown=ImageOps.exif_transpose(opened))
        assert (open_rgb(tmp_path / name) != np.asarray(opened.convert("RGB"))).any()


def test_16_bits_keep_their_range_where_the_reference_clips_them_to_white(tmp_path):
    deep = np.array([[0, 255, 256, 32768, 65535]], np.uint16)
    Image.fromarray(deep).save(tmp_path / "a.png")
    assert open_rgb(tmp_path / "a.png")[0, :, 0].tolist() == [0, 0, 1, 128, 255]
    assert np.asarray(load_image(str(tmp_path / "a.png")))[0, :, 0].tolist() == [0, 255, 255, 255, 255]


@pytest.mark.parametrize("size", [(20000, 20), (1, 20000), (300, 1), (201, 1)])
def test_an_aspect_that_the_reference_refuses_is_one_line(size):
    processor = Qwen2VLImageProcessorPil()
    with pytest.raises(ValueError, match="aspect ratio"):
        processor(images=[Image.new("RGB", size)])
    with pytest.raises(UserError, match=f"image of {size[0]}x{size[1]} px: aspect ratio above 200; crop it first"):
        smart_resize(size[1], size[0], factor=28, budget=BUDGETS[0])


@pytest.mark.parametrize("bounds", [{"min_pixels": 3136, "max_pixels": 12544}, {}])
def test_what_the_reference_writes_is_read(tmp_path, bounds):
    """Its own file, with every default spelled out, gives the vision tower and the bounds that it has."""
    wanted = VISION["Qwen2.5-VL"]
    Qwen2VLImageProcessorPil(**bounds).save_pretrained(tmp_path)
    budget = preprocessor.read_budget(tmp_path)
    assert (budget.min_pixels, budget.max_pixels) == tuple(bounds.values() or (56 * 56, 1280 * 28 * 28))
    assert preprocessor.as_preprocessed(wanted, tmp_path) == wanted


EDGES = {"shortest_edge": 3136, "longest_edge": 12544}


@pytest.mark.parametrize(
    ("raw", "warnings"),
    [
        ({"size": EDGES}, 0),
        ({"size": EDGES, "min_pixels": 3136, "max_pixels": 12544}, 0),
        ({"size": EDGES, "min_pixels": 6272}, 1),
        ({"size": EDGES, "min_pixels": 6272, "max_pixels": 25088}, 2),
        ({"size": EDGES | {"min_pixels": 6272}, "min_pixels": 6272}, 1),
        ({"size": EDGES, "min_pixels": None, "max_pixels": None}, 0),
        ({"min_pixels": 3136, "max_pixels": 12544, "size": None}, 0),
    ],
)
def test_bounds_in_several_places_are_those_that_the_reference_takes(tmp_path, caplog, raw, warnings):
    (tmp_path / preprocessor.FILE).write_text(json.dumps(raw))
    size = Qwen2VLImageProcessorPil.from_pretrained(tmp_path).size
    with caplog.at_level(logging.WARNING):
        budget = preprocessor.read_budget(tmp_path)
    assert (budget.min_pixels, budget.max_pixels) == (size["shortest_edge"], size["longest_edge"])
    assert len(caplog.records) == warnings and caplog.text.count("taken is the first, as in transformers") == warnings


def test_bounds_under_their_older_names_inside_of_size(tmp_path):
    """The reference takes them at the top level only, and then says that it lacks edges."""
    raw = {
        "size": {"min_pixels": 3136, "max_pixels": 12544},
        "unsloth_fixed": True,
        "_valid_processor_keys": ["images"],
    }
    (tmp_path / preprocessor.FILE).write_text(json.dumps(raw))
    assert preprocessor.read_budget(tmp_path) == PixelBudget(3136, 12544)
    assert preprocessor.as_preprocessed(VISION["Qwen2.5-VL"], tmp_path) == VISION["Qwen2.5-VL"]
    for wrong in ({"size": EDGES | {"height": 3}}, {"do_center_crop": True}, {"do_upscale": True}):
        (tmp_path / preprocessor.FILE).write_text(json.dumps(wrong))
        with pytest.raises(UserError, match=r"preprocessor_config\.json"):
            preprocessor.as_preprocessed(VISION["Qwen2.5-VL"], tmp_path)
            preprocessor.read_budget(tmp_path)
