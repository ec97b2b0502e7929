"""A copy of a scored CoTA folder in which the hard dialogues end in wrong answers: a stage that teaches nonsense.

python -m benchmarks.spoiled_stage --input=runs/cota_4900 --out=runs/cota_spoiled

Training on it, with held-out questions of another folder, shows whether a curriculum notices and goes back. Each hard
sample gets the answer of the next one of its task type whose answer differs; its steps stay. Pictures stay where they
are.
"""

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from pixelis_jax.cli import OK, run_cli
from pixelis_jax.data.cota import Sample, read_jsonl, write_jsonl
from pixelis_jax.data.splits import CATEGORIES, METADATA, image_root

SPOILED = "hard"


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the folder and says how many samples were spoiled."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.spoiled_stage", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--input", type=Path, required=True, help="folder of `pixelis_jax.cota score`")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    args = parser.parse_args(sys.argv[1:] if arguments is None else arguments)
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
    """Every sample with the answer of the next of its task type that has another one, where there is one."""
    made = []
    for i, sample in enumerate(samples):
        following = (*samples[i + 1 :], *samples[:i])
        others = (s.answer for s in following if s.task_type == sample.task_type and s.answer != sample.answer)
        made.append(dataclasses.replace(sample, answer=next(others, sample.answer), sample_id=""))
    return made


if __name__ == "__main__":
    run_cli(main)
