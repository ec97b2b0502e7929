"""Files that survive a kill: whole lines appended, whole files replaced, a full disk told in plain words."""

import contextlib
import errno
import json
import math
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

FULL_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
LIMIT_REACHED = "the file size limit or the disk quota is reached; raise it (ulimit -f, quota)"


@contextlib.contextmanager
def explain_full_disk(path: Path) -> Iterator[None]:
    """Turns "no space left" or "file too large" while `path` is written into a UserError; other errors pass."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL_DISK:
            raise
        told = "the disk is full; free some space" if error.errno == errno.ENOSPC else LIMIT_REACHED
        raise _user_error(f"{path}: {told}, then run the same command again; it resumes") from error


def json_line(record: Mapping[str, Any]) -> str:
    """One line of strict JSON: `step` first, then keys in order; floats with all digits; NaN and infinities as null."""
    first = {"step": record["step"]} if "step" in record else {}
    rest = {k: record[k] for k in sorted(record) if k != "step"}
    return json.dumps(_plain(first | rest), ensure_ascii=False, allow_nan=False, separators=(", ", ": "))


def _plain(value: Any) -> Any:
    """JSON types only: NumPy and 0-d device values become Python numbers, arrays lists, non-finite floats None."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return _plain(value.tolist())


def append_lines(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Appends one JSON line a record with a single write, so that a kill can only cut the end of the last line."""
    text = "".join(json_line(record) + "\n" for record in records)
    if not text:
        return
    with explain_full_disk(path):
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            data = memoryview(text.encode())
            while data:
                data = data[os.write(descriptor, data) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def atomic_write(path: Path, data: bytes | str) -> None:
    """Replaces `path` as a whole: a reader, or a kill at any moment, sees the old or the new content."""
    with explain_full_disk(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data.encode() if isinstance(data, str) else data)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, 0o644)  # mkstemp's files are private, these are for readers such as the monitor
            os.replace(temporary, path)
            _sync_folder(path.parent)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
            raise


def _sync_folder(folder: Path) -> None:
    """Puts a renamed entry on the disk, so that a power cut does not bring the old one back."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a JSONL file; a torn last line (no newline yet) is left out, a missing file is empty.

    Raises UserError, with the line's number, for a line that is no JSON object.
    """
    return [_record(line, path, number) for number, line in enumerate(_whole_lines(path), 1)]


def check_steps(path: Path) -> None:
    """Raises UserError, with the line's number, where `cut_back` could not tell the step of a line."""
    for number, line in enumerate(_whole_lines(path), 1):
        _step_of(line, path, number)


def cut_back(path: Path, step: int) -> None:
    """Keeps the lines with `step` <= the given one, byte for byte, and drops a torn end; rewrites only what changes."""
    if not path.exists():
        return
    lines = _whole_lines(path)
    kept = b"".join(line for number, line in enumerate(lines, 1) if _step_of(line, path, number) <= step)
    if len(kept) != path.stat().st_size:
        atomic_write(path, kept)


def _whole_lines(path: Path) -> list[bytes]:
    """Lines with their newline, without a torn end; none of a missing file."""
    if not path.exists():
        return []
    if not path.is_file():  # reading a pipe would wait for ever
        raise _user_error(f"{path} is no regular file; remove it")
    whole, newline, _ = path.read_bytes().rpartition(b"\n")
    return (whole + newline).splitlines(keepends=True)


def _record(line: bytes, path: Path, number: int) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        record = None
    if not isinstance(record, dict):
        raise _damaged(line, path, number)
    return record


def _step_of(line: bytes, path: Path, number: int) -> int:
    step = _record(line, path, number).get("step")
    if type(step) is not int:  # nor a bool
        raise _damaged(line, path, number)
    return step


def _damaged(line: bytes, path: Path, number: int) -> Exception:
    return _user_error(f"{path}, line {number}: no record of a step ({line[:60]!r}); remove the line or the file")


def _user_error(message: str) -> Exception:
    from pixelis_jax.types import UserError  # here, since it loads jax

    return UserError(message)
