"""`python -m pixelis_jax.cota import`: other people's data as CoTA samples."""

import argparse
import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pixelis_jax.cota import options

if TYPE_CHECKING:
    from pixelis_jax.cota.preview import Preview
    from pixelis_jax.data.cota import Sample
    from pixelis_jax.data.importers.job import Import

HELP = "read other data (CoTA dialects, tool dialogues, RL prompts, V*-style folders, parquet, Hugging Face data sets)"
SHOWN = 3  # samples at the end of the report
TASK_TYPES = (
    "object_counting",
    "geometric_comparison",
    "text_extraction",
    "spatial_reasoning",
    "temporal_tracking",
    "attribute_recognition",
    "relationship_detection",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    add = parser.add_argument
    add(
        "--input",
        type=Path,
        required=True,
        metavar="PATH",
        help="file or folder: JSONL, JSON, parquet, Arrow, V*-style",
    )
    add("--out", type=Path, required=True, metavar="DIR", help="folder, new or empty; the same command may be repeated")
    formats = ("auto", "cota", "conversations", "prompts", "vstar")
    add("--format", choices=formats, default="auto", help="of the records (default: auto, each one by its fields)")
    add("--strict", action="store_true", help="stop at the first record that is refused, and write nothing")
    add(
        "--task_type",
        choices=(*TASK_TYPES, "required"),
        default="attribute_recognition",
        help="of records that name none (default: attribute_recognition, whose weight in the difficulty score is that"
        " of an unknown type); required: refuse them",
    )
    add(
        "--coordinates",
        choices=("auto", "relative", "norm1000", "pixels"),
        default="auto",
        help="frame of boxes in calls, questions and answers (default: auto, what the record says: for calls the tool's"
        " definition or name, for answers bbox_type, else pixels)",
    )
    add(
        "--answer_type",
        choices=("auto", "choice", "exact", "numeric", "relaxed", "anls", "iou", "math"),
        default="auto",
        help="of records that name none (default: auto, each one by its question and answer)",
    )
    add(
        "--answer_index",
        choices=("auto", "0", "1"),
        default="auto",
        help="the number of the first choice where answers are numbers of choices (default: auto, by the whole file)",
    )
    add(
        "--answer_letter",
        choices=("auto", "place", "text"),
        default="auto",
        help="what an answer is that is the letter of one choice and the text of another (default: auto, by the file)",
    )
    add(
        "--box_format",
        choices=("auto", "xyxy", "xywh", "yxyx", "cxcywh"),
        default="auto",
        help="what the four numbers of boxes are (default: auto, what record or question say, else x1, y1, x2, y2;"
        " those of a file that has others are refused)",
    )
    padding = "share of the image that the tool added around a box on each side (default: 0; Pixel-Reasoner's: 0.1)"
    add("--crop_padding", type=options.share, default=0.0, help=padding)
    add("--split", default="", help="read this split alone (train, test, ...; default: all, named in metadata)")
    add("--image_root", type=Path, metavar="DIR", help="another folder that images may lie in, looked in first")
    add("--keep_paths", action="store_true", help="name images where they lie instead of linking or copying them")
    unanswered = "take questions without an answer too; for RL whose reward is a majority's or your own function's"
    add("--unanswered", action="store_true", help=unanswered)
    preview = "write N samples as the policy will see them to DIR/preview.html"
    add("--preview", type=options.count, metavar="N", help=preview)
    for name, area in (("min_pixels", 56 * 56), ("max_pixels", 448 * 448)):
        about = f"area of a picture in what is shown at the end ({area}, as configs/rft.py:qwen2_5_vl_7b has it)"
        add(f"--{name}", type=options.count, default=area, help=about)
    add("--factor", type=options.count, default=28, help="sides are multiples of it (28; Qwen3-VL: 32)")
    add("--no_check_images", action="store_true", help="do not decode each image (quicker; damage shows up later)")


def run(args: argparse.Namespace) -> int:
    """Imports and reports."""
    from pixelis_jax.cota.preview import FILE, Preview
    from pixelis_jax.data.importers.base import Options
    from pixelis_jax.data.importers.job import Import
    from pixelis_jax.metrics.files import atomic_write
    from pixelis_jax.types import UserError

    for flag, value in (("--input", args.input), ("--out", args.out), ("--image_root", args.image_root)):
        if value is not None and "\0" in str(value):
            raise UserError(f"{flag}: the name has a NUL in it; check it")
    if args.image_root is not None and not args.image_root.is_dir():
        raise UserError(f"--image_root={args.image_root}: there is no such folder; check the name")
    options = Options(
        format=args.format,
        task_type=args.task_type,
        coordinates=args.coordinates,
        answer_type=args.answer_type,
        answer_index=args.answer_index,
        answer_letter=args.answer_letter,
        box_format=args.box_format,
        crop_padding=args.crop_padding,
        split=args.split,
        image_root=args.image_root,
        check_images=not args.no_check_images,
        keep_paths=args.keep_paths,
        strict=args.strict,
        unanswered=args.unanswered,
    )
    budget = {name: getattr(args, name) for name in ("min_pixels", "max_pixels", "factor")}
    shown = Preview(args.out, **budget)
    job = Import(args.input, args.out, options, check=check_answer, shown=args.preview or SHOWN)
    job.run()
    lines = [*report(job), *table(job, shown)]
    if args.preview:
        page = shown.page(job.drawn.samples, f"{args.input}: {job.counts.samples} samples")
        atomic_write(args.out / FILE, page)
        lines.append(f"{args.out / FILE}: {len(job.drawn.samples)} samples with their pictures")
    else:
        (args.out / FILE).unlink(missing_ok=True)  # an earlier one may show other samples
    for line in lines:
        print(line.encode("utf-8", "replace").decode())
    sys.stdout.flush()
    return 0


def check_answer(sample: "Sample") -> None:
    """Raises UserError for an answer that is not of its type: no other could be compared with it."""
    from pixelis_jax.rewards.verifiers import verify
    from pixelis_jax.types import Task

    task = Task(
        task_id=sample.sample_id,
        index=0,
        task_type=sample.task_type,
        question=sample.question,
        images=(),
        answer=sample.ground_truth,
        answer_type=sample.answer_type,
        choices=sample.choices,
        tolerance=sample.tolerance,
    )
    for accepted in (task.answer, *map(str, sample.metadata.get("answers", ()))):
        verify(dataclasses.replace(task, answer=accepted), accepted)


def report(job: "Import") -> Iterator[str]:
    """Lines about what was read, how it was understood, and the first refusals."""
    from pixelis_jax.data.importers import FORMATS
    from pixelis_jax.data.importers.job import REFUSED

    counts = job.counts
    containers = ", ".join(sorted({source.container for source in job.sources}))
    yield f"{job.source}: {counts.records} records in {len(job.sources)} files ({containers})"
    if job.aside:
        yield f"  left aside: {len(job.aside)} files, {job.aside[0]} for one; name one as --input to read it alone"
    for name, count in sorted(counts.formats.items()):
        how = f"told by {FORMATS[name].about}" if job.options.format == "auto" else "as asked for"
        yield f"  {count} samples from the format {name} ({how})"
    for note, count in sorted((+counts.notes).items()):
        yield f"  {note}: {count}"
    for kind in sorted(counts.kinds):
        yield f"  {kind}: " + ", ".join(f"{name} ({count})" for name, count in sorted(counts.kinds[kind].items()))
    if counts.first:
        yield f"the first {len(counts.first)} refusals (all: {job.out / REFUSED}):"
        yield from (f"  {line}" for line in counts.first)


def table(job: "Import", shown: "Preview") -> Iterator[str]:
    """What came of it: records read and refused, answers by type, pictures, and samples as a policy sees them."""
    from pixelis_jax.data.importers.job import SAMPLES

    counts = job.counts
    yield f"{job.out / SAMPLES}: {counts.samples} samples, {len(job.pictures.kept)} images"
    yield f"read: {counts.read} of {counts.records} records, {counts.samples} samples"
    yield f"refused: {counts.refused.total()} of {counts.records} records"
    yield from (f"  {count:6d}  {reason}" for reason, count in counts.refused.most_common())
    if counts.questions:
        yield f"refused questions of records that are read: {counts.questions.total()}"
        yield from (f"  {count:6d}  {reason}" for reason, count in counts.questions.most_common())
    yield "answers:"
    for kind, count in counts.answers.counts.most_common():
        yield f"  {count:6d}  {kind}: " + " | ".join(map(_line, counts.answers.examples[kind]))
    yield "pictures of a sample:"
    yield from (f"  {count:6d}  with {number}" for number, count in sorted(counts.pictures.items()))
    samples = job.drawn.samples[:SHOWN]
    yield f"{len(samples)} samples as a policy sees them ({shown.seen}; --preview=N writes a page):"
    for sample in samples:
        yield from (f"  {line}" for line in shown.lines(sample))


def _line(text: str) -> str:
    """An answer on one line, its middle left out where it is long."""
    line = " ".join(text.split())
    return line if len(line) <= 60 else f"{line[:40]} ... {line[-15:]}"
