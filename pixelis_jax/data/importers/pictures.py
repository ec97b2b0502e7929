"""Pictures of imported records: found inside the data folder, checked, and kept under the hash of their bytes."""

import contextlib
import dataclasses
import hashlib
import itertools
import os
import shutil
from pathlib import Path
from typing import Any

from PIL import Image

from pixelis_jax.data.images import MAX_PIXELS, open_rgb
from pixelis_jax.data.importers import picture_values, visual_cot
from pixelis_jax.data.importers.base import Place, Refusal, printable, quoted
from pixelis_jax.types import UserError

FOLDER = "images"
MISSING = "no such image; --image_root names another folder to look in"
_HINTS = 100  # pictures that are not there for which folders are searched, and folders that are
_STAGED = ".import"  # holds the bytes of pictures that came inside records until they are checked
_ORIENTATION, _TURNED = 0x0112, (5, 6, 7, 8)  # an EXIF tag, and its values that swap the sides
_ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")
# How a file begins -> the ending it gets. WebP is told by its bytes 8 to 12.
_MAGIC = {
    b"\x89PNG": ".png",
    b"\xff\xd8\xff": ".jpg",
    b"GIF8": ".gif",
    b"BM": ".bmp",
    b"II*\x00": ".tif",
    b"MM\x00*": ".tif",
}


@dataclasses.dataclass(frozen=True)
class Picture:
    """One picture: `name` is what a sample says, `file` where its bytes are, `size` its (height, width) as shown.

    `size` is None where it was not checked and its header can't be read.
    """

    name: str
    file: Path
    size: tuple[int, int] | None


class Pictures:
    """The pictures of one import. `look` finds and checks, `keep` puts into `out`, `undo` takes it back.

    A picture lies below `root` or `image_root`, links followed. A relative path is looked up in `image_root`, in the
    record's own folder, and in `root`.
    """

    def __init__(self, out: Path, root: Path, *, image_root: Path | None, check: bool, keep_paths: bool) -> None:
        self._out, self._root = out, root
        self._first = [image_root] if image_root else []
        self._check, self._keep_paths = check, keep_paths
        self._roots = [folder.resolve() for folder in (root, *self._first)]
        self._seen: dict[Path, Picture] = {}
        self._names: dict[Path, dict[str, str]] = {}  # of folders that lack a picture, by their small letters
        self._lacking = 0
        self._added: list[Path] = []
        self.kept: set[str] = set()

    def look(self, value: Any, place: Place, field: str) -> Picture:
        """The picture that a field holds, in any form that `picture_values.source` reads. Raises Refusal."""
        found = picture_values.source(value, place, field)
        if isinstance(found, bytes):
            return self._from_bytes(found, place, field)
        file = self._find(found, place, field)
        if file not in self._seen:
            self._seen[file] = self._examined(file, place, field)
        return self._seen[file]

    def keep(self, picture: Picture) -> None:
        """Makes `out`/`name` hold the picture: a hard link where that can be, else a copy."""
        if picture.name in self.kept:
            return
        self.kept.add(picture.name)
        target = self._out / picture.name
        if self._keep_paths and not self._staged(picture.file):
            return
        if target.exists() and target.stat().st_size == picture.file.stat().st_size:
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f".{target.name}.part")
        part.unlink(missing_ok=True)
        try:
            os.link(picture.file, part)
        except OSError:  # another file system, or one without hard links
            shutil.copyfile(picture.file, part)
        if not target.exists():
            self._added.append(target)
        part.replace(target)

    def release(self, picture: Picture) -> None:
        """Forgets the staged bytes of a picture, kept or not."""
        if self._staged(picture.file):
            picture.file.unlink(missing_ok=True)

    def undo(self) -> None:
        """Removes the pictures that this import has put into `out`, and the folder if it is empty then."""
        for file in self._added:
            file.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            (self._out / FOLDER).rmdir()

    def close(self) -> None:
        """Removes the staged bytes."""
        shutil.rmtree(self._out / _STAGED, ignore_errors=True)

    def _staged(self, file: Path) -> bool:
        return file.parent == self._out / _STAGED

    def _from_bytes(self, data: bytes, place: Place, field: str) -> Picture:
        if not data:
            raise Refusal(place.where, field, "image bytes: empty")
        file = self._out / _STAGED / hashlib.sha256(data).hexdigest()
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
        try:
            return self._examined(file, place, field, shown="its bytes")
        except BaseException:
            file.unlink()
            raise

    def _find(self, names: tuple[str, ...], place: Place, field: str) -> Path:
        """The real file of a path, inside one of the roots; `names` are ways to read it. Raises Refusal."""
        if visual_cot.SIGN in names[0]:
            reason = (
                f"a region behind {visual_cot.SIGN} (Visual-CoT), and no dialogue of question, box, crop and answer"
            )
            raise Refusal(place.where, field, f"{reason}; leave this picture out", quoted(names[0]))
        outside = False
        folders = dict.fromkeys((*self._first, place.file.parent, self._root))
        for folder, name in itertools.product(folders, names):
            try:
                file = (folder / name).resolve()
                inside = any(file.is_relative_to(root) for root in self._roots)
                there = file.exists()
            except (OSError, ValueError, RuntimeError):  # too long, a NUL, half of a surrogate pair, a loop of links
                raise Refusal(place.where, field, "is no name of a file", quoted(name)) from None
            if inside and there:
                return file
            outside |= not inside
        if outside:
            reason = "leaves the data folder; name the folder of the images with --image_root"
            raise Refusal(place.where, field, reason, quoted(names[0]))
        near = self._hint([*folders], names)
        raise Refusal(place.where, field, MISSING, quoted(names[0]) + (f"; there is {quoted(near)}" if near else ""))

    def _hint(self, folders: list[Path], names: tuple[str, ...]) -> str:
        """The name of a picture that is perhaps meant: in the folder of the name, without its folders, or one below."""
        base = names[-1].rstrip("/").rpartition("/")[2]
        for folder, name in itertools.product(folders, (*names, base)):
            if near := self._near(folder / name):
                return near
        self._lacking += 1
        if not base or self._lacking > _HINTS:
            return ""
        for folder in folders:
            below = [self._names[folder][name] for name in sorted(self._names[folder])[:_HINTS]]
            if near := next((name for name in below if (folder / name / base).is_file()), ""):
                return f"{near}/{base}"
        return ""

    def _near(self, file: Path) -> str:
        """The name of a picture in the same folder that differs from a file's in case or ending alone; else ""."""
        folder = file.parent
        if folder not in self._names:
            try:
                found = os.listdir(folder) if folder.is_dir() else []
            except (OSError, ValueError):
                found = []
            self._names[folder] = {name.lower(): name for name in found}
        there, stem = self._names[folder], file.stem.lower()
        names = (file.name.lower(), *(stem + ending for ending in _ENDINGS))
        return next((there[name] for name in names if name in there), "")

    def _examined(self, file: Path, place: Place, field: str, shown: str = "") -> Picture:
        """Raises Refusal for what is no picture that can be shown."""
        try:
            if self._check:
                height, width, _ = open_rgb(file).shape
                size: tuple[int, int] | None = (height, width)
            else:
                if not file.is_file() or file.stat().st_size == 0:
                    open_rgb(file)  # says what is wrong
                size = _header_size(file)
            digest, ending = _digest(file)
        except UserError as error:
            text = str(error).removeprefix(f"{file}: ")
            reason = f"image {text.partition(';')[0].partition('(')[0].strip()}"
            raise Refusal(place.where, field, reason, shown or _ending(file)) from None
        except OSError as error:
            raise Refusal(place.where, field, f"image can't be read: {error.strerror}", _ending(file)) from None
        name = f"{FOLDER}/{digest[:20]}{ending}"
        if self._keep_paths and not self._staged(file):
            name = str(file)
        return Picture(name, file, size)


def _ending(file: Path) -> str:
    """A file in an error: the end of its name, which says most."""
    return printable(str(file)[-120:])


def _digest(file: Path) -> tuple[str, str]:
    """(SHA-256, ending by the first bytes)."""
    with file.open("rb") as handle:
        start = handle.read(12)
        handle.seek(0)
        digest = hashlib.file_digest(handle, "sha256").hexdigest()
    if start[:4] == b"RIFF" and start[8:12] == b"WEBP":
        return digest, ".webp"
    known = [ending for magic, ending in _MAGIC.items() if start.startswith(magic)]
    return digest, known[0] if known else ".img"


def _header_size(file: Path) -> tuple[int, int] | None:
    """(height, width) as shown, from the header alone; None where it tells none."""
    try:
        with file.open("rb") as handle, Image.open(handle) as image:
            width, height = image.size
            turned = image.getexif().get(_ORIENTATION) in _TURNED
    except Exception:  # decoders raise errors of many kinds on damaged files
        return None
    if width * height > MAX_PIXELS:
        return None
    return (width, height) if turned else (height, width)
