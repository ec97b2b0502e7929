"""`python -m pixelis_jax.cota import`: other people's data as CoTA samples."""

import argparse
import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pixelis_jax.cota import options

if TYPE_CHECKING:
    from pixelis_jax.data.cota import Sample
    from pixelis_jax.data.importers.job import Import

HELP = "read other data (CoTA dialects, tool dialogues, RL prompts, V*-style folders, parquet, Hugging Face data sets)"
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
        help="frame of the boxes in tool calls, questions and answers (default: auto, what the record says: for calls the"
        " tool's own definition or name, for answers bbox_type, else pixels)",
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
    padding = "share of the image that the tool added around a box on each side (default: 0; Pixel-Reasoner's: 0.1)"
    add("--crop_padding", type=options.share, default=0.0, help=padding)
    add("--split", default="", help="read this split alone (train, test, ...; default: all, named in metadata)")
    add("--image_root", type=Path, metavar="DIR", help="another folder that images may lie in, looked in first")
    add("--keep_paths", action="store_true", help="name images where they lie instead of linking or copying them")
    unanswered = "take questions without an answer too; for RL whose reward is a majority's or your own function's"
    add("--unanswered", action="store_true", help=unanswered)
    add("--no_check_images", action="store_true", help="do not decode each image (quicker; damage shows up later)")


def run(args: argparse.Namespace) -> int:
    """Imports and reports."""
    from pixelis_jax.data.importers.base import Options
    from pixelis_jax.data.importers.job import Import
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
        crop_padding=args.crop_padding,
        split=args.split,
        image_root=args.image_root,
        check_images=not args.no_check_images,
        keep_paths=args.keep_paths,
        strict=args.strict,
        unanswered=args.unanswered,
    )
    job = Import(args.input, args.out, options, check=check_answer)
    job.run()
    for line in report(job):
        print(line)
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
    """Lines about what was read, how it was understood, and what was refused."""
    from pixelis_jax.data.importers import FORMATS
    from pixelis_jax.data.importers.job import REFUSED, SAMPLES

    counts = job.counts
    containers = ", ".join(sorted({source.container for source in job.sources}))
    yield f"{job.source}: {counts.records} records in {len(job.sources)} files ({containers})"
    if job.aside:
        yield f"  left aside: {len(job.aside)} files that are no part of it, {job.aside[0]} for one"
    for name, count in sorted(counts.formats.items()):
        how = f"told by {FORMATS[name].about}" if job.options.format == "auto" else "as asked for"
        yield f"  {count} samples from the format {name} ({how})"
    for note, count in sorted((+counts.notes).items()):
        yield f"  {note}: {count}"
    for kind in sorted(counts.kinds):
        yield f"  {kind}: " + ", ".join(f"{name} ({count})" for name, count in sorted(counts.kinds[kind].items()))
    yield f"{job.out / SAMPLES}: {counts.samples} samples, {len(job.pictures.kept)} images"
    if not counts.refused:
        return
    yield f"refused: {counts.refused.total()} of {counts.records} records"
    for reason, count in counts.refused.most_common():
        yield f"  {count:6d}  {reason}"
    yield f"the first {len(counts.first)} (all: {job.out / REFUSED}):"
    yield from (f"  {line}" for line in counts.first)
