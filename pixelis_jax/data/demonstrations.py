"""Endless supervised batches: PixelSearch scenes, oracle dialogues, packed for the train step.

A batch is a pure function of (seed, index): the step is the whole state of the iterator, so resuming needs no more.
Several questions share a scene, whose overview is encoded once.
"""

import dataclasses
from collections.abc import Iterator

import grain
import jax
import numpy as np
from absl import flags
from flax import struct

from pixelis_jax import hosts
from pixelis_jax.data import dialogues
from pixelis_jax.data.dialogues import view_of
from pixelis_jax.data.pixelsearch.address import generator as random_at
from pixelis_jax.data.pixelsearch.draw import render
from pixelis_jax.data.pixelsearch.oracle import careless, demonstrate
from pixelis_jax.data.pixelsearch.questions import Question, close_up, questions, task_of
from pixelis_jax.data.pixelsearch.scene import make_scene
from pixelis_jax.models.config import ModelConfig
from pixelis_jax.models.processor import Placed, Processor
from pixelis_jax.models.rows import bucket, pad_1d, pad_rows
from pixelis_jax.types import Array, ImageBatch, Task, TokenBatch, UserError


@dataclasses.dataclass(frozen=True)
class DemonstrationConfig:
    """What a batch holds. `kinds` lists question kinds (naming one twice doubles its share)."""

    seed: int
    scenes: int  # scenes a batch
    questions: int  # rows a scene
    kinds: tuple[str, ...] = ("digit", "text", "counting", "attribute")
    direct_answer_share: float = 0.0  # of the rows that need a look, how many answer without one
    failed_call_share: float = 0.0  # of the rows that need no look, how many begin with a call that fails
    close_up_share: float = 0.0  # of the scenes, how many show one shape large enough to be read at once
    box_noise: float = 0.1  # jitter of the oracle's boxes, as a share of the box
    answer_weight: float = 1.0  # loss weight of the tokens between the answer tags
    row_tokens: int = 256
    split: str = "train"
    part: range | None = None  # which scenes of each batch are made here; None: all


@struct.dataclass
class DemonstrationBatch:
    """Rows and the images they point at: the table is the overviews' features, then the crops'."""

    rows: TokenBatch
    answer: Array  # bool[B, T] between the answer tags
    weights: Array  # f32[B, T] of the loss
    overview: ImageBatch
    crops: ImageBatch


def make_batch(config: DemonstrationConfig, processor: Processor, schemas: str, index: int) -> DemonstrationBatch:
    """Batch number `index`, or `config.part` of it.

    Raises UserError where a dialogue is longer than `row_tokens` (rows are never cut).
    """
    overviews: list[np.ndarray] = []
    crops: list[np.ndarray] = []
    rows_of = []
    for i, scene in enumerate(range(config.scenes) if config.part is None else config.part):
        number = index * config.scenes + scene
        made = make_scene(config.seed, config.split, number)
        image, asked = render(made), questions(made)
        generator = random_at(config.seed, config.split, number, "demonstration")
        if _chance(generator, config.close_up_share):
            image, asked = close_up(made, image, generator)
        overviews.append(processor.seen(image, crop=False))
        for _ in range(config.questions):
            task = task_of(made, image, _choose(asked, config.kinds, generator))
            look = task.needs_look and not _chance(generator, config.direct_answer_share)
            turns = _turns(task, processor, generator, look=look, box_noise=config.box_noise)
            # No draw without a share, so that batches are those of before.
            if config.failed_call_share and not task.needs_look and _chance(generator, config.failed_call_share):
                turns = [careless(task, view_of(processor)), *turns]
            seen = dialogues.crops_of(turns, processor)
            rows_of.append((task, turns, i, len(crops), len(seen)))
            crops += seen
    return _pack(config, processor, schemas, overviews=overviews, crops=crops, dialogs=rows_of)


def _turns(
    task: Task, processor: Processor, generator: np.random.Generator, *, look: bool, box_noise: float
) -> list[dialogues.Message]:
    """What the oracle says on a task."""
    view = view_of(processor)
    sample = demonstrate(task, generator, direct=not look, box_noise=box_noise, view=view)
    return dialogues.messages(sample, task.images, view=view)


def look_tokens(task: Task, processor: Processor, schemas: str) -> int:
    """Tokens of the oracle's dialogue on a task that needs a look, its images included."""
    turns = _turns(task, processor, np.random.default_rng(0), look=True, box_noise=0.0)
    images = [Placed(processor.fit_overview(*image.shape[:2]), 0) for image in task.images]
    crops = [Placed(image.shape[:2], 0) for image in dialogues.crops_of(turns, processor)]
    return len(dialogues.encode(turns, task.question, processor=processor, schemas=schemas, images=images, crops=crops))


def _pack(
    config: DemonstrationConfig,
    processor: Processor,
    schemas: str,
    *,
    overviews: list[np.ndarray],
    crops: list[np.ndarray],
    dialogs: list[tuple[Task, list[dialogues.Message], int, int, int]],
) -> DemonstrationBatch:
    overview = processor.pack(overviews, crop=False)
    packed = processor.pack(crops, crop=True, count=bucket(len(crops), multiple=len(dialogs)))
    places = processor.place(overviews, crop=False)
    unit = processor.config.need_vision().merge_unit
    crop_places = processor.place(crops, crop=True, first_row=overview.valid.size // unit)
    rows = [
        dialogues.encode(
            turns,
            task.question,
            processor=processor,
            schemas=schemas,
            images=[places[scene_index]],
            crops=crop_places[first : first + count],
        )
        for task, turns, scene_index, first, count in dialogs
    ]
    longest = max(map(len, rows))
    if longest > config.row_tokens:
        raise UserError(f"data.row_tokens is {config.row_tokens} and a dialogue has {longest} tokens; raise it")
    answer = pad_1d([row.answer for row in rows], config.row_tokens, False, bool)
    return DemonstrationBatch(
        rows=pad_rows(rows, length=config.row_tokens, pad=processor.pad),
        answer=answer,
        weights=np.where(answer, config.answer_weight, 1.0).astype(np.float32),
        overview=overview,
        crops=packed,
    )


def as_part(batch: DemonstrationBatch, own: hosts.Share, config: ModelConfig) -> DemonstrationBatch:
    """A process's batch as its part of the whole one: images as many and as large as any process has, rows renumbered.

    The table of the whole batch has the overviews of all processes, then the crops of all. Every process calls this.
    """
    if own.count == 1:
        return batch
    unit = config.need_vision().merge_unit
    tables = (batch.overview, batch.crops)
    sizes = hosts.largest(*(size for images in tables for size in images.valid.shape[:2]))
    index, first, new_first = np.asarray(batch.rows.image_index), 0, 0
    moved, padded = index.copy(), []
    for images, count, windows in zip(tables, sizes[::2], sizes[1::2], strict=True):
        places, step = images.valid.shape[0], images.valid[0].size // unit  # table rows an image
        new_step = step // images.valid.shape[1] * windows
        image, row = np.divmod(index - first, step)
        here = (index >= first) & (image < places)
        moved = np.where(here, new_first + (own.index * count + image) * new_step + row, moved)
        first, new_first = first + places * step, new_first + own.count * count * new_step
        more = [(0, count - places), (0, windows - images.valid.shape[1])]
        padded.append(jax.tree.map(lambda x, more=more: np.pad(x, more + [(0, 0)] * (x.ndim - 2)), images))
    rows = dataclasses.replace(batch.rows, image_index=moved.astype(np.int32))
    return dataclasses.replace(batch, rows=rows, overview=padded[0], crops=padded[1])


def _chance(generator: np.random.Generator, share: float) -> bool:
    return int(generator.integers(1_000_000)) < round(share * 1_000_000)


def _choose(asked: list[Question], kinds: tuple[str, ...], generator: np.random.Generator) -> Question:
    """A question of a kind drawn from `kinds`, as far as the image answers some of them, else any of its questions."""
    present = [kind for kind in kinds if any(q.kind == kind for q in asked)] or [q.kind for q in asked]
    kind = present[int(generator.integers(len(present)))]
    fitting = [q for q in asked if q.kind == kind]
    return fitting[int(generator.integers(len(fitting)))]


@dataclasses.dataclass(frozen=True)
class _Maker(grain.transforms.Map):
    """Picklable `make_batch` for Grain's worker processes."""

    config: DemonstrationConfig
    processor: Processor
    schemas: str

    def map(self, element: int) -> DemonstrationBatch:
        return make_batch(self.config, self.processor, self.schemas, int(element))


def batches(
    config: DemonstrationConfig, processor: Processor, schemas: str, *, start: int, stop: int, workers: int
) -> Iterator[DemonstrationBatch]:
    """Batches start .. stop - 1 in order, made ahead by `workers` processes (0: by a thread of this one)."""
    parse_flags()
    made = grain.MapDataset.range(start, stop).map(_Maker(config, processor, schemas))
    threads = grain.ReadOptions(num_threads=1, prefetch_buffer_size=4)
    if workers == 0:
        yield from made.to_iter_dataset(threads)
    else:
        options = grain.multiprocessing.MultiprocessingOptions(num_workers=workers, per_worker_buffer_size=2)
        yield from made.to_iter_dataset(threads).mp_prefetch(options)


def parse_flags() -> None:
    """For a notebook: Grain's workers read absl flags that `app.run` would have parsed."""
    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()
