"""One optimizer update from any loss: micro-batches are summed, the division happens once.

A loss returns `((sum, weight), stats)`. The update adds sums, weights and gradients of all micro-batches (and, through
jit's sharding, of all devices) and divides once, so the result does not depend on how a batch was split.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jax import Array

from pixelis_jax.masked import safe_divide

PyTree = Any


@struct.dataclass
class Stats:
    """Metrics of a part of a batch that can be merged with those of another part.

    `means` maps a name to (sum, weight): merged by adding, read as sum / weight. `maxima` maps a name to a value:
    merged by max.
    """

    means: dict[str, tuple[Array, Array]] = struct.field(default_factory=dict)
    maxima: dict[str, Array] = struct.field(default_factory=dict)

    def merge(self, other: "Stats") -> "Stats":
        """Stats of both parts together; both must hold the same names."""
        means = {k: (s + other.means[k][0], w + other.means[k][1]) for k, (s, w) in self.means.items()}
        return Stats(means=means, maxima={k: jnp.maximum(v, other.maxima[k]) for k, v in self.maxima.items()})

    def reduce(self) -> dict[str, Array]:
        """One scalar a name; a mean over nothing is NaN, which is logged as absent."""
        means = {k: jnp.where(w > 0, safe_divide(s, w), jnp.nan) for k, (s, w) in self.means.items()}
        return {**means, **self.maxima}


# (trainable, micro-batch) -> ((sum, weight), stats)
Loss = Callable[[PyTree, PyTree], tuple[tuple[Array, Array], Stats]]


@dataclasses.dataclass(frozen=True)
class Through:
    """A loss that is trained through something all rows may read, such as the features of images.

    `make(trainable)` is computed once and differentiated once, by the chain rule, however the batch is split; `loss`
    gets (trainable, micro-batch, what was made).
    """

    make: Callable[[PyTree], PyTree]
    loss: Callable[[PyTree, PyTree, PyTree], tuple[tuple[Array, Array], Stats]]


def split_micro_batches(batch: PyTree, count: int) -> PyTree:
    """`[B, ...]` leaves -> `[count, B / count, ...]`. Raises ValueError where B is not a multiple of `count`.

    Part i has the rows i, i + count, ...: of neighbouring rows, which one device holds, each part gets its share.
    """
    rows = {x.shape[0] for x in jax.tree.leaves(batch)}
    if len(rows) != 1 or next(iter(rows)) % count:
        raise ValueError(f"batch of {sorted(rows)} rows does not split into {count} micro-batches")
    return jax.tree.map(lambda x: x.reshape(x.shape[0] // count, count, *x.shape[1:]).swapaxes(0, 1), batch)


def accumulate(
    loss: Loss | Through, trainable: PyTree, batch: PyTree, *, micro_batches: int
) -> tuple[PyTree, Array, Array, Stats]:
    """(gradient of the mean loss, loss sum, weight, stats) over all micro-batches of `batch`."""
    if isinstance(loss, Through):
        inner = loss.loss
        made, pull_back = jax.vjp(loss.make, trainable)
        (grads, of_made), value, weight, stats = _summed(
            lambda both, part: inner(both[0], part, both[1]), (trainable, made), batch, micro_batches
        )
        grads = jax.tree.map(jnp.add, grads, pull_back(of_made)[0])
    else:
        grads, value, weight, stats = _summed(loss, trainable, batch, micro_batches)
    return jax.tree.map(lambda g: safe_divide(g, weight), grads), value, weight, stats


def _summed(loss: Loss, trainable: PyTree, batch: PyTree, micro_batches: int) -> tuple[PyTree, Array, Array, Stats]:
    """(gradient of the loss sum, loss sum, weight, stats) over all micro-batches."""

    def one(micro: PyTree) -> tuple[PyTree, Array, Array, Stats]:
        def total(params: PyTree) -> tuple[Array, tuple[Array, Stats]]:
            (value, weight), stats = loss(params, micro)
            return value, (weight, stats)

        (value, (weight, stats)), grads = jax.value_and_grad(total, has_aux=True)(trainable)
        return grads, value, jnp.asarray(weight, jnp.float32), stats

    if micro_batches == 1:
        return one(batch)
    parts = split_micro_batches(batch, micro_batches)

    def add(carry: PyTree, micro: PyTree) -> tuple[PyTree, None]:
        new = one(micro)
        summed = jax.tree.map(jnp.add, carry[:3], new[:3])
        return (*summed, carry[3].merge(new[3])), None

    # From nothing, not from the first part: compiling the loss a second time would take minutes at 7B.
    shapes = jax.eval_shape(one, jax.tree.map(lambda x: x[0], parts))
    grads, value, weight, stats = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    stats = Stats(means=stats.means, maxima={k: jnp.full_like(v, -jnp.inf) for k, v in stats.maxima.items()})
    total, _ = jax.lax.scan(add, (grads, value, weight, stats), parts)
    return total


def update(
    loss: Loss | Through,
    trainable: PyTree,
    opt_state: optax.OptState,
    batch: PyTree,
    *,
    tx: optax.GradientTransformation,
    micro_batches: int,
) -> tuple[PyTree, optax.OptState, dict[str, Array]]:
    """One optimizer step; returns (trainable, optimizer state, metrics).

    Where nothing is trainable (weight 0) or the gradient is not finite, parameters and optimizer state stay as they
    were and `update/skipped` is 1.
    """
    grads, value, weight, stats = accumulate(loss, trainable, batch, micro_batches=micro_batches)
    norm = optax.global_norm(grads)
    good = (weight > 0) & jnp.isfinite(norm)
    updates, new_opt = tx.update(grads, opt_state, trainable)
    new = (optax.apply_updates(trainable, updates), new_opt)
    trainable, opt_state = jax.tree.map(lambda a, b: jnp.where(good, a, b), new, (trainable, opt_state))
    metrics = stats.reduce() | {
        "loss": safe_divide(value, weight),
        "loss/weight": weight,
        "grad_norm": norm,
        "update/skipped": 1.0 - good.astype(jnp.float32),
    }
    return trainable, opt_state, metrics
