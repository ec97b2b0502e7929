import os
import struct
import zlib

import pytest
from PIL import Image

from pixelis_jax.data import cota
from pixelis_jax.data.importers.base import Options
from pixelis_jax.data.importers.job import Import
from pixelis_jax.types import UserError

QUESTION = {"question": "What is it?", "answer": "red"}


def png(width, height, rows):
    """A PNG that says it has this size and holds these bytes."""

    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def test_bad_images_are_refused_one_by_one(bring, data):
    whole = (data / "a.png").read_bytes()
    (data / "cut.png").write_bytes(whole[: len(whole) // 2])
    (data / "empty.png").write_bytes(b"")
    (data / "text.png").write_text("not a picture")
    (data / "bomb.png").write_bytes(png(60_000, 60_000, bytes(1000)))
    (data / "folder.png").mkdir()
    os.mkfifo(data / "pipe.png")
    names = ["cut", "empty", "text", "bomb", "folder", "pipe", "missing"]
    samples, refused, job = bring(*(QUESTION | {"image": f"{name}.png"} for name in [*names, "a"]))
    assert len(samples) == 1 and len(refused) == len(names)
    told = ["image is damaged", "image the file is empty", "image is not an image", "image"]
    told += ["image is a folder", "image is a pipe", "no such image; --image_root names another folder"]
    for name, words, line in zip(names, told, refused, strict=True):
        assert f": image: {words}" in line and f"{name}.png" in line and "\n" not in line
    assert "pixels" in refused[3]
    assert job.counts.refused.total() == len(names)
    assert len(list((job.out / "images").iterdir())) == 1
    assert (job.out / "refused.txt").read_text().splitlines() == refused


def test_unchecked_images_are_there_at_least(bring, data):
    (data / "cut.png").write_bytes((data / "a.png").read_bytes()[:500])
    (data / "empty.png").write_bytes(b"")
    samples, refused, _ = bring(
        *(QUESTION | {"image": f"{name}.png"} for name in ("cut", "empty", "missing")), check_images=False
    )
    assert len(samples) == 1 and "the file is empty" in refused[0] and "no such image" in refused[1]


def test_paths_that_leave_the_folder_are_refused_unless_a_root_covers_them(bring, data, tmp_path):
    outside = tmp_path / "elsewhere"
    outside.mkdir()
    (data / "a.png").rename(outside / "b.png")
    Image.new("RGB", (30, 30)).save(data / "a.png")
    (data / "link.png").symlink_to(outside / "b.png")
    (data / "inside.png").symlink_to(data / "a.png")
    (data / "loop.png").symlink_to(data / "loop.png")
    leaving = [str(outside / "b.png"), "../elsewhere/b.png", "link.png", f"file://{outside}/b.png", "/etc/passwd"]
    records = [QUESTION | {"image": name} for name in leaving]
    samples, refused, _ = bring(*records)
    assert samples == [] and all("leaves the data folder; name the folder of the images" in line for line in refused)
    samples, refused, _ = bring(*records, image_root=outside)
    assert len(samples) == 1 and len(refused) == 4  # one picture and one question: the others are duplicates
    assert [line for line in refused if "is there twice" not in line] == [line for line in refused if "passwd" in line]
    samples, refused, _ = bring(QUESTION | {"image": "inside.png"}, QUESTION | {"image": str(data / "loop.png")})
    assert len(samples) == 1 and len(refused) == 1


@pytest.mark.parametrize("name", ["a\0b.png", "x" * 5000, "\ud800.png", "http://host/a.png", "~nobody/a.png"])
def test_names_that_are_none(refusal, name):
    assert "image: " in refusal(QUESTION | {"image": name})


def test_names_are_hashes_of_the_bytes_with_the_ending_of_what_they_are(bring, data):
    Image.new("RGB", (30, 20)).save(data / "x.bmp", "JPEG")
    (data / "copy.png").write_bytes((data / "x.bmp").read_bytes())
    records = [QUESTION | {"image": name, "qid": name} for name in ("x.bmp", "copy.png")]
    (one, other), _, job = bring(*records)
    assert one.image_paths == other.image_paths and one.image_paths[0].endswith(".jpg")
    assert (job.out / one.image_paths[0]).read_bytes() == (data / "x.bmp").read_bytes()


def test_paths_can_be_kept(data, tmp_path):
    file = data / "records.jsonl"
    file.write_text('{"question": "What?", "image": "a.png", "answer": "red"}\n')
    Import(file, tmp_path / "kept", Options(keep_paths=True)).run()
    (sample,) = cota.read_jsonl(tmp_path / "kept" / "cota.jsonl")
    assert sample.image_paths == (str((data / "a.png").resolve()),)
    assert not (tmp_path / "kept" / "images").exists()
    with pytest.raises(UserError, match="leaves the data folder"):
        Import(tmp_path / "kept", tmp_path / "again", Options(keep_paths=True)).run()
    Import(tmp_path / "kept", tmp_path / "again", Options(keep_paths=True, image_root=data)).run()
    assert (tmp_path / "again" / "cota.jsonl").read_bytes() == (tmp_path / "kept" / "cota.jsonl").read_bytes()


def test_a_turned_photo_has_its_size_as_shown(bring, data):
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (80, 40)).save(data / "turned.jpg", exif=exif)
    call = '<tool_call>{"name": "crop_image_normalized", "arguments": {"bbox_2d": [0, 0, 1, 1]}}</tool_call>'
    values = ["<image>What?", call, "<image>", "\\boxed{x}"]
    talk = [{"from": ("human", "gpt")[i % 2], "value": value} for i, value in enumerate(values)]
    for check in (True, False):
        (sample,), _, _ = bring({"image": "turned.jpg", "conversations": talk}, check_images=check)
        assert sample.trajectory[0].parameters["bbox_2d"] == [0, 0, 40, 80]
