"""Imported samples as a policy would see them: in words for the console, as a page with pictures."""

import functools
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from pixelis_jax.answers import boxes, frames
from pixelis_jax.data.cota import Sample
from pixelis_jax.data.dialogues import UnusableError, messages
from pixelis_jax.data.images import open_rgb
from pixelis_jax.metrics import dialogue_html
from pixelis_jax.models.image_processor import PixelBudget, resize, smart_resize
from pixelis_jax.models.processor import SYSTEM_PROMPT
from pixelis_jax.tools import TOOLS, grammar
from pixelis_jax.tools.base import View, schemas
from pixelis_jax.types import UserError

FILE = "preview.html"
SYSTEM = "system prompt, with the tools that a job offers"


class Preview:
    """Shows samples of a folder to a policy that sees pictures within a budget, in multiples of `factor`."""

    def __init__(self, root: Path, *, min_pixels: int, max_pixels: int, factor: int) -> None:
        """Raises UserError for bounds that exclude each other."""
        if min_pixels > max_pixels or max_pixels < factor**2:
            raise UserError(
                f"--min_pixels={min_pixels} and --max_pixels={max_pixels}: the first must not be above the second, and"
                f" that not below {factor**2} (one vision token)"
            )
        self.root = root
        self.fit = functools.partial(smart_resize, factor=factor, budget=PixelBudget(min_pixels, max_pixels))
        self.seen = f"pictures within {min_pixels} to {max_pixels} px, sides multiples of {factor}"

    def lines(self, sample: Sample) -> Iterator[str]:
        """A sample in words: its pictures with their sizes as seen, the question, the answer."""
        yield f"{sample.sample_id}: {sample.answer_type}, {sample.sample_type}, {len(sample.trajectory)} steps"
        for number, name in enumerate(sample.image_paths, 1):
            try:
                high, wide = open_rgb(self.root / name).shape[:2]
                yield f"  <picture {number}: {_seen(self.fit, high, wide)}>"
            except UserError as error:
                yield f"  <picture {number}: {error}>"
        yield from (f"  {line}" for line in sample.question.split("\n"))
        yield f"  -> {sample.ground_truth}"

    def page(self, samples: Sequence[Sample], title: str) -> str:
        """The samples as a page that needs nothing else."""
        intro = f"{len(samples)} samples, drawn by their ids, as a policy sees them: {self.seen}."
        folded = {SYSTEM: SYSTEM_PROMPT.format(schemas=schemas(TOOLS))}
        return dialogue_html.page(title, intro, [self.section(sample) for sample in samples], folded=folded)

    def section(self, sample: Sample) -> str:
        """One sample as HTML, its calls run by the real tools."""
        notes = [sample.answer_type, sample.sample_type]
        try:
            images = [open_rgb(self.root / name) for name in sample.image_paths]
            sizes = [self.fit(*image.shape[:2]) for image in images]
        except UserError as error:
            return dialogue_html.dialogue(_record(sample, []), [], notes=[*notes, f"can't be shown: {error}"])
        turns: list[dict[str, object]] = []
        crops: list[np.ndarray] = []
        try:
            for message in messages(sample, images, view=View(self.fit, self.fit)) if sample.trajectory else ():
                seen, turn = message.observation, grammar.parse(message.text, TOOLS)
                has_image = seen is not None and seen.image is not None
                result = seen and {
                    **{"text": seen.text, "ok": seen.ok, "region": seen.region},
                    "image": len(images) + len(crops) if has_image else None,
                }
                call = turn.call and {"name": turn.call.name, "arguments": dict(turn.call.arguments)}
                turns.append({"text": message.text, "call": call, "error": turn.error, "observation": result})
                crops += [seen.image] if seen is not None and seen.image is not None else []
        except UnusableError as error:
            turns, crops = [], []
            notes.append(f"its dialogue can't be shown: {error}")
        captions = [f"image {i}: {_seen(self.fit, *image.shape[:2])}" for i, image in enumerate([*images, *crops], 1)]
        shown = [resize(image, size) for image, size in zip(images, sizes, strict=True)]
        pictures = [dialogue_html.inline(image) for image in [*shown, *crops]]
        gold = gold_box(sample, [image.shape[:2] for image in images])
        return dialogue_html.dialogue(_record(sample, turns), pictures, captions=captions, gold_box=gold, notes=notes)


def gold_box(sample: Sample, sizes: Sequence[tuple[int, ...]]) -> tuple[int, dialogue_html.Region] | None:
    """(number of its picture, region) of an answer that is a box; None for any other."""
    box = boxes.parse(sample.ground_truth) if sample.answer_type == "iou" else None
    if box is None:
        return None
    try:
        index, (high, wide) = frames.gold_frame(sample.metadata, [(size[0], size[1]) for size in sizes])
    except UserError:
        return None
    x1, y1, x2, y2 = box
    return index + 1, ((x1 + x2) / 2 / wide, (y1 + y2) / 2 / high, (x2 - x1) / wide, (y2 - y1) / high)


def _record(sample: Sample, turns: Sequence[object]) -> dict[str, object]:
    """A sample in the schema of metrics/trajectories.py, as far as pages read it."""
    return {
        **{"task_id": sample.sample_id, "task_type": sample.task_type, "question": sample.question},
        **{"gold": sample.ground_truth, "turns": turns, "numbers": {}},
    }


def _seen(fit: functools.partial[tuple[int, int]], high: int, wide: int) -> str:
    try:
        size = fit(high, wide)
    except UserError as error:
        return str(error)
    return f"{wide} x {high}, seen as {size[1]} x {size[0]}"
