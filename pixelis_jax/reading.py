"""The reading half of pretraining: the vision tower learns characters before and while the model learns to talk.

Charts are rendered once into a pool that stays on the device; a throw-away linear head predicts the character whose
centre lies in each merged token. Dialogues alone show one character at a time, and reading then starts very late.
"""

import dataclasses
import multiprocessing
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct
from jax.sharding import Mesh

from pixelis_jax import parallel
from pixelis_jax.data.pixelsearch.chart import CLASSES, GRID, make_chart
from pixelis_jax.models import image_processor, vlm
from pixelis_jax.models.layers import VISION
from pixelis_jax.models.policy import Policy
from pixelis_jax.models.processor import Processor
from pixelis_jax.models.vlm import VLM
from pixelis_jax.types import Array, ImageBatch

PyTree = Any
READER = "reader"  # the collection of the reading head
_SHARD = 256  # charts a worker makes at a time


@dataclasses.dataclass(frozen=True)
class ReadingConfig:
    """`charts` in the pool; `first_steps` of reading alone on `first_batch` charts; `batch` charts a dialogue step."""

    charts: int
    first_steps: int
    first_batch: int
    batch: int
    learning_rate: float


@struct.dataclass
class Charts:
    """Charts as the vision tower reads them, and the class of each merged token in raster order."""

    images: ImageBatch
    labels: Array  # i32[N, 16]


def make_pool(seed: int, processor: Processor, *, mesh: Mesh, charts: int, workers: int) -> Charts:
    """Training charts 0 .. charts - 1, whole on every device, rendered by `workers` processes (0: by threads)."""
    starts = range(0, charts, _SHARD)
    jobs = [(seed, processor, start, min(_SHARD, charts - start)) for start in starts]
    spawn = multiprocessing.get_context("spawn")
    pool: Executor = ProcessPoolExecutor(workers, mp_context=spawn) if workers else ThreadPoolExecutor(2)
    with pool:
        parts = list(pool.map(_make_shard, jobs))
    pool_of_all = jax.tree.map(lambda *x: np.concatenate(x), *parts)
    return jax.device_put(pool_of_all, parallel.replicated(mesh))


def _make_shard(job: tuple[int, Processor, int, int]) -> Charts:
    seed, processor, start, count = job
    made = [make_chart(seed, "train", start + i) for i in range(count)]
    images = processor.pack([processor.seen(image, crop=False) for image, _ in made], crop=False)
    return Charts(images, np.stack([labels for _, labels in made]))


@jax.jit(static_argnames="count")
def take(pool: Charts, step: int, *, count: int) -> Charts:
    """`count` charts for `step`: the pool in order, round and round."""
    rows = (step * count + jnp.arange(count)) % pool.labels.shape[0]
    return jax.tree.map(lambda x: x[rows], pool)


def init_reader(model: VLM) -> dict[str, Array]:
    """The linear reading head, zero."""
    width, classes = model.config.need_vision().out_hidden_size, len(CLASSES)
    return {"kernel": jnp.zeros((width, classes)), "bias": jnp.zeros(classes)}


def reading_loss(model: VLM, variables: PyTree, charts: Charts) -> tuple[Array, tuple[Array, Array]]:
    """(mean cross-entropy over all merged tokens, (right, count) over the tokens that hold a character)."""
    vision = model.config.need_vision()
    table = vlm.encode_images(model, variables, charts.images)
    table = table.reshape(charts.labels.shape[0], -1, table.shape[-1])[..., : vision.out_hidden_size]
    side = GRID * vision.factor
    seen = table[:, image_processor.token_rows((side, side), vision)]
    logits = seen @ variables[READER]["kernel"] + variables[READER]["bias"]
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, charts.labels)
    there = charts.labels > 0
    right = jnp.sum((jnp.argmax(logits, axis=-1) == charts.labels) & there, dtype=jnp.float32)
    return jnp.mean(losses), (right, jnp.sum(there, dtype=jnp.float32))


def read_first(
    policy: Policy,
    pool: Charts,
    config: ReadingConfig,
    say: Callable[[str], None],
    between: Callable[[], None] = lambda: None,
) -> tuple[PyTree, PyTree]:
    """(params, reader) after `first_steps` of reading alone; only the vision tower and the head change.

    `between` is called before each step: it may end the work by raising.
    """
    others = {k: v for k, v in policy.params.items() if k != VISION}
    trainable = {VISION: policy.params[VISION], READER: init_reader(policy.model)}
    warmup = min(100, max(1, config.first_steps // 10))
    schedule = optax.warmup_cosine_decay_schedule(
        0.0, config.learning_rate, warmup, warmup + max(1, config.first_steps)
    )
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule, b2=0.98, weight_decay=0.01))

    def loss(trainable: PyTree, charts: Charts) -> tuple[Array, Array]:
        variables = {"params": others | {VISION: trainable[VISION]}, READER: trainable[READER]}
        value, (right, count) = reading_loss(policy.model, variables, charts)
        return value, right / count

    @jax.jit
    def step(trainable: PyTree, opt_state: PyTree, charts: Charts) -> tuple[PyTree, PyTree, Array]:
        (_, accuracy), grads = jax.value_and_grad(loss, has_aux=True)(trainable, charts)
        updates, opt_state = tx.update(grads, opt_state, trainable)
        return optax.apply_updates(trainable, updates), opt_state, accuracy

    opt_state = tx.init(trainable)
    for i in range(config.first_steps):
        between()
        trainable, opt_state, accuracy = step(trainable, opt_state, take(pool, i, count=config.first_batch))
        if (i + 1) % max(1, config.first_steps // 10) == 0:
            say(f"reading: step {i + 1}/{config.first_steps}, {float(accuracy):.3f} of the characters right")
    return others | {VISION: trainable[VISION]}, trainable[READER]
