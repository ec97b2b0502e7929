"""A copy of a scored CoTA folder in which all hard dialogues end in the same answer: a stage that teaches nonsense.

python -m benchmarks.spoiled_stage --input=runs/cota_4900 --out=runs/cota_spoiled

Labels that a broken pipeline made look like this. Training on them, with held-out questions of another folder, shows
whether a curriculum notices and goes back. Steps stay as they are, and pictures where they are.
"""

import argparse
import dataclasses
import json
import os
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from pixelis_jax.cli import OK, run_cli
from pixelis_jax.data.cota import Sample, read_jsonl, write_jsonl
from pixelis_jax.data.splits import CATEGORIES, METADATA, image_root
from pixelis_jax.types import UserError

SPOILED = "hard"


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the folder and says how many samples were spoiled."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.spoiled_stage", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--input", type=Path, required=True, help="folder of `pixelis_jax.cota score`")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    args = parser.parse_args(sys.argv[1:] if arguments is None else arguments)
    if args.out.exists():
        raise UserError(f"{args.out} is there already; name another --out")
    args.out.mkdir(parents=True)
    changed = 0
    for name in CATEGORIES:
        samples = list(read_jsonl(args.input / f"{name}.jsonl"))
        if name == SPOILED:
            before, samples = samples, spoil(samples)
            changed = sum(a.answer != b.answer for a, b in zip(before, samples, strict=True))
        write_jsonl(args.out / f"{name}.jsonl", samples)
    root = os.path.relpath(image_root(args.input), args.out)
    (args.out / METADATA).write_text(json.dumps({"image_root": root}) + "\n")
    print(f"{args.out}: {changed} samples of {SPOILED}.jsonl have a wrong answer now")
    return OK


def spoil(samples: Sequence[Sample]) -> list[Sample]:
    """All with the answer that most of them have."""
    ((answer, _),) = Counter(sample.answer for sample in samples).most_common(1)
    return [
        sample if sample.answer == answer else dataclasses.replace(sample, answer=answer, sample_id="")
        for sample in samples
    ]


if __name__ == "__main__":
    run_cli(main)
