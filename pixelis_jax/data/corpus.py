"""CoTA samples on disk by number, without holding them in memory: what training and held-out evaluation read.

A corpus is a folder that `cota score` wrote (simple.jsonl, medium.jsonl, hard.jsonl), or one with other CoTA files,
whose samples then have one category, "all". Every line is read and checked once, at the start; what can't be used is
counted by reason, or refused. Afterwards a sample is its place in a file.
"""

import dataclasses
import hashlib
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pixelis_jax.answers import frames
from pixelis_jax.answers.choices import NEEDS_ALL
from pixelis_jax.data import cota
from pixelis_jax.data.cota import Sample
from pixelis_jax.data.images import open_rgb
from pixelis_jax.data.splits import CATEGORIES, METADATA, image_root, resolve
from pixelis_jax.types import Task, UserError

ALL = "all"
OUTSIDE = -2
COLUMNS = "columns"  # in a task's metadata: what else the sample held, by name
TRAINED: tuple[str, ...] = ("positive", "self_correction")


class ChangedError(UserError):
    """A file of samples is not what it was when the job started."""


@dataclasses.dataclass(frozen=True)
class Selection:
    """Which samples of a folder are taken; with `strict` the first bad line is an error.

    `held_out_share` of the pictures are kept apart, by the hash of their path, so that all questions about one stay
    together; of a sample with several pictures the first one counts.
    """

    sample_types: tuple[str, ...] = TRAINED
    held_out_share: float = 0.0
    strict: bool = False


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Samples 0 .. N - 1; picklable, since worker processes read from it. `left_out` counts samples by reason."""

    name: str  # the folder or file as it was given
    root: Path  # that image paths start at
    files: tuple[Path, ...]
    stamps: tuple[tuple[int, int], ...]  # of each file: bytes, time of its last change in ns
    places: np.ndarray  # i64[N, 3]: file, first byte, bytes
    categories: tuple[str, ...]  # names; those without a sample too
    category: np.ndarray  # u8[N]
    weights: np.ndarray  # f32[N] sampling weights
    task_types: tuple[str, ...]  # of each sample
    left_out: Counter[str]
    pictures: frozenset[str]  # image paths that the samples name
    sha256: str  # of all lines that are used, and the sizes of their pictures
    unanswered: int  # samples whose answer nobody knows
    most_pictures: int  # of one sample
    columns: frozenset[str]  # names of what samples hold beside the fields that are known

    def __len__(self) -> int:
        return len(self.places)

    def numbers(self, category: str) -> np.ndarray:
        """i64[n]: the samples of a category, in the order of the files."""
        return np.flatnonzero(self.category == self.categories.index(category))

    def sample(self, number: int) -> Sample:
        """Sample `number`, without its pictures. Raises ChangedError where its file was changed or is gone."""
        file, start, size = (int(x) for x in self.places[number])
        try:
            handle = self.files[file].open("rb")
        except OSError as error:
            raise ChangedError(f"{self.files[file]}: can't be read any more ({error.strerror}); restore it") from error
        with handle:
            if _stamp(handle.fileno()) != self.stamps[file]:
                raise ChangedError(f"{self.files[file]}: was changed while the job ran; restore it, or start anew")
            handle.seek(start)
            line = handle.read(size)
        return cota.from_line(line, f"{self.files[file]}, byte {start}")

    def images(self, sample: Sample) -> tuple[np.ndarray, ...]:
        """Its pictures u8[height, width, 3]. Raises UserError where one is missing, damaged, or outside the folder."""
        return tuple(open_rgb(resolve(self.root, path)) for path in sample.image_paths)

    def task(self, number: int) -> Task:
        """Its question as a task with pictures; the sample's number is the task's address."""
        sample = self.sample(number)
        metadata: dict[str, Any] = {"kind": self.categories[int(self.category[number])]}
        if isinstance(more := sample.metadata.get("answers"), list):
            metadata["answers"] = tuple(map(str, more))
        metadata[COLUMNS] = columns_of(sample)
        metadata[cota.OWN_TYPE] = own_type(sample)
        metadata |= {name: sample.metadata[name] for name in (*frames.NAMES, NEEDS_ALL) if name in sample.metadata}
        return Task(
            task_id=sample.sample_id,
            index=number,
            task_type=sample.task_type,
            question=sample.question,
            images=self.images(sample),
            answer=sample.ground_truth,
            answer_type=sample.answer_type,
            needs_look=bool(sample.metadata.get("needs_look", False)),
            is_video=sample.is_video,
            choices=sample.choices,
            tolerance=sample.tolerance,
            metadata=metadata,
        )


def own_type(sample: Sample) -> str:
    """What results of a sample are counted under: its data's own word, "user" for imported data without one."""
    imported = sample.provenance.synthesis_method.startswith("import:")
    return str(sample.metadata.get(cota.OWN_TYPE) or ("user" if imported else sample.task_type))


@dataclasses.dataclass
class _Gathered:
    """What is known of the samples of a corpus so far."""

    places: list[tuple[int, int, int]] = dataclasses.field(default_factory=list)
    category: list[int] = dataclasses.field(default_factory=list)
    weights: list[float] = dataclasses.field(default_factory=list)
    task_types: list[str] = dataclasses.field(default_factory=list)
    pictures: set[str] = dataclasses.field(default_factory=set)
    digest: Any = dataclasses.field(default_factory=hashlib.sha256)
    unanswered: int = 0
    most_pictures: int = 0
    columns: set[str] = dataclasses.field(default_factory=set)

    def add(self, sample: Sample, line: bytes, place: tuple[int, int], *, category: str, sizes: list[int]) -> None:
        self.places.append((*place, len(line)))
        self.category.append(CATEGORIES.index(category) if category in CATEGORIES else 0)
        self.weights.append(sample.sampling_weight)
        self.task_types.append(sample.task_type)
        self.pictures.update(sample.image_paths)
        self.digest.update(line + repr(sizes).encode())
        self.unanswered += cota.UNANSWERED in sample.metadata
        self.most_pictures = max(self.most_pictures, len(sample.image_paths))
        self.columns.update(columns_of(sample))


class _Pictures:
    """Sizes in bytes of the files that image paths name, each looked at once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._sizes: dict[str, int] = {}

    def sizes(self, paths: Sequence[str]) -> list[int]:
        """OUTSIDE for a path that leaves the folder, -1 for a file that is not there, 0 for an empty one."""
        for path in paths:
            if path not in self._sizes:
                try:
                    self._sizes[path] = resolve(self.root, path).stat().st_size
                except UserError:
                    self._sizes[path] = OUTSIDE
                except OSError:
                    self._sizes[path] = -1
        return [self._sizes[path] for path in paths]


def open_corpus(path: Path, selection: Selection) -> Corpus:
    """All of a folder, or of one file. Raises UserError where nothing in it can be used."""
    return open_corpora(path, dataclasses.replace(selection, held_out_share=0.0))[0]


def open_sides(path: Path, held_out_path: Path | None, selection: Selection) -> tuple[Corpus, Corpus]:
    """(training, held out) samples: of two folders, or of one, of whose pictures a share is kept apart.

    Raises UserError where one of them has no sample that can be used.
    """
    if held_out_path is not None:
        return open_corpus(path, selection), open_corpus(held_out_path, selection)
    training, held_out = open_corpora(path, selection)
    if held_out is None:
        raise UserError("data.held_out_share is 0 and data.held_out_path is empty; set one of them")
    return training, held_out


def open_corpora(path: Path, selection: Selection) -> tuple[Corpus, Corpus | None]:
    """(training, held out) samples of a folder, or of one file, in one pass; None without a held-out share.

    Raises UserError where one of them has no sample that can be used.
    """
    names, files = _files(path)
    stamps = tuple(_stamp(file) for file in files)
    root, left_out, seen, first_bad = image_root(path), Counter[str](), set[str](), ""
    if not root.is_dir():
        raise UserError(f"{path}: its pictures should be in {root}, which is not there; move it back, or score again")
    sides, pictures = (_Gathered(), _Gathered()), _Pictures(root)
    for number, (name, file) in enumerate(zip(names, files, strict=True)):
        for start, line, sample in _lines(file):
            reason, sizes = _reason(sample, selection, seen), []
            if not reason:
                assert isinstance(sample, Sample)
                sizes = pictures.sizes(sample.image_paths)
                if min(sizes) <= 0:
                    reason = "picture outside the folder" if min(sizes) == OUTSIDE else "picture missing or empty"
            if reason:
                left_out[reason] += 1
                first_bad = first_bad or (str(sample) if isinstance(sample, UserError) else "")
                continue
            assert isinstance(sample, Sample)
            seen.add(sample.sample_id)
            apart = is_held_out(sample.image_paths, selection.held_out_share)
            sides[apart].add(sample, line, (number, start), category=name, sizes=sizes)
    found = []
    for side in sides if selection.held_out_share else sides[:1]:
        if not side.places:
            if seen:
                side_name = "held-out" if side is sides[1] else "training"
                raise UserError(
                    f"{path}: no sample falls on the {side_name} side: samples of one picture stay together, and there"
                    f" are few pictures for data.held_out_share={selection.held_out_share:g}; change that, or name a"
                    " folder of its own with data.held_out_path"
                )
            told = ", ".join(f"{count} {reason}" for reason, count in left_out.most_common()) or "it holds none"
            told += f"; the first: {first_bad}" if first_bad else ""
            raise UserError(
                f"{path}: no sample in it can be used ({told}); `python -m pixelis_jax.cota import` reads other data,"
                " `generate` makes some"
            )
        found.append(
            Corpus(
                name=str(path),
                root=root,
                files=tuple(files),
                stamps=stamps,
                places=np.array(side.places, np.int64),
                categories=CATEGORIES if names[0] in CATEGORIES else (ALL,),
                category=np.array(side.category, np.uint8),
                weights=np.array(side.weights, np.float32),
                task_types=tuple(side.task_types),
                left_out=left_out,
                pictures=frozenset(side.pictures),
                sha256=side.digest.hexdigest(),
                unanswered=side.unanswered,
                most_pictures=side.most_pictures,
                columns=frozenset(side.columns),
            )
        )
    return found[0], found[1] if len(found) > 1 else None


def _stamp(file: Path | int) -> tuple[int, int]:
    found = os.stat(file)
    return found.st_size, found.st_mtime_ns


def _files(path: Path) -> tuple[list[str], list[Path]]:
    """(category, file) of what is read in a folder."""
    if path.is_file():
        return [ALL], [path]
    if not path.is_dir():
        remedy = "`python -m pixelis_jax.cota generate` makes data, `import` reads yours"
        raise UserError(f"{path}: there is no such file or folder; {remedy}")
    scored = [path / f"{name}.jsonl" for name in CATEGORIES]
    if any(file.exists() for file in scored):
        missing = [file.name for file in (*scored, path / METADATA) if not file.exists()]
        if missing:
            raise UserError(f"{path}: {missing[0]} is missing; run `python -m pixelis_jax.cota score` again")
        return list(CATEGORIES), scored
    found = sorted(path.glob("*.jsonl"))
    if not found:
        raise UserError(f"{path}: holds no .jsonl file; `python -m pixelis_jax.cota import` reads other formats")
    return [ALL] * len(found), found


def _lines(file: Path) -> Iterator[tuple[int, bytes, Sample | UserError]]:
    """(first byte, line, sample or what is wrong with it) of each line that is not blank."""
    start = 0
    with file.open("rb") as handle:
        for number, line in enumerate(handle, 1):
            if line.strip():
                try:
                    yield start, line, cota.from_line(line, f"{file}:{number}")
                except UserError as error:
                    yield start, line, error
            start += len(line)


def _reason(sample: Sample | UserError, selection: Selection, seen: set[str]) -> str:
    """Why a line is left out; "" where it is taken. Raises the UserError of a bad one with `strict`."""
    if isinstance(sample, UserError):
        if selection.strict:
            raise sample
        return "bad line"
    if sample.sample_id in seen:
        return "sample_id twice"
    if sample.sample_type not in selection.sample_types:
        return f"sample_type {sample.sample_type}"
    return "" if sample.sampling_weight > 0 else "sampling_weight 0"


def columns_of(sample: Sample) -> dict[str, Any]:
    """What a sample holds beside the fields that are known: its metadata, and the fields of a user's own."""
    more = sample.metadata.get("other_fields")
    found = {name: value for name, value in sample.metadata.items() if name != "other_fields"}
    return found | more if isinstance(more, dict) else found


def is_held_out(image_paths: Sequence[str], share: float) -> bool:
    """Whether the samples about these pictures are kept for evaluation: by the hash of the first path."""
    digest = hashlib.blake2b(image_paths[0].encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") < share * 2**64
