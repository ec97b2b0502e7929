"""Scoring a whole data set: simple.jsonl, medium.jsonl, hard.jsonl, a report and metadata.json in a folder of its own.

simple.jsonl, medium.jsonl and hard.jsonl hold every sample once, in the order of the input; report.md and plot_*.png
say what they are made of; metadata.json says the same as data, and comes last. Image paths stay as they are and start
at its `image_root`, see `pixelis_jax.data.splits.resolve`.
"""

import dataclasses
import json
import os
from pathlib import Path

from pixelis_jax.data import difficulty, inputs, splits, statistics
from pixelis_jax.data.scoring import passes, report
from pixelis_jax.data.scoring.folder import ResultFolder
from pixelis_jax.data.scoring.passes import Scored, Scorer, Split
from pixelis_jax.types import UserError

COMMAND = "pixelis_jax.cota score"
_SPOOL = "samples"  # what the samples wait in until the thresholds are known


@dataclasses.dataclass(frozen=True)
class Result:
    """What became of a data set, and what is not as it should be in it."""

    scored: Scored
    split: Split
    warnings: list[str]


def score_folder(
    source: Path, out: Path, *, scorer: Scorer = passes.formula, scorer_name: str | None = None, strict: bool = False
) -> Result:
    """Scores a file or folder into the folder `out`. `scorer_name` is what metadata.json calls a scorer of the user's.

    Raises UserError where nothing can be read, where `out` can't be written, and with `strict` for the first bad line.
    """
    files = inputs.sample_files(source)
    root = os.path.realpath(splits.image_root(source))
    names = (*(f"{category}.jsonl" for category in splits.CATEGORIES), *report.PLOTS, statistics.REPORT)
    with ResultFolder(out, inputs=files, names=names, command=COMMAND) as folder:
        spool = folder.staging / _SPOOL
        scored = passes.score_all(files, scorer, spool=spool, strict=strict)
        if not scored.statistics.samples:
            if not scored.refused:
                raise UserError(f"{source}: holds no sample; name a file or folder that has some")
            raise UserError(
                f"{source}: none of {scored.refused} samples can be read ({scored.refused_first[0]}); `cota import`"
                " reads other formats"
            )
        made = passes.split(scored, spool=spool, folder=folder.staging)
        spool.unlink()
        warnings = [*scored.warnings(), *made.warnings()]
        pictures = report.pictures(scored, made)
        metadata = {
            "command": COMMAND,
            "scorer": scorer_name or difficulty.__name__,
            "formula_version": None if scorer_name else difficulty.VERSION,
            "image_root": os.path.relpath(root, folder.path),
            **report.metadata(scored, made, warnings),
        }
        for name, png in pictures.items():
            (folder.staging / name).write_bytes(png)
        text = report.report(scored, made, warnings, pictures)
        (folder.staging / statistics.REPORT).write_text(text, encoding="utf-8")
        folder.publish(json.dumps(metadata, indent=1, allow_nan=False) + "\n")
    return Result(scored, made, warnings)
