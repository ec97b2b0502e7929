"""`python -m pixelis_jax.cota score`: difficulty scores, the categories simple, medium and hard, and a report."""

import argparse
import numbers
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pixelis_jax.cota import options

if TYPE_CHECKING:
    from pixelis_jax.data.cota import Sample

HELP = "score the difficulty of CoTA samples and split them into simple, medium and hard, with a report"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    add = parser.add_argument
    scorer = "your own scoring function, f(sample) -> float from 0 to 1 (default: the formula of data/difficulty.py)"
    strict = "stop at the first bad line or repeated sample_id, and write nothing"
    add("--input", type=options.path, required=True, metavar="PATH", help="a .jsonl or .json file, or a folder")
    add("--out", type=options.path, required=True, metavar="DIR", help="a new folder, or one of this command")
    add("--scorer", metavar="MODULE:FUNCTION", help=scorer)
    add("--strict", action="store_true", help=strict)


def run(args: argparse.Namespace) -> int:
    """Scores, splits, reports. Raises UserError."""
    from pixelis_jax.data import scoring, statistics

    scorer = scoring.passes.formula if args.scorer is None else load_scorer(args.scorer)
    result = scoring.score_folder(args.input, args.out, scorer=scorer, scorer_name=args.scorer, strict=args.strict)
    scored = result.scored
    for line in scored.refused_first:
        print(line, file=sys.stderr)
    if scored.refused > len(scored.refused_first):
        print(f"and {scored.refused - len(scored.refused_first)} more bad lines", file=sys.stderr)
    for warning in result.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    counts = ", ".join(f"{counts.total()} {category}" for category, counts in result.split.counts.items())
    print(f"{args.out}: {scored.statistics.samples} samples: {counts}; see {args.out / statistics.REPORT}")
    return 0


def load_scorer(name: str) -> Callable[["Sample"], float]:
    """The function that `package.module:function` names, its results checked. Raises UserError where there is none."""
    from pixelis_jax.functions import named, told
    from pixelis_jax.types import UserError

    function = named(name, option="--scorer")

    def checked(sample: "Sample") -> float:
        where = f"--scorer={name}: sample {sample.sample_id!a:.60}"
        try:
            value: Any = function(sample)
        except MemoryError:
            raise
        except Exception as error:
            raise UserError(f"{where}: it raised {told(error)}") from error
        is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
        if not (is_number and 0 <= value <= 1):  # NaN is in no interval
            raise UserError(f"{where}: it gave {value!r:.60}; give a number from 0 to 1")
        return float(value)

    return checked
