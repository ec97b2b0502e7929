"""Rows of parquet and Arrow files, with pyarrow from the extra `[data]`; a few rows at a time are in memory."""

import importlib
import math
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from pixelis_jax.data.importers.base import Found, Refusal
from pixelis_jax.types import UserError

ROWS = 16  # at a time: rows may hold images of megabytes
_BUFFER = 2**20  # bytes of a column that are read at a time, instead of the whole row group


def parquet(path: Path) -> Iterator[Found]:
    """(where, row as a dict) of each row of a parquet file; what can't be decoded ends it with one refusal."""
    pq: Any = need("pyarrow.parquet")

    def batches() -> Iterator[Any]:
        # With pre_buffer every row group that was read stays in memory.
        file = pq.ParquetFile(path, buffer_size=_BUFFER, pre_buffer=False)
        yield from file.iter_batches(batch_size=ROWS)

    yield from _rows(path, batches)


def arrow(path: Path) -> Iterator[Found]:
    """The same of an Arrow file: the stream that `save_to_disk` writes, or the file format."""
    pa: Any = need("pyarrow")
    ipc: Any = need("pyarrow.ipc")

    def batches() -> Iterator[Any]:
        with pa.memory_map(str(path)) as source:
            if bytes(source.read(6)) == b"ARROW1":
                reader = ipc.open_file(source)
                whole = (reader.get_batch(i) for i in range(reader.num_record_batches))
            else:
                source.seek(0)
                whole = iter(ipc.open_stream(source))
            for batch in whole:
                yield from (batch.slice(start, ROWS) for start in range(0, batch.num_rows, ROWS))

    yield from _rows(path, batches)


def _rows(path: Path, batches: Any) -> Iterator[Found]:
    """Rows of the batches that `batches()` gives."""
    pa: Any = need("pyarrow")
    number = 0
    try:
        for batch in batches():
            for row in batch.to_pylist():
                number += 1
                yield f"{path}: row {number}", plain(row)
    except (pa.ArrowException, OSError, ValueError) as error:  # ValueError: text that is not UTF-8
        where = f"{path}: row {number + 1}"
        word = " ".join(str(error).split())[:100]
        yield where, Refusal(where, "file", "is damaged, or not what its name says, from here on", word)


def plain(value: Any) -> Any:
    """A row in JSON types, except bytes: tuples become lists, NaN a null, dates and decimals texts."""
    if isinstance(value, dict):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and math.isnan(value):
        return None
    if value is None or isinstance(value, str | int | float | bytes):
        return value
    return str(value)


def need(name: str) -> ModuleType:
    """A module of pyarrow. Raises UserError where it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise UserError(
            "reading parquet and Arrow files needs the package pyarrow, which is not installed:"
            " pip install 'pixelis-jax[data]'"
        ) from None
