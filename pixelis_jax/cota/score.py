"""`python -m pixelis_jax.cota score`: difficulty scores, the categories simple, medium and hard, and a report.

simple.jsonl, medium.jsonl and hard.jsonl hold every sample once, in the order of the input; report.md and plot_*.png
say what they are made of; metadata.json says the same as data, and comes last. Image paths stay as they are and start
at its `image_root`, see `pixelis_jax.data.splits.resolve`.
"""

import argparse
import importlib
import json
import numbers
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pixelis_jax.data.cota import Sample

HELP = "score the difficulty of CoTA samples and split them into simple, medium and hard, with a report"
COMMAND = "pixelis_jax.cota score"
_SPOOL = "samples"  # what the samples wait in until the thresholds are known


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    scorer = "your own scoring function, f(sample) -> float from 0 to 1 (default: the formula of data/difficulty.py)"
    strict = "stop at the first bad line or repeated sample_id, and write nothing"
    parser.add_argument(
        "--input", type=_path, required=True, metavar="PATH", help="a .jsonl or .json file, or a folder"
    )
    parser.add_argument("--out", type=_path, required=True, metavar="DIR", help="a new folder, or one of this command")
    parser.add_argument("--scorer", metavar="MODULE:FUNCTION", help=scorer)
    parser.add_argument("--strict", action="store_true", help=strict)


def run(args: argparse.Namespace) -> int:
    """Scores, splits, reports. Raises UserError."""
    from pixelis_jax.cota import score_report, scoring
    from pixelis_jax.cota.result_folder import ResultFolder
    from pixelis_jax.data import difficulty, inputs, splits, statistics

    scorer = scoring.formula if args.scorer is None else load_scorer(args.scorer)
    files = inputs.sample_files(args.input)
    root = os.path.realpath(splits.image_root(args.input))
    names = (*(f"{category}.jsonl" for category in splits.CATEGORIES), *score_report.PLOTS, statistics.REPORT)
    with ResultFolder(args.out, inputs=files, names=names, command=COMMAND) as folder:
        spool = folder.staging / _SPOOL
        scored = scoring.score_all(files, scorer, spool=spool, strict=args.strict)
        _tell_refused(args.input, scored)
        made = scoring.split(scored, spool=spool, folder=folder.staging)
        spool.unlink()
        warnings = [*scored.warnings(), *made.warnings()]
        pictures = score_report.pictures(scored, made)
        metadata = {
            "command": COMMAND,
            "scorer": args.scorer or difficulty.__name__,
            "formula_version": None if args.scorer else difficulty.VERSION,
            "image_root": os.path.relpath(root, folder.path),
            **score_report.metadata(scored, made, warnings),
        }
        for name, png in pictures.items():
            (folder.staging / name).write_bytes(png)
        text = score_report.report(scored, made, warnings, pictures)
        (folder.staging / statistics.REPORT).write_text(text, encoding="utf-8")
        folder.publish(json.dumps(metadata, indent=1, allow_nan=False) + "\n")
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)
    counts = ", ".join(f"{counts.total()} {category}" for category, counts in made.counts.items())
    print(f"{args.out}: {scored.statistics.samples} samples: {counts}; see {args.out / statistics.REPORT}")
    return 0


def _tell_refused(source: Path, scored: Any) -> None:
    """Prints the first bad lines. Raises UserError where there was nothing else."""
    from pixelis_jax.types import UserError

    for line in scored.refused_first:
        print(line, file=sys.stderr)
    if scored.refused > len(scored.refused_first):
        print(f"and {scored.refused - len(scored.refused_first)} more bad lines", file=sys.stderr)
    if scored.refused and not scored.statistics.samples:
        raise UserError(f"{source}: none of {scored.refused} samples can be read; `cota import` reads other formats")


def load_scorer(name: str) -> Callable[["Sample"], float]:
    """The function that `package.module:function` names, its results checked. Raises UserError where there is none."""
    from pixelis_jax.types import UserError

    module_name, _, function_name = name.partition(":")
    if not (module_name and function_name):
        raise UserError(f"--scorer={name} must be written package.module:function")
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # whatever the user's module does
        raise UserError(f"--scorer={name}: module {module_name} can't be imported ({_told(error)})") from error
    function = vars(module).get(function_name)
    if not callable(function):
        raise UserError(f"--scorer={name}: {module_name} has no function {function_name}")

    def checked(sample: "Sample") -> float:
        where = f"--scorer={name}: sample {sample.sample_id!a:.60}"
        try:
            value: Any = function(sample)
        except MemoryError:
            raise
        except Exception as error:
            raise UserError(f"{where}: it raised {_told(error)}") from error
        is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
        if not (is_number and 0 <= value <= 1):  # NaN is in no interval
            raise UserError(f"{where}: it gave {value!r:.60}; give a number from 0 to 1")
        return float(value)

    return checked


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:200]


def _path(text: str) -> Path:
    if not text:  # an unset variable of a script, not the current folder
        raise argparse.ArgumentTypeError("is empty; name a path")
    return Path(text)
