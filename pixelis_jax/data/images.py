"""Opening a user's picture: any still image that Pillow reads, as u8 RGB the way a viewer shows it."""

import os
import stat
import warnings
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError
from PIL.TiffImagePlugin import TiffImageFile

from pixelis_jax.types import UserError

MAX_PIXELS = 2**26  # 67 million: above it a small file may fill the memory
# What is opened: no format that hands the file to another program, as EPS does.
FORMATS = ("PNG", "JPEG", "MPO", "WEBP", "TIFF", "BMP", "GIF", "PPM", "JPEG2000", "AVIF", "ICO", "TGA")
_PHOTOMETRIC, _WHITE_IS_ZERO = 262, 0  # a TIFF tag, which Pillow honours up to 8 bits only
_DEEP = ("I", "F")  # 32 bits a pixel: no range is agreed on


def open_rgb(path: Path | str) -> np.ndarray:
    """The picture as u8[height, width, 3].

    EXIF rotation is applied; grayscale, palette, CMYK, YCbCr and the like become RGB; transparent parts lie over white;
    16-bit grayscale keeps its 8 high bits (the reference clips it to white, in all else the pixels are equal); of an
    animation the first frame is taken. Raises UserError, one line with the file's name, where it is missing, no plain
    file, empty, no image, damaged, or larger than `MAX_PIXELS`.
    """
    file = Path(os.path.expanduser(path))  # unlike Path.expanduser, it leaves the name of an unknown user as it is
    _refuse_no_file(file)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of large images, which are refused here, and of damage, which raises too
            # By a handle: of a plain TIFF that it opens by name, Pillow forgets the orientation.
            with file.open("rb") as handle, Image.open(handle, formats=_readable()) as image:
                _refuse_size(file, image.size)
                deep = image.mode.startswith("I;16") or (image.format, image.mode) == ("PPM", "I")
                inverted = (
                    deep and isinstance(image, TiffImageFile) and image.tag_v2.get(_PHOTOMETRIC) == _WHITE_IS_ZERO
                )
                pixels = _to_rgb(file, ImageOps.exif_transpose(image), deep=deep)
                return 255 - pixels if inverted else pixels
    except (UserError, MemoryError):
        raise
    except PermissionError as error:
        raise UserError(f"{file}: may not be read ({error.strerror}); change its permissions") from None
    except UnidentifiedImageError:
        raise UserError(f"{file}: is not an image that can be read; give a PNG, JPEG, WebP, TIFF, BMP or GIF") from None
    except Image.DecompressionBombError:
        raise UserError(f"{file}: has more than {MAX_PIXELS} pixels; scale it down first") from None
    except Exception as error:  # decoders raise errors of many kinds on damaged files
        if "MAX_TEXT" in str(error):  # a limit of Pillow's, against texts that unpack to gigabytes
            raise UserError(f"{file}: its text metadata is too large; save it anew without metadata") from None
        raise UserError(f"{file}: is damaged ({' '.join(str(error).split())}); copy it again") from error


def as_rgb(image: Image.Image, name: str = "the image") -> np.ndarray:
    """A Pillow image as `open_rgb` gives the same picture in a file. Raises UserError, which begins with `name`."""
    _refuse_size(name, image.size)
    return _to_rgb(name, ImageOps.exif_transpose(image), deep=image.mode.startswith("I;16"))


def _readable() -> list[str]:
    """The formats that this Pillow was built with."""
    Image.init()
    return [name for name in FORMATS if name in Image.OPEN]


def _refuse_no_file(file: Path) -> None:
    try:
        found = file.stat()
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: a NUL in the name
        raise UserError(f"{_shown(file)}: there is no such file; check the name") from None
    except OSError as error:  # too long a name, a loop of links, a folder that is closed to us
        raise UserError(f"{_shown(file)}: can't be opened ({error.strerror}); name another file") from None
    if stat.S_ISDIR(found.st_mode):
        raise UserError(f"{file}: is a folder, not an image; name a file in it")
    if not stat.S_ISREG(found.st_mode):
        raise UserError(f"{file}: is a pipe or a device, not a plain file; save the image to a file first")
    if found.st_size == 0:
        raise UserError(f"{file}: the file is empty; copy it again")


def _shown(file: Path) -> str:
    """The name, cut where it is too long to be one."""
    name = str(file)
    return name if len(name) <= 200 else f"{name[:100]}...{name[-60:]}"


def _refuse_size(file: Path | str, size: tuple[int, int]) -> None:
    width, height = size
    if width * height > MAX_PIXELS:
        raise UserError(f"{file}: {width}x{height} px is more than {MAX_PIXELS} pixels; scale it down first")


def _to_rgb(file: Path | str, image: Image.Image, *, deep: bool) -> np.ndarray:
    """`deep` images hold grays of 16 bits; Pillow keeps those of a PGM, whatever its range, in 32."""
    if deep:
        grays = np.asarray(image).astype(np.uint16)
        return np.repeat((grays >> 8).astype(np.uint8)[..., None], 3, axis=2)
    if image.mode in _DEEP:
        raise UserError(
            f"{file}: 32 bits a pixel (mode {image.mode}) can't be shown as they are; save it with 8 or 16 bits"
        )
    if image.has_transparency_data:
        over = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", over.size, "white"), over)
    return np.array(image.convert("RGB"))
