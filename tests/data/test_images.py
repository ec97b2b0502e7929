import os
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from pixelis_jax.data import images
from pixelis_jax.data.images import open_rgb
from pixelis_jax.types import UserError


def saved(directory: Path, image: Image.Image, name: str = "a.png", **options: object) -> Path:
    image.save(directory / name, **options)
    return directory / name


def solid(mode: str, color: object, size: tuple[int, int] = (3, 2)) -> Image.Image:
    return Image.new(mode, size, color)


@pytest.mark.parametrize(
    ("mode", "color", "name", "expected"),
    [
        ("1", 1, "a.png", (255, 255, 255)),
        ("L", 100, "a.png", (100, 100, 100)),
        ("LA", (100, 0), "a.png", (255, 255, 255)),
        ("LA", (100, 255), "a.png", (100, 100, 100)),
        ("RGB", (10, 20, 30), "a.png", (10, 20, 30)),
        ("RGBA", (10, 20, 30, 255), "a.png", (10, 20, 30)),
        ("RGBA", (10, 20, 30, 0), "a.png", (255, 255, 255)),
        ("RGBA", (0, 0, 0, 51), "a.png", (204, 204, 204)),  # a fifth black over white
        ("CMYK", (0, 255, 255, 0), "a.tif", (255, 0, 0)),
        ("CMYK", (0, 0, 0, 255), "a.tif", (0, 0, 0)),
        ("YCbCr", (128, 128, 128), "a.tif", (128, 128, 128)),
        ("I;16", 0x80FF, "a.png", (0x80, 0x80, 0x80)),
        ("I;16", 0x80FF, "a.tif", (0x80, 0x80, 0x80)),
    ],
)
def test_every_mode_becomes_rgb(tmp_path: Path, mode: str, color: object, name: str, expected: tuple) -> None:
    # Pillow 12.3 can't read an uncompressed YCbCr TIFF that it wrote itself; those of cameras are JPEGs inside.
    options = {"compression": "jpeg"} if mode == "YCbCr" else {}
    solid(mode, color).save(tmp_path / name, **options)
    got = open_rgb(tmp_path / name)
    assert got.dtype == np.uint8 and got.shape == (2, 3, 3)
    assert (got == np.array(expected)).all()


@pytest.mark.parametrize(("most", "value", "expected"), [(65535, 0x80FF, 0x80), (4095, 2048, 0x80), (255, 77, 77)])
def test_a_pgm_keeps_its_range(tmp_path: Path, most: int, value: int, expected: int) -> None:
    path = tmp_path / "a.pgm"
    path.write_bytes(f"P5 3 2 {most}\n".encode() + value.to_bytes(2 if most > 255 else 1, "big") * 6)
    assert (open_rgb(path) == expected).all()


@pytest.mark.parametrize("compression", [None, "tiff_lzw"])
@pytest.mark.parametrize("mode", ["L", "I;16"])
def test_a_tiff_is_turned_however_it_is_packed(tmp_path: Path, mode: str, compression: str | None) -> None:
    """Orientation 6: the first row of the file is the right column of what a viewer shows."""
    stored = np.arange(6, dtype=np.uint8).reshape(2, 3) * 40
    exif = Image.Exif()
    exif[0x0112] = 6
    picture = Image.fromarray(stored if mode == "L" else stored.astype(np.uint16) << 8)
    picture.save(tmp_path / "a.tif", exif=exif, compression=compression)
    assert open_rgb(tmp_path / "a.tif")[..., 0].tolist() == np.rot90(stored, -1).tolist()


@pytest.mark.parametrize("bits", [8, 16])
def test_a_tiff_in_which_0_is_white(tmp_path: Path, bits: int) -> None:
    gray = np.full((2, 2), 10, np.uint8)
    picture = Image.fromarray(gray if bits == 8 else gray.astype(np.uint16) << 8)
    picture.save(tmp_path / "a.tif", tiffinfo={262: 0})
    assert set(open_rgb(tmp_path / "a.tif").ravel().tolist()) == {10 if bits == 8 else 245}


def test_palettes_with_and_without_a_transparent_entry(tmp_path: Path) -> None:
    image = Image.new("P", (2, 1))
    image.putpalette([255, 0, 0, 0, 0, 255])
    image.putdata([0, 1])
    assert open_rgb(saved(tmp_path, image)).tolist() == [[[255, 0, 0], [0, 0, 255]]]
    assert open_rgb(saved(tmp_path, image, transparency=1)).tolist() == [[[255, 0, 0], [255, 255, 255]]]


def test_a_transparent_colour_of_an_rgb_file_is_white(tmp_path: Path) -> None:
    image = solid("RGB", (1, 2, 3), (2, 1))
    image.putpixel((1, 0), (9, 9, 9))
    assert open_rgb(saved(tmp_path, image, transparency=(1, 2, 3))).tolist() == [[[255, 255, 255], [9, 9, 9]]]


@pytest.mark.parametrize(
    ("orientation", "expected"),
    [(1, [[1, 2, 3]]), (3, [[3, 2, 1]]), (6, [[1], [2], [3]]), (8, [[3], [2], [1]]), (2, [[3, 2, 1]])],
)
def test_exif_rotation_is_applied(tmp_path: Path, orientation: int, expected: list) -> None:
    image = Image.fromarray(np.array([[1, 2, 3]], np.uint8))
    exif = Image.Exif()
    exif[0x0112] = orientation
    assert open_rgb(saved(tmp_path, image, exif=exif))[..., 0].tolist() == expected


def test_an_animation_gives_its_first_frame(tmp_path: Path) -> None:
    path = saved(tmp_path, solid("P", 0), "a.gif", save_all=True, append_images=[solid("L", 255)])
    assert open_rgb(str(path)).shape == (2, 3, 3)


def png_header(width: int, height: int) -> bytes:
    """The beginning of a PNG that claims a size."""
    body = b"IHDR" + width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([8, 2, 0, 0, 0])
    header = b"\x89PNG\r\n\x1a\n" + (13).to_bytes(4, "big") + body + zlib.crc32(body).to_bytes(4, "big")
    return header + (100).to_bytes(4, "big") + b"IDAT" + b"no pixels"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "there is no such file"),
        (b"", "the file is empty"),
        (b"hello, I am a text\n" * 9, "is not an image that can be read"),
        (png_header(9000, 9000), "9000x9000 px is more than 67108864 pixels"),
        (png_header(60000, 60000), "has more than 67108864 pixels"),
        (png_header(4, 4), "is damaged"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_what_is_no_image_is_one_line_with_the_name(tmp_path: Path, content: bytes | None, words: str) -> None:
    path = tmp_path / "picture.png"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        open_rgb(path)
    assert str(caught.value).startswith(f"{path}: ") and words in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("~nouser/x.png", "~nouser/x.png: there is no such file"),
        ("x" * 300, "x...x+: can't be opened \\(File name too long\\); name another"),
        ("a.png/b.png", "a.png/b.png: there is no such file"),
        ("a\0b.png", "there is no such file"),
        ("loop", "loop: can't be opened \\(Too many levels of symbolic links\\)"),
        ("pipe", "pipe: is a pipe or a device, not a plain file"),
        ("link", "link: is a pipe or a device, not a plain file"),
        (".", ".: is a folder, not an image; name a file in it"),
        ("/dev/zero", "/dev/zero: is a pipe or a device"),
        ("", "is a folder"),
    ],
)
def test_what_is_no_plain_file_is_one_short_line_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    saved(tmp_path, solid("L", 3))
    os.mkfifo("pipe")
    os.symlink("pipe", "link")
    os.symlink("loop", "loop")
    with pytest.raises(UserError, match=words) as caught:
        open_rgb(name)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 260


def test_a_home_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    saved(tmp_path, solid("L", 3))
    assert open_rgb("~/a.png").shape == (2, 3, 3)


@pytest.mark.parametrize("name", ["a.png", "a.jpg", "a.webp", "a.tif"])
def test_a_file_cut_anywhere_never_gives_half_an_image(tmp_path: Path, name: str) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)
    path = saved(tmp_path, Image.fromarray(noise), name)
    data = path.read_bytes()
    for share in (0.02, 0.1, 0.5, 0.9):
        path.write_bytes(data[: int(len(data) * share)])
        with pytest.raises(UserError, match=r"is damaged|is not an image"):
            open_rgb(path)


def test_folders_float_images_and_closed_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="is a folder"):
        open_rgb(tmp_path)
    with pytest.raises(UserError, match="32 bits a pixel"):
        open_rgb(saved(tmp_path, solid("F", 0.5), "f.tif"))
    path = saved(tmp_path, solid("L", 3))

    def closed(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", os.fspath(path))

    monkeypatch.setattr(images.Image, "open", closed)
    with pytest.raises(UserError, match="may not be read"):
        open_rgb(path)


def test_a_text_that_unpacks_to_too_much_is_no_damage(tmp_path: Path) -> None:
    info = PngInfo()
    info.add_text("comment", "x" * 3_000_000, zip=True)
    solid("L", 3).save(tmp_path / "a.png", pnginfo=info)
    with pytest.raises(UserError, match=r"a\.png: its text metadata is too large"):
        open_rgb(tmp_path / "a.png")


def test_a_format_that_another_program_would_read_is_not_opened(tmp_path: Path) -> None:
    solid("RGB", (1, 2, 3)).save(tmp_path / "a.eps")
    with pytest.raises(UserError, match=r"a\.eps: is not an image that can be read; give a PNG"):
        open_rgb(tmp_path / "a.eps")
