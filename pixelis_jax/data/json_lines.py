"""JSON values of a file, one by one: JSONL is streamed, and a bad line costs that line alone.

A JSON list, an envelope {"metadata": ..., "samples": [...]} and a single object over several lines are read whole.
"""

import codecs
import itertools
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from pixelis_jax.types import UserError

_WIDE = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)  # the first also begins UTF-32


def iter_values(path: Path) -> Iterator[tuple[str, Any]]:
    """(where, JSON value, or the UserError in place of one that can't be read) of every record, in order.

    `where` is the file with the line, or with the number of a list's item. Lines end in LF, CRLF or CR; blank lines and
    a byte order mark are passed over. Numbers that JSON does not have, and too large ones, become NaN and infinities.
    Raises UserError where the file can't be read at all.
    """
    try:
        with path.open("rb") as file:
            yield from _values(path, file)
    except OSError as error:
        raise UserError(f"{path}: can't be read ({error.strerror}); check the name and its permissions") from error


def _values(path: Path, file: IO[bytes]) -> Iterator[tuple[str, Any]]:
    lines = _lines(path, file)
    first, second = next(lines, None), next(lines, None)
    if first is None:
        return
    value = _tried(first[1], f"{path}:{first[0]}")
    whole = None
    if isinstance(value, UserError):
        # The first line of a document over several lines, or a line that is cut.
        whole = _document(path) if first[1].lstrip().startswith((b"[", b"{")) and second else None
    elif second is None and _items(value) is not None:
        whole = value
    if whole is not None:
        items = _items(whole)
        yield from (
            (f"{path}: sample {number}", item) for number, item in enumerate([whole] if items is None else items, 1)
        )
        return
    yield f"{path}:{first[0]}", value
    for number, line in itertools.chain([second] if second else [], lines):
        yield f"{path}:{number}", _tried(line, f"{path}:{number}")


def _lines(path: Path, file: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """(number from 1, bytes) of the lines that are not blank. No JSON string holds a bare CR, so CR ends a line too."""
    number = 0
    for chunk in file:
        if number == 0:
            if chunk.startswith(_WIDE):
                raise UserError(f"{path}: is UTF-16 or UTF-32 text; save it as UTF-8")
            chunk = chunk.removeprefix(codecs.BOM_UTF8)
        for line in chunk.rstrip(b"\r\n").split(b"\r"):
            number += 1
            if line.strip():
                yield number, line


def value_of(line: bytes, where: str) -> Any:
    """The JSON value of a line. `where` (file and line) begins the UserError for one that has none."""
    try:
        return _load(line.decode())
    except UnicodeDecodeError as error:
        bad = f"byte {error.start + 1} of the line is 0x{line[error.start]:02x}"
        raise UserError(f"{where}: not UTF-8 text ({bad})") from error
    except ValueError as error:
        raise UserError(f"{where}: not valid JSON ({error})") from error


def _tried(line: bytes, where: str) -> Any:
    try:
        return value_of(line, where)
    except UserError as error:
        return error


def _document(path: Path) -> Any:
    """The file as one JSON list or object; None where it is none."""
    try:
        value = _load(path.read_bytes().removeprefix(codecs.BOM_UTF8).decode())
    except ValueError:  # of which UnicodeDecodeError is one
        return None
    return value if isinstance(value, list | dict) else None


def _items(value: Any) -> list[Any] | None:
    """The samples of a list or an envelope; None for anything else."""
    found = value["samples"] if isinstance(value, dict) and isinstance(value.get("samples"), list) else value
    return found if isinstance(found, list) else None


def _load(text: str) -> Any:
    """The JSON value; a number that is none in JSON, or too large, is let through: its sample alone is refused."""
    try:
        return json.loads(text, parse_int=lambda digits: int(digits) if len(digits) < 400 else math.inf)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
