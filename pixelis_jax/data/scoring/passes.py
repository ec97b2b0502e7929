"""The work behind `cota score`: a pass that scores, the thresholds of all scores, and a pass that splits.

The first pass keeps a few bytes a sample in memory; the samples themselves wait in a file.
"""

import dataclasses
import json
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from pixelis_jax.data import difficulty, inputs, splits
from pixelis_jax.data.cota import Sample, to_record
from pixelis_jax.data.splits import CATEGORIES, Thresholds
from pixelis_jax.data.statistics import Statistics
from pixelis_jax.types import UserError

SHOWN = 20  # bad lines and repeated ids that are quoted
Scorer = Callable[[Sample], float]
Kind = tuple[str, str]  # (task type, sample type)


@dataclasses.dataclass
class FileCounts:
    """One input file and what became of its samples."""

    file: Path
    sha256: str
    lines: int
    samples: int = 0
    refused: int = 0
    repeated: int = 0


@dataclasses.dataclass
class Scored:
    """What the first pass knows. `statistics.scores` and `kinds` have an entry for each sample that is kept."""

    files: list[FileCounts]
    statistics: Statistics = dataclasses.field(default_factory=Statistics)
    kinds: "array[int]" = dataclasses.field(default_factory=lambda: array("I"))  # places in `kind_names`
    kind_names: list[Kind] = dataclasses.field(default_factory=list)
    refused_first: list[str] = dataclasses.field(default_factory=list)  # what is wrong with the first bad lines
    repeated_first: list[str] = dataclasses.field(default_factory=list)  # sample ids
    outside: int = 0  # samples with an image path that leaves the folder

    @property
    def refused(self) -> int:
        return sum(counts.refused for counts in self.files)

    @property
    def repeated(self) -> int:
        return sum(counts.repeated for counts in self.files)

    def warnings(self) -> list[str]:
        """A sentence for each kind of thing that is not as it should be."""
        found = []
        if self.refused:
            found.append(f"{self.refused} lines or items can't be read and are left out")
        if self.repeated:
            shown = ", ".join(self.repeated_first[:3])
            found.append(f"{self.repeated} samples repeat a sample_id and are left out ({shown})")
        if self.outside:
            found.append(f"{self.outside} samples have an image path that is absolute or leaves the folder of the data")
        return found


@dataclasses.dataclass(frozen=True)
class Split:
    """The thresholds, and the samples of each category by kind."""

    limits: Thresholds
    counts: dict[str, Counter[Kind]]

    def task_types(self, category: str) -> Counter[str]:
        """Samples of a category by task type."""
        counts = Counter[str]()
        for (task_type, _), count in self.counts[category].items():
            counts[task_type] += count
        return counts

    def warnings(self) -> list[str]:
        """A sentence for each category that is too small or too uniform."""
        return splits.warnings({category: self.task_types(category) for category in CATEGORIES})


def formula(sample: Sample) -> float:
    """The scorer where the user names none."""
    return difficulty.score(sample).total


def score_all(files: Sequence[Path], scorer: Scorer, *, spool: Path, strict: bool) -> Scored:
    """Scores the samples of `files` and writes them, with their score, as JSONL to `spool`.

    A line that can't be read, and a sample whose id was there before, is counted and left out; with `strict` it is
    raised as a UserError.
    """
    scored = Scored([FileCounts(file, *inputs.digest(file)) for file in files])
    counts = {of.file: of for of in scored.files}
    lines = sum(of.lines for of in scored.files)
    kinds: dict[Kind, int] = {}
    seen: set[str] = set()
    with spool.open("w", encoding="utf-8") as out:
        for file, item in inputs.read(files, label="score, samples", lines=lines):
            sample = _kept(item, file, seen, scored=scored, strict=strict)
            if sample is None:
                counts[file].refused += isinstance(item, UserError)
                counts[file].repeated += isinstance(item, Sample)
                continue
            sample = dataclasses.replace(sample, difficulty_score=scorer(sample))
            out.write(json.dumps(to_record(sample), ensure_ascii=False, allow_nan=False) + "\n")
            counts[file].samples += 1
            scored.statistics.add(sample)
            scored.kinds.append(kinds.setdefault((sample.task_type, sample.sample_type), len(kinds)))
            scored.outside += any(splits.leaves(path) for path in sample.image_paths)
    scored.kind_names = list(kinds)
    return scored


def _kept(item: Sample | UserError, file: Path, seen: set[str], *, scored: Scored, strict: bool) -> Sample | None:
    """The sample, or None for what is left out; its reason is noted, or raised with `strict`."""
    if isinstance(item, UserError):
        if strict:
            raise item
        if len(scored.refused_first) < SHOWN:
            scored.refused_first.append(str(item))
        return None
    if item.sample_id in seen:
        shown = ascii(item.sample_id[:60])[1:-1]
        if strict:
            raise UserError(f"{file}: sample_id: {shown} is there twice; remove one of the two")
        if len(scored.repeated_first) < SHOWN:
            scored.repeated_first.append(shown)
        return None
    seen.add(item.sample_id)
    return item


def split(scored: Scored, *, spool: Path, folder: Path) -> Split:
    """Writes simple.jsonl, medium.jsonl and hard.jsonl into `folder`, samples in the order of the spool."""
    limits = splits.thresholds(np.array(scored.statistics.scores, np.float64))
    counts = {category: Counter[Kind]() for category in CATEGORIES}
    files = {category: (folder / f"{category}.jsonl").open("wb") for category in CATEGORIES}
    try:
        with spool.open("rb") as lines:
            for line, score, kind in zip(lines, scored.statistics.scores, scored.kinds, strict=True):
                category = splits.category_of(score, limits)
                counts[category][scored.kind_names[kind]] += 1
                files[category].write(line)
    finally:
        for file in files.values():
            file.close()
    return Split(limits, counts)
