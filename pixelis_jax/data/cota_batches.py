"""Supervised batches of a CoTA corpus: drawn by a mix of difficulties and by sampling weights, bucketed by length.

The order of samples is a Grain data set: each category shuffled anew in every epoch, categories interleaved by the mix.
Grain's workers turn samples into dialogues (pictures read, tools run again); this process gathers them by length until
a bucket is full. `Cursor`, JSON values, says where all that stands: a resumed run goes on with the same batches.
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import grain
import numpy as np

from pixelis_jax import hosts
from pixelis_jax.data import buckets, dialogues
from pixelis_jax.data.corpus import Corpus
from pixelis_jax.data.cota import Sample
from pixelis_jax.data.demonstrations import DemonstrationBatch, parse_flags
from pixelis_jax.models import image_processor
from pixelis_jax.models.processor import Placed, Processor
from pixelis_jax.models.rows import Row, pad_1d, pad_rows
from pixelis_jax.models.rows import bucket as up_to
from pixelis_jax.tools.base import Tool, schemas
from pixelis_jax.types import UserError

Mix = Mapping[str, float]
STRIDE = 2**16  # feature rows that an image can have before its place in a table is known
MEASURED = 256  # samples whose lengths choose the buckets
ROUNDS = 16  # samples a process makes before several processes tell each other their lengths
COUNTED = ("data/rows", "data/tokens", "data/policy_tokens")  # numbers of a Step that are this process's part
WEIGHT_STEPS = 10  # sampling weights are rounded to this part of the smallest


@dataclasses.dataclass(frozen=True)
class BatchConfig:
    """`batch_tokens` a step, padding included, in rows of one of `buckets` lengths; none above `row_tokens`.

    `multiple` divides the rows of every batch (devices and micro-batches); `share` is this process's part of them.
    """

    seed: int
    batch_tokens: int
    row_tokens: int
    buckets: int = 5
    multiple: int = 1
    answer_weight: float = 1.0
    workers: int = 0
    share: hosts.Share = dataclasses.field(default_factory=hosts.Share)


@dataclasses.dataclass(frozen=True)
class Encoded:
    """A sample as a token row, or the `problem` it has. `image_index` counts STRIDE rows an image, overviews first."""

    number: int
    row: Row | None
    overviews: list[np.ndarray] = dataclasses.field(default_factory=list)
    crops: list[np.ndarray] = dataclasses.field(default_factory=list)
    problem: str = ""


@dataclasses.dataclass
class Cursor:
    """Where the data stands. Every process drew `taken` samples since `offsets` (draws of each category) were noted.

    `waiting` holds, by process and bucket, what was drawn and is in no batch yet; `room` (overviews, crops) of each
    bucket's table, which only grows; `left_out` counts drawn samples that could not be used, by reason.
    """

    edges: tuple[int, ...]
    rows: tuple[int, ...]  # of a batch of each bucket, over all processes: a resumed run keeps to them
    room: list[tuple[int, int]]
    offsets: dict[str, int]
    taken: int = 0
    waiting: list[list[list[int]]] = dataclasses.field(default_factory=list)
    left_out: dict[str, int] = dataclasses.field(default_factory=dict)
    draws: dict[str, int] = dataclasses.field(default_factory=dict)  # of each category since `offsets`

    def to_json(self) -> dict[str, Any]:
        """JSON values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Cursor":
        """What `to_json` gave."""
        fields = dict(values)
        fields |= {name: tuple(values[name]) for name in ("edges", "rows")}
        fields["room"] = [(a, b) for a, b in values["room"]]
        return cls(**fields)

    def turned(self) -> "Cursor":
        """The same place at the beginning of another mix."""
        offsets = {name: self.offsets.get(name, 0) + self.draws.get(name, 0) for name in {*self.offsets, *self.draws}}
        return dataclasses.replace(self, offsets=dict(sorted(offsets.items())), taken=0, draws={})


@dataclasses.dataclass(frozen=True)
class Step:
    """One batch, the cursor behind it, and numbers for the log."""

    batch: DemonstrationBatch
    cursor: Cursor
    numbers: dict[str, float]


class Drawn(Protocol):
    """What samples are drawn from: a Corpus, or a pool in memory."""

    @property
    def name(self) -> str:
        """What errors call it."""

    @property
    def categories(self) -> tuple[str, ...]:
        """Names of the categories."""

    @property
    def category(self) -> np.ndarray:
        """u8[N] of each sample."""

    @property
    def weights(self) -> np.ndarray:
        """f32[N] of each sample."""

    def __len__(self) -> int: ...

    def numbers(self, category: str) -> np.ndarray:
        """i64[n]: the samples of a category."""


class Batches:
    """Batches of samples that `encode`, a Grain transform from numbers to Encoded, turns into rows."""

    def __init__(self, corpus: Drawn, config: BatchConfig, processor: Processor, encode: Any) -> None:
        self.corpus, self.config, self.processor, self.encode = corpus, config, processor, encode

    def first_cursor(self) -> Cursor:
        """The start, with buckets chosen from the lengths of MEASURED samples spread over the corpus.

        Raises UserError where none of them can be used.
        """
        spread = np.unique(np.linspace(0, len(self.corpus) - 1, MEASURED).astype(int))
        made = [self.encode.map(int(number)) for number in spread]
        rows = [e for e in made if e.row is not None and len(e.row) <= self.config.row_tokens]
        if not rows:
            raise UserError(f"{self.corpus.name}: no sample can be used: {self._problems(made)}")
        lengths = [len(e.row) for e in rows if e.row is not None]
        edges = buckets.choose_edges(lengths, count=self.config.buckets, limit=self.config.row_tokens)
        size, multiple = self.config.batch_tokens, self.config.multiple
        rows_of = tuple(buckets.rows_of(edge, batch_tokens=size, multiple=multiple) for edge in edges)
        room = []
        for i, edge in enumerate(edges):
            least = edges[i - 1] if i else 0
            here = [e for e, n in zip(rows, lengths, strict=True) if least < n <= edge] or rows
            count = rows_of[i] // self.config.share.count
            images = [np.array([len(getattr(e, name)) for e in here]) for name in ("overviews", "crops")]
            room.append((self._room(images[0], count), self._room(images[1], count)))
        waiting: list[list[list[int]]] = [[[] for _ in edges] for _ in range(self.config.share.count)]
        return Cursor(edges, rows_of, room, offsets={}, waiting=waiting)

    def steps(self, cursor: Cursor, mix: Mix, *, skip: int = 0) -> Iterator[Step]:
        """Batches behind the first `skip` from `cursor` on, without end; categories of share 0 in `mix` are left out.

        Raises UserError for a mix that names an unknown or an empty category, where nothing that is drawn can be used,
        and where a run went on with devices by which its batches don't divide: other batches would be another training.
        """
        odd = [rows for rows in cursor.rows if rows % self.config.multiple]
        if odd:
            raise UserError(
                f"this run has batches of {odd[0]} rows, which do not divide by data x fsdp x micro_batches ="
                f" {self.config.multiple}; resume it with the mesh and optimizer.micro_batches that it began with"
            )
        cursor = self._shared_out(cursor)
        own = self.config.share.index
        ready = [[self.encode.map(number) for number in numbers] for numbers in cursor.waiting[own]]
        fruitless = 0
        for made, drawn in self._rounds(self.order(cursor, mix), cursor):
            cursor.taken += 1
            if drawn[own][1] >= 0:
                ready[drawn[own][1]].append(made)
            for process, (number, bucket, problem) in enumerate(drawn):
                name = self.corpus.categories[int(self.corpus.category[number])]
                cursor.draws[name] = cursor.draws.get(name, 0) + 1
                if bucket < 0:
                    cursor.left_out[problem] = cursor.left_out.get(problem, 0) + 1
                else:
                    cursor.waiting[process][bucket].append(number)
            fruitless = fruitless + 1 if all(bucket < 0 for _, bucket, _ in drawn) else 0
            if fruitless > 2 * len(self.corpus):
                raise UserError(f"{self.corpus.name}: nothing that is drawn can be used: {cursor.left_out}")
            for bucket in {bucket for _, bucket, _ in drawn if bucket >= 0}:
                count = cursor.rows[bucket] // self.config.share.count
                if all(len(queues[bucket]) >= count for queues in cursor.waiting):
                    full, ready[bucket] = ready[bucket][:count], ready[bucket][count:]
                    for queues in cursor.waiting:
                        queues[bucket] = queues[bucket][count:]
                    skip -= 1
                    if skip >= 0:
                        continue
                    batch = self._pack(full, cursor, bucket)
                    yield Step(batch, Cursor.from_json(cursor.to_json()), _numbers(batch, cursor))

    def _rounds(self, order: Any, cursor: Cursor) -> Iterator[tuple[Encoded, list[tuple[int, int, str]]]]:
        """One sample a process and round: (this process's, (number, bucket or -1, problem) of each process's)."""
        share = self.config.share
        ahead = 1 if share.count == 1 else ROUNDS
        samples = self._encoded(order[cursor.taken * share.count :][share.index :: share.count])
        while True:
            made = [next(samples) for _ in range(ahead)]
            records = [(e.number, *self._bucket(e, cursor.edges)) for e in made]
            told = hosts.gather(share, records)
            for i in range(ahead):
                yield made[i], [tuple(told[process * ahead + i]) for process in range(share.count)]

    def _bucket(self, made: Encoded, edges: tuple[int, ...]) -> tuple[int, str]:
        """(bucket of a sample, ""), or (-1, why it can't be used)."""
        problem = made.problem or self._too_long(made)
        if problem:
            return -1, problem
        assert made.row is not None
        return next(i for i, edge in enumerate(edges) if len(made.row) <= edge), ""

    def _shared_out(self, cursor: Cursor) -> Cursor:
        """A copy for this number of processes: another number deals out anew what waits."""
        cursor, count = Cursor.from_json(cursor.to_json()), self.config.share.count
        if len(cursor.waiting) != count:
            cursor.taken = cursor.taken * len(cursor.waiting) // count
            queues = [[n for process in cursor.waiting for n in process[i]] for i in range(len(cursor.edges))]
            cursor.waiting = [[queue[process::count] for queue in queues] for process in range(count)]
        return cursor

    def order(self, cursor: Cursor, mix: Mix) -> Any:
        """Grain data set of sample numbers since the cursor's mix began.

        In an epoch of a category each of its samples stands once, or more often by its weight.
        """
        corpus, parts = self.corpus, []
        chosen = {name: share for name, share in mix.items() if share > 0}
        for name in chosen:
            if name not in corpus.categories:
                raise UserError(
                    f"the mix names the category {name!r}; {corpus.name} has {', '.join(corpus.categories)}"
                )
            numbers = corpus.numbers(name)
            if not len(numbers):
                raise UserError(
                    f"the mix takes {chosen[name]:g} of category {name!r}, which has no sample in {corpus.name}; score"
                    " more data, or change curriculum.stages"
                )
            repeated = numbers.repeat(weight_counts(corpus.weights[numbers]))
            seed = (self.config.seed * 64 + corpus.categories.index(name)) % 2**31
            own = grain.MapDataset.source(repeated).seed(seed).shuffle().repeat()
            parts.append(own[cursor.offsets.get(name, 0) :])
        return parts[0] if len(parts) == 1 else grain.MapDataset.mix(parts, list(chosen.values()))

    def _encoded(self, order: Any) -> Iterator[Encoded]:
        """Dialogues in order, made ahead by worker processes, or by threads of this one."""
        parse_flags()
        made = order.map(self.encode)
        threads = grain.ReadOptions(num_threads=2, prefetch_buffer_size=16)
        if self.config.workers == 0:
            return iter(made.to_iter_dataset(threads))
        workers = grain.multiprocessing.MultiprocessingOptions(self.config.workers, per_worker_buffer_size=16)
        return iter(made.to_iter_dataset(threads).mp_prefetch(workers))

    def _too_long(self, made: Encoded) -> str:
        assert made.row is not None
        return f"longer than data.row_tokens={self.config.row_tokens}" if len(made.row) > self.config.row_tokens else ""

    def _problems(self, made: list[Encoded]) -> str:
        found = Counter(e.problem or self._too_long(e) for e in made)
        return ", ".join(f"{count} {reason}" for reason, count in found.most_common(3))

    def _room(self, images: np.ndarray, count: int) -> int:
        """Room for the images of `count` samples like these: the mean and four deviations, as each growth compiles."""
        return self._grown(0, math.ceil(images.mean() * count + 4 * images.std() * count**0.5))

    def _grown(self, room: int, needed: int) -> int:
        """Room for `needed` images: where it must grow, by an eighth more, so that it does so seldom."""
        if 0 < room >= needed:
            return room
        wanted = needed + math.ceil(needed / 8) if room else max(1, needed)
        return up_to(wanted, multiple=max(1, self.config.multiple // self.config.share.count))

    def _pack(self, made: list[Encoded], cursor: Cursor, bucket: int) -> DemonstrationBatch:
        """The rows with their images in one table: overviews, then crops."""
        overviews = [image for e in made for image in e.overviews]
        crops = [image for e in made for image in e.crops]
        room = cursor.room[bucket]
        cursor.room[bucket] = room = (self._grown(room[0], len(overviews)), self._grown(room[1], len(crops)))
        processor = self.processor
        packed = [
            processor.pack(images, crop=crop, count=count)
            for images, crop, count in ((overviews, False, room[0]), (crops, True, room[1]))
        ]
        unit = processor.config.need_vision().merge_unit
        step = [images.valid[0].size // unit for images in packed]
        first = [i * step[0] for i in range(room[0])]
        first_crop = [room[0] * step[0] + i * step[1] for i in range(room[1])]
        rows, at = [], [0, 0]
        for e in made:
            assert e.row is not None
            starts = first[at[0] : at[0] + len(e.overviews)] + first_crop[at[1] : at[1] + len(e.crops)]
            at = [at[0] + len(e.overviews), at[1] + len(e.crops)]
            rows.append(_placed(e.row, starts))
        edge = cursor.edges[bucket]
        answer = pad_1d([row.answer for row in rows], edge, False, bool)
        return DemonstrationBatch(
            rows=pad_rows(rows, length=edge, pad=processor.pad),
            answer=answer,
            weights=np.where(answer, self.config.answer_weight, 1.0).astype(np.float32),
            overview=packed[0],
            crops=packed[1],
        )


@dataclasses.dataclass(frozen=True)
class Encode(grain.transforms.Map):
    """Picklable: sample number -> Encoded. Never raises for what is wrong with a sample."""

    corpus: Corpus
    processor: Processor
    tools: dict[str, Tool]

    def map(self, element: int) -> Encoded:
        number = int(element)
        try:
            sample = self.corpus.sample(number)
            return encode_sample(sample, self.corpus.images(sample), self.processor, self.tools, number=number)
        except UserError as error:
            return Encoded(number, None, problem=str(error))


def encode_sample(
    sample: Sample, images: Sequence[np.ndarray], processor: Processor, tools: Mapping[str, Tool], *, number: int
) -> Encoded:
    """A sample as a dialogue with these tools, as far as it can be one."""
    try:
        turns = dialogues.messages(sample, images, view=dialogues.view_of(processor), tools=tools)
        overviews = [processor.seen(image, crop=False) for image in images]
    except (UserError, dialogues.UnusableError) as error:
        return Encoded(number, None, problem=str(error))
    crops = dialogues.crops_of(turns, processor)
    sizes = [image_processor.size_of(image) for image in (*overviews, *crops)]
    places = [Placed(size, i * STRIDE) for i, size in enumerate(sizes)]
    row = dialogues.encode(
        turns,
        sample.question,
        processor=processor,
        schemas=schemas(tools),
        images=places[: len(images)],
        crops=places[len(images) :],
    )
    problem = "" if any(row.policy) else "has no token to train"
    return Encoded(number, None if problem else row, overviews, crops, problem)


def weight_counts(weights: np.ndarray) -> np.ndarray:
    """How often each sample stands in an epoch, i64[n]: weights as whole numbers; equal ones give 1 each."""
    relative = weights / weights.min()
    if np.all(relative == 1):
        return np.ones(len(weights), np.int64)
    counts = np.maximum(1, np.rint(np.minimum(relative, 1000) * WEIGHT_STEPS)).astype(np.int64)
    return counts // np.gcd.reduce(counts)


def _placed(row: Row, starts: list[int]) -> Row:
    """A copy whose images begin at `starts` of the table."""
    placed = row.copy()
    placed.image_index = [i if i < 0 else starts[i // STRIDE] + i % STRIDE for i in row.image_index]
    return placed


def _numbers(batch: DemonstrationBatch, cursor: Cursor) -> dict[str, float]:
    valid, policy = np.asarray(batch.rows.valid), np.asarray(batch.rows.policy)
    return {
        "data/rows": float(len(valid)),
        "data/row_tokens": float(valid.shape[1]),
        "data/tokens": float(valid.sum()),
        "data/policy_tokens": float(policy.sum()),
        "skipped/samples": float(sum(cursor.left_out.values())),
    }
