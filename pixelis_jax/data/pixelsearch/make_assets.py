"""Makes the bundled files of PixelSearch once: `python -m pixelis_jax.data.pixelsearch.make_assets --font=FILE`.

Needs scikit-learn and scikit-image, which the package itself does not: run time reads the results with numpy and PIL.
"""

import argparse
import hashlib
import string
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

ASSETS = Path(__file__).resolve().parents[2] / "assets" / "pixelsearch"
PHOTOS = ("chelsea", "coffee", "gravel", "hubble_deep_field", "rocket")
HELD_OUT_DIGITS = 397
GLYPHS = string.ascii_uppercase + string.ascii_lowercase + string.digits + string.punctuation
GLYPH_PX = 24
PHOTO_PX = 192


def held_out_mask(count: int, held_out: int) -> np.ndarray:
    """bool[count]: the `held_out` indices with the smallest hash; does not depend on any generator's version."""
    order = sorted(range(count), key=lambda i: hashlib.sha256(f"pixelsearch digit {i}".encode()).digest())
    mask = np.zeros(count, bool)
    mask[order[:held_out]] = True
    return mask


def write_digits(path: Path) -> None:
    """images u8[1797, 8, 8] in 0..16, labels u8[1797], held_out bool[1797]."""
    from sklearn.datasets import load_digits

    data = load_digits()
    images = data.images.astype(np.uint8)
    mask = held_out_mask(len(images), HELD_OUT_DIGITS)
    np.savez_compressed(path, images=images, labels=data.target.astype(np.uint8), held_out=mask)


def write_glyphs(path: Path, font_file: str) -> None:
    """One row of equal cells, in the order of GLYPHS; ascent plus descent is GLYPH_PX pixels."""
    size = GLYPH_PX
    while sum(ImageFont.truetype(font_file, size).getmetrics()) > GLYPH_PX:
        size -= 1
    font = ImageFont.truetype(font_file, size)
    width = round(font.getlength("M"))
    sheet = Image.new("L", (width * len(GLYPHS), GLYPH_PX))
    draw = ImageDraw.Draw(sheet)
    for i, glyph in enumerate(GLYPHS):
        draw.text((i * width, 0), glyph, font=font, fill=255)
    cells = np.asarray(sheet).reshape(GLYPH_PX, len(GLYPHS), width).transpose(1, 0, 2)
    np.savez_compressed(path, glyphs=np.array(GLYPHS), bitmaps=cells)


def write_photo(path: Path, name: str) -> None:
    """A scikit-image photograph with its long side shrunk to PHOTO_PX."""
    import skimage.data

    image = Image.fromarray(getattr(skimage.data, name)()).convert("RGB")
    scale = PHOTO_PX / max(image.size)
    size = (round(image.width * scale), round(image.height * scale))
    image.resize(size, Image.Resampling.LANCZOS).save(path, optimize=True)


def main() -> None:
    """Writes all assets but LICENSES.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--font", required=True, help="DejaVuSansMono-Bold.ttf")
    arguments = parser.parse_args()
    ASSETS.mkdir(parents=True, exist_ok=True)
    write_digits(ASSETS / "digits.npz")
    write_glyphs(ASSETS / "glyphs.npz", arguments.font)
    for name in PHOTOS:
        write_photo(ASSETS / f"{name}.png", name)


if __name__ == "__main__":
    main()
