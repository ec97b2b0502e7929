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
    if not (args.input / METADATA).is_file():
        raise UserError(f"{args.input} is no folder of `python -m pixelis_jax.cota score`: it has no {METADATA}")
    samples = {name: read_jsonl(args.input / f"{name}.jsonl") for name in CATEGORIES}
    if not samples[SPOILED]:
        raise UserError(f"{args.input / SPOILED}.jsonl is empty: there is nothing to spoil")
    samples[SPOILED], answer = spoil(samples[SPOILED])
    root = os.path.relpath(image_root(args.input), args.out)
    try:
        args.out.mkdir(parents=True)
        for name, lines in samples.items():
            write_jsonl(args.out / f"{name}.jsonl", lines)
        (args.out / METADATA).write_text(json.dumps({"image_root": root}) + "\n")
    except OSError as error:
        raise UserError(f"--out={args.out}: can't be written ({error.strerror})") from error
    wrong = sum(sample.answer != sample.ground_truth for sample in samples[SPOILED])
    print(f"{args.out}: all of {SPOILED}.jsonl answer {answer!r} now, {wrong} of {len(samples[SPOILED])} wrongly")
    return OK


def spoil(samples: Sequence[Sample]) -> tuple[list[Sample], str]:
    """(all with the answer that most of them have, that answer)."""
    ((answer, _),) = Counter(sample.answer for sample in samples).most_common(1)
    return [
        sample if sample.answer == answer else dataclasses.replace(sample, answer=answer, sample_id="")
        for sample in samples
    ], answer


if __name__ == "__main__":
    run_cli(main)
