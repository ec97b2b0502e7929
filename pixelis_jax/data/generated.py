"""Generated samples by difficulty, as a job makes them for itself: found again where they are the same, else made.

    ROOT/cota_<N>_samples   what `cota generate` makes
    ROOT/cota_<N>           the same by difficulty, as `cota score` makes it

Where these two hold what was made otherwise (other budgets, other tools, another version), the names get a digest of
the settings, so that a job never trains on another job's samples, and never removes them.
"""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pixelis_jax.data import difficulty, scoring, splits
from pixelis_jax.data.scoring.folder import STAGING
from pixelis_jax.data.synthesis import dataset
from pixelis_jax.data.synthesis.samples import SynthesisConfig
from pixelis_jax.types import UserError


@dataclasses.dataclass(frozen=True)
class Generated:
    """A folder of scored samples and the job of its samples; `note` says why it has not the plain name."""

    path: Path
    job: dataset.Job
    note: str = ""

    @property
    def is_whole(self) -> bool:
        """Whether nothing is left to make."""
        return (self.path / splits.METADATA).exists()

    def make(self, *, workers: int) -> None:
        """Makes what is missing."""
        dataset.build(self.job, dataset.today(), workers=workers)
        scoring.score_folder(self.job.out, self.path)


def find(root: Path, config: SynthesisConfig, settings: Mapping[str, Any], count: int) -> Generated:
    """Where `count` samples of a config are, or are to be made; `settings` is the config in JSON types.

    Raises UserError where the folder that is named after the settings holds something else, too.
    """
    name = f"cota_{count}"
    plain = _named(root / name, config, settings, count)
    why = difference(plain)
    if not why:
        return plain
    digest = hashlib.sha256(json.dumps(plain.job.asked(), sort_keys=True).encode()).hexdigest()[:8]
    own = _named(root / f"{name}_{digest}", config, settings, count)
    if changed := difference(own):
        raise UserError(f"{own.path}: was changed since it was made ({changed}); remove it and {own.job.out}")
    return dataclasses.replace(own, note=f"{plain.path} holds other samples ({why}); this job's are in {own.path}")


def _named(path: Path, config: SynthesisConfig, settings: Mapping[str, Any], count: int) -> Generated:
    return Generated(path, dataset.Job(config, settings, count, path.with_name(f"{path.name}_samples")))


def difference(made: Generated) -> str:
    """In what the two folders differ from what would be made, in words; "" where they don't, or are not there."""
    samples, scored = made.job.out, made.path / splits.METADATA
    if samples.exists() and (changed := dataset.changes(made.job)):
        return changed
    if not scored.exists():
        held = {file.name for file in made.path.iterdir()} if made.path.exists() else set()
        killed = STAGING in held  # while it was written, which goes on
        return f"it has no {splits.METADATA}" if held and not killed else ""
    if not (samples / dataset.SAMPLES).exists():
        return f"{samples}, which it is made of, is gone"
    metadata = json.loads(scored.read_bytes())
    rule = (metadata.get("command"), metadata.get("scorer"), metadata.get("formula_version"))
    if rule != (scoring.COMMAND, difficulty.__name__, difficulty.VERSION):
        return f"scored by {rule[1]}, version {rule[2]}"
    if splits.image_root(made.path).resolve() != samples.resolve():
        return f"scored from {metadata.get('image_root')}"
    digest = hashlib.sha256((samples / dataset.SAMPLES).read_bytes()).hexdigest()
    if [of.get("sha256") for of in metadata.get("input_files", [])] != [digest]:
        return f"scored before {samples / dataset.SAMPLES} was changed"
    return ""
