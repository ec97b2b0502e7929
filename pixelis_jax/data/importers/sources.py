"""Which files of an input hold records, and in what container; told to the user before anything is read."""

import dataclasses
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pixelis_jax.data import json_lines
from pixelis_jax.data.importers import choices, folders, gold, hf, messages, prompts
from pixelis_jax.data.importers.base import Found, Options, Refusal, quoted
from pixelis_jax.data.importers.fields import CONTEXT, IDS, IMAGES
from pixelis_jax.types import UserError

SAMPLES = "cota.jsonl"  # what `generate` and `import` write; a folder that has it is read as that one file
_TABLES = {".parquet": "parquet", ".arrow": "arrow"}
_LINES = (".jsonl", ".ndjson")
_ABOUT = ("dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json")
# Where an object has its records, beside what it says of them all.
_LISTS = ("data", "annotations", "questions", "records", "rows", "examples", "items", "instances", "entries", "results")
KNOWN_IDS = frozenset(IDS)
KNOWN = frozenset(
    (*prompts.QUESTIONS, *IMAGES, *gold.ANSWERS, *messages.SAID, "trajectory", "reward_model", "metadata")
) - {"message", "contents"}  # what servers write beside their records
# Names of fields that are known also with capitals, spaces or hyphens: Question, Correct Answer, imagePath.
_SPELLED = KNOWN | KNOWN_IDS | {*choices.NAMES, *CONTEXT, messages.MORE, messages.HISTORY, "answer_type", "bbox_format"}
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_OTHERS = (".csv", ".tsv")
_ELSEWHERE = {
    b"\x1f\x8b": "is compressed; unpack it with gunzip",
    b"PK\x03\x04": "is a zip archive; unpack it",
    b"\x28\xb5\x2f\xfd": "is compressed; unpack it with zstd",
}


@dataclasses.dataclass(frozen=True)
class Source:
    """One file of records, its container (a key of READERS), and the split of the data set it belongs to."""

    path: Path
    container: str
    split: str = ""


def _pair(path: Path) -> Iterator[Found]:
    """The one record of a JSON file beside an image."""
    image = folders.partner(path)
    assert image is not None
    if path.stat().st_size == 0:
        yield str(path), Refusal(str(path), "file", "is empty")
    for where, value in json_lines.iter_values(path):
        yield where, {**value, folders.FILE: image.name} if isinstance(value, dict) else value


def _records(path: Path) -> Iterator[Found]:
    """The records of a JSON file; an object that holds them by id, or in a list of its own, is opened."""
    for where, value in json_lines.iter_values(path):
        yield from _opened(where, value)


def _spelled(record: dict[str, Any]) -> dict[str, Any]:
    """A record whose fields have their names in our spelling, where that is known and not there already."""
    names: dict[str, str] = {}
    for name in record:
        plain = _HUMP.sub("_", name).lower().replace(" ", "_").replace("-", "_")
        if name not in _SPELLED and plain in _SPELLED and plain not in record and plain not in names.values():
            names[name] = plain
    return {names.get(name, name): value for name, value in record.items()} if names else record


def _opened(where: str, value: Any) -> Iterator[Found]:
    """The records inside an object that is none itself; the value as it is where it is one."""
    if not isinstance(value, dict) or not value or not KNOWN.isdisjoint(_spelled(value)):
        yield where, value
        return
    if isinstance(value.get("data"), dict) and "annotations" in value:  # a task of Label Studio
        yield where, value
        return
    lists = [name for name in _LISTS if isinstance(value.get(name), list) and value[name]]
    if len(lists) == 1:
        yield from ((f"{where}: {lists[0]} {number}", item) for number, item in enumerate(value[lists[0]], 1))
        return
    objects = [item for item in value.values() if isinstance(item, dict)]
    if 2 * len(objects) <= len(value) or all(KNOWN.isdisjoint(_spelled(item)) for item in objects):
        yield where, value
        return
    for name, item in value.items():
        told = f"{where.removesuffix(': sample 1')}: key {quoted(name)}"
        yield told, {"id": name, **item} if isinstance(item, dict) and KNOWN_IDS.isdisjoint(item) else item


READERS: dict[str, Callable[[Path], Iterator[Found]]] = {
    "json": _records,
    "parquet": hf.parquet,
    "arrow": hf.arrow,
    "pair": _pair,
}


def read(source: Source) -> Iterator[Found]:
    """(where, record or UserError) of a file; one that can't be opened is a single error."""
    try:
        for where, value in READERS[source.container](source.path):
            yield where, _spelled(value) if isinstance(value, dict) else value
    except UserError as error:
        yield str(source.path), error


def check_packages(sources: list[Source]) -> None:
    """Raises UserError where a file needs a package that is not installed."""
    if any(source.container in _TABLES.values() for source in sources):
        hf.need("pyarrow")


def discover(path: Path, options: Options) -> tuple[list[Source], list[Path]]:
    """(files to read in order, files of records that are left aside). Raises UserError where there is none."""
    if not path.exists():
        raise UserError(f"--input={path}: there is no such file or folder; check the name")
    found, aside = ([_single(path)], []) if not path.is_dir() else _folder(path, options)
    if options.split:
        known = sorted({source.split for source in found if source.split})
        found = [source for source in found if source.split == options.split]
        if not found:
            raise UserError(f"{path} has no split {options.split!r}; splits are {', '.join(known) or 'not named'}")
    if not found:
        raise UserError(
            f"{path}: nothing to read; name a .jsonl, .json, .parquet or .arrow file, or a folder with some"
        )
    return found, aside


def _single(path: Path) -> Source:
    if not path.is_file():
        raise UserError(f"--input={path} is a pipe or a device; save it to a file first")
    try:
        with path.open("rb") as file:
            start = file.read(4)
    except OSError as error:
        raise UserError(f"{path}: can't be read ({error.strerror}); change its permissions") from error
    for magic, told in _ELSEWHERE.items():
        if start.startswith(magic):
            raise UserError(f"{path} {told}, and name what comes out")
    if path.suffix.lower() in (*_OTHERS, ".txt", ".md"):
        raise UserError(f"{path}: {path.suffix} files are not read; write JSONL, one object a line")
    if start == b"PAR1":
        return Source(path, "parquet")
    return Source(path, "arrow" if start == b"ARRO" else _TABLES.get(path.suffix.lower(), "json"))


def _is_list_of_records(file: Path) -> bool:
    """Whether a JSON file begins as a list of objects, as data has it; an object may be about the data."""
    with file.open("rb") as handle:
        return b"".join(handle.read(1000).split()).removeprefix(b"\xef\xbb\xbf").startswith(b"[{")


def _folder(path: Path, options: Options) -> tuple[list[Source], list[Path]]:
    if (path / SAMPLES).is_file():
        return [Source(path / SAMPLES, "json")], []
    if (path / "dataset_dict.json").is_file():
        return _saved_splits(path), []
    if (path / "state.json").is_file():
        return _saved(path, ""), []
    files = list(_walk(path))
    tables = [Source(f, _TABLES[f.suffix.lower()], _split_of(f, path)) for f in files if f.suffix.lower() in _TABLES]
    lines = [Source(f, "json", _split_of(f, path)) for f in files if f.suffix.lower() in _LINES]
    objects = [f for f in files if f.suffix.lower() == ".json" and f.name not in _ABOUT]
    pairs = [Source(f, "pair") for f in objects if folders.is_pair(f)] if options.format in ("auto", "vstar") else []
    if pairs:
        chosen = pairs
    elif tables or lines:
        more = [Source(f, "json", _split_of(f, path)) for f in objects if _is_list_of_records(f)]
        chosen = sorted(tables + lines + more, key=lambda source: str(source.path))
    else:
        chosen = [Source(f, "json", _split_of(f, path)) for f in objects]
    taken = {source.path for source in chosen}
    everything = (
        [source.path for source in tables + lines] + objects + [f for f in files if f.suffix.lower() in _OTHERS]
    )
    return chosen, [file for file in everything if file not in taken]


def _saved_splits(path: Path) -> list[Source]:
    """The files of a saved `DatasetDict`."""
    names = _json(path / "dataset_dict.json").get("splits")
    if not isinstance(names, list) or not all(isinstance(n, str) and n == Path(n).name for n in names):
        raise UserError(f"{path / 'dataset_dict.json'}: names no splits; save the data set again")
    return [source for name in names for source in _saved(path / name, name)]


def _saved(path: Path, split: str) -> list[Source]:
    """The files of a saved `Dataset`."""
    listed = _json(path / "state.json").get("_data_files")
    items = listed if isinstance(listed, list) else [None]
    named = [item.get("filename") if isinstance(item, dict) else None for item in items]
    names = [name for name in named if isinstance(name, str) and name == Path(name).name]
    if len(names) != len(named):
        raise UserError(f"{path / 'state.json'}: names no data files; save the data set again")
    missing = [name for name in names if not (path / name).is_file()]
    if missing:
        raise UserError(f"{path / missing[0]}: there is no such file, and state.json names it; copy the folder again")
    return [Source(path / name, "arrow", split) for name in names]


def _json(path: Path) -> dict[str, object]:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: can't be read as JSON ({str(error)[:100]}); copy the data set again") from error
    if not isinstance(value, dict):
        raise UserError(f"{path}: must be a JSON object; copy the data set again")
    return value


def _walk(path: Path) -> Iterator[Path]:
    """Plain files in order, without hidden ones; links to folders are not followed."""
    for folder, names, files in os.walk(path):
        names[:] = sorted(name for name in names if not name.startswith("."))
        yield from (Path(folder, name) for name in sorted(files) if not name.startswith("."))


def _split_of(file: Path, root: Path) -> str:
    """The split that a file's name tells in the usual layout: `train-00000-of-00002`, or a folder `train`."""
    for name in ("train", "validation", "valid", "val", "dev", "test"):
        if (
            file.stem == name
            or file.stem.startswith((f"{name}-", f"{name}_"))
            or name in file.relative_to(root).parts[:-1]
        ):
            return name
    return ""
