"""`python -m pixelis_jax.cota generate`: CoTA samples of all seven task types, solved with the real tools."""

import argparse
import functools
import os
from typing import Any

from pixelis_jax.cli import python
from pixelis_jax.cota import options

HELP = "make CoTA samples of all seven task types from drawn scenes, with the results of the real tools"
SEED = "the same seed gives the same bytes (default: 1; pixelis-tiny-tools was pretrained on seed 0)"
OFF = "without READ_TEXT: text is read from a ZOOM_IN (quicker by far, and rapidocr is not needed)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    add = parser.add_argument
    add("--num_samples", type=options.count, required=True, metavar="N", help="how many")
    add("--out", type=options.path, required=True, metavar="DIR", help="folder; the same command goes on there")
    add("--seed", type=options.natural, default=1, help=SEED)
    add("--split", choices=("train", "heldout"), default="train", help="which digits and codes")
    add("--no_ocr", action="store_true", help=OFF)
    add("--workers", type=options.count, default=os.cpu_count() or 1, help="processes (default: one a core)")
    add("--trap_share", type=options.share, default=0.2, help="of all samples (default: 0.2)")
    add("--self_correction_share", type=options.share, default=0.1, help="of all samples (default: 0.1)")
    budgets = {"min_pixels": 56 * 56, "max_pixels": 112 * 112, "crop_min_pixels": 84 * 84, "crop_max_pixels": 112 * 112}
    for name, area in budgets.items():
        what = "a tool's picture" if name.startswith("crop") else "a picture"
        add(f"--{name}", type=options.count, default=area, help=f"area of {what} as it is seen ({area})")
    add("--factor", type=options.count, default=28, help="sides are multiples of it (28; Qwen3-VL: 32)")
    add("--coordinates", choices=("pixels", "norm1000"), default="pixels", help="frame of boxes")


def run(args: argparse.Namespace) -> int:
    """Generates, or goes on, and reports; a finished data set says so."""
    from pixelis_jax.data import statistics
    from pixelis_jax.data.synthesis import dataset

    job = make_job(args)
    done = dataset.build(job, dataset.today(), workers=args.workers)
    if done is None and (job.out / statistics.REPORT).exists():
        print(f"{job.out}: this data set is finished ({job.num_samples} samples); name another --out for a new one")
        return 0
    statistics.report(job.out / dataset.SAMPLES, job.out)
    if done is None:
        print(f"{job.out / statistics.REPORT}: written; its {job.num_samples} samples were there")
        return 0
    rate = f"{done.made} made in {done.seconds:.0f} s, {done.made / done.seconds:.1f} a second"
    before = f", {done.found} were there" if done.found else ""
    print(f"{job.out / dataset.SAMPLES}: {job.num_samples} samples; {rate}{before}; see {job.out / statistics.REPORT}")
    for reason, count in done.given_up.most_common():
        print(f"  another scene was taken {count} times: {reason}")
    print(f"next: {python()} -m pixelis_jax.cota score --input={job.out} --out={job.out}_scored")
    return 0


def make_job(args: argparse.Namespace) -> Any:
    """The job of a command line. Raises UserError for options that exclude each other."""
    from pixelis_jax.data.synthesis.dataset import Job
    from pixelis_jax.data.synthesis.samples import SynthesisConfig
    from pixelis_jax.models.image_processor import PixelBudget, smart_resize
    from pixelis_jax.tools.base import View
    from pixelis_jax.types import UserError

    for low, high in (("min_pixels", "max_pixels"), ("crop_min_pixels", "crop_max_pixels")):
        least, most = getattr(args, low), getattr(args, high)
        if least > most or most < args.factor**2:
            raise UserError(
                f"--{low}={least} and --{high}={most}: the first must not be above the second, and that not"
                f" below {args.factor**2} (one vision token)"
            )
    shares = {name: getattr(args, name) for name in ("trap_share", "self_correction_share")}
    if sum(shares.values()) > 1:
        raise UserError(
            f"{' and '.join(f'--{k}={v}' for k, v in shares.items())} sum to more than 1; lower one of them"
        )
    overview = PixelBudget(args.min_pixels, args.max_pixels)
    crop = PixelBudget(args.crop_min_pixels, args.crop_max_pixels)
    config = SynthesisConfig(
        seed=args.seed,
        view=View(
            functools.partial(smart_resize, factor=args.factor, budget=overview),
            functools.partial(smart_resize, factor=args.factor, budget=crop),
            args.coordinates,
        ),
        split=args.split,
        ocr=not args.no_ocr,
        trap_share=args.trap_share,
        self_correction_share=args.self_correction_share,
    )
    budgets = ("min_pixels", "max_pixels", "crop_min_pixels", "crop_max_pixels", "factor")
    settings = {name: getattr(args, name) for name in ("seed", "split", "no_ocr", "coordinates", *shares, *budgets)}
    return Job(config, settings, args.num_samples, args.out)
