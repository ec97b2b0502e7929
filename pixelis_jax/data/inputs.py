"""The files that samples are read from: which ones a path means, and reading them with a progress line."""

import contextlib
import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from pixelis_jax.data.cota import Sample, iter_jsonl
from pixelis_jax.data.splits import METADATA
from pixelis_jax.metrics.progress import Progress
from pixelis_jax.types import UserError

# JSON files beside samples that hold none: of `score`, `generate` and `import`.
NOT_SAMPLES = frozenset({METADATA, "generation.json", "import.json"})
LONG_LINES = 5000  # inputs of fewer are read before anyone looks


def sample_files(path: Path) -> list[Path]:
    """A file, or the .jsonl and .json files of a folder (not of folders in it) by name, hidden ones left out.

    Raises UserError where there is none, and for one that is neither a file nor a link to one.
    """
    if path.is_dir():
        found = sorted(file for file in path.iterdir() if _may_hold_samples(file))
        if not found:
            raise UserError(f"{path}: no .jsonl or .json file with samples in this folder; name the file or its folder")
    else:
        found = [path]
    for file in found:
        if not file.exists():
            raise UserError(f"{file}: there is no such file; check the name")
        if not file.is_file():
            raise UserError(f"{file}: is a pipe or a device, not a plain file; save the samples to a file first")
    return found


def _may_hold_samples(file: Path) -> bool:
    hidden = file.name.startswith(".")
    return (
        file.suffix.lower() in (".jsonl", ".json") and not hidden and file.name not in NOT_SAMPLES and not file.is_dir()
    )


def digest(file: Path) -> tuple[str, int]:
    """(SHA-256 in hex, number of line ends) of a file."""
    sha256, lines = hashlib.sha256(), 0
    with file.open("rb") as handle:
        while chunk := handle.read(2**20):
            sha256.update(chunk)
            lines += chunk.count(b"\n")
    return sha256.hexdigest(), lines


def read(files: Sequence[Path], *, label: str, lines: int) -> Iterator[tuple[Path, Sample | UserError]]:
    """(file, sample or what is wrong with it) in order. The progress counts to `lines`, those of all files together."""
    with contextlib.ExitStack() as stack:
        progress = stack.enter_context(Progress(lines, label=label)) if lines >= LONG_LINES else None
        for file in files:
            for item in iter_jsonl(file):
                yield file, item
                if progress is not None and progress.done < lines:  # a list may hold more samples than lines
                    progress.update()
