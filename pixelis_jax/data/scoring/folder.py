"""The folder that `cota score` writes: another program, or a kill at any moment, finds a whole result or none.

Files are made in a hidden folder inside of it and renamed at the end, metadata.json last. While it is absent the folder
holds no result.
"""

import fcntl
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from pixelis_jax.data.splits import METADATA
from pixelis_jax.types import UserError

STAGING = ".scoring"


class ResultFolder:
    """A context manager whose `staging` is the folder to write into; `publish` makes its files the result.

    `names` are the files that the command writes, `command` what its metadata.json says under "command". Raises
    UserError for a folder that holds anything but a former result of the command, one of the `inputs`, or another
    process that is writing. Without `publish` nothing is left behind, and a former result stays as it is.
    """

    def __init__(self, out: Path, *, inputs: Sequence[Path], names: Sequence[str], command: str) -> None:
        self.told, self.path = out, Path(os.path.realpath(os.path.expanduser(out)))
        self.staging = self.path / STAGING
        self._inputs, self._names, self._command = inputs, (*names, METADATA), command
        self._made: list[Path] = []  # folders that were not there, the innermost first
        self._lock = -1

    def __enter__(self) -> "ResultFolder":
        self._refuse()
        missing = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"--out={self.told} can't be made ({error.strerror}); name another place") from error
        self._made = missing
        self._lock = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise UserError(f"--out={self.told}: another process writes there; wait for it, or name another") from None
        shutil.rmtree(self.staging, ignore_errors=True)  # of a run that was killed
        self.staging.mkdir()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(self.told)  # a write that fails, on a full disk, does not say where
        shutil.rmtree(self.staging, ignore_errors=True)
        os.close(self._lock)
        for folder in self._made:
            if any(folder.iterdir()):
                break
            folder.rmdir()

    def publish(self, metadata: str) -> None:
        """Renames what is in `staging`; files of a former result that are not made again go. metadata.json is last."""
        (self.staging / METADATA).write_text(metadata, encoding="utf-8")
        made = {file.name for file in self.staging.iterdir()}
        assert made <= set(self._names), made
        for name in made:
            _sync(self.staging / name)
        (self.path / METADATA).unlink(missing_ok=True)
        for name in self._names:
            if name in made:
                (self.staging / name).replace(self.path / name)
            else:
                (self.path / name).unlink(missing_ok=True)
        _sync(self.path)

    def _refuse(self) -> None:
        if os.path.lexists(self.path) and not self.path.is_dir():
            raise UserError(f"--out={self.told} is a file; name a folder, new or empty")
        held = sorted(os.listdir(self.path)) if self.path.exists() else []
        if any(Path(os.path.realpath(file)).parent == self.path for file in self._inputs):
            raise UserError(f"--out={self.told} is the folder of the input; name another one")
        if held and not self._is_former_result():
            raise UserError(
                f"--out={self.told} holds {held[0]!r}, no result of this command; name a new or empty folder"
            )
        foreign = [name for name in held if name.lower().endswith(".jsonl") and name not in self._names]
        if foreign:
            raise UserError(f"--out={self.told} holds {foreign[0]!r}, which would be taken for samples; move it away")

    def _is_former_result(self) -> bool:
        """A whole one, or what a run left that was killed."""
        if self.staging.is_dir():
            return True
        try:
            metadata = json.loads((self.path / METADATA).read_bytes())
        except (OSError, ValueError, RecursionError):
            return False
        return isinstance(metadata, dict) and metadata.get("command") == self._command


def _sync(path: Path) -> None:
    """Puts a file, or a folder's entries, on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
