"""Samples by difficulty: the thresholds, the three categories, and where a scored folder's pictures are.

A scored folder holds simple.jsonl, medium.jsonl and hard.jsonl, and metadata.json, whose `image_root` names the folder
that the samples' image paths start at, relative to the scored one. Paths in the samples stay as they were, and so do
the ids, which are hashes of the content. A reader calls `image_root` once and `resolve` for every path.
"""

import dataclasses
import json
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from pixelis_jax.types import UserError

CATEGORIES: tuple[str, ...] = ("simple", "medium", "hard")
METADATA = "metadata.json"
LEAST_SHARE, LEAST_TASK_TYPES = 0.25, 3  # of a category, below which the report warns


@dataclasses.dataclass(frozen=True)
class Thresholds:
    """Scores inside [low, high] are `kept` many; `p33` and `p66` are their percentiles. NaN without scores."""

    q1: float
    q3: float
    low: float
    high: float
    p33: float
    p66: float
    kept: int


def thresholds(scores: np.ndarray) -> Thresholds:
    """Of f64[N] scores: quartiles, fences [Q1 - 1.5 IQR, Q3 + 1.5 IQR], and percentiles 33 and 66 of what is inside.

    Percentiles are linear between neighbours, as NumPy's default. Both fences belong to the inside.
    """
    if not len(scores):
        nan = float("nan")
        return Thresholds(nan, nan, nan, nan, nan, nan, kept=0)
    q1, q3 = (float(x) for x in np.percentile(scores, (25, 75)))
    low, high = q1 - 1.5 * (q3 - q1), q3 + 1.5 * (q3 - q1)
    inside = scores[(low <= scores) & (scores <= high)]
    p33, p66 = (float(x) for x in np.percentile(inside, (33, 66)))
    return Thresholds(q1, q3, low, high, p33, p66, kept=len(inside))


def category_of(score: float, limits: Thresholds) -> str:
    """Simple up to p33, medium up to p66, else hard. Scores outside the fences are labelled like all others."""
    return CATEGORIES[0] if score <= limits.p33 else CATEGORIES[1] if score <= limits.p66 else CATEGORIES[2]


def warnings(task_types: Mapping[str, Counter[str]]) -> list[str]:
    """One sentence for each category with less than 25 % of the samples, or fewer than three task types.

    `task_types` counts the samples of each category by task type.
    """
    total = sum(counts.total() for counts in task_types.values())
    if not total:
        return ["there are no samples"]
    found = []
    for category in CATEGORIES:
        counts = task_types[category]
        if counts.total() < LEAST_SHARE * total:
            share = f"{counts.total()} of {total} samples ({100 * counts.total() / total:.1f} %)"
            found.append(f"{category} has {share}, less than {100 * LEAST_SHARE:.0f} %")
        if len(+counts) < LEAST_TASK_TYPES:
            names = ", ".join(sorted(+counts)) or "none"
            found.append(f"{category} has {len(+counts)} task types ({names}), fewer than {LEAST_TASK_TYPES}")
    return found


def image_root(data: Path) -> Path:
    """The folder that the image paths of samples start at. `data` is a folder of samples, or a file in one.

    A scored folder names it in its metadata.json; elsewhere it is the folder itself. Raises UserError for metadata.json
    that is damaged or names an absolute place.
    """
    folder = data if data.is_dir() else data.parent
    file = folder / METADATA
    try:
        metadata = json.loads(file.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return folder
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{file}: damaged or can't be read ({error}); score the samples again") from error
    root = metadata.get("image_root", ".") if isinstance(metadata, dict) else "."  # a list is somebody else's file
    if not isinstance(root, str) or not root or "\0" in root or os.path.isabs(root):
        raise UserError(f"{file}: image_root: must be a folder relative to this one")
    return folder if root == "." else Path(os.path.realpath(folder / root))


def leaves(name: str) -> bool:
    """Whether an image path is absolute or climbs out of its folder by `..`; links are not looked at."""
    return os.path.isabs(name) or os.path.normpath(name).split(os.sep)[0] == os.pardir


def resolve(root: Path, name: str, *, allow_outside: bool = False) -> Path:
    """The file of a sample's image path. `root` is what `image_root` gave.

    Raises UserError for a path that is absolute, or leaves `root` by `..` or by a link, unless `allow_outside`: so data
    of others can't name any file of this machine.
    """
    if not name or "\0" in name:
        raise UserError(f"image path {name[:200]!r} is no name of a file")
    file = root / name
    if allow_outside:
        return file
    remedy = f"put the image into {root}, or allow images outside of it"
    if leaves(name):
        raise UserError(f"image path {name[:200]!r} leaves the folder of the data; {remedy}")
    if not Path(os.path.realpath(file)).is_relative_to(os.path.realpath(root)):
        raise UserError(f"image path {name[:200]!r} is a link that leaves the folder of the data; {remedy}")
    return file
